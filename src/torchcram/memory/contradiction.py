"""The contradiction index: which writes say what memory does not expect, and which tokens ask for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcram.config import ContradictionConfig
from torchcram.memory.lessons import LEAST_DOUBT, MOST_DOUBT, Evidence, lesson
from torchcram.memory.moments import RunningMoments
from torchcram.memory.state import IndexState
from torchcram.memory.timeline import Timeline
from torchcram.memory.utility import STEEP
from torchcram.ops import Rows, compact, gather_rows, scatter_rows

_LIKELY = -2.5  # logit from which on a write is looked at, and a token looks ...
_LAG = 1.0  # ... unless it is likelier to be the other, by this
_NEAR = 0.28  # of the variance of what is read: what is nearer to what was expected says nothing new
_UNKNOWN = 1.5  # doubt at which nothing is known of a key, whatever it says
_FAMILIAR = 0.3  # doubt below which something is expected, and what is written can be a surprise
_NEVER = torch.iinfo(torch.int64).max
_HIDDEN = 32  # width of the hidden layer that tells roles, where they depend on several tokens
_AT_ONCE = 1 << 24  # comparisons of positions and entries held in memory


class Consulted(NamedTuple):
    """What a look into the index gave."""

    target: Tensor
    """[B, N]: position of the write that a token asks for, -1: none that is in the index."""
    here: Tensor
    """[B, N]: where in the call that write is, -1: before it, or nowhere."""
    entered: Tensor
    """[B, N] bool: what is written here was entered."""
    known: Tensor
    """[B, N] bool: what is written here was looked at, and says nothing new."""
    checked: Tensor
    """[B, N] bool: something was expected of what is written here."""
    surprising: Tensor
    """[B, N] bool: and it was not that."""
    pairs: Tensor
    """[B]: pairs of a token and an entry that were compared."""
    state: IndexState | None
    """The index after the call, if it is to be kept."""


class Pointer(NamedTuple):
    """Which write each token [B, N] asks for."""

    position: Tensor
    """Its position, -1: none."""
    here: Tensor
    """Where in the call it is, -1: before it, or none."""


class Guidance(NamedTuple):
    """What an index tells its own layer and those above."""

    consulted: Consulted | None
    """What the index was asked and told; None: not looked."""
    hits: Tensor | None
    """[B, N] bool: the token asks for what memory would get wrong."""
    pointer: Pointer | None
    """Which write each token [B, N] is to read."""
    audit: Tensor
    """[B, N] bool: tokens whose read is to be computed in every layer, to learn from."""
    plain: Tensor
    """[B, N] bool: those among them that would have been audited without an index."""
    chance: Tensor | float
    """[B, N]: the chance that each had of being chosen for that."""
    witnesses: Rows | None
    """[B, Q]: those that the index learns from; None: it does not."""


class ContradictionIndex(nn.Module):
    """Parametric recall goes stale when the context binds a known key anew. The index notices at the write.

    *Code.* A token's code says what it asks for, or can be asked for by. Codes learn from reads (`memory.lessons`):
    what a read rests on has the code of the token that read.

    *Check.* `content` tells what reading a write gives. From a code, `expected` foretells the write itself, and `doubt`
    how differently it will read. Where the write reads differently from the one expected it says something new, and
    where there was little doubt that is a surprise. What is foretold is the write, since what a layer makes of it
    changes with every step of training, and `content` follows that for both alike.

    *Hit.* Such writes are entered with their code. A token of the same code asks for what memory would get wrong: it
    does not recall, in any layer, and reads what the latest of these writes says. A later write that says what was
    expected takes the entry out.

    The index holds the last `entries` of them, whatever the buffers of the layers hold.
    """

    rested: Tensor
    teller: Tensor

    def __init__(self, width: int, config: ContradictionConfig, layers: int = 1, taps: int = 1) -> None:
        """`layers`: of the stack that have a buffer, and so something to testify; taps: of their convolution."""
        super().__init__()
        self.config = config
        self.register_buffer("rested", torch.zeros(layers))
        """How many reads of a batch are used and rest on one event in each of them, of late."""
        self.register_buffer("teller", torch.zeros(1, dtype=torch.int64))
        """Which of them tells what writes say."""
        rank = config.rank
        # One code for asking and for being asked for: so a key that has never been overridden matches all the same.
        self.coding = nn.Linear(width, rank, bias=False)
        # Where a key and its value are tokens of their own, what asks is a key, and what is asked for comes after one.
        own = torch.zeros(2, taps)
        own[0, 0] = 2 / STEEP
        self.back = nn.Parameter(own) if taps > 1 else None
        self.asks, self.asked = (_role(width, taps) for _ in range(2))
        self.expected = nn.Sequential(nn.Linear(rank, 8 * rank), nn.ReLU(), nn.Linear(8 * rank, width))
        last = nn.Linear(2 * rank, 1)
        self.doubt = nn.Sequential(nn.Linear(rank, 2 * rank), nn.ReLU(), last)
        # Linear, so that it cannot learn by heart which value comes with which key.
        self.content = nn.Linear(width, width)
        self.reads = RunningMoments(width)
        # Until something was learned, everything is new: a write taken for known is the first to be forgotten.
        nn.init.normal_(self.content.weight, std=math.sqrt(2 / width))
        nn.init.constant_(last.bias, 3.0)
        # One number in a row each: FSDP2 shards along the first dimension, so it wants one.
        self.gain = nn.Parameter(torch.full((1,), 2.0))
        self.level = nn.Parameter(torch.full((1,), 0.7))

    def code(self, x: Tensor) -> Tensor:
        """The code [..., r] of what a token asks for, or can be asked for by; its length is below 1.

        x [..., D]: the token or, with a convolution, what `asking` or `telling` makes of it and those before it.
        """
        code: Tensor = self.coding(x)
        return code / (1 + code.square().sum(-1, keepdim=True)).sqrt()

    def asking(self, taps: Tensor) -> Tensor:
        """What a token asks with [..., D]: a mean of it and those just before it, taps [..., W, D]."""
        return self._looking_back(taps, 0)

    def telling(self, taps: Tensor) -> Tensor:
        """What a token can be asked for with, likewise."""
        return self._looking_back(taps, 1)

    def _looking_back(self, taps: Tensor, role: int) -> Tensor:
        if self.back is None:
            return taps.detach().squeeze(-2)
        return torch.einsum("...wd,w->...d", taps.detach(), (STEEP * self.back[role]).softmax(0))

    def match(self, asks: Tensor, marks: Tensor) -> Tensor:
        """Logits [B, R, E] that what is asked for, of code [B, R, r], is what is marked [B, E, r]."""
        return self.gain.exp() * (asks @ marks.transpose(1, 2) - self.level)

    def judge(self, u: Tensor, code: Tensor) -> tuple[Tensor, Tensor]:
        """How new it is what writes u [B, E, D] of these codes say, and how much one doubts what was expected.

        Above 1 they are entered: by how far they are from what is expected, and a little by the doubt. A key of which
        nothing is known may be told what happens to be expected.
        """
        apart, doubts = self.apart(u, self.expect(code)), self.doubts(code)
        return apart / _NEAR + doubts / _UNKNOWN, doubts

    def apart(self, u: Tensor, expected: Tensor) -> Tensor:
        """How differently one would read a write u [..., D] and what was expected of it, squared, in units of reads."""
        weight = self.content.weight.detach()
        return nn.functional.linear(u.detach() - expected, weight).square().mean(-1)

    def expect(self, code: Tensor) -> Tensor:
        """The write [..., D] that is expected for a code [..., r]."""
        expected: Tensor = self.expected(self._evened(code))
        return expected

    def doubts(self, code: Tensor) -> Tensor:
        """How far from the truth what is expected for a code [..., r] is thought to be, squared, in units of reads."""
        low, high = math.log(LEAST_DOUBT), math.log(MOST_DOUBT)
        share: Tensor = torch.sigmoid(self.doubt(self._evened(code))).squeeze(-1)
        return torch.exp(low + (high - low) * share)

    def roles(self, u: Tensor, mask: Tensor, taps: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Which tokens u [B, N, D] ask for something, and which say something that may be asked for, both [B, N].

        taps [B, N, W, D]: with a convolution, each token and those just before it.
        """
        seen = (u if taps is None else taps.flatten(2)).detach()
        asks, asked = (head(seen).squeeze(-1) for head in (self.asks, self.asked))
        asking, telling = (asks > _LIKELY) & mask, (asked > _LIKELY) & mask
        if self.back is not None:
            return asking, telling  # a key after a value may be either
        return asking & (asks > asked - _LAG), telling & (asked > asks - _LAG)

    def empty(self, batch: int) -> IndexState:
        """An index with no entries."""
        like = self.gain  # which is never made narrow
        return IndexState(
            code=torch.zeros(batch, 0, self.config.rank, dtype=like.dtype, device=like.device),
            position=torch.zeros(batch, 0, dtype=torch.int64, device=like.device),
            dead=torch.zeros(batch, 0, dtype=torch.bool, device=like.device),
        )

    @torch.no_grad()
    def consult(
        self,
        u: Tensor,
        timeline: Timeline,
        state: IndexState,
        roles: tuple[Tensor, Tensor] | None = None,
        taps: Tensor | None = None,
        *,
        keep: bool = True,
    ) -> Consulted:
        """Enter what the writes u [B, N, D] say anew, and look up what the tokens that ask want; `roles`, if known.

        taps [B, N, W, D]: with a convolution, each token and those just before it.
        """
        length = timeline.mask.shape[1]
        asking, telling = roles or self.roles(u, timeline.mask, taps)
        rows = compact(asking | telling)
        seen = gather_rows(u, rows)
        before = seen.unsqueeze(2) if taps is None else gather_rows(taps, rows)
        code = self.code(self.telling(before))
        ask_code = code if self.back is None else self.code(self.asking(before))
        flags = torch.stack([asking, telling, timeline.start.cumsum(1)], dim=-1)
        asks, tells, sequence = gather_rows(flags, rows).unbind(-1)
        news, doubts = self.judge(seen, code)
        new, familiar = (tells > 0) & (news > 1), (tells > 0) & (doubts < _FAMILIAR)
        known = (tells > 0) & ~new
        here = _Seen(rows=rows, code=code, ask_code=ask_code, asks=asks > 0, new=new, known=known, sequence=sequence)
        entries = self._entries(timeline, state, here)
        entries, found, pairs = self._look_up(here, entries)
        facts = torch.stack([new, known, familiar, familiar & new], dim=-1)
        everywhere = scatter_rows(torch.cat([found, facts], dim=-1), rows, length)
        entered, as_ever, checked, surprising = (everywhere[..., 2:] > 0).unbind(-1)
        target, place = (everywhere[..., :2] - 1).unbind(-1)
        return Consulted(
            target=target,
            here=place,
            entered=entered,
            known=as_ever,
            checked=checked,
            surprising=surprising,
            pairs=pairs,
            state=self._keep(entries, timeline.start.sum(1, keepdim=True), state.code.dtype) if keep else None,
        )

    def loss(
        self,
        u: Tensor,
        witnesses: Rows,
        chance: Tensor,
        evidence: Sequence[Evidence],
        taps: Tensor | None = None,
        answered: Tensor | None = None,
    ) -> Tensor:
        """What there is to learn from a call; see `lesson`. A method, so that FSDP2 can gather the parameters."""
        return lesson(self, u, taps, witnesses, chance, evidence, answered)

    def _evened(self, code: Tensor) -> Tensor:
        """Codes are no longer than 1; what is learned from them is learned sooner if their numbers are about 1."""
        return code.detach() * math.sqrt(self.config.rank)

    def _entries(self, timeline: Timeline, state: IndexState, here: _Seen) -> _Entries:
        """The entries held, and those of the call's tokens that say something new, in the order of writing."""
        fresh = compact(here.new)
        at = Rows(gather_rows(here.rows.at, fresh), fresh.valid)
        valid = torch.cat([state.position >= 0, at.valid], dim=1)
        return _Entries(
            code=torch.cat([state.code.to(here.code.dtype), gather_rows(here.code, fresh)], dim=1),
            position=torch.cat([state.position, gather_rows(timeline.position[:, :-1], at)], dim=1),
            written=torch.cat([torch.full_like(state.position, -1), at.at], dim=1),
            number=valid.cumsum(1) * valid,
            dies=torch.cat([torch.where(state.dead, -1, _NEVER), torch.full_like(at.at, _NEVER)], dim=1),
            sequence=torch.cat([torch.zeros_like(state.position), gather_rows(here.sequence, fresh)], dim=1),
        )

    def _look_up(self, here: _Seen, entries: _Entries) -> tuple[_Entries, Tensor, Tensor]:
        """The entries with what takes them out, what each token that asks finds, and the pairs compared [B].

        Found [B, R, 2]: the position of the write and its place in the call, both plus 1; 0: nothing.
        """
        at, count = here.rows.at, entries.code.shape[1]
        if count == 0 or at.shape[1] == 0:
            return entries, at.new_zeros(*at.shape, 2), at.new_zeros(at.shape[0])
        past, before = self._in_sight(here, entries)
        step = max(1, _AT_ONCE // (len(at) * count))
        parts = [slice(begin, begin + step) for begin in range(0, at.shape[1], step)]

        def compare(part: slice) -> tuple[Tensor, Tensor, Tensor]:
            number = entries.number.unsqueeze(1)
            visible = (number > past[:, part, None]) & (number <= before[:, part, None])
            told = self.match(here.code[:, part], entries.code)
            asked = told if here.ask_code is here.code else self.match(here.ask_code[:, part], entries.code)
            return told, asked, visible

        whole = compare(parts[0]) if len(parts) == 1 else None  # what fits at once is compared once
        dies = entries.dies
        for part in parts:
            match, _, visible = whole or compare(part)
            ends = (match > 0) & visible & here.known[:, part, None]
            dies = torch.minimum(dies, torch.where(ends, at[:, part, None], _NEVER).amin(1))
        margin = self.gain.exp() * (1 - self.level) / 2
        answers = nn.functional.pad(torch.stack([entries.position, entries.written], dim=-1) + 1, (0, 0, 1, 0))
        order = torch.arange(1, count + 1, device=at.device)
        found, pairs = [], at.new_zeros(at.shape[0])
        for part in parts:
            _, match, visible = whole or compare(part)
            visible = visible & (at[:, part, None] <= dies.unsqueeze(1))
            match = match.masked_fill(~visible, -torch.inf)
            # All that match about as well as the best are for one key: the latest counts, and entries are in order.
            near = (match > 0) & (match >= match.amax(2, keepdim=True) - margin) & here.asks[:, part, None]
            latest = torch.where(near, order, 0).amax(2, keepdim=True)
            found.append(answers.gather(1, latest.expand(-1, -1, 2)))
            pairs += visible.sum((1, 2))
        return entries._replace(dies=dies), torch.cat(found, dim=1), pairs

    def _in_sight(self, here: _Seen, entries: _Entries) -> tuple[Tensor, Tensor]:
        """Each token sees the entries numbered above the one and up to the other [B, R].

        They are those of its own sequence, and the last of them; tokens that need none see none.
        """
        held = entries.number.amax(1, keepdim=True) - here.new.sum(1, keepdim=True)
        before = held + here.new.cumsum(1) - here.new.long()
        begins = here.sequence.diff(dim=1, prepend=torch.zeros_like(here.sequence[:, :1])) > 0
        past = torch.maximum(torch.where(begins, before, 0).cummax(1).values, before - self.config.entries)
        return past, torch.where(here.known | here.asks, before, 0)

    def _keep(self, entries: _Entries, sequence: Tensor, dtype: torch.dtype) -> IndexState:
        """The last entries of the sequence [B, 1] that goes on; codes as wide as before."""
        number = entries.number
        recent = number > number.amax(1, keepdim=True) - self.config.entries if number.shape[1] else number > 0
        rows = compact((number > 0) & recent & (entries.sequence == sequence))
        return IndexState(
            code=gather_rows(entries.code, rows).to(dtype),
            position=gather_rows(entries.position, rows).masked_fill(~rows.valid, -1),
            dead=gather_rows(entries.dies != _NEVER, rows),
        )


def _role(width: int, taps: int) -> nn.Module:
    """A token's logit of a role; with a convolution it depends on what came before, in whatever way."""
    if taps == 1:
        return nn.Linear(width, 1)
    return nn.Sequential(nn.Linear(width * taps, _HIDDEN), nn.SiLU(), nn.Linear(_HIDDEN, 1))


class _Seen(NamedTuple):
    """The tokens of a call that ask for something or say something, in order; flags [B, R]."""

    rows: Rows
    code: Tensor
    """[B, R, r]: what a token can be asked for by."""
    ask_code: Tensor
    """[B, R, r]: what it asks for; the same where tokens are not convolved."""
    asks: Tensor
    new: Tensor
    """It says something new."""
    known: Tensor
    """It says what was expected."""
    sequence: Tensor
    """[B, R]: how many sequences have begun in the call so far."""


class _Entries(NamedTuple):
    """Entries in the order of writing; all but the codes [B, E]."""

    code: Tensor
    """[B, E, r]"""
    position: Tensor
    written: Tensor
    """Where in the call; -1: before it."""
    number: Tensor
    """1, 2, … in the order of writing; 0: an empty place."""
    dies: Tensor
    """Position in the call from which on an entry does not count any more."""
    sequence: Tensor
    """How many sequences had begun in the call when it was written."""
