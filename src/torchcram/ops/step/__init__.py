"""One position of each sequence through a whole layer, in a few GPU kernels; `memory.fused` prepares what they need.

The specification is `memory.Block.forward` with `in_place=True`. What is before the first layer and after the last is
a kernel each, which `models.ends` prepares; their specification is `reference`.
"""

from typing import NamedTuple

from torch import Tensor

from torchcram.ops.dispatch import choose

GROUP = 16
"""Columns of a product that one program makes: parts of merged weights begin at multiples of it."""


class Sizes(NamedTuple):
    """What a layer's kernels are made for."""

    width: int
    """D"""
    rank: int
    """R, of semantic memory, of the predictor and of the quality's hidden layer."""
    hidden: int
    """Of the router."""
    feed: int
    """F, hidden units of the feed-forward layer."""
    heads: int
    """H"""
    slots: int
    """M"""
    steps: int
    """K"""
    trained_length: int | None
    """Further on queries are sharper; None: nowhere."""
    threshold: float
    """q*"""
    eps: tuple[float, float]
    """Of the two norms."""

    @property
    def entering(self) -> tuple[int, ...]:
        """Where the parts of `Weights.enter` begin, and its rows."""
        return _begins(self.width, self.width, self.rank, self.rank, self.hidden, 1)

    @property
    def projected(self) -> tuple[int, ...]:
        """Where the parts of `Weights.project` begin, and its rows."""
        return _begins(self.width, self.rank, 1, self.width, self.width, self.width)


class Weights(NamedTuple):
    """A layer's weights: matrices in its own dtype, everything else in float32."""

    norm: Tensor
    """[D]"""
    enter: Tensor
    """[., D]: what u is multiplied by, for state, drive, semantic memory, quality, router and write priority; times
    the norm's own weights."""
    enter_bias: Tensor
    rate: Tensor
    """[D]: of the state's decay."""
    expect: Tensor
    """[D, R]: the prediction of u from what is carried."""
    recurrent: Tensor
    """[D, D]"""
    gate_weight: Tensor
    gate_bias: Tensor
    judge: Tensor
    """[R, R]: what the quality's hidden layer makes of what comes to semantic memory's mind."""
    score: Tensor
    """[R]"""
    score_bias: Tensor
    """[1]"""
    project: Tensor
    """[., D]: context, next prediction and write priority from h; query, key and value from u and h."""
    mix: Tensor
    """[4, D]: the part of h in each of these: all of it, then that of query, key and value."""
    scalars: Tensor
    """[4, hidden]: what the router makes of its four numbers."""
    out: Tensor
    """[3, hidden]"""
    out_bias: Tensor
    """[3]"""
    lead: Tensor
    """[1]: κ, or 0."""
    recency: Tensor
    """[H]"""
    recall: Tensor
    """[D, R]"""
    outward: Tensor
    """[D, D]: of what is read."""
    widen: Tensor
    """[F, D]; times the weights of the feed-forward layer's norm."""
    widen_bias: Tensor
    narrow: Tensor
    """[D, F]"""
    narrow_bias: Tensor


class Held(NamedTuple):
    """A layer's state, which a step changes; see `memory.state`."""

    working: Tensor
    prediction: Tensor
    key: Tensor
    value: Tensor
    priority: Tensor
    known: Tensor
    time: Tensor
    position: Tensor
    mass: Tensor


class Clock(NamedTuple):
    """Where the sequences stand; see `memory.Timeline`."""

    gap: Tensor
    """[B, 1]"""
    log_gap: Tensor
    """[B, 1]"""
    mask: Tensor
    """[B, 1]"""
    position: Tensor
    """[B, 2]"""
    time: Tensor
    """[B, 1]"""


