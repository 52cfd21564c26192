"""Documents and windows."""

import lzma

import pytest
import torch

from torchcram.pretrained import text


class Letters:
    """A token a letter."""

    def __init__(self, first=None):
        self.first = first

    def encode(self, words):
        return [ord(letter) for letter in words]

    def encode_all(self, texts):
        return map(self.encode, texts)


def test_documents_are_parted_by_lines_or_titles(tmp_path):
    (tmp_path / "novels.txt.xz").write_bytes(lzma.compress(b"one\n<|endoftext|>\ntwo\n<|endoftext|>\n"))
    assert [d.text for d in text.documents(tmp_path / "novels.txt.xz")] == ["one\n", "two\n"]
    (tmp_path / "wiki.raw").write_text(" \n = One = \n text \n = = Part = = \n more \n = Two = \n text \n", "utf-8")
    found = text.documents(tmp_path / "wiki.raw")
    assert [d.text for d in found] == [" = One = \n text \n = = Part = = \n more \n", " = Two = \n text \n"]
    assert [d.name for d in found] == ["wiki.raw:1", "wiki.raw:2"]
    (tmp_path / "crlf.txt").write_bytes(b"one\r\n<|endoftext|>\r\ntwo, not <|endoftext|> here\r\n<|endoftext|>")
    assert [d.text for d in text.documents(tmp_path / "crlf.txt")] == ["one\r\n", "two, not <|endoftext|> here\r\n"]
    (tmp_path / "plain.txt").write_text("only one", "utf-8")
    assert len(text.documents(tmp_path / "plain.txt")) == 1


def test_bad_files_are_told(tmp_path):
    for name, data, message in (
        ("empty.txt", b" \n", "empty.txt has no text in it"),
        ("bytes.txt", b"\xff\xfe", "bytes.txt is not text in UTF-8"),
        ("broken.txt.xz", b"nothing", "broken.txt.xz is damaged"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=message):
            text.documents(tmp_path / name)


def test_files_that_are_not_there_are_told_in_a_sentence(tmp_path):
    with pytest.raises(OSError, match=r"^there is no text file .*none.txt$"):
        text.documents(tmp_path / "none.txt")
    with pytest.raises(OSError, match=r"is a folder; give the text files in it one by one$"):
        text.documents(tmp_path)


def test_windows_stay_within_documents():
    documents = [text.Document("a", "abcdefg"), text.Document("b", "x"), text.Document("c", "hijklm")]
    found = text.windows(documents, Letters(), 3)
    assert ["".join(map(chr, row)) for row in found.tokens] == ["abc", "def", "hij", "klm"]
    assert found.owner.tolist() == [0, 0, 2, 2]
    led = text.windows(documents, Letters(first=0), 3)
    assert led.tokens[:, 0].unique().tolist() == [0]
    assert ["".join(map(chr, row[1:])) for row in led.tokens] == ["ab", "cd", "ef", "hi", "jk", "lm"]
    assert len(text.windows(documents, Letters(), 3, most=7)) == 2
    assert [batch.shape for batch in found.batches(3, "cpu")] == [torch.Size([3, 3]), torch.Size([1, 3])]


def test_a_limit_draws_from_all_documents():
    documents = [text.Document(str(number), chr(number) * 40) for number in range(1, 31)]
    whole = text.windows(documents, Letters(first=0), 5)
    found = text.windows(documents, Letters(first=0), 5, most=5 * 90)
    assert found.tokens.shape == (90, 5)
    assert (found.tokens[:, 1:] == found.owner[:, None] + 1).all()
    assert found.owner.bincount().tolist() == [3] * 30
    again, other = (whole.some(5 * 50, seed) for seed in (0, 1))
    assert torch.equal(whole.some(5 * 50).owner, again.owner)
    assert not torch.equal(again.owner, other.owner)
    numbered = text.Windows(torch.arange(300).view(300, 1), torch.zeros(300, dtype=torch.long))
    for most in (1, 7, 299, 300, 1000):
        drawn = numbered.some(most).tokens.flatten().tolist()
        assert drawn == sorted(set(drawn))
        assert len(drawn) == min(300, most)
    assert len(numbered.some(0)) == 1


def test_too_short_a_text_is_told():
    with pytest.raises(ValueError, match="no text is as long as one window of 9 tokens"):
        text.windows([text.Document("a", "abc")], Letters(), 9)
