"""A search for two points of Y(x) between which the lower level's mapping F is not strongly monotone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hierfl.atoms.intervals import EPS
from hierfl.inspect.assumptions.curvature.lower_spectra import LowerSpectra
from hierfl.inspect.assumptions.findings import Finding
from hierfl.inspect.assumptions.study import JACOBIAN_LIMIT, Study, Weighted

_FLAT = 1e-13  # of the sizes that cancel in a direction
POINTS = 12
_LENGTHS = (1.0, -1.0, 10.0, -10.0, 0.1, -0.1, 0.01, -0.01)
_TRUSTED = 1e-9  # of the same, for the rounding of a quotient
_APART = 1e-4  # relative distance of two points of which a quotient is taken
_QUOTIENT = "(F(y1) - F(y2))'(y1 - y2) / |y1 - y2|^2"


def search_monotonicity(study: Study, name: str, known: LowerSpectra, assumption: str) -> Finding:
    """Look for two points of Y(x) between which F is not strongly monotone."""
    if study.compiled.lower.size > JACOBIAN_LIMIT:
        reason = (
            "; ".join(known.notes)
            or f"no positive bound, and the Hessian is too large to search ({study.compiled.lower.size})"
        )
        return Finding(name, "unknown", reason, assumption)
    worst, points = np.inf, 0
    for base in _bases(study):
        points += 1
        for other in _along(study, base):
            ratio = study.lower.monotonicity(base.x, other, base.y, base.owner)
            if not np.isfinite(ratio):
                continue
            worst = min(worst, ratio)
            if _shows_none(study, base, other - base.y, ratio):
                return _violation(study, name, assumption, base, other, ratio)
    reason = "; ".join(known.notes) or "no positive bound follows from the tree"
    if not np.isfinite(worst):
        return Finding(name, "unknown", reason, assumption)
    seen = f"{reason}; {_QUOTIENT} was at least {worst:.6g} wherever tried in Y(x), which is no bound"
    return Finding(name, "sampled", seen, assumption, points, worst)


class _Base(NamedTuple):
    """A point from which is searched, with F's Jacobian there."""

    label: str
    owner: Weighted
    x: np.ndarray
    y: np.ndarray
    jacobian: np.ndarray


def _bases(study: Study) -> Iterator[_Base]:
    """Points of X and Y(x): draws, and means of several, which are inside, where directions lead further."""
    holders = study.y_holders[:POINTS]
    for holder in holders:
        owner: Weighted = ((1.0, holder),)
        for x in study.x_points[: max(1, POINTS // len(holders))]:
            draws = study.y_points(x, owner, 4)
            for y in (draws[0], draws.mean(axis=0)):
                jacobian = study.lower.jacobian(x, y, owner)
                if np.isfinite(jacobian).all():
                    yield _Base(holder.label, owner, x, y, jacobian)


def _along(study: Study, base: _Base) -> Iterator[np.ndarray]:
    """Points of Y(x) on both sides of y in the direction in which F grows least, as far as the set goes."""
    direction = np.linalg.eigh(0.5 * (base.jacobian + base.jacobian.T))[1][:, 0]
    for length in _LENGTHS:
        other = study.lower.project(base.x, base.y + length * direction, base.owner)
        if np.linalg.norm(other - base.y) >= _APART * (1.0 + np.linalg.norm(base.y)):
            yield other


def _shows_none(study: Study, base: _Base, step: np.ndarray, ratio: float) -> bool:
    """Whether a quotient is not positive, and no rounding of F makes it so."""
    length = float(np.linalg.norm(step))
    size = float(np.abs(step) @ np.abs(base.jacobian) @ np.abs(step)) / length**2
    if ratio > _FLAT * size:
        return False
    rounding = 8 * EPS * float(np.linalg.norm(study.lower.operator(base.x, base.y, base.owner))) / length
    return ratio == 0 or rounding <= max(_TRUSTED * size, 0.5 * abs(ratio))


def _violation(study: Study, name: str, assumption: str, base: _Base, other: np.ndarray, ratio: float) -> Finding:
    compiled, level = study.compiled, study.below
    witness = {
        "client": base.label,
        "x": compiled.upper.unflatten(base.x),
        "y1": compiled.lower.unflatten(base.y),
        "y2": compiled.lower.unflatten(other),
        "direction": compiled.lower.unflatten((other - base.y) / np.linalg.norm(other - base.y)),
        "ratio": ratio,
    }
    if level.kind != "equilibrium":
        wanted = "convex" if level.sign > 0 else "concave"
        what = f"not {wanted}" if ratio < -1e-9 else f"{wanted} but not strongly {wanted}"
        reason = f"{what}: along a direction the curvature is {level.sign * ratio:.2e}"
        return Finding(name, "violated", reason, assumption, witness=witness)
    kind = "not monotone" if ratio < -1e-9 else "monotone at best: not strongly monotone"
    return Finding(name, "violated", f"{kind}: {_QUOTIENT} = {ratio:.6g}", assumption, witness=witness)
