"""Semantic memory: what an episodic read would return, recalled from weights."""

from torch import Tensor, nn

from torchcram.config import SemanticConfig


class SemanticMemory(nn.Module):
    """f_sem(u) = W_up ReLU(W_down u), rank R (eq. 4). It starts at 0 and learns from episodic reads."""

    def __init__(self, width: int, config: SemanticConfig) -> None:
        super().__init__()
        self.down = nn.Linear(width, config.rank, bias=False)
        self.up = nn.Linear(config.rank, width, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, u: Tensor) -> Tensor:
        """u [..., D] to r^S [..., D]."""
        recalled: Tensor = self.up(nn.functional.relu(self.down(u)))
        return recalled
