"""The multipliers of the lower level's constraints at a point."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from cvxpy.constraints import PSD, Equality, Zero
from cvxpy.constraints.constraint import Constraint

from hierfl.analysis.variable_bounds import attribute_constraints
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.lower_level.certificate import Evaluation
from hierfl.compiler.lower_level.methods.parametric_program import ParametricProgram, level_solver
from hierfl.compiler.lower_level.owner import Owner
from hierfl.compiler.oracles import by_owner, lower_constraints
from hierfl.compiler.parametric.level_solver import LevelAnswer
from hierfl.compiler.parametric.priced_form import PricedForm
from hierfl.compiler.parametric.template import LevelTemplate
from hierfl.compiler.programs.cones import NoStandardFormError, triangle
from hierfl.errors import IncompatibleSolverError, SettingError
from hierfl.jaxtools.precision import double_precision
from hierfl.language.printing.card import brief
from hierfl.language.printing.text import expression_text
from hierfl.language.sample import ClientParameter


class Multipliers(dict[Constraint, Any]):
    """Multipliers by constraint, shown beside the constraints as they were written."""

    def __repr__(self) -> str:
        return "\n".join(f"{expression_text(constraint)}: {brief(value)}" for constraint, value in self.items())


@double_precision
def multipliers_at(compiled: CompiledProblem, x: np.ndarray, evaluation: Evaluation | None = None) -> Multipliers:
    """By constraint of Y(x), for every owner of a y, where f may be evaluated already; errors as for ``ImplicitFunction.multipliers``."""
    evaluation = compiled.exact.at(x) if evaluation is None else evaluation  # says what is wrong where there is no solution
    level, method = compiled.declaration.lower_level, compiled.exact.method
    if level is None or method is None:
        raise SettingError("the problem has no lower level, whose constraints would have multipliers.")
    assert evaluation.solution is not None
    try:
        answers = answers_of(compiled, x, evaluation.solution.y)
    except NoStandardFormError as reason:
        raise IncompatibleSolverError(f"the multipliers of this lower level are not known: {reason}.") from None
    stages, found = compiled.exact.stages, Multipliers()
    for place, stage in enumerate(stages):
        assert stage.method is not None
        form = level_solver(stage.method.structure).form
        base = form.plain.base if isinstance(form, PricedForm) else form.base
        own = answers[place :: len(stages)]
        rows = [form.multipliers(one.chosen) if isinstance(form, PricedForm) else one.first.z for one in own]
        constraints = lower_constraints(stage.oracles.declaration)
        duals = [[_dual(base, k, constraint, z) for z in rows] for k, constraint in enumerate(constraints)]
        level = stage.oracles.declaration.lower_level
        if level is None or level.of is None:
            found |= zip(constraints, (by_owner(compiled, np.stack(each)) for each in duals))
            continue
        # every client's own level, in a sum by weights: its constraints are those that were declared, one after another for each client
        declared = [*level.of.constraints, *attribute_constraints(level.of.variables)]
        own_ones = [one for one, lifted in zip(declared, level.constraints) if any(isinstance(p, ClientParameter) for p in lifted.parameters())]
        weights, shared = compiled.declaration.client_weights, len(constraints) - len(own_ones) * compiled.num_clients
        found |= zip(constraints[:shared], (each[0] for each in duals[:shared]))
        for k, one in enumerate(own_ones):
            found[one] = np.stack([duals[shared + i * len(own_ones) + k][0] / weights[i] for i in range(compiled.num_clients)])
    return found


def answers_of(
    compiled: CompiledProblem, x: np.ndarray, known: Any = None, instead: Callable[[int, LevelAnswer], np.ndarray | None] | None = None
) -> list[LevelAnswer]:
    """What the solver of each level says to every owner, of several levels in their order: at the answers ``known``, by owner, or at its own.

    What it says ``instead`` of an answer, by its number, is what later levels are given. Raises ``NoStandardFormError`` as ``level_solver``.
    """
    found: list[LevelAnswer] = []
    for index, owner in enumerate(owners_of(compiled, x)):
        y = np.zeros(0)
        for stage in compiled.exact.stages:
            assert stage.method is not None
            solver, size = level_solver(stage.method.structure), stage.oracles.lower.size
            at, end = jnp.concatenate([jnp.asarray(x), y]), y.size + size
            own = owner if stage is compiled.exact else owner.stage(stage, at)
            here = np.zeros(size) if known is None else known[index][y.size : end]
            answer = solver.answer(*ParametricProgram(stage.method.structure, "").numbers(at, own, jnp.asarray(here)))
            told = here if known is not None else None if instead is None else instead(len(found), answer)
            found.append(answer)
            y = np.concatenate([y, answer.y if told is None else told])
    return found


def owners_of(compiled: CompiledProblem, x: np.ndarray) -> list[Owner]:
    """Every owner of a y at x."""
    data, exact, scope = compiled.data(), compiled.exact, compiled.scope
    clients, at = data.clients, jnp.asarray(x)
    if scope == "federation":
        return [exact.federation_owner(at, clients)]
    if scope == "client":
        return [exact.client_owner(at, clients.party(index)) for index in range(clients.size)]
    table = clients.tables[compiled.row_table(clients)]
    holders = np.searchsorted(np.asarray(table.offsets), np.arange(table.size), side="right") - 1
    own = ({**clients.party(int(holder)).environment, **table.rows(row)} for row, holder in enumerate(holders))
    return [exact.sample_owner(at, each) for each in own]


def _dual(base: LevelTemplate, index: int, constraint: Constraint, z: np.ndarray) -> np.ndarray:
    """CVXPY's ``dual_value``: nonnegative for inequalities, of lhs - rhs for equations."""
    rows = np.atleast_2d(z[base.rows[index]]).sum(axis=0) + 0.0  # without negative zeros
    if isinstance(constraint, PSD):
        return (triangle(constraint.args[0].shape[0]).T @ rows).reshape(constraint.args[0].shape)
    signed = -rows if isinstance(constraint, (Equality, Zero)) else rows
    return signed.reshape(constraint.shape, order="F") if rows.size == np.prod(constraint.shape) else signed  # of cones all rows
