"""The contradiction index: which writes say what memory does not expect, and which tokens ask for them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcram.config import ContradictionConfig
from torchcram.memory.lessons import LEAST_DOUBT, MOST_DOUBT, Evidence, lesson
from torchcram.memory.moments import RunningMoments
from torchcram.memory.state import IndexState
from torchcram.memory.timeline import Timeline
from torchcram.ops import Rows, compact, gather_rows, scatter_rows

_LIKELY = -2.5  # logit from which on a write is looked at, and a token looks ...
_LAG = 1.0  # ... unless it is likelier to be the other, by this
_NEAR = 0.28  # of the variance of what is read: what is nearer to what was expected says nothing new
_UNKNOWN = 1.5  # doubt at which nothing is known of a key, whatever it says
_FAMILIAR = 0.3  # doubt below which something is expected, and what is written can be a surprise
_NEVER = torch.iinfo(torch.int64).max
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
    audit: Tensor
    """[B, N] bool: tokens whose read is to be computed in every layer, to learn from."""
    plain: Tensor
    """[B, N] bool: those among them that would have been audited without an index."""
    chance: Tensor | float
    """[B, N]: the chance that each had of being chosen for that."""
    witnesses: Rows | None
    """[B, Q]: those that the index learns from; None: it does not."""

    @property
    def pointer(self) -> Pointer | None:
        """Which write each token [B, N] asks for, where memory would get it wrong."""
        return Pointer(self.consulted.target, self.consulted.here) if self.consulted is not None else None

    @property
    def hits(self) -> Tensor | None:
        """[B, N] bool: the token asks for what memory would get wrong."""
        return self.consulted.target >= 0 if self.consulted is not None else None


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

    def __init__(self, width: int, config: ContradictionConfig, layers: int = 1) -> None:
        """`layers`: of the stack that have a buffer, and so something to testify."""
        super().__init__()
        self.config = config
        self.register_buffer("rested", torch.zeros(layers))
        """How many reads of a batch are used and rest on one event in each of them, of late."""
        self.register_buffer("teller", torch.zeros(1, dtype=torch.int64))
        """Which of them tells what writes say."""
        rank = config.rank
        # One code for asking and for being asked for: so a key that has never been overridden matches all the same.
        self.coding = nn.Linear(width, rank, bias=False)
        self.asks = nn.Linear(width, 1)
        self.asked = nn.Linear(width, 1)
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

    def code(self, u: Tensor) -> Tensor:
        """The code [..., r] of what a token asks for, or can be asked for by; its length is below 1."""
        code: Tensor = self.coding(u.detach())
        return code / (1 + code.square().sum(-1, keepdim=True)).sqrt()

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

    def roles(self, u: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Which tokens u [B, N, D] ask for something, and which say something that may be asked for, both [B, N]."""
        asks, asked = (head(u.detach()).squeeze(-1) for head in (self.asks, self.asked))
        asking = (asks > _LIKELY) & (asks > asked - _LAG) & mask
        return asking, (asked > _LIKELY) & (asked > asks - _LAG) & mask

    def empty(self, batch: int) -> IndexState:
        """An index with no entries."""
        like = self.coding.weight
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
        *,
        keep: bool = True,
    ) -> Consulted:
        """Enter what the writes u [B, N, D] say anew, and look up what the tokens that ask want; `roles`, if known."""
        batch, length = timeline.mask.shape
        asking, told = roles or self.roles(u, timeline.mask)
        writes = compact(told)
        seen = gather_rows(u, writes)
        code = self.code(seen)
        news, doubts = self.judge(seen, code)
        new, familiar = (news > 1) & writes.valid, (doubts < _FAMILIAR) & writes.valid
        as_ever = compact(writes.valid & ~new)
        known, its_code = Rows(gather_rows(writes.at, as_ever), as_ever.valid), gather_rows(code, as_ever)
        entries = self._entries(timeline, state, writes, code, new)
        pairs = torch.zeros(batch, dtype=torch.int64, device=u.device)
        target, here = (torch.full((batch, length), -1, dtype=torch.int64, device=u.device) for _ in range(2))
        if entries.code.shape[1]:
            margin = self.gain.exp() * (1 - self.level) / 2
            number = torch.arange(entries.code.shape[1], device=u.device)
            step = max(1, _AT_ONCE // (batch * len(number)))
            dies = entries.dies
            for rows, codes in _parts(known, its_code, step):
                alike, _ = self._compare(codes, rows, entries)
                at = torch.where(alike > 0, rows.at.unsqueeze(2), _NEVER).amin(1)
                dies = torch.minimum(dies, at)
            entries = entries._replace(dies=dies)
            for rows, _ in _parts(known, its_code, step):
                pairs += entries.visible(rows, self.config.entries).sum((1, 2))
            askers = compact(asking)
            for rows, codes in _parts(askers, self.code(gather_rows(u, askers)), step):
                match, visible = self._compare(codes, rows, entries)
                # All that match about as well as the best are for one key: the latest counts, and entries are in order.
                near = (match > 0) & (match >= match.amax(2, keepdim=True) - margin)
                latest = torch.where(near, number, -1).amax(2)
                none = (latest < 0) | ~rows.valid
                for found, where in ((target, entries.position), (here, entries.written)):
                    of_entry = where.gather(1, latest.clamp_min(0)).masked_fill(none, -1)
                    found.scatter_reduce_(1, rows.at, of_entry, "amax")
                pairs += visible.sum((1, 2))

        def there(those: Tensor) -> Tensor:
            return scatter_rows(those.long(), writes, length) > 0

        return Consulted(
            target=target,
            here=here,
            entered=there(new),
            known=there(writes.valid & ~new),
            checked=there(familiar),
            surprising=there(familiar & new),
            pairs=pairs,
            state=self._keep(entries) if keep else None,
        )

    def loss(self, u: Tensor, witnesses: Rows, chance: Tensor, evidence: Sequence[Evidence]) -> Tensor:
        """What there is to learn from a call; see `lesson`. A method, so that FSDP2 can gather the parameters."""
        return lesson(self, u, witnesses, chance, evidence)

    def _evened(self, code: Tensor) -> Tensor:
        """Codes are no longer than 1; what is learned from them is learned sooner if their numbers are about 1."""
        return code.detach() * math.sqrt(self.config.rank)

    def _entries(self, timeline: Timeline, state: IndexState, writes: Rows, code: Tensor, new: Tensor) -> _Entries:
        """The entries held, and those of the call's writes that are new [B, R], in the order of writing."""
        fresh = compact(new)
        at = Rows(gather_rows(writes.at, fresh), fresh.valid)
        here = torch.arange(timeline.mask.shape[1], device=code.device)
        return _Entries(
            code=torch.cat([state.code.to(code.dtype), gather_rows(code, fresh)], dim=1),
            position=torch.cat([state.position, gather_rows(timeline.position[:, :-1], at)], dim=1),
            written=torch.cat([torch.full_like(state.position, -1), at.at], dim=1),
            valid=torch.cat([state.position >= 0, at.valid], dim=1),
            dies=torch.cat([torch.where(state.dead, -1, _NEVER), torch.full_like(at.at, _NEVER)], dim=1),
            begins=torch.where(timeline.start, here, -1).cummax(1).values,
        )

    def _compare(self, code: Tensor, rows: Rows, entries: _Entries) -> tuple[Tensor, Tensor]:
        """Match [B, R, E] of tokens of a code [B, R, r] with the entries they can see (-inf where not), and which."""
        visible = entries.visible(rows, self.config.entries)
        match = self.match(code, entries.code)
        return match.masked_fill(~visible, -torch.inf), visible

    def _keep(self, entries: _Entries) -> IndexState:
        batch, length = entries.begins.shape
        end = Rows(torch.full((batch, 1), length, device=entries.code.device), entries.valid.new_ones(batch, 1))
        rows = compact(entries.visible(end, self.config.entries, dead=True).squeeze(1))
        return IndexState(
            code=gather_rows(entries.code, rows).to(self.coding.weight.dtype),
            position=gather_rows(entries.position, rows).masked_fill(~rows.valid, -1),
            dead=gather_rows(entries.dies < length, rows),
        )


class _Entries(NamedTuple):
    """Entries in the order of writing; all [B, E] but for `begins`."""

    code: Tensor
    position: Tensor
    written: Tensor
    valid: Tensor
    dies: Tensor
    """Position in the call from which on an entry does not count any more."""
    begins: Tensor
    """[B, N]: where in the call the sequence of each position began; -1: before it."""

    def visible(self, rows: Rows, most: int, *, dead: bool = False) -> Tensor:
        """[B, R, E] bool: which entries each row can see: of its own sequence, the last ones, not taken out yet."""
        at = rows.at.unsqueeze(2)
        written = self.written.unsqueeze(1)
        begins = self.begins.gather(1, rows.at.clamp_max(self.begins.shape[1] - 1)).unsqueeze(2)
        before = self.valid.unsqueeze(1) & (written < at) & rows.valid.unsqueeze(2)
        rank = self.valid.cumsum(1).unsqueeze(1)
        recent = rank > before.sum(2, keepdim=True) - most
        seen = before & (written >= begins) & recent
        return seen if dead else seen & (at <= self.dies.unsqueeze(1))


def _parts(rows: Rows, code: Tensor, size: int) -> Iterator[tuple[Rows, Tensor]]:
    for begin in range(0, rows.at.shape[1], size):
        part = slice(begin, begin + size)
        yield Rows(rows.at[:, part], rows.valid[:, part]), code[:, part]
