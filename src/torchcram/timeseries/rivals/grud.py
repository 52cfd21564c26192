"""GRU-D: a recurrent network whose inputs and state fade while nothing is measured.

Z. Che, S. Purushotham, K. Cho, D. Sontag and Y. Liu, "Recurrent neural networks for multivariate time series with
missing values", Scientific Reports 8, 2018.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchcram.memory import RoutingPolicy
from torchcram.timeseries.batches import Batch
from torchcram.timeseries.network import Along, Answer, beside

_FIRST_DECAY = 0.01  # of a step: little is lost, and the gradient of max(0, ·) is not 0


class GruD(nn.Module):
    """GRU-D with statics beside the state that the answer is read from.

    With m = 1 where something was measured, δ the time since the channel's last measurement before now (or since the
    sample began) and γ = exp(−max(0, W δ + b)), W diagonal for inputs:

        x̂ = m x + (1 − m) (γ_x · last x + (1 − γ_x) · mean)        ĥ = γ_h h
        r, z = σ(W x̂ + V m + U ĥ + b)
        h ← (1 − z) ĥ + z tanh(W x̂ + V m + U (r ĥ) + b)
    """

    means: Tensor

    def __init__(
        self,
        *,
        channels: int,
        statics: int,
        classes: int,
        per_step: bool = False,
        hidden: int = 64,
        dropout: float = 0.3,
        means: Tensor | None = None,
        span: float = 1.0,
    ) -> None:
        """`means` [C] are what inputs fade to, of the training samples: 0 by default, as values are scaled.

        Decays are told times in multiples of `span`. The model stays the same, but weights of sums of long times need
        small steps: it learns best with the largest time of the training samples.
        """
        super().__init__()
        if means is not None and means.shape != (channels,):
            raise ValueError(f"means have shape {tuple(means.shape)}; expected ({channels},)")
        if not span > 0:
            raise ValueError(f"span is {span}; it must be positive")
        self.per_step = per_step
        self.span = span
        self.register_buffer("means", torch.zeros(channels) if means is None else means.clone())
        self.fade_weight = nn.Parameter(torch.zeros(channels))
        self.fade_bias = nn.Parameter(torch.full((channels,), _FIRST_DECAY))
        self.forget = nn.Linear(channels, hidden)
        nn.init.zeros_(self.forget.weight)
        nn.init.constant_(self.forget.bias, _FIRST_DECAY)
        self.inward = nn.Linear(2 * channels, 3 * hidden)
        """W, V and b of r, of z and of the new state."""
        self.gates = nn.Linear(hidden, 2 * hidden, bias=False)
        """U of r and of z."""
        self.renew = nn.Linear(hidden, hidden, bias=False)
        """U of the new state."""
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(hidden + 2 * statics, classes)

    def forward(self, batch: Batch, policy: RoutingPolicy | None = None) -> Answer:
        """Logits [B, K] after the last time stamp, or [B, N, K] after each; there is nothing to route."""
        states = self._states(batch)
        told = beside(batch.known_statics.to(states.dtype), states.shape[1])
        logits: Tensor = self.out(self.dropout(torch.cat([states, told], dim=-1)))
        if self.per_step:
            return Answer(logits)
        last = logits[torch.arange(len(logits), device=logits.device), batch.last]
        return Answer(last, along=Along(logits, batch.mask))

    def _states(self, batch: Batch) -> Tensor:
        """[B, N, hidden]: what is known after each time stamp."""
        measured = ~batch.values.isnan()
        last, since = _before(batch.values, batch.times / self.span, self.means)
        fade = torch.exp(-F.relu(since * self.fade_weight + self.fade_bias))
        values = torch.where(measured, batch.values.nan_to_num(), fade * last + (1 - fade) * self.means)
        # All that does not need the state is done for every time stamp at once.
        kept = torch.exp(-F.relu(self.forget(since)))
        inward = self.inward(torch.cat([values, measured.to(values.dtype)], dim=-1))
        hidden = kept.shape[-1]
        gates, renewed = inward.split([2 * hidden, hidden], dim=-1)
        state = kept.new_zeros(len(kept), hidden)
        states = []
        for keep, gate, new in zip(kept.unbind(1), gates.unbind(1), renewed.unbind(1), strict=True):
            state = keep * state
            reset, update = (gate + self.gates(state)).sigmoid().chunk(2, dim=-1)
            state = (1 - update) * state + update * (new + self.renew(reset * state)).tanh()
            states.append(state)
        return torch.stack(states, dim=1)


def _before(values: Tensor, times: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
    """[B, N, C] both: the last value before each time stamp, the mean if there is none, and how long ago it was."""
    place = torch.arange(values.shape[1], device=values.device)[:, None].expand_as(values)
    seen = torch.where(values.isnan(), -1, place).cummax(1).values
    before = torch.cat([torch.full_like(seen[:, :1], -1), seen[:, :-1]], dim=1)
    ever, before = before >= 0, before.clamp_min(0)
    now = times.unsqueeze(-1).expand_as(values)
    return torch.where(ever, values.nan_to_num().gather(1, before), means), now - now.gather(1, before)
