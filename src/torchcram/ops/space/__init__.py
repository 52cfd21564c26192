"""The selective state space of Mamba-2: an outer product is added at each position, and all decays by one number."""

from torch import Tensor

from torchcram.ops.dispatch import choose
from torchcram.ops.space import fast, reference

FORMS = {"reference": reference.state_space, "fast": fast.state_space}
"""By name; a benchmark adds one."""


def state_space(
    x: Tensor, decay: Tensor, key: Tensor, query: Tensor, reset: Tensor, initial: Tensor
) -> tuple[Tensor, Tensor]:
    """S_t = exp(-decay_t) S_{t-1} + x_t ⊗ key_t; y_t = S_t query_t.

    x [B, N, H, p]; decay [B, N, H] ≥ 0; key and query [B, N, G, s], G either 1, for all heads alike, or H; reset
    [B, N] bool (True forgets what came before); initial [B, H, p, s]. Returns y [B, N, H, p] and the last state.
    Differentiable in all but `reset`. N ≥ 1.
    """
    return choose(FORMS, x)(x, decay, key, query, reset, initial)
