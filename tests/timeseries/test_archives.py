"""Files of a data set: read whole and as they are, or refused with a reason."""

import gzip
import hashlib
import io
import tarfile
import zipfile

import pytest

from torchcram import files
from torchcram.timeseries import archives

FILES = {"set/1.txt": b"one\n", "set/deep/2.txt": b"two " * 500}


def tar(path, files=FILES, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def zipped(path, files=FILES):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def folder(path, files=FILES):
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


@pytest.mark.parametrize(
    "make",
    [tar, zipped, folder, lambda path: tar(path, mode="w"), lambda path: tar(path, mode="w:xz")],
    ids=["tar.gz", "zip", "folder", "tar", "tar.xz"],
)
def test_every_file_comes_with_its_name(tmp_path, make):
    found = {str(name): data for name, data in archives.members(make(tmp_path / "archive"))}
    assert found == FILES


def test_folders_in_archives_are_passed_over(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        member = tarfile.TarInfo("set")
        member.type = tarfile.DIRTYPE
        archive.addfile(member)
    assert list(archives.members(tmp_path / "a.tar")) == []
    zipped(tmp_path / "a.zip", {"set/": b"", "set/1": b"x"})
    assert [str(name) for name, _ in archives.members(tmp_path / "a.zip")] == ["set/1"]


@pytest.mark.parametrize("make", [tar, zipped])
@pytest.mark.parametrize("name", ["../outside.txt", "set/../../outside.txt", "/outside.txt", "set\\..\\outside.txt"])
def test_names_that_lead_outside_are_refused(tmp_path, make, name):
    with pytest.raises(ValueError, match="leads outside the archive; it is not read"):
        list(archives.members(make(tmp_path / "archive", {"set/1.txt": b"", name: b"bad"})))
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(tmp_path, kind):
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo("set/1.txt")
        member.type, member.linkname = kind, "elsewhere"
        archive.addfile(member)
    with pytest.raises(ValueError, match=r"holds set/1.txt, a link or a device"):
        list(archives.members(path))


@pytest.mark.parametrize("make", [tar, zipped])
def test_files_beyond_any_reason_are_refused(tmp_path, make, monkeypatch):
    monkeypatch.setattr(archives, "LARGEST", 1999)
    with pytest.raises(ValueError, match=r"2.txt of 2,000 bytes, more than 1,999"):
        list(archives.members(make(tmp_path / "archive")))


@pytest.mark.parametrize("mode", ["w:gz", "w:xz", "w"])
def test_a_tar_archive_cut_short_is_never_taken_for_a_whole_one(tmp_path, mode):
    """Wherever it ends: in a file, in what tells of the next one, or between the two."""
    files = {f"{number}.txt": bytes(range(number, 200)) for number in range(20)}
    whole = tar(tmp_path / "whole", files, mode).read_bytes()
    last = len(whole) - 100 if mode != "w" else 20 * 1024  # what comes after only fills up the last block
    for end in [*range(10, last, 101 if mode != "w" else 256), last]:
        (tmp_path / "cut").write_bytes(whole[:end])
        with pytest.raises(ValueError, match="damaged or cut short"):
            list(archives.members(tmp_path / "cut"))


def test_a_zip_archive_cut_short_is_refused(tmp_path):
    whole = zipped(tmp_path / "whole").read_bytes()
    for end in (len(whole) // 2, len(whole) - 10):
        (tmp_path / "cut").write_bytes(whole[:end])
        with pytest.raises(ValueError, match="damaged or cut short"):
            list(archives.members(tmp_path / "cut"))


def test_a_zip_archive_with_a_changed_byte_is_refused(tmp_path):
    path = zipped(tmp_path / "a.zip")
    data = bytearray(path.read_bytes())
    data[data.index(b"set/deep/2.txt") + 16] ^= 255
    path.write_bytes(data)
    with pytest.raises(ValueError, match="damaged or cut short"):
        list(archives.members(path))


def test_content_is_unpacked_if_its_name_says_so(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"plain")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"packed"))
    assert archives.content(tmp_path / "a.txt") == b"plain"
    assert archives.content(tmp_path / "a.txt.gz") == b"packed"
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"packed" * 99)[:-9])
    (tmp_path / "not.gz").write_bytes(b"plain")
    for name in ("cut.gz", "not.gz"):
        with pytest.raises(ValueError, match=rf"{name} is damaged or cut short"):
            archives.content(tmp_path / name)


def test_text_is_utf8_with_or_without_a_mark():
    assert archives.text("°C".encode(), "a") == "°C"
    assert archives.text(b"\xef\xbb\xbfTime", "a") == "Time"
    with pytest.raises(ValueError, match=r"a.txt is not UTF-8 text"):
        archives.text("°C".encode("latin-1"), "a.txt")


def test_lines_come_one_at_a_time(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfx,y\r\n1,2\n")
    assert list(archives.lines(tmp_path / "a.csv")) == ["x,y\r\n", "1,2\n"]
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + b"x\n" * 3))
    assert list(archives.lines(tmp_path / "a.csv.gz")) == ["x\n"] * 3
    (tmp_path / "bad.csv").write_bytes(b"x\n\xb0\n")
    with pytest.raises(ValueError, match=r"bad.csv is not UTF-8 text"):
        list(archives.lines(tmp_path / "bad.csv"))
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"x\n" * 999)[:-9])
    with pytest.raises(ValueError, match=r"cut.csv.gz is damaged or cut short"):
        list(archives.lines(tmp_path / "cut.csv.gz"))


def test_the_first_of_the_names_is_found(tmp_path):
    (tmp_path / "b").write_text("")
    told = {"what": "the letters", "described": "example.org"}
    assert archives.find(tmp_path, ("a", "b"), **told) == tmp_path / "b"
    (tmp_path / "a").write_text("")
    assert archives.find(tmp_path, ("a", "b"), **told) == tmp_path / "a"
    with pytest.raises(ValueError, match=r"has no c or d: the letters, described at example.org"):
        archives.find(tmp_path, ("c", "d"), **told)
    with pytest.raises(ValueError, match=r"nowhere is not a folder; it should hold the letters \(example.org\)"):
        archives.find(tmp_path / "nowhere", ("a",), **told)


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_a_file_that_is_not_the_official_one_is_told_of(tmp_path, kind):
    path = tmp_path / "a.txt"
    path.write_bytes(b"official")
    official = {"a.txt": hashlib.new(kind, b"official").hexdigest()}
    archives.check(path, official)
    archives.check(tmp_path / "b.txt", official)  # nothing is known of it: not even read
    path.write_bytes(b"changed")
    with pytest.warns(UserWarning, match=r"a.txt is not, byte for byte, the official file"):
        archives.check(path, official)


def test_a_digest_is_that_of_the_content(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 5000)
    assert files.digest(tmp_path / "a") == hashlib.sha256(b"x" * 5000).hexdigest()