class Scratch(NamedTuple):
    """What one kernel leaves for the next."""

    u: Tensor
    """[B, D]"""
    h: Tensor
    """[2, B, D]: before and after an Euler step."""
    made: Tensor
    """[B, .]: what `Weights.enter` makes, but for the state."""
    missed: Tensor
    """[B, D / GROUP]: parts of |u - prediction|²."""
    judged: Tensor
    """[B]: the quality before its sigmoid."""
    projected: Tensor
    """[B, .]: what `Weights.project` makes."""
    scores: Tensor
    """[B, H, M]"""
    found: Tensor
    """[B, D]: what the heads of those that read found."""
    priority: Tensor
    """[B]: of the new event."""
    worst: Tensor
    """[B]: the lowest priority of what is held; what is new must have more."""
    slot: Tensor
    """[B]: where it goes, if it is admitted."""
    events: Tensor
    """[B]: how many there are."""
    tally: Tensor
    """[3, B]: action, whether the position was admitted, pairs scored."""
    x: Tensor
    """[B, D]: before the feed-forward layer."""
    squares: Tensor
    """[B, D / GROUP]: parts of its |x|²."""
    feed: Tensor
    """[B, F]"""


class Standing(NamedTuple):
    """Where all sequences stand between two steps, which a step changes."""

    position: Tensor
    """[B]"""
    time: Tensor
    """[B]"""
    counts: Tensor
    """[3 + 3 L]: real positions, those that read, dense pairs; then reads, pairs and writes of each layer."""


class Entry(NamedTuple):
    """Of an encoder of one field of tokens; see `models.inputs.Encoder`."""

    table: Tensor
    """[V, D]"""
    weight: Tensor
    """[D, 1 + 2 F]: of what is known of the gap."""
    bias: Tensor
    """[D]"""
    frequencies: Tensor
    """[F]"""
    unit: float
    """τ₀"""


class Exit(NamedTuple):
    """Of the last norm and a head for each position."""

    norm: Tensor
    """[D]"""
    weight: Tensor
    """[size, D]"""
    bias: Tensor
    """[size]"""
    eps: float


def step(
    x: Tensor, squares: Tensor, clock: Clock, weights: Weights, held: Held, scratch: Scratch, sizes: Sizes
) -> tuple[Tensor, Tensor]:
    """x [B, D] after the layer, and parts of its |x|² [B, D / GROUP], as they are given of what comes before it.

    `held` is changed, and `scratch.tally` tells what happened.
    """
    from torchcram.ops.step import triton

    return triton.step(x, squares, clock, weights, held, scratch, sizes)


def begin(
    tokens: Tensor, dt: Tensor, mask: Tensor, standing: Standing, entry: Entry, clock: Clock
) -> tuple[Tensor, Tensor]:
    """x [B, D] of one more token of each sequence, and its `squares`. All given [B, 1]; `clock` is filled."""
    from torchcram.ops.step import reference

    return choose({"fast": reference.begin, "triton": _begin}, tokens)(tokens, dt, mask, standing, entry, clock)


def finish(x: Tensor, squares: Tensor, clock: Clock, tally: Tensor, standing: Standing, exit: Exit) -> Tensor:
    """Predictions [B, size] from the last x [B, D] and its `squares`, 0 for sequences that stay where they are.

    The others have gone on: `standing` is changed; tally [L, 3, B] is what the layers did, see `Scratch.tally`.
    """
    from torchcram.ops.step import reference

    return choose({"fast": reference.finish, "triton": _finish}, x)(x, squares, clock, tally, standing, exit)


def _begin(
    tokens: Tensor, dt: Tensor, mask: Tensor, standing: Standing, entry: Entry, clock: Clock
) -> tuple[Tensor, Tensor]:
    from torchcram.ops.step import triton

    return triton.begin(tokens, dt, mask, standing, entry, clock)


def _finish(x: Tensor, squares: Tensor, clock: Clock, tally: Tensor, standing: Standing, exit: Exit) -> Tensor:
    from torchcram.ops.step import triton

    return triton.finish(x, squares, clock, tally, standing, exit)


def squares(x: Tensor) -> Tensor:
    """[B, D / GROUP]: parts of |x|² of x [B, D]."""
    return x.float().square().view(len(x), -1, GROUP).sum(-1)


def _begins(*sizes: int) -> tuple[int, ...]:
    begins = [0]
    for size in sizes:
        begins.append(begins[-1] + -(-size // GROUP) * GROUP)
    return tuple(begins)
