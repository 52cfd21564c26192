"""Which recurring patterns still read, step by step: the raw material of practice curves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from torchcram import processes
from torchcram.files import replacing
from torchcram.training.distributed import World


class Decisions:
    """For each training step and pattern: how often it was asked for, and how often that query read (in any layer).

    Kept on the device until saved, so that recording makes nothing wait. A folder of them holds one file per stretch of
    steps between two checkpoints; a stretch that was trained again after a crash replaces what it had.
    """

    def __init__(self, patterns: int, device: torch.device) -> None:
        self.patterns = patterns
        self.device = device
        self._steps: list[int] = []
        self._counts: list[Tensor] = []

    def record(self, step: int, pattern: Tensor, routing: Tensor) -> None:
        """pattern [B, N]: which one a position asks for, or -1; routing [B, N, L]: the actions taken."""
        spare = self.patterns  # takes all other positions
        place = torch.where(pattern >= 0, pattern, spare).flatten()
        read = (routing == 1).any(-1).flatten()
        counts = torch.zeros(2, spare + 1, dtype=torch.int32, device=self.device)
        counts.index_add_(1, place, torch.stack([torch.ones_like(read), read]).int())
        self._steps.append(step)
        self._counts.append(counts[:, :spare])

    def save(self, folder: Path, world: World | None = None) -> None:
        """Write what was recorded since the last time, all processes together."""
        if not self._counts:
            return
        recorded, counts = torch.tensor(self._steps), torch.stack(self._counts)
        if world is None:
            _write(folder, recorded, counts)
        else:
            with world.sharing():
                counts = processes.total(counts)
            with world.together():
                if world.first:
                    _write(folder, recorded, counts)
        self._steps, self._counts = [], []


def _write(folder: Path, steps: Tensor, counts: Tensor) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    first = int(steps[0])
    asked, read = counts.cpu().unbind(1)
    with replacing(folder / f"step-{first:08d}.safetensors") as temporary:
        save_file({"step": steps, "asked": asked.contiguous(), "read": read.contiguous()}, temporary)
    for path in folder.glob("step-*.safetensors"):
        if int(path.stem.removeprefix("step-")) > first:
            path.unlink()


def load_decisions(folder: str | os.PathLike[str]) -> dict[str, Tensor]:
    """All that a run recorded: `step` [S], `asked` and `read` [S, patterns], in the order of steps."""
    parts = list(_parts(Path(folder)))
    if not parts:
        raise ValueError(f"{folder} holds no decisions; allowed: `checkpoints/decisions` of a run")
    return {name: torch.cat([part[name] for part in parts]) for name in ("step", "asked", "read")}


def _parts(folder: Path) -> Iterator[dict[str, Tensor]]:
    """Each file, without the steps that a later one has again."""
    paths = sorted(folder.glob("step-*.safetensors"))
    starts = [int(path.stem.removeprefix("step-")) for path in paths]
    for path, end in zip(paths, [*starts[1:], 1 << 62], strict=False):
        part = load_file(path)
        keep = part["step"] < end
        yield {name: value[keep] for name, value in part.items()}
