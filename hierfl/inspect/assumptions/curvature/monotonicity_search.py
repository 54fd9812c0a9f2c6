"""A search for two points between which the lower level's mapping F is not strongly monotone."""

from __future__ import annotations

import numpy as np

from hierfl.inspect.assumptions.curvature.lower_spectra import LowerSpectra
from hierfl.inspect.assumptions.curvature.mapping_at_points import JACOBIAN_LIMIT, Weighted
from hierfl.inspect.assumptions.findings import Finding, Status
from hierfl.inspect.assumptions.study import Study

_FLAT = 1e-13  # of the sizes that cancel in a direction
POINTS = 12


def search_monotonicity(study: Study, name: str, known: LowerSpectra, assumption: str) -> Finding:
    """Look for two points between which F is not strongly monotone."""
    if study.compiled.lower.size > JACOBIAN_LIMIT:
        reason = (
            "; ".join(known.notes)
            or f"no positive bound, and the Hessian is too large to search ({study.compiled.lower.size})"
        )
        return Finding(name, "unknown", reason, assumption)
    worst, points = np.inf, 0
    holders = study.y_holders[: max(1, POINTS)]
    for holder in holders:
        owner: Weighted = ((1.0, holder),)
        for x in study.x_points[: max(1, POINTS // len(holders))]:
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
    reason = "; ".join(known.notes) or "no positive bound follows from the tree"
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
