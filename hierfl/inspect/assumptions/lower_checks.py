"""Curvature of the lower level: strong convexity or monotonicity, smoothness, and whether y(x) is unique."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hierfl.analysis.curvature_bounds import moves_slopes
from hierfl.analysis.hoist import hoist
from hierfl.analysis.spectrum import DENSE_LIMIT, Edge
from hierfl.atoms.intervals import EPS
from hierfl.inspect.assumptions.findings import Constant, Finding, Status
from hierfl.inspect.assumptions.hessians import Curvature, Spectrum
from hierfl.inspect.assumptions.holders import Holder
from hierfl.inspect.assumptions.lower_map import JACOBIAN_LIMIT, Weighted
from hierfl.inspect.assumptions.study import Study
from hierfl.language.printing.text import expression_text

_ASSUMPTION = {
    "bl": "[2S] Assumption 2 (ii)",
    "mm": "[2S] Assumption 2 (ii)",
    "2s": "[2S] Assumption 3 (ii)",
    "hfl": "[HFL] Assumption 1 (ii)",
}
_FLAT = 1e-13  # of the sizes that cancel in a direction
_POINTS = 12


@dataclass(frozen=True)
class Moduli:
    """mu and L of the lower level.

    ``mu`` and ``smooth`` are those of the assumption (the worst holder's), ``own_mu`` that of the problem that y(x) solves;
    ``proved`` unless a sample stands for a distribution.
    """

    findings: tuple[Finding, ...]
    constants: tuple[Constant, ...]
    mu: float
    smooth: float
    own_mu: float
    proved: bool


def moduli(study: Study) -> Moduli:
    """What is known of the lower level's curvature."""
    level = study.level
    assert level is not None
    found = _mapping_spectra(study) if level.kind == "equilibrium" else _hessian_spectra(study)
    holders = study.y_holders
    mu, lowest = _extreme([s.low for s in found.spectra], min)
    smooth, highest = _extreme([s.high for s in found.spectra], max)
    own = found.together.low.value if found.together is not None and found.together.low is not None else mu
    convexity = "strong monotonicity" if level.kind == "equilibrium" else "strong convexity"
    uneven = len({s.low.value for s in found.spectra if s.low is not None}) > 1
    findings = [
        _lower_finding(study, convexity, mu, found, holders[lowest].label if uneven else ""),
        _upper_finding(study, smooth, found),
    ]
    if level.kind == "equilibrium":
        findings.append(_symmetry(study))
    suffix = "" if found.proved else ", on the sample that stands for the distribution"
    constants: tuple[Constant, ...] = (
        _constant("mu_h", [s.low for s in found.spectra], ">=", holders[lowest].label, len(holders)),
        _constant("L_h", [s.high for s in found.spectra], "<=", holders[highest].label, len(holders)),
    )
    if found.together is not None and len(holders) > 1:
        constants += (
            _mean_constant("mu_h of the mean", found.together.low, ">="),
            _mean_constant("L_h of the mean", found.together.high, "<="),
        )
    constants = tuple(replace(c, reason=c.reason + suffix) for c in constants)
    return Moduli(tuple(findings), constants, max(mu, 0.0), smooth, max(own, 0.0), found.proved)


@dataclass(frozen=True)
class _Spectra:
    """By holder; ``together`` of their weighted sum (federation scope); ``proved`` unless a sample stands for a law."""

    spectra: tuple[Spectrum, ...]
    together: Spectrum | None
    rule: str
    notes: tuple[str, ...]
    proved: bool


def _hessian_spectra(study: Study) -> _Spectra:
    level = study.level
    assert level is not None
    known = _common(study)
    curvature = Curvature(study.compiled, level.sign * level.expression, level.variables, known)
    spectra = tuple(curvature.spectrum(holder) for holder in study.y_holders)
    together = curvature.mean_spectrum(study.owners[0][1]) if study.compiled.scope == "federation" else None
    used = {p.id for b in (curvature.bounds.lower, curvature.bounds.upper) if b is not None for p in b.parameters()}
    exact = _data_exact(study, used)
    rule = "curvature of the terms" if not curvature.bounds.exact else "the Hessian, which is constant"
    return _Spectra(spectra, together, rule, curvature.bounds.notes, exact)


def _common(study: Study) -> Any:
    """Bounds that hold for every holder."""
    from hierfl.atoms.intervals import Interval

    every = [holder.known for holder in study.y_holders]
    return {
        leaf: Interval(
            np.min([known[leaf].lo for known in every], axis=0), np.max([known[leaf].hi for known in every], axis=0)
        )
        for leaf in every[0]
    }


def _data_exact(study: Study, used: set[int]) -> bool:
    """Whether the numbers are those of the declared problem, not of a sample that stands for it."""
    if used & study.holders.distributed:
        return False
    sampled = {s.id for s in study.compiled.declaration.roles.lower_samples}
    return study.compiled.scope != "sample" or study.holders.every_sample or not used & sampled


def _mapping_spectra(study: Study) -> _Spectra:
    level = study.level
    assert level is not None
    ids = {v.id for v in level.variables}
    hoisted = hoist(level.expressions, level.variables, study.compiled.declaration.known_bounds).expressions
    nothing = Spectrum(None, None)
    if not all(e.is_affine() for e in hoisted):
        curved = next(e for e, h in zip(level.expressions, hoisted) if not h.is_affine())
        note = f"{expression_text(curved)} is not affine in y"
        return _Spectra((nothing,) * len(study.y_holders), None, "", (note,), False)
    if any(moves_slopes(e, ids) for e in level.expressions) or study.compiled.lower.size > DENSE_LIMIT:
        note = (
            "x moves the mapping's slopes" if study.compiled.lower.size <= DENSE_LIMIT else "the Jacobian is too large"
        )
        return _Spectra((nothing,) * len(study.y_holders), None, "", (note,), False)
    x, y = study.project_x(np.zeros(study.compiled.upper.size)), np.zeros(study.compiled.lower.size)
    used = {leaf for e in level.expressions for leaf in _slope_parameters(e, ids)}
    matrices: dict[Any, np.ndarray] = {}
    spectra: dict[Any, Spectrum] = {}
    keys = [_slope_key(study, holder, used) for holder in study.y_holders]
    for key, holder in zip(keys, study.y_holders):
        if key not in matrices:
            matrices[key] = study.lower.jacobian(x, y, ((1.0, holder),))
            spectra[key] = _of_matrix(matrices[key])
    together = None
    if study.compiled.scope == "federation":
        together = _of_matrix(np.asarray(sum(w * matrices[k] for k, (w, _) in zip(keys, study.owners[0][1]))))
    return _Spectra(
        tuple(spectra[key] for key in keys), together, "the Jacobian, which is constant", (), _data_exact(study, used)
    )


def _slope_key(study: Study, holder: Holder, used: set[int]) -> Any:
    """Equal for holders whose Jacobians are equal, because no private number of theirs is in the slopes."""
    roles = study.compiled.declaration.roles
    if any(s.id in used for s in roles.lower_samples):
        return holder.label
    return holder.index if any(p.id in used for p in roles.client_parameters) else 0


def _slope_parameters(node: Any, kept: set[int]) -> set[int]:
    """Parameters beside which the kept variables stand, in anything but a sum."""
    from cvxpy.atoms.affine.add_expr import AddExpression

    if not any(v.id in kept for v in node.variables()):
        return set()
    found = (
        set()
        if isinstance(node, AddExpression)
        else {p.id for a in node.args if not any(v.id in kept for v in a.variables()) for p in a.parameters()}
    )
    return found.union(*(_slope_parameters(argument, kept) for argument in node.args))


def _of_matrix(matrix: np.ndarray) -> Spectrum:
    """mu from the symmetric part, L from the norm, both moved outward by the rounding."""
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    norm = float(np.linalg.norm(matrix, 2))
    slack = (64 + 8 * len(matrix)) * EPS * norm
    low = Edge(float(values[0]) - slack, "smallest eigenvalue of the symmetric part", vectors[:, 0])
    return Spectrum(low, Edge(norm + slack, "norm of the Jacobian"))


def _extreme(edges: Sequence[Edge | None], pick: Any) -> tuple[float, int]:
    """The worst value and whose it is; no edge means no bound."""
    nothing = -np.inf if pick is min else np.inf
    values = [nothing if edge is None else edge.value for edge in edges]
    worst = pick(values)
    return float(worst), values.index(worst)


def _constant(name: str, edges: Sequence[Edge | None], side: str, label: str, count: int) -> Constant:
    nothing = 0.0 if side == ">=" else np.inf
    values = tuple(nothing if e is None else max(e.value, 0.0) for e in edges)
    value, _ = (min if side == ">=" else max)((v, k) for k, v in enumerate(values))
    known = [e for e in edges if e is not None]
    reason = known[0].rule if known else "no bound"
    return Constant(
        name, float(value), side, reason, label if count > 1 else "", tuple(map(float, values)) if count > 1 else ()
    )


def _mean_constant(name: str, edge: Edge | None, side: str) -> Constant:
    if edge is None:
        return Constant(name, 0.0 if side == ">=" else np.inf, side, "no bound")
    return Constant(name, max(float(edge.value), 0.0), side, edge.rule)


def _lower_finding(study: Study, name: str, mu: float, found: _Spectra, label: str) -> Finding:
    assumption = _ASSUMPTION[study.problem_class]
    where = f", attained by {label}" if label else ""
    if mu > 0 and found.proved:
        return Finding(name, "proved", f"mu_h >= {mu:.6g} by {found.rule}{where}", assumption)
    if mu > 0:
        reason = f"mu_h >= {mu:.6g}{where}, on the sample that stands for the data"
        return Finding(name, "sampled", reason, assumption, len(study.y_holders), mu)
    return _search(study, name, found, assumption)


def _search(study: Study, name: str, found: _Spectra, assumption: str) -> Finding:
    """Look for two points between which F is not strongly monotone."""
    if study.compiled.lower.size > JACOBIAN_LIMIT:
        reason = (
            "; ".join(found.notes)
            or f"no positive bound, and the Hessian is too large to search ({study.compiled.lower.size})"
        )
        return Finding(name, "unknown", reason, assumption)
    worst, points = np.inf, 0
    holders = study.y_holders[: max(1, _POINTS)]
    for holder in holders:
        owner: Weighted = ((1.0, holder),)
        for x in study.x_points[: max(1, _POINTS // len(holders))]:
            y = study.y_points(x, owner, 1)[0]
            matrix = study.lower.jacobian(x, y, owner)
            if not np.isfinite(matrix).all():
                continue
            points += 1
            _, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
            for length in (1.0, 10.0):
                other = y + length * vectors[:, 0]
                ratio = study.lower.monotonicity(x, other, y, owner)
                if not np.isfinite(ratio):
                    continue
                worst = min(worst, ratio)
                direction = np.abs(vectors[:, 0])
                if ratio <= _FLAT * float(direction @ np.abs(matrix) @ direction):
                    return _violation(study, name, assumption, holder.label, x, y, other, ratio)
    reason = "; ".join(found.notes) or "no positive bound follows from the tree"
    status: Status = "sampled" if points and worst > 0 else "unknown"
    return Finding(name, status, reason, assumption, points, float(worst) if points else None)


def _violation(
    study: Study, name: str, assumption: str, label: str, x: np.ndarray, y: np.ndarray, other: np.ndarray, ratio: float
) -> Finding:
    compiled, level = study.compiled, study.level
    assert level is not None
    witness = {
        "client": label,
        "x": compiled.upper.unflatten(x),
        "y1": compiled.lower.unflatten(y),
        "y2": compiled.lower.unflatten(other),
        "direction": compiled.lower.unflatten((other - y) / np.linalg.norm(other - y)),
        "ratio": ratio,
    }
    if level.kind != "equilibrium":
        what = "not convex" if ratio < -1e-9 else "convex but not strongly convex"
        reason = f"{what}: along a direction the curvature is {ratio:.2e}"
        return Finding(name, "violated", reason, assumption, witness=witness)
    kind = "not monotone" if ratio < -1e-9 else "monotone at best: not strongly monotone"
    return Finding(
        name, "violated", f"{kind}: (F(y1) - F(y2))'(y1 - y2) / |y1 - y2|^2 = {ratio:.6g}", assumption, witness=witness
    )


def _upper_finding(study: Study, smooth: float, found: _Spectra) -> Finding:
    assumption = _ASSUMPTION[study.problem_class]
    if np.isfinite(smooth) and found.proved:
        return Finding("smoothness", "proved", f"L_h <= {smooth:.6g} by {found.rule}", assumption)
    if np.isfinite(smooth):
        reason = f"L_h <= {smooth:.6g}, on the sample that stands for the data"
        return Finding("smoothness", "sampled", reason, assumption, len(study.y_holders), smooth)
    reason = "; ".join(found.notes) or "no bound on the Hessian"
    return Finding("smoothness", "unknown", reason, assumption)


def _symmetry(study: Study) -> Finding:
    """Whether F is a gradient: its Jacobian, at points (an affine mapping's everywhere)."""
    if study.compiled.lower.size > JACOBIAN_LIMIT:
        return Finding("symmetry of the mapping", "unknown", "the Jacobian is too large to form")
    level = study.level
    assert level is not None
    hoisted = hoist(level.expressions, level.variables, study.compiled.declaration.known_bounds).expressions
    fixed = all(e.is_affine() for e in hoisted) and not any(
        moves_slopes(e, {v.id for v in level.variables}) for e in level.expressions
    )
    used = {leaf for e in level.expressions for leaf in _slope_parameters(e, {v.id for v in level.variables})}
    different = {_slope_key(study, owner[0][1], used): (label, owner) for label, owner in reversed(study.owners)}
    worst, points = 0.0, 0
    for label, owner in list(different.values())[:_POINTS]:
        for x in study.x_points[: 1 if fixed else 4]:
            y = study.y_points(x, owner, 1)[0]
            matrix = study.lower.jacobian(x, y, owner)
            gap = float(np.abs(matrix - matrix.T).max() / max(1e-300, np.abs(matrix).max()))
            worst, points = max(worst, gap), points + 1
            if gap > 1e-9:
                unflatten = study.compiled.lower.unflatten
                witness = {"client": label, "x": study.compiled.upper.unflatten(x), "y": unflatten(y)}
                name = "symmetry of the mapping"
                return Finding(name, "violated", "F is not a gradient", witness=witness, points=points, worst=gap)
    if fixed and len(different) <= _POINTS:
        reason = "the Jacobian is constant and symmetric"
        return Finding("symmetry of the mapping", "proved", reason, points=points, worst=worst)
    return Finding("symmetry of the mapping", "sampled", "symmetric Jacobians", points=points, worst=worst)
