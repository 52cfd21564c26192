"""What a decoder's step has before its first layer and after its last, in a GPU kernel each."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from torchcram.memory import CramState, Timeline
from torchcram.models.cram import Cram
from torchcram.models.inputs import Batch
from torchcram.ops.step import GROUP, Clock, Entry, Exit, Standing, begin, finish


class Ends:
    """From a token of each sequence to x, and from the last x to predictions; the clock goes on in between.

    Nothing but x and the predictions is made in a step, and it waits for nothing, so it can be recorded.
    """

    def __init__(self, model: Cram, state: CramState, counts: Tensor) -> None:
        """`state` and `counts` (see `Decoder.ledger`) are what steps change."""
        encoder, norm = model.encoder, model.norm
        (table,) = encoder.tokens.values()
        (output,) = model.heads.outputs
        head = cast(nn.Linear, model.heads.maps[f"{output.name}_head"])
        self._name = output.name
        self._entry = Entry(
            cast(nn.Embedding, table).weight,
            encoder.gap.weight,
            encoder.gap.bias,
            encoder.frequencies,
            model.config.time_unit,
        )
        # The least that norms add is of what they are computed in.
        eps = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
        self._exit = Exit(norm.weight, head.weight, head.bias, eps)
        self._standing = Standing(state.position, state.time, counts)
        batch, place = len(state.position), state.position.device
        self._now = Timeline(
            gap=torch.zeros(batch, 1, device=place),
            log_gap=torch.zeros(batch, 1, device=place),
            mask=torch.ones(batch, 1, dtype=torch.bool, device=place),
            start=torch.zeros(batch, 1, dtype=torch.bool, device=place),
            position=torch.zeros(batch, 2, dtype=torch.int64, device=place),
            packed=False,
            padded=True,
            time=torch.zeros(batch, 1, dtype=torch.float64, device=place),
        )
        self._clock = Clock(*(getattr(self._now, name) for name in Clock._fields))

    @staticmethod
    def suits(model: Cram) -> bool:
        """Whether there are kernels for the ends of a model whose layers have them."""
        inputs, width = model.config.inputs, model.norm.weight.shape[0]
        dtypes = {x.dtype for x in model.parameters()}
        return (
            len(inputs.tokens) == 1
            and not inputs.channels
            and inputs.frequencies > 0
            and len(model.heads.outputs) == 1
            and not model.heads.pools
            and width % GROUP == 0
            and len(dtypes) == 1
            and all(x.is_contiguous() for x in model.parameters())
        )

    def begin(self, batch: Batch) -> tuple[Tensor, Timeline, Tensor]:
        """What the first layer is given [B, 1, D], when, and its `ops.step.squares`."""
        (tokens,) = batch.tokens.values()
        mask = torch.ones_like(batch.dt, dtype=torch.bool) if batch.mask is None else batch.mask
        tokens, dt, mask = (x.contiguous() for x in (tokens, batch.dt, mask))
        x, squares = begin(tokens, dt, mask, self._standing, self._entry, self._clock)
        return x.unsqueeze(1), self._now, squares

    def finish(self, x: Tensor, squares: Tensor, tally: Tensor) -> dict[str, Tensor]:
        """Predictions from the last x [B, 1, D], of which parts of |x|² are known; tally [L, 3, B]: what layers did."""
        return {self._name: finish(x.squeeze(1), squares, self._clock, tally, self._standing, self._exit)}
