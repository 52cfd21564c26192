"""The consolidation-aware router: which memory does a token use?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from torchcram.config import RouterConfig
from torchcram.draws import Draws
from torchcram.ops import gumbel, route

NONE, EPISODIC, SEMANTIC = 0, 1, 2
"""The actions, in the paper's order: working memory alone, episodic read, semantic recall."""

_STREAM = 1 << 16  # of a `Draws`: far from the streams that a task draws its data from
_CHOICE, _AUDIT, _SKIP, _NUMBERS = slice(3), 3, 4, 5  # the random numbers of a token in a layer


_HEED = 0.8  # of the tokens that a contradiction index would have read, in training


@dataclass(frozen=True, kw_only=True)
class RoutingPolicy:
    """How a call chooses its actions. The default is what the router decides, with nothing random at evaluation."""

    reads: Literal["routed", "dense", "off"] = "routed"
    """`routed`: the router chooses; `dense`: every token reads; `off`: no token uses a read (with
    `quality="exact"` reads are computed all the same, since the router needs them)."""
    skip: float = 0.0
    """With `dense`: share of the tokens, chosen at random, that do not read (in any layer)."""
    temperature: float = 1.0
    """Of the Gumbel-softmax gradient in training."""
    audit: float = 0.0
    """Share of the tokens that would not read whose read is computed all the same, to learn from."""
    halve: float = 0.0
    """In training, where a contradiction index learns from it: share of the reads of which only half is used."""
    scored: Tensor | float | None = None
    """In training: the positions that the loss to be differentiated is a mean of; with it, what reads are worth can be
    told in nats."""
    keep_all: bool = False
    """No event is evicted, however small the buffer: so a model learns what is worth keeping. Leaves no state."""
    generator: torch.Generator | None = None
    """For everything random; None uses torch's own."""
    draws: Draws | None = None
    """Random numbers by counting instead: the same for these rows in whatever process, on whatever device. A sequence
    fed in parts needs another `step` for each."""
    actions: Tensor | None = None
    """[B, N, L] int: use these actions instead of choosing; they win over `reads`."""

    def __post_init__(self) -> None:
        if self.reads not in ("routed", "dense", "off"):
            raise ValueError(f"reads = {self.reads!r} is not possible; allowed: 'routed', 'dense', 'off'")
        if not 0 <= self.skip <= 1:
            raise ValueError(f"skip = {self.skip!r} is not possible; allowed: a share from 0 to 1")
        if not self.temperature > 0:
            raise ValueError(f"temperature = {self.temperature!r} is not possible; allowed: a number above 0")
        for name in ("audit", "halve"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} = {getattr(self, name)!r} is not possible; allowed: a share from 0 to 1")

    def noise(self, batch: int, length: int, layers: int = 1) -> tuple[Tensor | None, ...]:
        """Uniform numbers [B, N, 5] for each layer, made in one go, since many small draws keep a GPU waiting.

        None for each without `draws`.
        """
        if self.draws is None:
            return (None,) * layers
        if len(self.draws.rows) != batch:
            raise ValueError(f"policy.draws is for {len(self.draws.rows)} sequences, the input has {batch}")
        numbers = self.draws.uniform(_STREAM, layers * length * _NUMBERS)
        return numbers.view(batch, layers, length, _NUMBERS).unbind(1)

    def skips(self, mask: Tensor, noise: Tensor | None) -> Tensor:
        """Which tokens [B, N] do not read under `dense`; noise as `noise` returns it."""
        return self._uniform(mask, noise, _SKIP) < self.skip

    def audits(self, mask: Tensor, noise: Tensor | None) -> Tensor:
        """Which tokens [B, N] to audit if they do not read."""
        return self.chances(mask, noise) < self.audit

    def halves(self, mask: Tensor, noise: Tensor | None) -> Tensor:
        """Which tokens [B, N] are to use half of their read only."""
        return self._uniform(mask, noise, _SKIP) < self.halve

    def heeds(self, mask: Tensor, noise: Tensor | None) -> Tensor:
        """Which tokens [B, N] heed the contradiction index in training; the others keep the router in practice."""
        return self._uniform(mask, noise, _SKIP) < _HEED

    def chances(self, mask: Tensor, noise: Tensor | None) -> Tensor:
        """A random number from 0 to 1 for each token [B, N]: the lowest are audited."""
        return self._uniform(mask, noise, _AUDIT)

    def gumbel(self, logits: Tensor, noise: Tensor | None) -> Tensor:
        """Gumbel noise of the shape of the logits [B, N, 3]."""
        if noise is None:
            return gumbel(logits, self.generator)
        return -(-noise[..., _CHOICE].log()).log().to(logits.dtype)  # finite: float64 keeps them off 0 and 1

    def _uniform(self, mask: Tensor, noise: Tensor | None, number: int) -> Tensor:
        if noise is None:
            return torch.rand(mask.shape, generator=self.generator, device=mask.device)
        return noise[..., number]


class Decision(NamedTuple):
    """What the router chose for each token."""

    actions: Tensor
    """[B, N] int64; `NONE` at padding."""
    weights: Tensor
    """[B, N, 3]: one-hot, with the gradient of the soft choice."""
    probabilities: Tensor
    """[B, N, 3]: π, without noise."""
    audited: Tensor
    """[B, N] bool: a read to compute although the token does not use it."""
    untaken: Untaken | None = None
    """What could have been, for a contradiction index to learn from; None where nothing learns from it."""


