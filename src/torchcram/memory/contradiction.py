"""The contradiction index: which writes say what memory does not expect, and which tokens ask for them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcram import processes
from torchcram.config import ContradictionConfig
from torchcram.memory.moments import RunningMoments
from torchcram.memory.state import IndexState
from torchcram.memory.timeline import Timeline
from torchcram.ops import Rows, compact, gather_rows, scatter_rows

_LIKELY = -2.5  # logit from which on a write is looked at, and a token looks ...
_LAG = 1.0  # ... unless it is likelier to be the other, by this
_NEAR = 0.28  # of the variance of what is read: what is nearer to what was expected says nothing new
_UNKNOWN = 1.5  # doubt at which nothing is known of a key, whatever it says
_LEAST_DOUBT, _MOST_DOUBT = 0.01, 2.0
_FAMILIAR = 0.3  # doubt below which something is expected, and what is written can be a surprise
_WITNESSES = 64  # tokens of a sequence that the index learns from
_RESTS = 0.5  # part of a read that one event must have to be the one asked for
_TRUSTED = 0.25  # as many reads that are used and rest on something as in the best layer: a layer is believed
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


class Evidence(NamedTuple):
    """What the reads of a layer's witnesses rested on."""

    share: Tensor
    """[B, Q]: the largest part that one event of this call has in the read; 0 where the token read nothing."""
    event: Tensor
    """[B, Q]: which one, as its number in the call."""
    says: Tensor
    """[B, Q, D]: what a read of that event alone gives."""
    used: Tensor
    """[B, Q] bool: the token uses its read in this layer."""
    pairs: Tensor
    """[B]: query-event pairs scored to find that out."""


