"""The contradiction index: which stored events say what semantic memory does not, and who asks for them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcram import processes
from torchcram.config import ContradictionConfig
from torchcram.ops import Events, Rows, compact, gather_rows, scatter_rows

LIKELY = -2.5
"""Writes whose logit of ever being asked for is above this are checked and can enter the index."""
_AT_ONCE = 1 << 24  # comparisons of positions and entries held in memory


class Marks(NamedTuple):
    """What the index knows of the events a call can read: the S held ones, then the N new ones."""

    mark: Tensor
    """[B, S + N, r]: code of an event's key if it is in the index, else 0."""
    code: Tensor
    """[B, E, r]: codes of the new events that are likely to be asked for, in the index or not."""
    rows: Rows
    """[B, E]: where those are."""
    known: Tensor
    """[B, N] bool: what a new event says, semantic memory would say too; False for events not looked at."""


class Consulted(NamedTuple):
    """What a look into the index gave."""

    hits: Tensor
    """[B, N] bool: the position asks for an event that semantic memory does not know."""
    expires: Tensor
    """[B, S + N]: last position that may read each event, if it was superseded; large otherwise."""
    pairs: Tensor
    """[B]: pairs of a position and an entry that were compared."""


class Lesson(NamedTuple):
    """What Q reads of each sequence showed of the E new events that are likely to be asked for."""

    u: Tensor
    """[B, Q, D]: the tokens that read."""
    weight: Tensor
    """[B, Q]: how much each read counts; 0: there is none."""
    best: Tensor
    """[B, Q]: the event most attended to."""
    rests: Tensor
    """[B, Q] bool: most of the attention was on that one."""
    rival: Tensor
    """[B, Q, E] bool: the events that could be read and were hardly attended to."""
    same: Tensor
    """[B, Q] bool: semantic memory recalled what was read."""
    told: Tensor
    """[B, Q] bool: `same` tells whether the event is known."""
    usual: Tensor
    """How far the values that reads rest on are from their mean: their mean square."""


