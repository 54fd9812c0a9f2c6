"""The multipliers of the lower level's constraints at a point."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from cvxpy.constraints import PSD, Equality, Zero
from cvxpy.constraints.constraint import Constraint

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.lower_level.methods.parametric_program import ParametricProgram, level_solver
from hierfl.compiler.lower_level.owner import Owner
from hierfl.compiler.parametric.level_form import LevelForm
from hierfl.compiler.parametric.template import LevelTemplate
from hierfl.compiler.party_constraints import lower_constraints
from hierfl.compiler.programs.cones import NoStandardFormError, triangle
from hierfl.compiler.programs.small_and_sparse import as_array
from hierfl.compiler.programs.solve_program import solve_program
from hierfl.errors import IncompatibleSolverError, SettingError
from hierfl.jaxtools.precision import double_precision
from hierfl.language.printing.card import brief
from hierfl.language.printing.text import expression_text

NEAR = 1e-6  # of y, up to which a linear model's solution is it


class Multipliers(dict[Constraint, Any]):
    """Multipliers by constraint, shown beside the constraints as they were written."""

    def __repr__(self) -> str:
        return "\n".join(f"{expression_text(constraint)}: {brief(value)}" for constraint, value in self.items())


@double_precision
def multipliers_at(compiled: CompiledProblem, x: np.ndarray) -> Multipliers:
    """By constraint of Y(x), for every owner of a y; errors as for ``ImplicitFunction.multipliers``."""
    evaluation = compiled.exact.at(x)  # says what is wrong where there is no solution
    level, method = compiled.declaration.lower_level, compiled.exact.method
    if level is None or method is None:
        raise SettingError("the problem has no lower level, whose constraints would have multipliers.")
    owners = _owners(compiled, x)
    try:
        solver = level_solver(method.structure)
    except NoStandardFormError as reason:
        if method.structure.rough is not None or evaluation.solution is None:
            raise IncompatibleSolverError(f"the multipliers of this lower level are not known: {reason}.") from None
        base, answers = _of_linear_models(compiled, x, owners, np.asarray(evaluation.solution.y))
    else:
        program = ParametricProgram(method.structure, "")
        thetas = (program.numbers(jnp.asarray(x), owner) for owner in owners)
        base, answers = solver.form.base, [solver.answer(*theta).first.z for theta in thetas]
    return Multipliers(
        (constraint, _by_owner(compiled, [_dual(base, k, constraint, z) for z in answers]))
        for k, constraint in enumerate(lower_constraints(compiled.declaration))
    )


def _owners(compiled: CompiledProblem, x: np.ndarray) -> list[Owner]:
    """Every owner of a y at x."""
    data, exact, scope = compiled.data(), compiled.exact, compiled.scope
    clients, at = data.clients, jnp.asarray(x)
    if scope == "federation":
        return [exact.federation_owner(at, clients)]
    if scope == "client":
        return [exact.client_owner(at, clients.party(index)) for index in range(clients.size)]
    table = clients.tables[compiled.row_table(clients)]
    holders = np.searchsorted(np.asarray(table.offsets), np.arange(table.size), side="right") - 1
    return [
        exact.sample_owner(at, {**clients.party(int(holder)).environment, **table.rows(row)})
        for row, holder in enumerate(holders)
    ]


def _of_linear_models(
    compiled: CompiledProblem, x: np.ndarray, owners: list[Owner], y: np.ndarray
) -> tuple[LevelTemplate, list[np.ndarray]]:
    """Those of F's linear model at each y, whose conditions are the same there: of what is no program itself, as nonlinear equilibria."""
    level = compiled.declaration.lower_level
    assert level is not None
    try:
        base = LevelTemplate.of(
            None, lower_constraints(compiled.declaration), level.variables, compiled.declaration.known_bounds
        )
    except NoStandardFormError as reason:
        raise IncompatibleSolverError(f"the multipliers of this lower level are not known: {reason}.") from None
    found = []
    for owner, point in zip(owners, y):
        theta = base.theta_at(compiled.environment(jnp.asarray(x), None, owner.own))
        rows = LevelForm(base, ()).program([np.asarray(theta, float)])
        p, q = np.zeros((rows.width, rows.width)), np.zeros(rows.width)
        p[: base.size, : base.size] = jax.jacfwd(owner.operator)(jnp.asarray(point))
        q[: base.size] = np.asarray(owner.operator(jnp.asarray(point))) - p[: base.size, : base.size] @ point
        model = replace(rows, p=p, q=q, a=as_array(rows.a), curved=p, is_map=True)
        answer = solve_program(model)
        if not answer.solved or np.abs(answer.u[: base.size] - point).max(initial=0.0) > NEAR * (1 + np.abs(point).max()):
            raise IncompatibleSolverError("the multipliers of this lower level are not known: its linear model at y has another solution.")
        found.append(answer.z)
    return base, found


def _dual(base: LevelTemplate, index: int, constraint: Constraint, z: np.ndarray) -> np.ndarray:
    """CVXPY's ``dual_value``: nonnegative for inequalities, of lhs - rhs for equations."""
    rows = z[base.rows[index]] + 0.0  # without negative zeros
    if isinstance(constraint, PSD):
        return (triangle(constraint.args[0].shape[0]).T @ rows).reshape(constraint.args[0].shape)
    signed = -rows if isinstance(constraint, (Equality, Zero)) else rows
    return signed.reshape(constraint.shape, order="F") if rows.size == constraint.size else signed


def _by_owner(compiled: CompiledProblem, duals: list[np.ndarray]) -> Any:
    """In the shapes of ``Result.y``: one, ``(m, *shape)``, or a list over clients of ``(N_i, *shape)``."""
    if compiled.scope == "federation" or (compiled.scope == "client" and len(duals) == 1):
        return duals[0]
    if compiled.scope == "client":
        return np.stack(duals)
    clients = compiled.static_data.clients
    ends = np.cumsum(clients.tables[compiled.row_table(clients)].counts)[:-1]
    return np.split(np.stack(duals), ends)
