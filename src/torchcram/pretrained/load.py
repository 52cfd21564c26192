"""A pretrained model by name: from Hugging Face, a GGUF file, or one of llama2.c."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from torchcram.files import digest
from torchcram.models import build
from torchcram.pretrained import gguf, llama, tokens
from torchcram.pretrained.fetch import SOURCES, folder
from torchcram.pretrained.sites import Own, text_config
from torchcram.pretrained.tokens import Bytes, Merges, Tokenizer
from torchcram.strict import reject
from torchcram.training import checkpoint
from torchcram.training.loop import Trainer
from torchcram.training.run import RunFolder


@dataclass(frozen=True, eq=False)
class Pretrained:
    """A model, and how text becomes its tokens."""

    name: str
    model: Any
    """Of Hugging Face, in evaluation mode."""
    tokenizer: Tokenizer
    note: str
    """What a reader of figures should know of it."""
    kind: str = ""
    """Of model, for one trained here: `transformer`, `cram`, …"""
    length: int = 0
    """Tokens of the sequences that it was trained on; 0 if that is not known."""

    def fresh(self) -> Any:
        """The same model with random weights."""
        own = isinstance(self.model, Own)
        made = Own(build(self.model.config)) if own else type(self.model)(self.model.config)
        return made.to(next(self.model.parameters())).eval().requires_grad_(False)

    @property
    def context(self) -> int:
        """The most tokens it was made for; 0 if it does not say."""
        return int(getattr(text_config(self.model), "max_position_embeddings", 0) or 0)


def load(name: str | os.PathLike[str], *, step: int | None = None, device: torch.device | str = "cpu") -> Pretrained:
    """A model by a Hugging Face name or folder, or in a file: `.gguf`, or `.bin` of llama2.c with `tok*.bin` beside.

    A name that `fetch` knows is that model, once it was fetched; the folder of a run on text, the model it trained,
    as it was at a `step` of which there is a checkpoint (default: at the last).
    """
    path = Path(name)
    if (path / "checkpoints").is_dir():
        return _from_run(path, step, device)
    if step is not None:
        reject("step", step, "none but with the folder of a run")
    _transformers()
    if str(name) in SOURCES and not path.exists():
        return _fetched(str(name), device)
    if path.is_file():
        made = _from_gguf(path) if path.suffix == ".gguf" else _from_llama2c(path)
    elif path.suffix in (".gguf", ".bin"):
        raise FileNotFoundError(f"there is no file {path}")
    else:
        made = _from_hub(name)
    made.model.to(device).eval().requires_grad_(False)
    return made


def checkpoints(name: str | os.PathLike[str]) -> list[int]:
    """Steps of a run of which there are checkpoints."""
    found = checkpoint.steps(RunFolder(name).checkpoints)
    if not found:
        raise ValueError(f"{os.fspath(name)} is not the folder of a run, or has no checkpoint")
    return found


def _from_run(path: Path, step: int | None, device: torch.device | str) -> Pretrained:
    folder = RunFolder(path)
    config = folder.config
    if config.task != "text":
        raise ValueError(f"{path} is a run on {config.task}; only runs on text can be probed")
    trainer = Trainer(config.override({"compile": False}), device)
    if not trainer.restore(folder.checkpoints, step):
        raise ValueError(f"{path} has no checkpoint")
    released = trainer.consolidator.released_at is not None
    model = Own(trainer.model.eval(), released=released).requires_grad_(False)
    note = f"{config.name}, {trainer.step:,} steps on text, by bytes"
    return Pretrained(path.resolve().name, model, Bytes(), note, config.name, trainer.task.length)


def _fetched(name: str, device: torch.device | str) -> Pretrained:
    place = folder(name)
    if not place.is_dir():
        raise FileNotFoundError(f"{name} is not here yet; get it with: torchcram fetch {name}")
    return replace(load(place, device=device), name=name, note=SOURCES[name].about)


def _from_gguf(path: Path) -> Pretrained:
    file = gguf.read(path)
    model = llama.build(*llama.from_gguf(file))
    found = digest(path)
    for name, known in SOURCES.items():
        if known.sha256 == found:  # what `fetch` would get, however it came here
            return Pretrained(name, model, tokens.from_gguf(file), known.about)
    kinds = sorted({place.kind.name for place in file.places.values() if place.kind.weights > 1})
    return Pretrained(path.stem, model, tokens.from_gguf(file), f"weights of {', '.join(kinds)}" if kinds else "")


def _from_llama2c(path: Path) -> Pretrained:
    shape, weights = llama.from_llama2c(path)
    beside = path.with_name(f"tok{shape.vocabulary}.bin")
    if not beside.exists():
        raise FileNotFoundError(f"{path} needs its vocabulary beside it: {beside.name}")
    return Pretrained(path.stem, llama.build(shape, weights), tokens.read_pieces(beside, shape.vocabulary), "")


def _from_hub(name: str | os.PathLike[str]) -> Pretrained:
    transformers = _transformers()
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
        tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(
            f"{name} is neither a file nor a model that transformers can load: {str(error).strip().splitlines()[0]} "
            "Give the name or folder of a decoder (GPT-2, Llama, Qwen, Gemma, …), a .gguf file, or a .bin of llama2.c"
        ) from error
    begins = tokenizer("a").input_ids[:1] == [tokenizer.bos_token_id]
    return Pretrained(str(name), model, Merges(tokenizer, tokenizer.bos_token_id if begins else None), "")


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ValueError("this needs transformers; pip install 'torchcram[hf]'") from error
    return transformers
