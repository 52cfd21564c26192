"""Every number that the paper prints, as data: text, tables, figures and appendices. Needs nothing but Python."""

from __future__ import annotations

from torchcram.paper.claims import phase, practice, recipe, redundancy, srcd, theory, timeseries, transfer
from torchcram.paper.claims.claim import Claim, Curve, Place

__all__ = ["CLAIMS", "CURVES", "Claim", "Curve", "Place"]

CLAIMS: dict[str, Claim] = {
    claim.id: claim
    for subject in (redundancy, theory, srcd, phase, transfer, practice, timeseries, recipe)
    for claim in subject.CLAIMS
}
"""By id, such as `srcd/cram/accuracy`."""

CURVES: dict[str, Curve] = {curve.id: curve for subject in (phase, practice) for curve in subject.CURVES}
"""What figures plot, by id."""