class Untaken(NamedTuple):
    """What tokens might have done, in training."""

    halved: Tensor
    """[B, N] bool: a read of which the token uses half, and half of what it would do instead."""
    instead: Tensor
    """[B, N] int64: what each token does or would do without a read."""
    wanted: Tensor
    """[B, N] bool: the router would have it read, whatever the policy or a contradiction index say."""


class Router(nn.Module):
    """π = softmax(g(z) + κ (q - q*) · [0, -1, +1]), κ ≥ 0 learned (eq. 7).

    z holds log(1 + Δτ), |h|, q and the uncertainty of working memory, and the token itself if `features="input"`.
    """

    direction: Tensor
    number: Tensor

    def __init__(self, width: int, config: RouterConfig, *, index: bool = False) -> None:
        """`index`: tokens may be known to ask for what semantic memory would get wrong (a contradiction index)."""
        super().__init__()
        self.config = config
        # Logits of all such tokens alike: what became of one key must not decide about another.
        self.on_hit = nn.Parameter(torch.zeros(3)) if index else None
        self.hidden = nn.Linear(4 + (width if config.features == "input" else 0), config.hidden)
        self.out = nn.Linear(config.hidden, 3)
        # softplus keeps κ ≥ 0; the number kept is its inverse.
        sharpness = torch.tensor(config.sharpness)
        raw = sharpness + torch.log(-torch.expm1(-sharpness)) if config.sharpness else torch.tensor(0.0)
        # One number in a row: FSDP2 shards along the first dimension, so it wants one.
        self.sharpness = nn.Parameter(raw.reshape(1), requires_grad=config.sharpness > 0)
        self.register_buffer("direction", torch.tensor([0.0, -1.0, 1.0]), persistent=False)
        self.register_buffer("number", torch.arange(3), persistent=False)

    def forward(self, u: Tensor, log_gap: Tensor, norm: Tensor, quality: Tensor, uncertainty: Tensor) -> Tensor:
        """u [B, N, D], the rest [B, N]. Returns the logits [B, N, 3]."""
        scalars = torch.stack([log_gap, norm, quality, uncertainty.log1p()], dim=-1).to(u.dtype)
        features = torch.cat([scalars, u], dim=-1) if self.config.features == "input" else scalars
        logits: Tensor = self.out(nn.functional.silu(self.hidden(features)))
        if self.config.sharpness:
            lead = nn.functional.softplus(self.sharpness) * (quality - self.config.threshold)
            logits = logits + lead.unsqueeze(-1) * self.direction
        return logits

    def decide(
        self,
        logits: Tensor,
        mask: Tensor,
        policy: RoutingPolicy,
        forced: Tensor | None,
        able: tuple[bool, bool, bool],
        noise: Tensor | None = None,
        hits: Tensor | None = None,
    ) -> Decision:
        """Turn logits into actions. `forced` [B, N] overrides the choice; `able`: which actions the layer has.

        hits [B, N] bool: tokens that ask for what semantic memory would get wrong, by the contradiction index.

        noise [B, N, 5]: this layer's part of `policy.noise`, if the policy counts its random numbers.
        """
        can_read = able[EPISODIC]
        own = logits
        if hits is not None and self.on_hit is not None and forced is None and policy.reads == "routed":
            heeded = hits & (policy.heeds(mask, noise) if self.training else True)
            logits = torch.where(heeded.unsqueeze(-1), self.on_hit.to(logits.dtype), logits)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))  # noise and ties need the precision
        barred = [a for a, has in enumerate(able) if not has or (a == EPISODIC and policy.reads == "off")]
        for action in barred:
            logits = logits.masked_fill(self.number == action, -torch.inf)
        probabilities = torch.softmax(logits, dim=-1)
        perturbation = policy.gumbel(logits, noise) if self.training else torch.zeros_like(logits)
        actions, weights = route(logits, perturbation, policy.temperature)
        if forced is None and policy.reads == "dense" and can_read:
            forced = torch.full_like(actions, EPISODIC)
            if policy.skip > 0:
                forced = torch.where(policy.skips(mask, noise), NONE, forced)
        if forced is not None:
            actions = forced.long()
            for action in (a for a, has in enumerate(able) if not has):
                actions = torch.where(actions == action, NONE, actions)
            weights = nn.functional.one_hot(actions, 3).to(logits.dtype)
        actions = torch.where(mask, actions, NONE)
        reads = actions == EPISODIC
        audited = torch.zeros_like(reads)
        if policy.audit > 0 and can_read:
            audited = policy.audits(mask, noise) & mask & ~reads
        untaken = None
        if self.training and can_read and self.on_hit is not None:
            others = logits.masked_fill(self.number == EPISODIC, -torch.inf).argmax(-1)
            instead = torch.where(reads, others, actions)
            halved = torch.zeros_like(reads)
            if forced is None and policy.halve > 0:
                halved = reads & policy.halves(mask, noise)
                both = (nn.functional.one_hot(actions, 3) + nn.functional.one_hot(instead, 3)).to(weights.dtype) / 2
                weights = torch.where(halved.unsqueeze(-1), both, weights)
            untaken = Untaken(halved, instead, own.argmax(-1) == EPISODIC)
        return Decision(actions, weights, probabilities, audited, untaken)
