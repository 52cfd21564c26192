"""The phase transition: what the appendix's equations do, and what its figures' curves say of step and suddenness."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.integrate import trapezoid
from scipy.optimize import differential_evolution

from torchcram.paper.claims import CLAIMS, CURVES, Curve
from torchcram.paper.dynamics import Array, System, simulate, stability
from torchcram.paper.setup import Scale
from torchcram.paper.transition import FITS, intervals
from torchcram.results import Row

_QUALITY = CURVES["phase/quality-mean"]
_THRESHOLD = CLAIMS["phase/quality-threshold"].value


def calculate(scale: Scale) -> Iterator[Row]:
    """Fixed points and trajectories of the coupled equations, and fits of the curves that the paper plots."""
    system = System(threshold=_THRESHOLD)
    yield from _fixed_points(system)
    yield from _trajectories(system)
    yield _implied_routing()
    yield _best_fit()
    for name in ("phase/attention", "phase/attention-again"):
        yield from _plotted(CURVES[name], 200 if scale == "ci" else 2000)
    for name, curve in CURVES.items():
        if curve.y == "density":
            yield _density(name, curve)


def _fixed_points(system: System) -> Iterator[Row]:
    """Where the text says the system rests, and what it does there."""
    for (q, p), said in ((system.fixed_point, "saddle"), ((1.0, 1.0), "stable")):
        quality, routing = system.flow(q, p)
        rests = quality == routing == 0
        eigenvalues = np.linalg.eigvals(system.jacobian(q, p)).real
        yield {
            "what": "fixed point",
            "claim": "phase/fixed-points",
            "q": q,
            "p": p,
            "printed": said,
            "measured": stability(system.jacobian(q, p)) if rests else "not a fixed point",
            "dq": quality,
            "dp": routing,
            "eigenvalue_low": float(eigenvalues.min()),
            "eigenvalue_high": float(eigenvalues.max()),
            # At p = 1 it is pushed against its limit, with q = 1 at rest.
            "rests_if_p_is_held": rests or (q == 1 and p == 1 and routing > 0),
        }


def _trajectories(system: System) -> Iterator[Row]:
    """From the quality that figure 3 begins at, on both sides of the separatrix; time in the saddle's own scale."""
    start = _QUALITY.points[0][1]
    edge = system.separatrix(start)
    times = np.linspace(0.0, 12 * system.time_scale, 2001)
    for factor in (0.9, 0.999, 1.001, 1.1):
        for held in (False, True):
            q, p = simulate(system, start, factor * edge, times, held=held)
            gone = bool(np.isnan(q[-1]))
            q, p = q[~np.isnan(q)], p[~np.isnan(p)]
            yield {
                "what": "trajectory",
                "claim": "phase/fixed-points",
                "q_start": start,
                "p_start": factor * edge,
                "p_of_the_separatrix": edge,
                "held": held,
                "q_end": float(q[-1]),
                "p_end": float(p[-1]),
                "p_least": float(p.min()),
                "p_most": float(p.max()),
                "p_leaves_0_to_1": bool(p.min() < -1e-9 or p.max() > 1 + 1e-9),
                "runs_off": gone,
                "consolidates": bool(q[-1] > 0.99),
            }


def _implied_routing() -> Row:
    """Eq. 18 turned round: p = dq/dt ÷ (η_q (1 - q)) of the plotted q̄, at the start and just below q*.

    Below q*, eq. 19 lets p only fall.
    """
    steps, q = np.array(_QUALITY.points).T
    below = q <= _THRESHOLD
    steps, q = steps[below], q[below]
    # log(1 - q) falls by η_q p a step.
    rate = -np.diff(np.log1p(-q)) / np.diff(steps)
    return {
        "what": "semantic routing that the plotted quality implies",
        "claim": "phase/routing-dynamics",
        "eta_p_first": float(rate[0]),
        "eta_p_last": float(rate[-1]),
        "eta_p_most": float(rate.max()),
        "times_more": float(rate.max() / rate[0]),
        "must_fall": True,
        "falls": bool((np.diff(rate) < 0).all()),
    }


def _best_fit() -> Row:
    """The equations, p held in 0..1, fitted to the plotted q̄: both rates and the p to start from."""
    steps, plotted = np.array(_QUALITY.points).T
    start = float(plotted[0])

    def curve(parameters: Array) -> Array:
        quality, routing, above = (float(x) for x in np.exp(parameters))
        system = System(threshold=_THRESHOLD, quality_rate=quality, routing_rate=routing)
        followed: Array = simulate(system, start, min(1.0, above * system.separatrix(start)), steps, held=True)[0]
        return followed

    def misfit(parameters: Array) -> float:
        return float(((curve(parameters) - plotted) ** 2).mean())

    # Logarithms of both rates, and of p over the separatrix, on which the delay has no bounds.
    limits = ((-9, 0), (-14, 0), (-1, 2))
    best = differential_evolution(misfit, limits, maxiter=40, popsize=10, seed=0, polish=False)
    fitted = curve(best.x)
    before = steps <= CLAIMS["phase/step-about"].value
    return {
        "what": "equations fitted to the plotted quality",
        "claim": "phase/quality-dynamics",
        "quality_rate": float(np.exp(best.x[0])),
        "routing_rate": float(np.exp(best.x[1])),
        "rmse": float(best.fun) ** 0.5,
        "rmse_before_the_transition": float(((fitted - plotted)[before] ** 2).mean()) ** 0.5,
        "largest_miss": float(abs(fitted - plotted).max()),
        "largest_miss_at": float(steps[abs(fitted - plotted).argmax()]),
    }


def _plotted(curve: Curve, draws: int) -> Iterator[Row]:
    steps, percent = np.array(curve.points).T
    reads = percent / 100
    for law, fit in FITS.items():
        found = fit(steps, reads)
        limits = intervals(law, steps, reads, draws=draws)
        yield {
            "what": f"{law} in {curve.item}",
            "claim": "phase/step",
            "printed": CLAIMS["phase/step"].value,
            "measured": found.centre,
            "low": limits["centre"][0],
            "high": limits["centre"][1],
            "duration": found.duration,
            "duration_low": limits["duration"][0],
            "duration_high": limits["duration"][1],
            "before": found.before,
            "after": found.after,
            "aic": found.aic,
        }
    middle = (reads[0] + reads[-1]) / 2
    yield {
        "what": f"fall in {curve.item}",
        "claim": "phase/fall",
        "printed": CLAIMS["phase/fall"].value,
        "measured": float(reads[0] / reads[-1]),
        "first": float(reads[0]),
        "last": float(reads[-1]),
        "least": float(reads.min()),
        "opt": CLAIMS["theory/opt"].value,
        "below_opt": bool(reads.min() < CLAIMS["theory/opt"].value - 1e-12),
        "half_of_the_fall_at": float(np.interp(-middle, -reads[: reads.argmin() + 1], steps[: reads.argmin() + 1])),
    }


def _density(name: str, curve: Curve) -> Row:
    q, density = np.array(curve.points).T
    area = float(trapezoid(density, q))
    return {
        "what": f"density in {curve.item}: {curve.measures}",
        "claim": name,
        "area": area,
        "mean": float(trapezoid(density * q, q)) / area,
        "peak": float(q[density.argmax()]),
        "beyond_1": bool(q[density > 0].max() > 1 or q[-1] > 1),
    }
