"""Moduli of the lower level: strong convexity or monotonicity, and smoothness; whether the mapping of an equilibrium is a gradient.

Where no bound is positive, two points of Y(x) are looked for between which the mapping F is not strongly monotone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hierfl.analysis.curvature_bounds import moves_slopes
from hierfl.analysis.hoist import hoist
from hierfl.analysis.spectrum import Edge
from hierfl.atoms.intervals import EPS
from hierfl.inspect.assumptions.findings import Constant, Finding
from hierfl.inspect.assumptions.lower_spectra import (
    LowerSpectra,
    hessian_spectra,
    mapping_spectra,
    slope_key,
    slope_parameters,
)
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


@dataclass(frozen=True)
class Moduli:
    """mu and L of the lower level.

    ``smooth`` is that of the assumption (the worst holder's), ``own_mu`` that of the problem that y(x) solves; ``proved`` unless a
    sample stands for a distribution.
    """

    findings: tuple[Finding, ...]
    constants: tuple[Constant, ...]
    smooth: float
    own_mu: float
    proved: bool


def moduli(study: Study) -> Moduli:
    """Bound the lower level's curvature from below and above, for every holder and for their mean."""
    level = study.below
    known = mapping_spectra(study) if level.kind == "equilibrium" else hessian_spectra(study)
    holders = study.y_holders
    mu, lowest = _extreme([s.low for s in known.spectra], min)
    smooth, highest = _extreme([s.high for s in known.spectra], max)
    own = known.together.low.value if known.together is not None and known.together.low is not None else mu
    convexity = "strong monotonicity" if level.kind == "equilibrium" else "strong convexity"
    uneven = len({s.low.value for s in known.spectra if s.low is not None}) > 1
    findings = [
        _lower_finding(study, convexity, mu, known, holders[lowest].label if uneven else ""),
        _upper_finding(study, smooth, known),
    ]
    if level.kind == "equilibrium":
        findings.append(symmetry(study))
    suffix = "" if known.proved else ", on the sample that stands for the distribution"
    letter = level.letter
    constants: tuple[Constant, ...] = (
        _constant(f"mu_{letter}", [s.low for s in known.spectra], ">=", holders[lowest].label),
        _constant(f"L_{letter}", [s.high for s in known.spectra], "<=", holders[highest].label),
    )
    if known.together is not None and len(holders) > 1:
        constants += (
            _constant(f"mu_{letter} of the mean", [known.together.low], ">="),
            _constant(f"L_{letter} of the mean", [known.together.high], "<="),
        )
    if level.kind == "equilibrium" and mu > 0 and np.isfinite(smooth):
        constants += (Constant("kappa_F", smooth / mu * (1 + 1e-12), "<=", "L_F / mu_F"),)
    constants = tuple(replace(c, reason=c.reason + suffix) for c in constants)
    return Moduli(tuple(findings), constants, smooth, max(own, 0.0), known.proved)


def _extreme(edges: Sequence[Edge | None], pick: Callable[[list[float]], float]) -> tuple[float, int]:
    """The worst value and whose it is; no edge means no bound."""
    nothing = -np.inf if pick is min else np.inf
    values = [nothing if edge is None else edge.value for edge in edges]
    worst = pick(values)
    return float(worst), values.index(worst)


def _constant(name: str, edges: Sequence[Edge | None], side: str, label: str = "") -> Constant:
    """The worst of the holders' ends, whose is called ``label``; of a single end itself."""
    nothing, worst = (0.0, min) if side == ">=" else (np.inf, max)
    values = tuple(nothing if e is None else max(float(e.value), 0.0) for e in edges)
    reason = next((e.rule for e in edges if e is not None), "no bound")
    several = len(edges) > 1
    return Constant(name, worst(values), side, reason, label if several else "", values if several else ())


def _lower_finding(study: Study, name: str, mu: float, known: LowerSpectra, label: str) -> Finding:
    assumption, letter = study.assumption("(ii)"), study.below.letter
    where = f", attained by {label}" if label else ""
    if mu > 0 and known.proved:
        return Finding(name, "proved", f"mu_{letter} >= {mu:.6g} by {known.rule}{where}", assumption)
    if mu > 0:
        reason = f"mu_{letter} >= {mu:.6g}{where}, on the sample that stands for the data"
        return Finding(name, "sampled", reason, assumption, len(study.y_holders), mu)
    return search_monotonicity(study, name, known, assumption)


def _upper_finding(study: Study, smooth: float, known: LowerSpectra) -> Finding:
    assumption, letter = study.assumption("(ii)"), study.below.letter
    if np.isfinite(smooth) and known.proved:
        return Finding("smoothness", "proved", f"L_{letter} <= {smooth:.6g} by {known.rule}", assumption)
    if np.isfinite(smooth):
        reason = f"L_{letter} <= {smooth:.6g}, on the sample that stands for the data"
        return Finding("smoothness", "sampled", reason, assumption, len(study.y_holders), smooth)
    reason = "; ".join(known.notes) or "no bound on the Hessian"
    return Finding("smoothness", "unknown", reason, assumption)


def symmetry(study: Study) -> Finding:
    """Look at whether F's Jacobian is symmetric, at points (that of an affine mapping is the same everywhere)."""
    if study.compiled.lower.size > JACOBIAN_LIMIT:
        return Finding("F is a gradient", "unknown", "the Jacobian is too large to form")
    level = study.below
    hoisted = hoist(level.expressions, level.variables, study.compiled.declaration.known_bounds).expressions
    fixed = all(e.is_affine() for e in hoisted) and not any(
        moves_slopes(e, {v.id for v in level.variables}) for e in level.expressions
    )
    used = {leaf for e in level.expressions for leaf in slope_parameters(e, {v.id for v in level.variables})}
    different = {slope_key(study, owner[0][1], used): (label, owner) for label, owner in reversed(study.owners)}
    worst, points = 0.0, 0
    for label, owner in list(different.values())[:POINTS]:
        for x in study.x_points[: 1 if fixed else 4]:
            y = study.y_points(x, owner, 1)[0]
            matrix = study.lower.jacobian(x, y, owner)
            gap = float(np.abs(matrix - matrix.T).max() / max(1e-300, np.abs(matrix).max()))
            worst, points = max(worst, gap), points + 1
            if gap > 1e-9:
                unflatten = study.compiled.lower.unflatten
                witness = {"client": label, "x": study.compiled.upper.unflatten(x), "y": unflatten(y)}
                reason = "its Jacobian is not symmetric at a point, so that no objective has it: nothing asks for one"
                return Finding("F is no gradient", "proved", reason, witness=witness, points=points, worst=gap)
    if fixed and len(different) <= POINTS:
        reason = "the Jacobian is constant and symmetric"
        return Finding("F is a gradient", "proved", reason, points=points, worst=worst)
    return Finding("F is a gradient", "sampled", "symmetric Jacobians", points=points, worst=worst)
