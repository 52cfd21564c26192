"""How large an experiment is run."""

from __future__ import annotations

from typing import Literal

Scale = Literal["ci", "paper"]
"""`ci`: on two CPU cores, calculators in seconds. `paper`: the paper's own size where an experiment has one."""
