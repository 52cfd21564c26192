"""The two equations of appendix C: mean quality q and the probability p of semantic routing, coupled.

    dq/dt = η_q p (1 - q)        (eq. 18)
    dp/dt = η_p (q - q*)         (eq. 19)

As printed, nothing keeps p between 0 and 1. Held there (`held=True`), p stays at a limit that it is pushed against.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.integrate import solve_ivp

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class System:
    """The coupled dynamics, with time in training steps."""

    threshold: float = 0.83
    """q*."""
    quality_rate: float = 1.0
    """η_q."""
    routing_rate: float = 1.0
    """η_p."""

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1:
            raise ValueError(f"threshold = {self.threshold} is not possible; allowed: between 0 and 1")
        if min(self.quality_rate, self.routing_rate) <= 0:
            raise ValueError("rates must be above 0")

    def flow(self, q: float, p: float) -> tuple[float, float]:
        """(dq/dt, dp/dt) as printed."""
        return self.quality_rate * p * (1 - q), self.routing_rate * (q - self.threshold)

    def jacobian(self, q: float, p: float) -> Array:
        """How the flow changes around a point, [2, 2]."""
        return np.array([[-self.quality_rate * p, self.quality_rate * (1 - q)], [self.routing_rate, 0.0]])

    @property
    def fixed_point(self) -> tuple[float, float]:
        """(q*, 0), the only one: dp/dt = 0 needs q = q* < 1, and then dq/dt = 0 needs p = 0."""
        return self.threshold, 0.0

    @property
    def time_scale(self) -> float:
        """Time in which a distance from the saddle grows e-fold."""
        return 1 / math.sqrt(self.quality_rate * self.routing_rate * (1 - self.threshold))

    def conserved(self, q: float, p: float) -> float:
        """What no trajectory changes: η_q p²/(2 η_p) + q + (1 - q*) log(1 - q), for q < 1.

        Dividing the equations gives (q - q*)/(1 - q) dq = (η_q/η_p) p dp. Since it is conserved, nothing attracts.
        """
        held = self.quality_rate / self.routing_rate * p**2 / 2
        return held + q + (1 - self.threshold) * math.log(1 - q)

    def separatrix(self, q: float) -> float:
        """The p that leads from q < q* just to the saddle: above it, p turns before it is used up, and q goes to 1."""
        rest = self.conserved(self.threshold, 0.0) - self.conserved(q, 0.0)
        return math.sqrt(max(0.0, 2 * rest * self.routing_rate / self.quality_rate))


def stability(jacobian: Array) -> str:
    """What a fixed point is, by the eigenvalues of the flow around it."""
    real = np.linalg.eigvals(jacobian).real
    if (abs(real) < 1e-12).any():
        return "undecided"
    if (real > 0).all():
        return "unstable"
    return "stable" if (real < 0).all() else "saddle"


def simulate(system: System, q: float, p: float, times: Array, *, held: bool) -> Array:
    """q and p at each of some rising times from the first on, [2, times].

    held: p is kept in 0..1. Then (1, 1) attracts, and every point with p = 0 and q ≤ q* is at rest. If it is not,
        trajectories below the separatrix run off to minus infinity in finite time; they are NaN from q = -1 on.
    """
    if not held:
        return _free(system, q, p, times)
    if not 0 <= p <= 1:
        raise ValueError(f"p = {p} is not possible; allowed: 0 to 1, where it is held")

    def used_up(_: float, state: Array) -> float:
        return float(state[1])

    def full(_: float, state: Array) -> float:
        return float(1 - state[1])

    # Only where p is pushed against its limit; it may also start there and move away.
    used_up.direction, full.direction = -1, -1  # type: ignore[attr-defined]
    used_up.terminal = full.terminal = True  # type: ignore[attr-defined]
    solved = solve_ivp(
        lambda _, state: system.flow(*state),
        times[[0, -1]],
        (q, p),
        dense_output=True,
        events=(used_up, full),
        rtol=1e-9,
        atol=1e-12,
    )
    end, (last_q, last_p) = solved.t[-1], solved.y[:, -1]
    result = np.empty((2, len(times)))
    free = times <= end
    result[:, free] = solved.sol(times[free])
    # At p = 0 below q*, all is at rest. At p = 1 above it, q goes to 1 by itself: dq/dt = η_q (1 - q).
    after = times[~free] - end
    full_now = last_p > 0.5
    result[0, ~free] = 1 - (1 - last_q) * np.exp(-system.quality_rate * after) if full_now else last_q
    result[1, ~free] = 1.0 if full_now else 0.0
    return result


def _free(system: System, q: float, p: float, times: Array) -> Array:
    def gone(_: float, state: Array) -> float:
        return float(state[0] + 1)

    gone.terminal = True  # type: ignore[attr-defined]
    solved = solve_ivp(
        lambda _, state: system.flow(*state),
        times[[0, -1]],
        (q, p),
        t_eval=times,
        events=gone,
        rtol=1e-9,
        atol=1e-12,
    )
    result = np.full((2, len(times)), np.nan)
    result[:, : len(solved.t)] = solved.y
    return result
