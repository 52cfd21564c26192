"""When and where each position of a call stands in its own sequence."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchcram.ops import previous


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The clock of one call, shared by all layers."""

    gap: Tensor
    """[B, N]: time since the position before, in units of τ₀; 0 at padding, which takes no time."""
    log_gap: Tensor
    """[B, N]: log(1 + Δτ); every layer asks for it."""
    mask: Tensor
    """[B, N]: True = real, False = padding."""
    start: Tensor
    """[B, N]: True where a new sequence begins and everything before is forgotten."""
    position: Tensor
    """[B, N + 1]: real positions of the same sequence before each one; the last column is for the next call."""
    packed: bool
    """Whether the call says where sequences start."""
    padded: bool
    """Whether the call says where padding is."""
    time: Tensor
    """[B, N]: time since the sequence began, in units of τ₀, float64 (float32 loses small gaps in long streams)."""

    @classmethod
    def build(
        cls,
        dt: Tensor,
        *,
        mask: Tensor | None = None,
        start: Tensor | None = None,
        position: Tensor | None = None,
        time: Tensor | None = None,
        after: Timeline | None = None,
        unit: float = 1.0,
    ) -> Timeline:
        """From gaps dt [B, N], in whatever time `unit` says is one τ₀.

        A call that goes on from an earlier one says so: `after` is that call's timeline, or `position` and `time` [B]
        tell where the sequences stand (default: at their beginning).
        """
        if after is not None:
            position, time = after.position[:, -1], after.time[:, -1]
        batch, length = dt.shape
        packed, padded = start is not None, mask is not None
        mask = torch.ones_like(dt, dtype=torch.bool) if mask is None else mask
        start = torch.zeros_like(mask) if start is None else start
        position = torch.zeros(batch, dtype=torch.int64, device=dt.device) if position is None else position
        time = torch.zeros(batch, dtype=torch.float64, device=dt.device) if time is None else time
        gap = torch.where(mask, dt / unit, 0)

        # Counts from the beginning of the call, less what they were at the latest start, if there was one.
        elapsed, here = gap.double().cumsum(1), torch.arange(length, device=dt.device)
        count = torch.nn.functional.pad(mask.cumsum(1), (1, 0))[:, :-1] if padded else here
        position_here, time_here = count + position.unsqueeze(1), elapsed + time.unsqueeze(1)
        if packed:
            latest = torch.where(start, here, -1).cummax(1).values
            began = latest >= 0
            latest = latest.clamp_min(0)
            position_here = torch.where(began, count - count.expand(batch, length).gather(1, latest), position_here)
            before_start = elapsed.gather(1, latest) - gap.double().gather(1, latest)
            time_here = torch.where(began, elapsed - before_start, time_here)
        next_position = position_here[:, -1:] + mask[:, -1:]
        return cls(
            gap=gap,
            log_gap=gap.log1p(),
            mask=mask,
            start=start,
            position=torch.cat([position_here, next_position], dim=1),
            packed=packed,
            padded=padded,
            time=time_here,
        )

    @classmethod
    def single(cls, dt: Tensor, mask: Tensor | None, position: Tensor, time: Tensor, unit: float = 1.0) -> Timeline:
        """One more position dt [B, 1] of sequences that stand at `position` and `time` [B]."""
        real = torch.ones_like(dt, dtype=torch.bool) if mask is None else mask
        gap = torch.where(real, dt / unit, 0)
        return cls(
            gap=gap,
            log_gap=gap.log1p(),
            mask=real,
            start=torch.zeros_like(real),
            position=torch.stack([position, position + real.squeeze(1)], dim=1),
            packed=False,
            padded=mask is not None,
            time=time.unsqueeze(1) + gap.double(),
        )

    def last(self) -> tuple[Tensor, Timeline]:
        """Where the last real position of each sequence of the call is [B, 1], 0 if it has none; and that alone."""
        here = torch.arange(self.mask.shape[1], device=self.mask.device)
        at = torch.where(self.mask, here, 0).amax(1, keepdim=True)
        gap, log_gap, mask, start, time = (
            x.gather(1, at) for x in (self.gap, self.log_gap, self.mask, self.start, self.time)
        )
        position = torch.cat([self.position.gather(1, at), self.position[:, -1:]], dim=1)
        alone = Timeline(
            gap=gap,
            log_gap=log_gap,
            mask=mask,
            start=start,
            position=position,
            packed=self.packed,
            padded=self.padded,
            time=time,
        )
        return at, alone

    def clean(self, x: Tensor) -> Tensor:
        """x [B, N, ...] with 0 at padding: whatever stands there, even NaN, must not matter."""
        return x.masked_fill(~self.mask.view(*self.mask.shape, *(1,) * (x.dim() - 2)), 0) if self.padded else x

    def previous(self, x: Tensor, carried: Tensor) -> tuple[Tensor, Tensor]:
        """The entries of x [B, N, D] before each position, and those to carry on; see `ops.previous`."""
        if not self.padded and not self.packed:
            depth, length = carried.shape[1], x.shape[1]
            entries = torch.cat([carried.flip(1), x], dim=1)
            before = [entries[:, depth - back : depth - back + length] for back in range(1, depth + 1)]
            # Of the last of x, where there are enough: so that `entries` need not be kept where this is compiled.
            last = x[:, length - depth :].to(entries.dtype) if length >= depth else entries[:, length:]
            return torch.stack(before, dim=2), last.flip(1)
        return previous(x, carried, self.mask, self.position)
