"""One row at a time, over just the events it may read: the specification."""

import math

import torch
from torch import Tensor

from torchcram.ops.records import BONUS, Events, Rows


def episodic_read(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    strength: Tensor,
    recency: Tensor,
    rows: Rows,
    row_time: Tensor,
    events: Events,
    target: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    batch, size = query.shape[0], query.shape[-1]
    out = query * 0.0
    mass = query.new_zeros(batch, key.shape[1])
    pairs = torch.zeros(batch, dtype=torch.int64, device=query.device)
    for b, r in rows.valid.nonzero().tolist():
        t = rows.at[b, r]
        readable = ((events.written[b] < t) & (t <= events.expires[b])).nonzero().squeeze(-1)
        if len(readable) == 0:
            continue
        age = torch.log1p(row_time[b, r] - events.time[b, readable]).to(query.dtype)
        scores = torch.einsum("hd,ehd->eh", query[b, r], key[b, readable]) / math.sqrt(size)
        scores = scores + strength[b, readable, None] + recency * age[:, None]
        if target is not None:
            scores = scores + BONUS * (readable == target[b, r])[:, None]
        weights = torch.softmax(scores, dim=0)
        out[b, r] = torch.einsum("eh,ehd->hd", weights, value[b, readable])
        mass[b, readable] += weights.detach().mean(1)
        pairs[b] += len(readable)
    return out, mass, pairs
