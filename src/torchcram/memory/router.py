"""The consolidation-aware router: which memory does a token use?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from torchcram.config import RouterConfig
from torchcram.draws import Draws
from torchcram.memory.contradiction import Guidance
from torchcram.memory.joint import Map
from torchcram.memory.utility import MOST, STEEP, WorthEstimator
from torchcram.ops import About, choice, gumbel, route
from torchcram.ops.choice import Weights

Reads = Literal["routed", "dense", "off"]

NONE, EPISODIC, SEMANTIC = 0, 1, 2
"""The actions, in the paper's order: working memory alone, episodic read, semantic recall."""

_SCALARS = 4  # numbers about a token that the router sees besides it
_STREAM = 1 << 16  # of a `Draws`: far from the streams that a task draws its data from
# The random numbers of a token in a layer, and those that only trials and an index need.
_CHOICE, _AUDIT, _SKIP, _NUMBERS = slice(3), 3, 4, 5
_TRY, _PART, _POINT, _MORE = _NUMBERS, _NUMBERS + 1, _NUMBERS + 2, 3


@dataclass(frozen=True, kw_only=True)
class RoutingPolicy:
    """How a call chooses its actions. The default is what the router decides, with nothing random at evaluation."""

    reads: Reads = "routed"
    """`routed`: the router chooses; `dense`: every token reads; `off`: no token uses a read (with
    `quality="exact"` reads are computed all the same, since the router needs them)."""
    skip: float = 0.0
    """With `dense`: share of the tokens, chosen at random, that do not read (in any layer)."""
    temperature: float | Tensor = 1.0
    """Of the Gumbel-softmax gradient in training. As a tensor [] it may change where code is compiled or recorded."""
    audit: float = 0.0
    """Share of the tokens that would not read whose read is computed all the same, to learn from."""
    price: float | Tensor | None = None
    """In nats: with `router.rule = "worth"` reads worth less are skipped; None: the price of the last training step."""
    trial: float = 0.0
    """Share of the reads of which a random part is used, to learn what they are worth; so is a part of audited ones."""
    scored: Tensor | float = 1.0
    """Positions that the loss to be differentiated is a mean of; so what reads are worth is told in nats."""
    most: float = MOST
    """What is told of a read on trial is cut off there, in nats, where û learns from it."""
    lesson: bool = True
    """In training: the contradiction index learns from this call. It need not from every one, as `Consolidator` knows,
    which also has `trial` only in lessons."""
    answered: Tensor | None = None
    """[B, N] bool: where an answer counts, if at few positions only; so the index knows whose reads mean something."""
    asked: Tensor | None = None
    """[B, N] bool: where the main answer is scored in training; so a baseline knows how unsure it usually is there."""
    verify: bool = True
    """Find out how well each read could have been recalled (`BlockOutput.exact`). Training always does; whoever only
    wants predictions, as of a prompt, need not."""
    keep_all: bool = False
    """No event is evicted, however small the buffer: so a model learns what is worth keeping. Leaves no state."""
    generator: torch.Generator | None = None
    """For everything random; None uses torch's own."""
    draws: Draws | None = None
    """Random numbers by counting instead: the same for these rows in whatever process, on whatever device. A sequence
    fed in parts needs another `step` for each."""
    actions: Tensor | None = None
    """[B, N, L] int: use these actions instead of choosing; they win over `reads`."""
    priorities: Tensor | None = None
    """[B, N, L]: events are written with these priorities, before the sigmoid, instead of those that layers give them;
    these learn all the same."""

    def __post_init__(self) -> None:
        if self.reads not in get_args(Reads):
            raise ValueError(f"reads = {self.reads!r} is not possible; allowed: 'routed', 'dense', 'off'")
        if not 0 <= self.skip <= 1:
            raise ValueError(f"skip = {self.skip!r} is not possible; allowed: a share from 0 to 1")
        # Numbers on a device are taken as they are: to look at them would mean to wait.
        if not isinstance(self.temperature, Tensor) and not self.temperature > 0:
            raise ValueError(f"temperature = {self.temperature!r} is not possible; allowed: a number above 0")
        if self.price is not None and not isinstance(self.price, Tensor) and not self.price >= 0:
            raise ValueError(f"price = {self.price!r} is not possible; allowed: a number from 0 on, or None")
        if not self.most > 0:
            raise ValueError(f"most = {self.most!r} is not possible; allowed: a number above 0")
        for name in ("audit", "trial"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} = {getattr(self, name)!r} is not possible; allowed: a share from 0 to 1")

    def noise(self, batch: int, length: int, layers: int = 1, *, guided: bool = False) -> tuple[Tensor | None, ...]:
        """Uniform numbers [B, N, 5] for each layer, made in one go, since many small draws keep a GPU waiting.

        [B, N, 8] with trials, or if a contradiction index guides the layers. None for each without `draws`.
        """
        if self.draws is None:
            return (None,) * layers
        if len(self.draws.rows) != batch:
            raise ValueError(f"policy.draws is for {len(self.draws.rows)} sequences, the input has {batch}")

        def draw(stream: int, count: int) -> Tensor:
            assert self.draws is not None
            return self.draws.uniform(stream, layers * length * count).view(batch, layers, length, count)

        numbers = draw(_STREAM, _NUMBERS)
        if guided or self.trial > 0:
            # From a stream of their own: what is drawn without them does not change.
            numbers = torch.cat([numbers, draw(_STREAM + 1, _MORE)], dim=-1)
        return numbers.unbind(1)

    def skips(self, mask: Tensor, noise: Tensor | None) -> Tensor:
        """Which tokens [B, N] do not read under `dense`; noise as `noise` returns it."""
        return self._uniform(mask, noise, _SKIP) < self.skip

    def lot(self, mask: Tensor, noise: Tensor | None) -> Tensor:
        """A random number from 0 to 1 for each token [B, N]: those with less than their chance are audited."""
        return self._uniform(mask, noise, _AUDIT)

    def trials(self, mask: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Which tokens [B, N] try their read if they use it, and the part of it that those on trial use."""
        return self._uniform(mask, noise, _TRY) < self.trial, self._uniform(mask, noise, _PART)

    def points(self, mask: Tensor, noise: Tensor | None) -> Tensor:
        """Which tokens [B, N] are pointed at what they ask for, in training: every other one."""
        return self._uniform(mask, noise, _POINT) < 0.5

    def shared_noise(self, mask: Tensor) -> Tensor:
        """Uniform numbers [B, N, 8] for all layers alike, without `draws`."""
        size = (*mask.shape, _NUMBERS + _MORE)
        return torch.rand(size, generator=self.generator, device=mask.device, dtype=torch.float64)

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
    """[B, N, 3]: one-hot, with the gradient of the soft choice; a read on trial shares with what it stands for."""
    probabilities: Tensor
    """[B, N, 3]: π, without noise."""
    audited: Tensor
    """[B, N] bool: a read to compute although the token does not need it."""
    tried: Tensor
    """[B, N] bool: a read of which a random part is used."""
    instead: Tensor
    """[B, N] int64: what each token does or, in a call with trials, would do without its read."""

    def detached(self) -> Decision:
        """The same to look at, without gradients."""
        # Not `_replace`: compiled code could not return it.
        weights, probabilities = self.weights.detach(), self.probabilities.detach()
        return Decision(self.actions, weights, probabilities, self.audited, self.tried, self.instead)


class Router(nn.Module):
    """π = softmax(g(z) + κ (q - q*) · [0, -1, +1]), κ ≥ 0 learned (eq. 7).

    z holds log(1 + Δτ), |h|, q and the uncertainty of working memory, and the token itself if `features="input"`.
    """

    number: Tensor
    read_logit: Tensor
    price: Tensor

    def __init__(self, width: int, config: RouterConfig, *, guided: bool = False) -> None:
        """`guided`: a contradiction index may tell which tokens ask for what memory would get wrong."""
        super().__init__()
        self.config = config
        # Logit of a read of all such tokens alike: what became of one key must not decide about another.
        self.on_hit = nn.Parameter(torch.full((1,), 2.0 / STEEP)) if guided and config.rule == "choice" else None
        self.worth = WorthEstimator(width, config) if config.rule == "worth" else None
        if self.worth is not None:
            self.register_buffer("price", torch.zeros(1))
        self.hidden = nn.Linear(_SCALARS + (width if config.features == "input" else 0), config.hidden)
        self.out = nn.Linear(config.hidden, 3)
        # softplus keeps κ ≥ 0; the number kept is its inverse.
        sharpness = torch.tensor(config.sharpness)
        raw = sharpness + torch.log(-torch.expm1(-sharpness)) if config.sharpness else torch.tensor(0.0)
        # One number in a row: FSDP2 shards along the first dimension, so it wants one.
        self.sharpness = nn.Parameter(raw.reshape(1), requires_grad=config.sharpness > 0 and config.informed)
        self.register_buffer("number", torch.arange(3), persistent=False)
        self.register_buffer("read_logit", torch.tensor([0.0, STEEP, 0.0]), persistent=False)

    @property
    def of_token(self) -> Map | None:
        """The part of the first map that sees the token itself, if it does, without its bias."""
        return Map(self.hidden.weight[:, _SCALARS:]) if self.config.features == "input" else None

    def forward(self, token: Tensor | None, about: About) -> Tensor:
        """The logits [B, N, 3] from what `of_token` made of the tokens [B, N, hidden], and what is known about them."""
        about = about._replace(quality=self.heard(about.quality))
        first = self.hidden.weight[:, :_SCALARS]
        if token is None:
            token = torch.zeros_like(self.hidden.bias).expand(*about.quality.shape, -1)
        lead = nn.functional.softplus(self.sharpness)
        if not (self.config.sharpness and self.config.informed):
            lead = torch.zeros_like(lead)
        weights = Weights(first, self.hidden.bias, self.out.weight, self.out.bias, lead)
        return choice(token, about, weights, self.config.threshold)

    def heard(self, quality: Tensor) -> Tensor:
        """What is heard of q, of any shape."""
        return quality if self.config.informed else torch.zeros_like(quality)

    def decide(
        self,
        logits: Tensor,
        mask: Tensor,
        policy: RoutingPolicy,
        forced: Tensor | None,
        able: tuple[bool, bool, bool],
        noise: Tensor | None = None,
        guidance: Guidance | None = None,
        worth: Tensor | None = None,
    ) -> Decision:
        """Turn logits into actions. `forced` [B, N] overrides the choice; `able`: which actions the layer has.

        guidance: of a contradiction index; worth [B, N]: what reads are thought to be worth, with `rule="worth"`.

        noise [B, N, 5 or 8]: this layer's part of `policy.noise`, if the policy counts its random numbers.
        """
        can_read = able[EPISODIC]
        if guidance is not None and guidance.hits is not None:
            # What memory recalls there is wrong: none of them recalls, and where they can choose to read all go alike.
            alike = logits if self.on_hit is None else self.on_hit * self.read_logit
            alike = alike.to(logits.dtype).masked_fill(self.number == SEMANTIC, -torch.inf)
            logits = torch.where(guidance.hits.unsqueeze(-1), alike, logits)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))  # noise and ties need the precision
        closed = worth is not None or policy.reads == "off"
        barred = [a for a, has in enumerate(able) if not has or (a == EPISODIC and closed)]
        for action in barred:
            logits = logits.masked_fill(self.number == action, -torch.inf)
        probabilities = torch.softmax(logits, dim=-1)
        perturbation = policy.gumbel(logits, noise) if self.training else torch.zeros_like(logits)
        actions, weights = route(logits, perturbation, policy.temperature)
        sampled = actions
        if worth is not None and can_read and policy.reads == "routed":
            pays = worth > self.asking_price(policy)
            actions = torch.where(pays, EPISODIC, actions)
            weights = torch.where(pays.unsqueeze(-1), (self.number == EPISODIC).to(weights.dtype), weights)
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
        audited, plain = torch.zeros_like(reads), torch.zeros_like(reads)
        if policy.audit > 0 and can_read:
            plain = policy.lot(mask, noise) < policy.audit if guidance is None else guidance.plain
            audited = (plain if guidance is None else guidance.audit) & mask & ~reads
        tried, instead = torch.zeros_like(reads), actions
        if policy.trial > 0 and can_read:
            others = logits.masked_fill(self.number == EPISODIC, -torch.inf)
            instead = torch.where(reads, torch.where(sampled == EPISODIC, others.argmax(-1), sampled), actions)
            chosen, part = policy.trials(mask, noise)
            # Not all that are audited for an index: tokens that ask would never skip any more.
            tried = (reads & chosen) | (audited & plain)
            mixed = torch.lerp(
                nn.functional.one_hot(instead, 3).to(weights.dtype),
                (self.number == EPISODIC).to(weights.dtype),
                part.unsqueeze(-1).to(weights.dtype),
            )
            weights = torch.where(tried.unsqueeze(-1), mixed, weights)
        return Decision(actions, weights, probabilities, audited, tried, instead)

    def asking_price(self, policy: RoutingPolicy) -> Tensor | float:
        """What a read must be worth; in training the policy's price is kept, for evaluation to go by."""
        if policy.price is None:
            return self.price
        if self.training:
            self.price.fill_(policy.price)
        return policy.price
