"""Pure tensor functions, one folder an operation: `reference.py` is the specification, `fast.py` what runs.

On a GPU `triton.py` runs where there is one.

Shapes use B batch, N positions, D width, H heads, S slots held, E events, R rows, M buffer size.
"""

from torchcram.ops.choice import About, choice
from torchcram.ops.decay import decay_scan
from torchcram.ops.dispatch import use
from torchcram.ops.estimate import estimate
from torchcram.ops.euler import euler_steps
from torchcram.ops.expert import Given, expert
from torchcram.ops.expiry import expiry
from torchcram.ops.hashed import hashed
from torchcram.ops.read import episodic_read
from torchcram.ops.records import BONUS, KNOWN, Events, Expiry, Rows
from torchcram.ops.route import gumbel, route
from torchcram.ops.rows import Lengths, add_rows, compact, gather_rows, scatter_rows
from torchcram.ops.shift import previous
from torchcram.ops.space import state_space
from torchcram.ops.surprise import surprise
from torchcram.ops.turn import turn, turn_apart

__all__ = [
    "BONUS",
    "KNOWN",
    "About",
    "Events",
    "Expiry",
    "Given",
    "Lengths",
    "Rows",
    "add_rows",
    "choice",
    "compact",
    "decay_scan",
    "episodic_read",
    "estimate",
    "euler_steps",
    "expert",
    "expiry",
    "gather_rows",
    "gumbel",
    "hashed",
    "previous",
    "route",
    "scatter_rows",
    "state_space",
    "surprise",
    "turn",
    "turn_apart",
    "use",
]
