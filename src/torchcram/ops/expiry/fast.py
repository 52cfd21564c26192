"""The buffer for all positions at once: which priority was the M-th best of a sequence so far, at each of them?

That bar only ever rises within a sequence, so an event leaves where it first rises above it: one search in a sorted
list. The bars are found by a wavelet matrix. Events are numbered by rank, best first, and put in the order of writing;
digit by digit, from the highest, the M-th smallest number in a range is looked up by counting, and the events are
sorted by that digit. So the work is O(N log N), whatever M is.
"""

import torch
from torch import Tensor

from torchcram.ops.records import Expiry

_BITS = 4  # of a digit
FEW = 4
"""Positions for which it takes less time to look at everything that is held."""
_CHUNK = 1024  # longer sums are made of sums of so many


def expiry(
    priority: Tensor,
    mask: Tensor,
    reset: Tensor | None,
    position: Tensor,
    held_priority: Tensor,
    held_position: Tensor,
    slots: int | None,
) -> Expiry:
    length, held = priority.shape[1], held_position.shape[1]
    reset = torch.zeros_like(mask) if reset is None else reset
    limit = _end_of_sequence(mask, reset, held_position)
    if slots is None or held + length <= slots:
        return Expiry(limit, mask)
    evicted = _evicted(priority, mask, reset, held_priority, held_position, slots)
    here = torch.arange(length, device=mask.device)
    admitted = mask & (evicted[:, held:] > here)
    evicted[:, held:].clamp_min_(here)
    return Expiry(torch.minimum(limit, evicted), admitted)


def _end_of_sequence(mask: Tensor, reset: Tensor, held_position: Tensor) -> Tensor:
    """The last position of the sequence each event belongs to; N if that goes on after the call. [B, S + N]"""
    batch, length = mask.shape
    here = torch.arange(length, device=mask.device)
    start = torch.where(reset, here, length + 1)
    next_start = start.flip(1).cummin(1).values.flip(1)
    never = next_start.new_full((batch, 1), length + 1)
    new = torch.where(mask, torch.cat([next_start[:, 1:], never], dim=1) - 1, here)
    held = torch.where(held_position >= 0, next_start[:, :1] - 1, -1)
    return torch.cat([held, new], dim=1)


def _evicted(
    priority: Tensor, mask: Tensor, reset: Tensor, held_priority: Tensor, held_position: Tensor, slots: int
) -> Tensor:
    """The first position by which M events beat each one [B, S + N], which may be before its own; N if none does."""
    held, length = held_position.shape[1], priority.shape[1]
    total = held + length
    # The older of equals is the better one, and what is no event at all is worse than any.
    age = held_position.argsort(dim=1)
    worth = torch.cat(
        [
            held_priority.masked_fill(held_position < 0, -torch.inf).gather(1, age),
            priority.masked_fill(~mask, -torch.inf),
        ],
        dim=1,
    )
    order = worth.argsort(dim=1, descending=True, stable=True)
    rank = _put(order, torch.arange(total, device=order.device).expand_as(order))

    sequence = reset.cumsum(1)
    here = torch.arange(length, device=order.device)
    begin = torch.where(reset, held + here, 0).cummax(1).values  # of the sequence, in the order of writing
    end = (held + 1 + here).expand_as(begin)
    full = end - begin >= slots
    if length <= FEW:
        place = torch.arange(total, device=order.device)
        outside = (place < begin.unsqueeze(2)) | (place >= end.unsqueeze(2))
        bar = rank.unsqueeze(1).masked_fill(outside, total).kthvalue(slots, dim=2).values
    else:
        bar = _smallest(rank, begin, end, torch.where(full, slots, 1))

    # One number that only rises along a row: first by sequence, then by how high the bar is.
    high = sequence * (total + 1) + torch.where(full, total - bar, 0)
    owner = torch.cat([torch.zeros_like(held_position), sequence], dim=1)
    found = torch.searchsorted(high, owner * (total + 1) + total - rank, right=True)
    return torch.cat([_put(age, found[:, :held]), found[:, held:]], dim=1)


def _smallest(number: Tensor, begin: Tensor, end: Tensor, which: Tensor) -> Tensor:
    """The `which`-th smallest of number[begin:end], for many ranges of each row [B, Q]; 1 is the smallest of all.

    number [B, T]: each of 0 … T - 1 once.
    """
    digits = 1 << _BITS
    every = torch.arange(digits, device=number.device).unsqueeze(1)
    levels = -(-(number.shape[1] - 1).bit_length() // _BITS)
    answer = torch.zeros_like(which)
    for level in reversed(range(levels)):
        digit = (number >> level * _BITS) & digits - 1
        count = _counts(digit.unsqueeze(1) == every)  # [B, 16, T + 1], before each place
        start = count[..., -1].cumsum(1) - count[..., -1]
        low, high = (count.gather(2, at.unsqueeze(1).expand(-1, digits, -1)) for at in (begin, end))  # [B, 16, Q]
        up_to = (high - low).cumsum(1)
        # The digit that the number looked for has, and its place among those that have it too.
        answer_digit = (up_to < which.unsqueeze(1)).sum(1)
        pick = answer_digit.unsqueeze(1)
        low, high, up_to = (x.gather(1, pick).squeeze(1) for x in (low, high, up_to))
        which = which - (up_to - (high - low))
        first = start.gather(1, answer_digit)
        begin, end = first + low, first + high
        answer = (answer << _BITS) | answer_digit
        if level:
            place = start.gather(1, digit) + count[..., :-1].gather(1, digit.unsqueeze(1)).squeeze(1)
            number = _put(place, number)
    return answer


def _counts(flags: Tensor) -> Tensor:
    """How many are True before each place, and in all: [..., T] to [..., T + 1] int64."""
    size = flags.shape[-1]
    chunks = -(-size // _CHUNK)
    if chunks == 1:
        return torch.nn.functional.pad(flags.cumsum(-1), (1, 0))
    # A scan of a long row would keep one processor busy and the others waiting.
    filled = torch.nn.functional.pad(flags, (0, chunks * _CHUNK - size))
    parts = filled.view(*flags.shape[:-1], chunks, _CHUNK).cumsum(-1)
    before = parts[..., -1].cumsum(-1) - parts[..., -1]
    return torch.nn.functional.pad((parts + before.unsqueeze(-1)).flatten(-2)[..., :size], (1, 0))


def _put(place: Tensor, x: Tensor) -> Tensor:
    """x [B, T] at other places of its row, each place once."""
    return torch.empty_like(x, memory_format=torch.contiguous_format).scatter_(1, place, x)
