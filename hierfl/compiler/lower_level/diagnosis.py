"""What is said of an exact value that cannot be trusted, by whose fault, and what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from hierfl.errors import DivergedError, EmptyLowerSetError, LowerLevelError
from hierfl.language.printing.text import expression_text

if TYPE_CHECKING:
    from hierfl.compiler.compiled_problem import CompiledProblem
    from hierfl.compiler.lower_level.exact_lower import Evaluation, ExactLower
    from hierfl.compiler.lower_level.methods.fixed_point import LowerSolution

OUTSIDE_TOLERANCE = 1e-6
SHARPER = 1e-13


def trusted(exact: ExactLower, x: np.ndarray, evaluation: Evaluation) -> Evaluation:
    """The evaluation, if it can be trusted."""
    require_solved(exact, x, evaluation)
    _require_attained(exact, x, evaluation)
    if np.isnan(evaluation.value):
        raise DivergedError(f"f is not defined (NaN) at x = {_short(x)}: a term is outside its domain there.")
    return evaluation


def require_in_x(compiled: CompiledProblem, x: np.ndarray) -> None:
    """Outside X a lower level may not be convex, and a stationary point of it then is no answer."""
    if not compiled.problem.convex_on_x_only:
        return
    inside = compiled.project_upper(jnp.asarray(x), compiled.data().clients.public)
    away = float(np.linalg.norm(x - np.asarray(inside)))
    if away > OUTSIDE_TOLERANCE * (1.0 + float(np.linalg.norm(x))):
        raise LowerLevelError(
            f"x = {_short(x)} is {away:.2g} outside X, and the lower level is convex only by what the constraints and "
            f"attributes say of x. Ask for a point of X."
        )


def _require_attained(exact: ExactLower, x: np.ndarray, evaluation: Evaluation) -> None:
    """Without a modulus a small residual may also mean an infimum at infinity: then a sharper one moves y a long way."""
    solution, plan = evaluation.solution, exact.plan
    if solution is None or plan is None or not plan.iterative:
        return
    doubtful = (np.asarray(solution.strong_convexity) <= 0) & (np.asarray(solution.residual) > 0)
    if not doubtful.any():
        return
    sharper = exact.compiled_evaluation(jnp.asarray(x), exact.compiled.data(), solution.y, tolerance=SHARPER).solution
    assert sharper is not None
    moved = np.linalg.norm(np.asarray(sharper.y) - solution.y, axis=1)
    away = np.flatnonzero(doubtful & ~(moved <= 0.1 * (1.0 + np.linalg.norm(solution.y, axis=1))))
    if away.size:
        raise LowerLevelError(
            f"the lower level of {_owner_name(exact, int(away[0]))} does not seem to attain its infimum at x = {_short(x)}: y moves "
            f"on by {moved[away[0]]:.2g} when the residual is asked to shrink. Add a strongly convex term or a bounded set."
        )


def require_solved(exact: ExactLower, x: np.ndarray, evaluation: Evaluation) -> None:
    """Raise the named error for an empty set or an unsolved lower level."""
    if evaluation.solution is None:
        return
    empty = np.flatnonzero(~(np.asarray(evaluation.gap) <= 0))
    if empty.size:
        raise EmptyLowerSetError(_empty_message(exact, x, int(empty[0])))
    solution = evaluation.solution
    bad = np.flatnonzero(~np.asarray(solution.converged) | ~np.isfinite(solution.y).all(axis=1))
    if bad.size:
        _diagnose(exact, x, solution, int(bad[0]))


def _diagnose(exact: ExactLower, x: np.ndarray, solution: LowerSolution, owner: int) -> None:
    compiled = exact.compiled
    assert exact.plan is not None
    if compiled.lower_set is not None and not compiled.lower_set.is_exact and compiled.scope != "sample":
        own = compiled.data().clients.party(owner if compiled.scope == "client" else 0).environment
        if float(compiled.lower_set.gap(compiled.environment(jnp.asarray(x), None, own))) > 0:
            raise EmptyLowerSetError(_empty_message(exact, x, owner))
    if exact.plan.method == "closed form":
        raise LowerLevelError(
            f"the lower level of {_owner_name(exact, owner)} was not solved at x = {_short(x)}: its closed form divides by the "
            f"curvature in y, which is not positive there. Keep it positive, bound y, or take Exact(method='semismooth Newton')."
        )
    raise LowerLevelError(
        f"the lower level of {_owner_name(exact, owner)} was not solved at x = {_short(x)}: {exact.plan.method} stopped after "
        f"{int(solution.iterations[owner])} iterations with natural residual {float(solution.residual[owner]):.2e}. It may "
        f"be unbounded below, not strongly convex, or badly scaled; add a strongly convex term or a bounded set."
    )


def _empty_message(exact: ExactLower, x: np.ndarray, owner: int) -> str:
    """What an ``EmptyLowerSetError`` says."""
    level = exact.compiled.problem.lower_level
    constraints = ", ".join(map(expression_text, level.constraints)) if level else ""
    return f"Y(x) of {_owner_name(exact, owner)} is empty at x = {_short(x)}: no y satisfies {constraints}."


def _owner_name(exact: ExactLower, owner: int) -> str:
    """How a message names it."""
    if exact.compiled.scope == "federation":
        return "the federation"
    if exact.compiled.scope == "client":
        return f"client {owner}"
    clients = exact.compiled.static_data.clients
    offsets = np.asarray(clients.tables[exact.row_table(clients)].offsets)
    client = int(np.searchsorted(offsets, owner, side="right") - 1)
    return f"client {client}, sample {owner - int(offsets[client])}"


def _short(x: np.ndarray) -> str:
    return np.array2string(np.asarray(x), threshold=8, precision=6)
