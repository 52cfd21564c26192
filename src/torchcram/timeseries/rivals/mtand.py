"""mTAND: attention from fixed points in time to the measurements of each channel.

S. N. Shukla and B. M. Marlin, "Multi-time attention networks for irregularly sampled time series", ICLR 2021. This is
mTAND-Enc, the encoder with a classifier and without a decoder.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from torchcram.memory import RoutingPolicy
from torchcram.timeseries.batches import Batch
from torchcram.timeseries.network import Answer, beside

_FLOOR = -60.0  # weights are at least e^-60 of the largest, so that no channel's sum of them vanishes in float32
_WIDTH = 300  # of the classifier's layers, as in the authors' code


class Mtand(nn.Module):
    """mTAND-Enc with statics beside the state that the answer is read from.

    A time t is embedded as φ(t) = (a t + b, sin(ω t + α)) with learned a, b, ω, α. For a query time q, head h and
    channel c, with sums over the time stamps at which c was measured:

        x̂ = Σ κ x / Σ κ,        κ = exp(⟨W φ(q), V φ(t)⟩ / √d)

    These, and whether a channel was measured at all, are mixed linearly and read by a GRU in the order of q. Queries
    are evenly spaced times and the last state answers. For an answer at each time stamp, queries are the time stamps
    themselves and every state answers, as in the authors' code for the activity data: such a state has seen what was
    measured later.
    """

    reference: Tensor

    def __init__(
        self,
        *,
        channels: int,
        statics: int,
        classes: int,
        span: float,
        per_step: bool = False,
        hidden: int = 128,
        embedding: int = 128,
        heads: int = 4,
        reference: int = 128,
        dropout: float = 0.0,
    ) -> None:
        """`span` is the largest time of the training samples, in the unit of the batches."""
        super().__init__()
        if not span > 0:
            raise ValueError(f"span is {span}; it must be positive")
        if embedding % heads or embedding < 2:
            raise ValueError(f"embedding is {embedding}; it must be a multiple of heads, {heads}, and at least 2")
        self.per_step = per_step
        self.span = span
        self.heads = heads
        self.register_buffer("reference", torch.linspace(0, 1, reference))
        self.trend = nn.Linear(1, 1)
        self.waves = nn.Linear(1, embedding - 1)
        self.query = nn.Linear(embedding, embedding)
        self.key = nn.Linear(embedding, embedding)
        self.mix = nn.Linear((heads + 1) * channels, hidden)
        self.recurrent = nn.GRU(hidden, hidden, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        told = hidden + 2 * statics
        self.out: nn.Module = nn.Linear(told, classes)
        if not per_step:
            self.out = nn.Sequential(
                nn.Linear(told, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, classes)
            )

    def forward(self, batch: Batch, policy: RoutingPolicy | None = None) -> Answer:
        """Logits [B, K], or [B, N, K] for an answer a time stamp; there is nothing to route."""
        times = batch.times / self.span
        states, last = self.recurrent(self._attended(batch, times))
        hidden = states if self.per_step else last.squeeze(0)
        statics = batch.known_statics.to(hidden.dtype)
        told = beside(statics, hidden.shape[1]) if self.per_step else statics
        logits: Tensor = self.out(self.dropout(torch.cat([hidden, told], dim=-1)))
        return Answer(logits)

    def _attended(self, batch: Batch, times: Tensor) -> Tensor:
        """[B, queries, hidden]: what attention finds for each query."""
        measured = ~batch.values.isnan()
        shown = measured.to(batch.values.dtype)
        keys = self._split(self.key(self._embedded(times)))
        queries = self._split(self.query(self._embedded(times if self.per_step else self.reference[None])))
        scores = queries @ keys.transpose(-2, -1) / math.sqrt(keys.shape[-1])
        scores = scores.masked_fill(~batch.mask[:, None, None], -torch.inf)
        weights = (scores - scores.amax(-1, keepdim=True).detach()).clamp_min(_FLOOR).exp()
        # Weights do not depend on the channel, only which of them count: two sums give every channel's softmax.
        sums = weights @ torch.cat([batch.values.nan_to_num(), shown], dim=-1).unsqueeze(1)
        total, share = sums.chunk(2, dim=-1)
        found = (total / torch.where(share > 0, share, 1)).transpose(1, 2).flatten(2)
        ever = measured.any(1, keepdim=True).to(found.dtype).expand(-1, found.shape[1], -1)
        mixed: Tensor = self.mix(torch.cat([found, ever], dim=-1))
        return mixed

    def _embedded(self, times: Tensor) -> Tensor:
        """times [B, N] to [B, N, embedding]."""
        each = times.unsqueeze(-1)
        return torch.cat([self.trend(each), self.waves(each).sin()], dim=-1)

    def _split(self, of_times: Tensor) -> Tensor:
        """[B, N, embedding] to [B, heads, N, embedding / heads]."""
        return of_times.view(*of_times.shape[:2], self.heads, -1).transpose(1, 2)
