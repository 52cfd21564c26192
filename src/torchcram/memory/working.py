"""Working memory: a continuous-time expert that runs on every token, in O(1)."""

import torch
from torch import Tensor, nn

from torchcram.config import WorkingConfig
from torchcram.memory.joint import Map
from torchcram.memory.precision import wide
from torchcram.memory.timeline import Timeline
from torchcram.ops import Given, euler_steps, expert


class WorkingMemory(nn.Module):
    """A decaying state, exact in Δτ, refined by K Euler steps (eq. 2).

    s_t = exp(-softplus(Λ) Δτ_t / τ₀) ⊙ s_{t-1} + b ⊙ W_s u_t, then from h = s_t, K times,
    h ← h + σ(W_τ log(1 + Δτ_t)) ⊙ tanh(W_1 h + W_2 u_t) / K, and W_o h goes to the residual stream.
    """

    NARROW, WIDE = ("recurrent",), ("inward",)
    """See `precision.narrowly`: b is put into the weights of `inward` before they are narrow."""

    def __init__(self, width: int, config: WorkingConfig) -> None:
        super().__init__()
        self.config = config
        # W_s and W_2 read the same input: one product, then split.
        self.inward = nn.Linear(width, 2 * width)
        self.recurrent = nn.Parameter(torch.empty(width, width))
        self.gate_weight = nn.Parameter(torch.zeros(width))
        self.gate_bias = nn.Parameter(torch.zeros(width))
        self.outward = nn.Linear(width, width, bias=False)
        nn.init.xavier_uniform_(self.recurrent)

        # Decay times spread evenly on a log scale; b keeps the state's variance near 1 at gaps of one unit.
        times = torch.logspace(0, 1, width, base=config.slowest / config.fastest) * config.fastest
        rate = 1 / times
        self.rate = nn.Parameter(rate + torch.log(-torch.expm1(-rate)))  # inverse of softplus
        self.strength = nn.Parameter(torch.sqrt(-torch.expm1(-2 * rate)))

    @property
    def of_token(self) -> Map:
        """b ⊙ W_s and W_2: b is put into the weights once, rather than to W_s u at each position."""
        scale = torch.cat([self.strength, torch.ones_like(self.strength)])
        return Map(scale.unsqueeze(1) * self.inward.weight, scale * self.inward.bias)

    def forward(self, u: Tensor, timeline: Timeline, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """u [B, N, D], state [B, D]. Returns the output and h^(K), both [B, N, D], and the next state [B, D]."""
        h, state, _ = self.advance(u, timeline, state)
        return self.outward(h), h, state

    def advance(self, u: Tensor, timeline: Timeline, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """h and the next state without the output, for those who multiply h by other weights too; and |h|²/D [B, N].

        The state is kept in float32 at least: what comes in slowly would be lost in less.
        """
        weight, bias = self.of_token
        log_gap = timeline.log_gap.to(u.dtype)
        if self.config.carry == "scan":
            rate = nn.functional.softplus(self.rate)
            # With padding a bias is not in all of it, and learns by what it was added to.
            apart = None if timeline.padded else bias
            into = Map(weight, bias if apart is None else apart.detach())(u)
            given = Given(
                into=timeline.clean(into),
                rate=rate,
                gap=timeline.gap.to(rate.dtype),
                reset=timeline.start,
                initial=state,
                log_gap=log_gap,
                gate_weight=self.gate_weight,
                gate_bias=self.gate_bias,
                weight=self.recurrent,
                bias=apart,
            )
            h, state, square = expert(given, self.config.steps)
        else:
            start, drive = Map(weight, bias)(u).chunk(2, dim=-1)
            gate = torch.sigmoid(torch.addcmul(self.gate_bias, self.gate_weight, log_gap.unsqueeze(-1)))
            h = euler_steps(start, drive, gate, self.recurrent, self.config.steps)
            square = wide(h.detach()).square().mean(-1)
        return h, state, square
