"""What the words of a command line mean: devices, lists, numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchcram.strict import reject


def prepare(device: str, *, tf32: bool = True) -> None:
    """Refuse a device that is not there. On a GPU, let float32 products use its matrix units (tf32), or not."""
    try:
        kind = torch.device(device).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda"):
        reject("device", device, "'cpu' or 'cuda'")
    if kind == "cuda":
        if not torch.cuda.is_available():
            reject("device", device, "'cpu', since there is no GPU here that torch can use")
        torch.set_float32_matmul_precision("high" if tf32 else "highest")


def numbers(option: str, text: str, least: int = 1) -> list[int]:
    """What an option lists."""
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) >= least for part in parts):
        reject(option, text, f"whole numbers from {least} on, separated by commas")
    return [int(part) for part in parts]


def machine(device: str) -> str | None:
    """The name of a GPU for result files; None for a CPU, which they describe by themselves."""
    return torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else None


def lists(option: str, given: Sequence[str]) -> dict[str, list[str]]:
    """`name=value,value` as names and the words they may be."""
    found: dict[str, list[str]] = {}
    for each in given:
        name, equals, words = each.partition("=")
        if not equals:
            raise ValueError(f"{option} {each!r} is not possible; allowed: name=value,value,…")
        if name in found:
            raise ValueError(f"{option} {name} is given twice; give all its values at once, separated by commas")
        found[name] = [word for word in words.split(",") if word]
    return found
