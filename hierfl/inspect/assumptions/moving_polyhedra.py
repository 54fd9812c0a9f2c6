"""How far y(x) moves where Y(x) = {y : A y <= b + C x} has normals that stay and sides that move.

At every x some independent rows S hold with equality at y(x) and carry all multipliers, so that y(x) = y_S(x), the solution over the
affine set A_S y = b_S + C_S x alone. There are finitely many S and y(x) is continuous: the largest Lipschitz constant of a y_S is one of
y(x) (Robinson, 1979, for quadratic programs). That affine set is a translated one, by |A_S^+ C_S| for each unit of x.
"""

from __future__ import annotations

from itertools import combinations, islice
from math import comb

import jax
import jax.numpy as jnp
import numpy as np
from cvxpy.constraints import Equality, Inequality
from cvxpy.constraints.constraint import Constraint
from jaxtyping import Float

from hierfl.compiler.parametric.level_form import LevelForm
from hierfl.compiler.parametric.template import LevelTemplate
from hierfl.compiler.programs.cones import ZERO
from hierfl.compiler.programs.small_and_sparse import as_array
from hierfl.inspect.assumptions.lower_spectra import data_exact
from hierfl.inspect.assumptions.study import Study

SUBSETS = 300_000  # of rows that are looked at, some seconds
TOGETHER = 20_000
DEPENDENT = 1e-11  # of a row of length 1


class NoShiftError(Exception):
    """The sides move, and by how much cannot be told; the message says why."""


def side_shift(study: Study) -> float | None:
    """The largest |A_S^+ C_S| over the owners and the independent sets of rows; None where rows do not move like this.

    Raises ``NoShiftError`` where a law stands behind the rows, of which points are known only, or there are too many
    sets of rows.
    """
    level, constraints = study.below, study.lower_constraints
    if not all(map(_affine, constraints)):
        return None
    used = {leaf.id for constraint in constraints for leaf in constraint.parameters()}
    if not data_exact(study, used):
        raise NoShiftError("the rows of Y(x) hold a distribution, of which points are known only")
    form = LevelTemplate.of(None, constraints, level.variables, study.compiled.declaration.known_bounds)
    equations = sum(cone.size for cone in form.cones if cone.kind == ZERO)
    return max(_largest_shift(*_rows(study, form, owner[0][1].own), equations) for _, owner in study.set_owners)


def _affine(constraint: Constraint) -> bool:
    """Whether a constraint is affine in x and y together, so that its normals do not depend on x."""
    return isinstance(constraint, Equality | Inequality) and bool(constraint.expr.is_affine())


def _rows(
    study: Study, form: LevelTemplate, own: dict[int, object]
) -> tuple[Float[np.ndarray, "rows size"], Float[np.ndarray, "rows n"]]:
    """(A, C) of the rows A y + C x + b, each of length 1 in y; rows without y are the upper level's."""

    def theta(x: jax.Array) -> jax.Array:
        return form.theta_at(study.compiled.environment(x, None, own))

    at = jnp.zeros(study.compiled.upper.size)
    here, moves = np.asarray(theta(at), float), np.asarray(jax.jacfwd(theta)(at), float)
    normals = as_array(LevelForm(form, ()).program([here]).a)
    sides = np.zeros((form.height, at.size))
    sides[form.offset.rows] = form.offset.linear @ moves
    sizes = np.linalg.norm(normals, axis=1, keepdims=True)
    sizes = np.where(sizes > 0, sizes, 1.0)
    return normals / sizes, sides / sizes


def _largest_shift(normals: np.ndarray, sides: np.ndarray, equations: int) -> float:
    size = normals.shape[1]
    always = _independent(normals[:equations])
    kept = [k for k in _different(normals, sides, equations)]
    free = min(size - len(always), len(kept))
    count = sum(comb(len(kept), k) for k in range(free + 1))
    if count > SUBSETS:
        raise NoShiftError(
            f"the sides of Y(x) move, for which the constant is that of {count:.2g} sets of {len(kept)} rows, more than the "
            f"{SUBSETS:,} that are looked at"
        )
    worst = 0.0
    for more in range(free + 1):
        chosen = combinations(kept, more)
        while some := list(islice(chosen, TOGETHER)):
            rows = np.concatenate([np.tile(always, (len(some), 1)), np.array(some).reshape(len(some), more)], axis=1)
            worst = max(worst, _shift(normals[rows.astype(int)], sides[rows.astype(int)]))
    return worst


def _shift(normals: np.ndarray, sides: np.ndarray) -> float:
    """The largest |A_S^+ C_S| of a stack of rows, those that depend on each other left out."""
    if not normals.shape[1]:
        return 0.0
    left, singular, right = np.linalg.svd(normals, full_matrices=False)
    good = singular[:, -1] > DEPENDENT
    if not good.any():
        return 0.0
    left, singular, right = left[good], singular[good], right[good]
    moves = (np.swapaxes(left, 1, 2) @ sides[good]) / singular[..., None]
    return float(np.linalg.norm(moves, ord=2, axis=(1, 2)).max())


def _independent(rows: np.ndarray) -> np.ndarray:
    """Indices of equations from which all of them follow."""
    found: list[int] = []
    for k in range(len(rows)):
        if np.linalg.matrix_rank(rows[[*found, k]], tol=DEPENDENT) > len(found):
            found.append(k)
    return np.array(found, int)


def _different(normals: np.ndarray, sides: np.ndarray, equations: int) -> list[int]:
    """Inequalities with y in them, of those that are the same up to their constants only one."""
    first: dict[bytes, int] = {}
    for k in range(equations, len(normals)):
        if normals[k].any():
            first.setdefault(np.concatenate([normals[k], sides[k]]).round(14).tobytes(), k)
    return list(first.values())