class ContradictionIndex(nn.Module):
    """Parametric recall goes stale when the context binds a known key anew. The index notices at the write.

    *Code.* A token's code says what it asks for, or can be asked for by. Codes learn from reads: what a read rests on
    has the code of the token that read.

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
        apart, doubts = self._apart(u, self.expected(self._evened(code))), self._doubts(code)
        return apart / _NEAR + doubts / _UNKNOWN, doubts

    def roles(self, u: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Which tokens u [B, N, D] ask for something, and which say something that may be asked for, both [B, N]."""
        asks, asked = self._logit(self.asks, u), self._logit(self.asked, u)
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
    def choose(self, asking: Tensor, mask: Tensor, lot: Tensor, others: float) -> tuple[Tensor, Tensor, Rows]:
        """Whom to learn from: all tokens that are likely to ask [B, N], and a share of the others.

        lot [B, N]: random numbers from 0 to 1. Returns who was chosen [B, N], with what chance [B, N], and those among
        them, as many as are needed, that are to be witnesses.
        """
        chance = torch.where(asking, 1.0, others)
        chosen = (lot < chance) & mask
        rows = compact(chosen)
        if rows.at.shape[1] > _WITNESSES:
            order = (gather_rows(lot, rows) / gather_rows(chance, rows).clamp_min(1e-9)).masked_fill(
                ~rows.valid, torch.inf
            )
            picked = order.topk(_WITNESSES, largest=False).indices.sort(1).values
            rows = Rows(rows.at.gather(1, picked), rows.valid.gather(1, picked))
        return chosen, chance, rows

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
        known = Rows(gather_rows(writes.at, as_ever), as_ever.valid)
        entries = self._entries(timeline, state, writes, code, new)
        pairs = torch.zeros(batch, dtype=torch.int64, device=u.device)
        target, here = (torch.full((batch, length), -1, dtype=torch.int64, device=u.device) for _ in range(2))
        if entries.code.shape[1]:
            margin = self.gain.exp() * (1 - self.level) / 2
            number = torch.arange(entries.code.shape[1], device=u.device)
            step = max(1, _AT_ONCE // (batch * len(number)))
            dies = entries.dies
            for rows in _parts(known, step):
                alike, _ = self._compare(u, rows, entries)
                at = torch.where(alike > 0, rows.at.unsqueeze(2), _NEVER).amin(1)
                dies = torch.minimum(dies, at)
            entries = entries._replace(dies=dies)
            for rows in _parts(known, step):
                pairs += entries.visible(rows, self.config.entries).sum((1, 2))
            for rows in _parts(compact(asking), step):
                match, visible = self._compare(u, rows, entries)
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
        """What the reads of the witnesses teach: u [B, N, D], and what each layer's reads rested on."""
        share, event, says, used, _ = (torch.stack(part) for part in zip(*evidence, strict=True))
        rested = (share > _RESTS) & witnesses.valid
        if self.training:
            self.rested.lerp_(processes.total((rested & used).flatten(1).sum(1).to(self.rested.dtype)), 0.05)
            # What a write says is told by one layer, and by the same as long as it retrieves: each has its own way.
            most = self.rested.max()
            self.teller.copy_(torch.where(self.rested[self.teller] < most / 2, self.rested.argmax(), self.teller))
        # A layer whose reads nobody uses may rest on anything.
        trusted = (self.rested >= _TRUSTED * self.rested.max()).view(-1, 1, 1)
        rested = rested & trusted
        rests = rested.any(0)
        best = event.gather(0, share.masked_fill(~trusted, -1).argmax(0, keepdim=True)).squeeze(0)
        said, told = says[self.teller].squeeze(0).detach(), (rested & (event == best))[self.teller].squeeze(0)
        if self.training:
            self.reads.observe(said, told)
        tokens = witnesses.valid / gather_rows(chance, witnesses).clamp(0.1, 1)
        sizes = processes.totals(rests.sum(), told.sum(), witnesses.valid.sum(), tokens.sum())
        reads, tellings, rows, all_tokens = map(processes.per_process, sizes)

        asker, writer = gather_rows(u, witnesses), gather_rows(u, Rows(best, rests))
        cost = nn.functional.binary_cross_entropy_with_logits
        asks = cost(self._logit(self.asks, asker), rests.to(u.dtype), reduction="none")
        asking = (asks * tokens).sum() / all_tokens
        # Written to be asked for, or not: those that were, and the witnesses themselves, which are as good as any.
        written = cost(self._logit(self.asked, writer), torch.ones_like(rests, dtype=u.dtype), reduction="none")
        others = ~(witnesses.at.unsqueeze(2) == best.masked_fill(~rests, -1).unsqueeze(1)).any(2)
        idle = cost(self._logit(self.asked, asker), torch.zeros_like(rests, dtype=u.dtype), reduction="none")
        asking = asking + (written * rests).sum() / reads + (idle * tokens * others).sum() / all_tokens

        code, marks = self.code(asker), self.code(writer)
        untold = (self.content(writer.detach()) - self._in_units(said)).square().mean(-1)
        expected, from_mark = self.expected(self._evened(code)), self.expected(self._evened(marks))
        apart, leak = self._apart(writer, expected), self._apart(expected, from_mark)
        wrong = (self._doubts(code).log() - apart.detach().clamp(_LEAST_DOUBT, _MOST_DOUBT).log()).square()
        # What does not recur cannot be expected: it must not be learned at the expense of what does. All of a write is
        # foretold, and not only what reads give of it now, since that changes as the model learns.
        foretold = _mild(apart) + _mild((expected - writer.detach()).square().mean(-1))
        # A write's code holds something of its value, which must not tell what to expect.
        checking = (told * (wrong + foretold + _mild(leak) + untold)).sum() / tellings

        match = self.match(code, marks)
        right_match = nn.functional.softplus(-match.diagonal(dim1=1, dim2=2)) * rests
        # Others are not what a token asks for, nor the token itself; for the same key they have nearly the same code.
        others = ((best.unsqueeze(2) != best.unsqueeze(1)) | ~rests.unsqueeze(2)) & rests.unsqueeze(1)
        others &= witnesses.at.unsqueeze(2) != best.unsqueeze(1)
        alike = (1 + self.level) / 2
        wrong_match = _any(match, others & (code @ marks.transpose(1, 2) < alike))
        between = _any(self.match(marks, marks), others & (marks @ marks.transpose(1, 2) < alike)) * rests
        # Before anything is retrieved there is nothing to match, and keys would only be made alike.
        begun = sizes[0] > 0
        # All count alike, but the first few that rest on something are not to drown in the others.
        matching = ((right_match + wrong_match) * witnesses.valid).sum() / (reads + rows / 10) + between.sum() / reads
        loss: Tensor = asking + begun * (checking + matching)
        return loss

    def _apart(self, u: Tensor, expected: Tensor) -> Tensor:
        """How differently one would read a write u [..., D] and what was expected of it, squared, in units of reads."""
        weight = self.content.weight.detach()
        return nn.functional.linear(u.detach() - expected, weight).square().mean(-1)

    def _evened(self, code: Tensor) -> Tensor:
        """Codes are no longer than 1; what is learned from them is learned sooner if their numbers are about 1."""
        return code.detach() * math.sqrt(self.config.rank)

    def _doubts(self, code: Tensor) -> Tensor:
        """How far from the truth what is expected for a code [..., r] is thought to be, squared, in units of reads."""
        low, high = math.log(_LEAST_DOUBT), math.log(_MOST_DOUBT)
        share: Tensor = torch.sigmoid(self.doubt(self._evened(code))).squeeze(-1)
        return torch.exp(low + (high - low) * share)

    def _in_units(self, said: Tensor) -> Tensor:
        """What reads give [..., D], less what they give on average, in units of how much they differ.

        A few alike reads do not differ: at least a part of their size counts.
        """
        spread = torch.maximum(self.reads.variance, self.reads.mean_square / 4) / said.shape[-1]
        return (said - self.reads.mean) / spread.sqrt()

    def _logit(self, head: nn.Linear, u: Tensor) -> Tensor:
        logit: Tensor = head(u.detach())
        return logit.squeeze(-1)

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

    def _compare(self, u: Tensor, rows: Rows, entries: _Entries) -> tuple[Tensor, Tensor]:
        """Match [B, R, E] of some tokens with the entries they can see (-inf where not), and which these are."""
        visible = entries.visible(rows, self.config.entries)
        match = self.match(self.code(gather_rows(u, rows)), entries.code)
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


def _parts(rows: Rows, size: int) -> Iterator[Rows]:
    for begin in range(0, rows.at.shape[1], size):
        yield Rows(rows.at[:, begin : begin + size], rows.valid[:, begin : begin + size])


def _mild(square: Tensor) -> Tensor:
    """A squared error that counts by its root where it is large."""
    return 2 * ((1 + square).sqrt() - 1)


def _any(logits: Tensor, those: Tensor) -> Tensor:
    """What it costs, [B, R], that any of `those` [B, R, E] match: log(1 + Σ exp)."""
    worst = torch.logsumexp(logits.masked_fill(~those, -torch.inf), dim=-1)
    return nn.functional.softplus(worst)
