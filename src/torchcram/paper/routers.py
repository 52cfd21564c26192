"""Routers on drawn queries: what they read, and how often they are right, to hold against theorem 1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Queries:
    """Queries as in SRCD: some ask for one of a few recurring patterns, others for something never seen before."""

    share: float = 0.05
    """Of the positions."""
    recurring: float = 0.7
    """Of the queries."""
    patterns: int = 100
    values: int = 64


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a router came to."""

    reads: float
    """Of all positions."""
    accuracy: float
    """Of the queries."""

    @property
    def error(self) -> float:
        """Share of queries answered wrongly."""
        return 1 - self.accuracy


def guesser(queries: Queries, positions: int, read: float, rng: np.random.Generator) -> Outcome:
    """A router that reads for some queries, whichever they are, and otherwise can only guess.

    read: Chance that a query reads.
    """
    _, answer = _draw(queries, positions, rng)
    reads = rng.random(len(answer)) < read
    return _outcome(positions, answer, reads, rng.integers(queries.values, size=len(answer)))


def by_pattern(queries: Queries, positions: int, read: int, rng: np.random.Generator) -> Outcome:
    """The static router of appendix B: it reads for the first so many patterns, always, and guesses the others.

    What never recurs has no pattern to decide by and is read for.
    """
    pattern, answer = _draw(queries, positions, rng)
    reads = pattern < read  # novel queries are -1
    return _outcome(positions, answer, reads, rng.integers(queries.values, size=len(answer)))


def by_heart(queries: Queries, positions: int, rng: np.random.Generator) -> Outcome:
    """A router whose weights know the recurring answers: it reads for novel queries alone.

    Its decision depends on the input and fixed weights only, so it is static as the paper defines it.
    """
    pattern, answer = _draw(queries, positions, rng)
    return _outcome(positions, answer, pattern < 0, np.where(pattern < 0, -1, answer))


def _draw(queries: Queries, positions: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Which pattern each query asks for (-1: none that recurs), and the right answers."""
    count = int(rng.binomial(positions, queries.share))
    pattern = rng.integers(queries.patterns, size=count)
    table = rng.integers(queries.values, size=queries.patterns)
    novel = rng.random(count) >= queries.recurring
    answer = np.where(novel, rng.integers(queries.values, size=count), table[pattern])
    return np.where(novel, -1, pattern), answer


def _outcome(positions: int, answer: np.ndarray, reads: np.ndarray, otherwise: np.ndarray) -> Outcome:
    """A read is always right; what does not read is right where `otherwise` happens to be."""
    return Outcome(reads=float(reads.sum()) / positions, accuracy=float((reads | (otherwise == answer)).mean()))
