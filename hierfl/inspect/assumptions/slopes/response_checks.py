"""The response y(x): Lipschitz, unique, differentiable."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.constraints import Equality

from hierfl.atoms.table import row_of
from hierfl.inspect.assumptions.curvature.lower_curvature import Moduli
from hierfl.inspect.assumptions.findings import Finding
from hierfl.inspect.assumptions.slopes.moving_polyhedra import NoShiftError, side_shift
from hierfl.inspect.assumptions.study import Study
from hierfl.language.function import UserAtom


def response_constant(study: Study, moduli: Moduli, mixed: float) -> tuple[float, str]:
    """(Lipschitz constant of y(x), how it is known), by [2S] Lemma 2; for translated sets with the translation."""
    mu = moduli.own_mu
    if not mu > 0:
        return np.inf, "unknown: no modulus of strong convexity (monotonicity)"
    if not np.isfinite(mixed):
        return (
            np.inf,
            "unknown: L_{grad h,x} is not known: no bound on second derivatives in (x, y) over the declared sets",
        )
    if study.movement.kind == "fixed":
        return mixed / mu * (1 + 1e-12), "L_{grad h,x} / mu_h ([2S] Lemma 2): Y does not move"
    along_sides = _over_moving_sides(study, moduli, mixed)
    if study.movement.kind == "moving":
        return along_sides
    shift = study.movement.shift
    value = (shift + (mixed + moduli.smooth * shift) / mu) * (1 + 1e-12)
    translated = value, "|A| + (L_{grad h,x} + L_h |A|) / mu_h for the translated set Y(x) = A x + C"
    return min(translated, along_sides, key=lambda way: way[0])


def _over_moving_sides(study: Study, moduli: Moduli, mixed: float) -> tuple[float, str]:
    """The constant where Y(x) is a polyhedron of which only the sides move.

    For minima the translation counts sqrt(L_h / mu_h)-fold: the point that is nearest in the norm of the Hessian moves.
    """
    try:
        shift = side_shift(study)
    except NoShiftError as reason:
        return np.inf, f"unknown: {reason}"
    if shift is None:
        return (
            np.inf,
            "unknown: Y(x) changes with x by more than a translation, and y(x) may not be Lipschitz (as for y^2 <= x)",
        )
    mu, level = moduli.own_mu, study.below
    if level.kind == "equilibrium":
        value, how = shift + (mixed + moduli.smooth * shift) / mu, "a + (L_{grad h,x} + L_h a) / mu_h"
    else:
        value, how = (moduli.smooth / mu) ** 0.5 * shift + mixed / mu, "sqrt(L_h / mu_h) a + L_{grad h,x} / mu_h"
    rows = f"a = {shift:.6g} the largest |A_S^+ C_S| over independent rows S of A y <= b + C x"
    return value * (1 + 1e-12), f"{how}, {rows}"


def uniqueness(study: Study, moduli: Moduli) -> Finding:
    """Whether y(x) is unique, which strong convexity (monotonicity) says."""
    name = "y(x) unique"
    if not moduli.own_mu > 0:
        return Finding(name, "unknown", "no modulus of strong convexity (monotonicity)")
    reason = f"strongly convex (monotone) with mu = {moduli.own_mu:.6g}, where Y(x) is not empty"
    return Finding(name, "proved" if moduli.proved else "sampled", reason)


def differentiability(study: Study, moduli: Moduli) -> Finding:
    """Whether y(x) is differentiable, by the implicit function theorem.

    F must be continuously differentiable, and y free or on an affine set that at most shifts.
    """
    level, name = study.below, "y(x) differentiable"
    if not (moduli.own_mu > 0 and moduli.proved):
        return Finding(name, "unknown", "y(x) is not known to be unique")
    rough = next((node for node in (_not_smooth(e) for e in level.expressions) if node is not None), None)
    if rough is not None:
        reason = f"{type(rough).__name__} is not known to be twice continuously differentiable"
        return Finding(name, "unknown", reason)
    constraints = study.lower_constraints
    if not constraints:
        reason = "unconstrained, smooth and strongly convex (monotone): implicit function theorem"
        return Finding(name, "proved", reason)
    if all(isinstance(c, Equality) for c in constraints) and study.movement.kind != "moving":
        reason = f"smooth and strongly convex (monotone) on a {study.movement.kind} affine set"
        return Finding(name, "proved", reason)
    reason = "constraints become active and inactive as x moves: kinks are possible"
    reason += ", y(x) is Lipschitz all the same" if study.movement.kind != "moving" else ""
    return Finding(name, "unknown", reason)


def _not_smooth(node: cp.Expression) -> cp.Expression | None:
    """The first atom in a tree that is not known to be twice continuously differentiable."""
    if not node.args or not node.variables():
        return None
    rule = row_of(node).twice_smooth
    if isinstance(node, UserAtom) or not (isinstance(node, AffAtom) if rule is None else rule(node)):
        return node
    return next((rough for a in node.args for rough in [_not_smooth(a)] if rough is not None), None)
