"""How large an experiment is run."""

from __future__ import annotations

from typing import Literal

Scale = Literal["ci", "cpu", "gpu"]
"""`ci`: seconds to a few minutes on two CPU cores. `cpu`: what such a machine can do in an hour or two. `gpu`: on one
GPU. What is calculated rather than trained is the same for the latter two."""
