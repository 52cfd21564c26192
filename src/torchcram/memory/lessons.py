"""What a contradiction index learns, and from whom: the reads of witnesses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from torchcram import processes
from torchcram.memory.moments import RunningMoments
from torchcram.ops import Rows, compact, gather_rows

if TYPE_CHECKING:
    from torchcram.memory.contradiction import ContradictionIndex

LEAST_DOUBT, MOST_DOUBT = 0.01, 2.0
"""Of what is expected for a code, in units of reads."""
_WITNESSES = 64  # tokens of a sequence that the index learns from
_RESTS = 0.5  # part of a read that one event must have to be the one asked for
_UNANSWERED = 0.1  # of what an answered position tells about who asks, one that is not does
_TRUSTED = 0.25  # as many reads that are used and rest on something as in the best layer: a layer is believed


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


@torch.no_grad()
def choose_witnesses(
    asking: Tensor, mask: Tensor, lot: Tensor, others: float, answered: Tensor | None = None
) -> tuple[Tensor, Tensor, Rows]:
    """Whom to learn from: all tokens that are likely to ask, or have an answer [B, N], and a share of the others.

    lot [B, N]: random numbers from 0 to 1. Returns who was chosen [B, N], with what chance [B, N], and those among
    them, as many as are needed, that are to be witnesses.
    """
    chance = torch.where(asking if answered is None else asking | answered, 1.0, others)
    chosen = (lot < chance) & mask
    rows = compact(chosen)
    if rows.at.shape[1] > _WITNESSES:
        order = (gather_rows(lot, rows) / gather_rows(chance, rows).clamp_min(1e-9)).masked_fill(~rows.valid, torch.inf)
        picked = order.topk(_WITNESSES, largest=False).indices.sort(1).values
        rows = Rows(rows.at.gather(1, picked), rows.valid.gather(1, picked))
    return chosen, chance, rows


def lesson(
    index: ContradictionIndex,
    u: Tensor,
    taps: Tensor | None,
    witnesses: Rows,
    chance: Tensor,
    evidence: Sequence[Evidence],
    answered: Tensor | None = None,
) -> Tensor:
    """What the reads of the witnesses teach: u [B, N, D], and what each layer's reads rested on.

    taps [B, N, W, D]: with a convolution, what u was made of, each token and those just before it. answered [B, N]
    bool: where an answer counts, if not everywhere; what others read may be anything.
    """
    share, event, says, used, _ = (torch.stack(part) for part in zip(*evidence, strict=True))
    rested = (share > _RESTS) & witnesses.valid
    if answered is not None:
        rested = rested & gather_rows(answered, witnesses)
    if index.training:
        index.rested.lerp_(processes.total((rested & used).flatten(1).sum(1).to(index.rested.dtype)), 0.05)
        # What a write says is told by one layer, and by the same as long as it retrieves: each has its own way.
        most = index.rested.max()
        index.teller.copy_(torch.where(index.rested[index.teller] < most / 2, index.rested.argmax(), index.teller))
    # A layer whose reads nobody uses may rest on anything.
    trusted = (index.rested >= _TRUSTED * index.rested.max()).view(-1, 1, 1)
    rested = rested & trusted
    rests = rested.any(0)
    best = event.gather(0, share.masked_fill(~trusted, -1).argmax(0, keepdim=True)).squeeze(0)
    said, told = says[index.teller].squeeze(0).detach(), (rested & (event == best))[index.teller].squeeze(0)
    if index.training:
        index.reads.observe(said, told)
    heard = witnesses.valid.to(u.dtype)
    if answered is not None:
        # Whether the others ask for something nobody knows: it may be that nothing comes of it.
        heard = heard * torch.where(gather_rows(answered, witnesses), 1.0, _UNANSWERED)
    tokens = heard / gather_rows(chance, witnesses).clamp(0.1, 1)
    sizes = processes.totals(rests.sum(), told.sum(), witnesses.valid.sum(), tokens.sum())
    reads, tellings, rows, all_tokens = map(processes.per_process, sizes)

    asker, writer = gather_rows(u, witnesses), gather_rows(u, Rows(best, rests))
    asks_with, told_with = asker.unsqueeze(2), writer.unsqueeze(2)
    if taps is not None:
        asks_with, told_with = gather_rows(taps, witnesses), gather_rows(taps, Rows(best, rests))
    cost = nn.functional.binary_cross_entropy_with_logits
    asks = cost(index.asks(asks_with.flatten(2).detach()).squeeze(-1), rests.to(u.dtype), reduction="none")
    asking = (asks * tokens).sum() / all_tokens
    # Written to be asked for, or not: those that were, and the witnesses themselves, which are as good as any.
    written = cost(
        index.asked(told_with.flatten(2).detach()).squeeze(-1), torch.ones_like(rests, dtype=u.dtype), reduction="none"
    )
    others = ~(witnesses.at.unsqueeze(2) == best.masked_fill(~rests, -1).unsqueeze(1)).any(2)
    idle = cost(
        index.asked(asks_with.flatten(2).detach()).squeeze(-1), torch.zeros_like(rests, dtype=u.dtype), reduction="none"
    )
    asking = asking + (written * rests).sum() / reads + (idle * tokens * others).sum() / all_tokens

    code, marks = index.code(index.asking(asks_with)), index.code(index.telling(told_with))
    untold = (index.content(writer.detach()) - _in_units(said, index.reads)).square().mean(-1)
    expected, from_mark = index.expect(code), index.expect(marks)
    apart, leak = index.apart(writer, expected), index.apart(expected, from_mark)
    wrong = (index.doubts(code).log() - apart.detach().clamp(LEAST_DOUBT, MOST_DOUBT).log()).square()
    # What does not recur cannot be expected: it must not be learned at the expense of what does. All of a write is
    # foretold, and not only what reads give of it now, since that changes as the model learns.
    foretold = _mild(apart) + _mild((expected - writer.detach()).square().mean(-1))
    # A write's code holds something of its value, which must not tell what to expect.
    checking = (told * (wrong + foretold + _mild(leak) + untold)).sum() / tellings

    match = index.match(code, marks)
    right_match = nn.functional.softplus(-match.diagonal(dim1=1, dim2=2)) * rests
    # Others are not what a token asks for, nor the token itself; for the same key they have nearly the same code.
    others = ((best.unsqueeze(2) != best.unsqueeze(1)) | ~rests.unsqueeze(2)) & rests.unsqueeze(1)
    own = witnesses.at.unsqueeze(2)
    others &= (own != best.unsqueeze(1)) if answered is None else (own > best.unsqueeze(1))
    alike = (1 + index.level) / 2
    wrong_match = _any(match, others & (code @ marks.transpose(1, 2) < alike))
    between = _any(index.match(marks, marks), others & (marks @ marks.transpose(1, 2) < alike)) * rests
    # Before anything is retrieved there is nothing to match, and keys would only be made alike.
    begun = sizes[0] > 0
    # The first few that rest on something are not to drown in the others.
    matching = ((right_match + wrong_match) * heard).sum() / (reads + rows / 10) + between.sum() / reads
    loss: Tensor = asking + begun * (checking + matching)
    return loss


def _in_units(said: Tensor, reads: RunningMoments) -> Tensor:
    """What reads give [..., D], less what they give on average, in units of how much they differ.

    A few alike reads do not differ: at least a part of their size counts.
    """
    spread = torch.maximum(reads.variance, reads.mean_square / 4) / said.shape[-1]
    return (said - reads.mean) / spread.sqrt()


def _mild(square: Tensor) -> Tensor:
    """A squared error that counts by its root where it is large."""
    return 2 * ((1 + square).sqrt() - 1)


def _any(logits: Tensor, those: Tensor) -> Tensor:
    """What it costs, [B, R], that any of `those` [B, R, E] match: log(1 + Σ exp)."""
    worst = torch.logsumexp(logits.masked_fill(~those, -torch.inf), dim=-1)
    return nn.functional.softplus(worst)