class ContradictionIndex(nn.Module):
    """Parametric recall goes stale when the context binds a known key anew. The index notices at the write.

    *Code.* A token's code says what it asks for, or can be asked for by. Codes learn from reads: what a read rests on
    has the code of the token that read.

    *Check.* For each write that is likely to be asked for, `known` tells whether its value is the one expected for its
    code. Expectations learn from reads too: the value that a read rested on, from the code of the token that read. What
    is near enough to count as known is what recall gave as well, or what the model did without at no loss.

    *Hit.* A write that is not known is marked with its code. A token of the same code asks for something that recall
    would get wrong, and reads.

    A mark lives and dies with its event in the buffer, so the index is bounded as that is.
    """

    def __init__(self, width: int, config: ContradictionConfig) -> None:
        super().__init__()
        self.config = config
        rank = config.rank
        self.expected = nn.Sequential(nn.Linear(rank, 4 * rank), nn.ReLU(), nn.Linear(4 * rank, width))
        # One number in a row each: FSDP2 shards along the first dimension, so it wants one.
        self.tightness = nn.Parameter(torch.zeros(1))
        self.bias = nn.Parameter(torch.zeros(1))
        # One code for asking and for being asked for: so a key that has never been overridden matches all the same.
        self.coding = nn.Linear(width, rank, bias=False)
        self.gain = nn.Parameter(torch.full((1,), 2.0))
        self.level = nn.Parameter(torch.full((1,), 0.7))

    def known(self, code: Tensor, value: Tensor) -> Tensor:
        """Logits [B, E] that the value [B, E, H, d] of each write is the one expected for its code [B, E, r].

        Only where to draw the line is learned from this. Expectations must not be: values carry something of their
        keys, by which pairs could be told apart without knowing anything.
        """
        with torch.no_grad():
            distance = self._distance(code, value)
        logit: Tensor = self.bias - self.tightness.exp() * distance
        return logit

    def _distance(self, code: Tensor, value: Tensor) -> Tensor:
        expected: Tensor = self.expected(code.detach())
        return (expected - value.detach().flatten(2)).square().mean(-1)

    def code(self, u: Tensor) -> Tensor:
        """The code [..., r] of what a token asks for, or can be asked for by; its length is below 1."""
        code: Tensor = self.coding(u.detach())
        return code / (1 + code.square().sum(-1, keepdim=True)).sqrt()

    def match(self, asks: Tensor, marks: Tensor) -> Tensor:
        """Logits [B, R, E] that what is asked for, of code [B, R, r], is what is marked [B, E, r]."""
        return self.gain.exp() * (asks @ marks.transpose(1, 2) - self.level)

    def look(self, u: Tensor, value: Tensor, likely: Tensor, held: Tensor) -> tuple[Marks, Tensor]:
        """Check and mark the writes of a call where `likely` [B, N]; held [B, S, r] are the marks from before.

        u [B, N, D]; value [B, N, H, d]. Also returns by how much each write [B, N] is known, in logits.
        """
        rows = compact(likely)
        if not rows.at.shape[1]:
            rows = Rows(rows.at.new_zeros(len(likely), 1), rows.valid.new_zeros(len(likely), 1))
        code = self.code(gather_rows(u, rows))
        with torch.no_grad():
            known = self.known(code, gather_rows(value, rows))
        new = scatter_rows(code.detach() * (known < 0).unsqueeze(-1), rows, u.shape[1])
        logit = scatter_rows(known, rows, u.shape[1])
        marks = Marks(torch.cat([held.to(new.dtype), new], dim=1), code, rows, logit > 0)
        return marks, logit

    @torch.no_grad()
    def consult(self, u: Tensor, mask: Tensor, marks: Marks, events: Events) -> Consulted:
        """Compare what every real token u [B, N, D] asks for with the marks of the events it may read."""
        batch, length = u.shape[:2]
        beyond = torch.iinfo(torch.int64).max
        lasts = torch.full_like(events.expires, beyond)
        hits = torch.zeros(batch, length, dtype=torch.bool, device=u.device)
        pairs = torch.zeros(batch, dtype=torch.int64, device=u.device)
        entries = compact(marks.mark.any(-1))
        if entries.at.shape[1] == 0:
            return Consulted(hits, lasts, pairs)
        mark = gather_rows(marks.mark, entries)
        expires = gather_rows(events.expires, entries).masked_fill(~entries.valid, -1)
        seen = Events(gather_rows(events.written, entries), expires, gather_rows(events.time, entries))
        if self.config.supersede:
            # A write for the same key takes the older one's place. It must be a little surer than a read: a wrong read
            # costs a read, but an event wrongly lost is lost.
            alike = marks.code @ mark.transpose(1, 2) > self.level + (1 - self.level) / 4
            at = torch.where(alike & seen.readable(marks.rows), marks.rows.at.unsqueeze(2), beyond)
            seen = seen._replace(expires=torch.minimum(expires, at.amin(1)))
            lasts.scatter_reduce_(1, entries.at, torch.where(entries.valid, seen.expires, beyond), "amin")
        asks = self.code(u)
        step = max(1, _AT_ONCE // (batch * mark.shape[1]))
        for begin in range(0, length, step):
            part = slice(begin, begin + step)
            at = torch.arange(length, device=u.device)[part].expand(batch, -1)
            readable = seen.readable(Rows(at, mask[:, part]))
            hits[:, part] = ((self.match(asks[:, part], mark) > 0) & readable).any(2)
            pairs += readable.sum((1, 2))
        return Consulted(hits, lasts, pairs)

    def loss(self, marks: Marks, known: Tensor, value: Tensor, lesson: Lesson) -> Tensor:
        """What a call teaches. known [B, Q]: of the events that the reads rest on; value [B, Q, H, d]: their values."""
        valid = marks.rows.valid
        rests = lesson.weight * lesson.rests
        sizes = processes.totals(valid.sum(), rests.sum(), lesson.weight.sum())
        events, reads, rows = map(processes.per_process, sizes)

        cost = nn.functional.binary_cross_entropy_with_logits
        right = cost(known, lesson.same.to(known.dtype), reduction="none") * lesson.told
        # From the code of the token that asks, in which there is nothing yet of the value.
        away = self._distance(self.code(lesson.u), value) / lesson.usual
        checking = (rests * (right + away)).sum() / reads

        code = self.code(lesson.u)
        match = self.match(code, marks.code)
        found = match.gather(2, lesson.best.unsqueeze(-1)).squeeze(-1)
        right_match = nn.functional.softplus(-found) * lesson.rests
        wrong_match = _any(match, lesson.rival & valid.unsqueeze(1))
        # Writes do not match earlier ones, unless these are for the same key: their codes are then nearly the same.
        products = marks.code @ marks.code.transpose(1, 2)
        strangers = (products < (1 + self.level) / 2) & valid.unsqueeze(1)
        number = torch.arange(marks.code.shape[1], device=value.device)
        between = _any(self.match(marks.code, marks.code), strangers & (number < number.unsqueeze(1)))
        # Before anything is retrieved there is nothing to match, and keys would only be made alike.
        begun = sizes[1] > 0
        # All reads count alike, but the first few that rest on something are not to drown in the others.
        matching = (lesson.weight * (right_match + wrong_match)).sum() / (reads + rows / 10)
        matching = matching + (between * valid).sum() / events
        return checking + begun * matching


def _any(logits: Tensor, those: Tensor) -> Tensor:
    """What it costs, [B, R], that any of `those` [B, R, E] match: log(1 + Σ exp)."""
    worst = torch.logsumexp(logits.masked_fill(~those, -torch.inf), dim=-1)
    return nn.functional.softplus(worst)
