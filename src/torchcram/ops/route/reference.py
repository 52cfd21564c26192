"""The choice token by token: the specification."""

import torch
from torch import Tensor


def route(logits: Tensor, noise: Tensor, temperature: float | Tensor) -> tuple[Tensor, Tensor]:
    soft = torch.softmax((logits + noise) / temperature, dim=-1)
    actions = torch.zeros(logits.shape[:2], dtype=torch.int64, device=logits.device)
    hard = torch.zeros_like(soft)
    for b in range(logits.shape[0]):
        for t in range(logits.shape[1]):
            scores = (logits + noise)[b, t].tolist()
            best = scores.index(max(scores))
            actions[b, t] = best
            hard[b, t, best] = 1
    return actions, hard + (soft - soft.detach())
