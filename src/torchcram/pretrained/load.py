"""A pretrained model by name: from Hugging Face, a GGUF file, or one of llama2.c."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
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

    @property
    def vocabulary(self) -> int:
        """Tokens that it tells apart when it says what comes next."""
        own = isinstance(self.model, Own)
        return int(self.model.config.outputs[0].size if own else text_config(self.model).vocab_size)


def load(name: str | os.PathLike[str], *, step: int | None = None, device: torch.device | str = "cpu") -> Pretrained:
    """A model by a Hugging Face name or folder, or in a file: `.gguf`, or `.bin` of llama2.c with `tok*.bin` beside.

    A name that `fetch` knows is that model, once it was fetched; the folder of a run on text, the model it trained,
    as it was at a `step` of which there is a checkpoint (default: at the last). Weights that are not finite
    are an error.
    """
    path, way = Path(name), "get it again"
    if (path / "checkpoints").is_dir():
        made, way = _from_run(path, step, device), "take an earlier step of it, or train it again"
    elif step is not None:
        reject("step", step, "none but with the folder of a run")
    elif str(name) in SOURCES and not path.exists():
        made = _fetched(str(name))
        way = f"delete {folder(str(name))} and get it again with: torchcram fetch {name}"
    elif path.is_file():
        _transformers()
        made = _from_gguf(path) if path.suffix == ".gguf" else _from_llama2c(path)
    elif path.suffix in (".gguf", ".bin"):
        raise FileNotFoundError(f"there is no file {path}")
    else:
        made = _from_hub(name)
    for tensor, weight in made.model.named_parameters():
        if not torch.isfinite(weight).all():
            raise ValueError(f"{name} is damaged: tensor {tensor} has values that are not finite; {way}")
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


def _fetched(name: str) -> Pretrained:
    place = folder(name)
    if not place.is_dir():
        raise FileNotFoundError(f"{name} is not here yet; get it with: torchcram fetch {name}")
    return replace(_from_hub(place), name=name, note=SOURCES[name].about)


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
    with _quiet(transformers):
        try:
            model, told = transformers.AutoModelForCausalLM.from_pretrained(
                name, dtype=torch.float32, output_loading_info=True
            )
        except (OSError, ValueError, SafetensorError) as error:
            raise ValueError(
                f"{name} is neither a file nor a model that transformers can load: "
                f"{str(error).strip().splitlines()[0]} Give the name or folder of a decoder (GPT-2, Llama, Qwen, "
                "Gemma, …), a .gguf file, or a .bin of llama2.c"
            ) from error
        if missing := sorted(told["missing_keys"]):  # these would be random, and the warning of it is not shown
            raise ValueError(f"{name} is no whole decoder: it has no weights for {', '.join(missing[:3])}")
        tokenizer = _tokenizer(transformers, name)
    begins = tokenizer("a").input_ids[:1] == [tokenizer.bos_token_id]
    return Pretrained(str(name), model, Merges(tokenizer, tokenizer.bos_token_id if begins else None), "")


def _tokenizer(transformers: Any, name: str | os.PathLike[str]) -> Any:
    try:
        found = transformers.AutoTokenizer.from_pretrained(name)
        if set(found.get_vocab()) - set(found.all_special_tokens):  # without files, some are made of nothing
            return found
        why = None
    except (OSError, ValueError, ImportError) as error:
        why = error
    raise ValueError(
        f"{name} has no tokenizer that transformers can load, so no text can be made into tokens; save that of its "
        "model into the same folder: AutoTokenizer.from_pretrained(…).save_pretrained(folder). Some also need "
        "pip install sentencepiece"
    ) from why


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Errors tell what went wrong: no logs of attempts before, and no bars."""
    hub: Any = importlib.import_module("huggingface_hub.utils")
    logs = transformers.utils.logging
    levels = [(each, each.get_verbosity()) for each in (logs, hub.logging)]
    bars, hidden = logs.is_progress_bar_enabled(), hub.are_progress_bars_disabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of bars that a variable of the environment decides on
        logs.disable_progress_bar()
        hub.disable_progress_bars()
    for each, _ in levels:
        each.set_verbosity_error()
    try:
        yield
    finally:
        for each, level in levels:
            each.set_verbosity(level)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if bars:
                logs.enable_progress_bar()
            (hub.disable_progress_bars if hidden else hub.enable_progress_bars)()


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ValueError("this needs transformers; pip install 'torchcram[hf]'") from error
    return transformers
