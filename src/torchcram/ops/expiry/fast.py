"""The buffer for a stretch of positions at once: count, for each event, the events that beat it.

An event is in the buffer as long as fewer than M events of its sequence beat it (higher priority, or equal and
older). It is enough to count among the M best at the start of a stretch and the events of the stretch, since an
event that has left already has M better ones among those.
"""

import torch
from torch import Tensor

from torchcram.ops.records import Expiry

_STRETCH = (64, 1024)  # fewest and most positions worked on at once


def expiry(
    priority: Tensor,
    mask: Tensor,
    reset: Tensor,
    position: Tensor,
    held_priority: Tensor,
    held_position: Tensor,
    slots: int | None,
) -> Expiry:
    length, held = priority.shape[1], held_position.shape[1]
    limit = _end_of_sequence(mask, reset, held_position)
    slot = torch.where(mask, position, -1)
    if slots is None or held + length <= slots:
        return Expiry(limit, slot)
    evicted, replaces = _evictions(priority, mask, reset, held_priority, held_position, slots)
    slot = torch.where(position < slots, slot, _inherited(replaces, position, held, slots))
    return Expiry(torch.minimum(limit, evicted), slot)


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


def _evictions(
    priority: Tensor, mask: Tensor, reset: Tensor, held_priority: Tensor, held_position: Tensor, slots: int
) -> tuple[Tensor, Tensor]:
    """Where each event is evicted [B, S + N] (N if never), and which event each write replaces [B, N] (or -1)."""
    batch, length = priority.shape
    held = held_position.shape[1]
    device = priority.device
    spare = held + length  # a column for what must not be kept
    evicted = torch.full((batch, spare + 1), length, dtype=torch.int64, device=device)
    replaces = torch.full((batch, length + 1), -1, dtype=torch.int64, device=device)
    sequence = reset.cumsum(1)

    # The buffer, best first and the older of equals first; `owner` numbers its sequence, -1 is an empty place.
    by_age = held_position.argsort(dim=1)
    order = by_age.gather(1, _descending(held_priority.gather(1, by_age)))
    event = order
    worth = held_priority.gather(1, order)
    owner = torch.where(held_position.gather(1, order) >= 0, 0, -1)

    stretch = min(max(slots, _STRETCH[0]), _STRETCH[1])
    for begin in range(0, length, stretch):
        end = min(begin + stretch, length)
        width = end - begin
        here = torch.arange(begin, end, device=device)
        new_worth = priority[:, begin:end]
        new_owner = torch.where(mask[:, begin:end], sequence[:, begin:end], -2)
        all_worth = torch.cat([worth, new_worth], dim=1)
        all_owner = torch.cat([owner, new_owner], dim=1)
        all_event = torch.cat([event, (held + here).expand(batch, width)], dim=1)
        kept = worth.shape[1]

        # beaten[i, j]: the new event j beats event i. Event i among the new ones is older than j if i < j.
        higher = new_worth.unsqueeze(1) > all_worth.unsqueeze(2)
        older = torch.arange(width, device=device) < torch.arange(-kept, width, device=device).unsqueeze(1)
        higher |= (new_worth.unsqueeze(1) == all_worth.unsqueeze(2)) & older
        higher &= new_owner.unsqueeze(1) == all_owner.unsqueeze(2)
        # What the kept ones add: their rank among themselves (they are sorted, and of one sequence), and for new events
        # how many kept ones beat them.
        rank = (owner >= 0).cumsum(1) - 1
        above = (worth.unsqueeze(1) >= new_worth.unsqueeze(2)) & (owner.unsqueeze(1) == new_owner.unsqueeze(2))
        count = torch.cat([rank, above.sum(2)], dim=1).unsqueeze(2) + higher.cumsum(2, dtype=torch.int32)
        gone = begin + (count < slots).sum(2)  # first position by which `slots` others beat it; `end` if none

        written = torch.cat([torch.full((kept,), begin - 1, device=device), here])
        admitted = gone > written
        leaves = torch.where(gone < end, torch.maximum(gone, written), length)
        evicted.scatter_(1, torch.where(all_owner >= 0, all_event, spare), leaves)
        replaced = (gone < end) & admitted & (all_owner >= 0)
        replaces.scatter_(1, torch.where(replaced, gone, length), all_event)

        stays = (gone >= end) & (all_owner == sequence[:, end - 1 : end])
        key = torch.where(stays, all_worth, -torch.inf)
        best = _descending(key)[:, :slots]
        worth, event = key.gather(1, best), all_event.gather(1, best)
        owner = torch.where(stays.gather(1, best), sequence[:, end - 1 : end], -1)
    return evicted[:, :spare], replaces[:, :length]


def _inherited(replaces: Tensor, position: Tensor, held: int, slots: int) -> Tensor:
    """Follow "takes the slot of" back to an event whose slot is known, in log2 steps. [B, N]"""
    batch, length = replaces.shape
    total = held + length
    own = torch.arange(total, device=replaces.device).expand(batch, total)
    # Events written while the buffer had room, and those held from before, are the ends of the chains.
    links = torch.where((position >= slots) & (replaces >= 0), replaces, own[:, held:])
    root = torch.cat([own[:, :held], links], dim=1)
    for _ in range(total.bit_length()):
        root = root.gather(1, root)
    known = torch.cat([own[:, :held], torch.where(position < slots, position, -1)], dim=1)
    return known.gather(1, root)[:, held:]


def _descending(key: Tensor) -> Tensor:
    """Indices that sort each row from high to low and leave equals in their order."""
    return key.argsort(dim=1, descending=True, stable=True)
