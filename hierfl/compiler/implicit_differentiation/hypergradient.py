"""The gradient of the implicit function at a point, the lower level solved there for all owners."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Data, Party
from hierfl.compiler.expressions.program import Rows
from hierfl.compiler.implicit_differentiation.adjoint import Hypergradient
from hierfl.compiler.lower_level.certificate import TOLERANCE, Evaluation
from hierfl.compiler.lower_level.diagnosis import require_solved
from hierfl.jaxtools.cheap_jit import quick_jit
from hierfl.jaxtools.precision import double_precision

STEEP = (
    1e120  # what stands for an infinite slope is 1e154, times what is beside it: ``hierfl.atoms.numerics.safe.steep``
)


def gradient_at(hyper: Hypergradient, x: Array, data: Data, warm: Array | None = None) -> tuple[Evaluation, Array]:
    """(evaluation, gradient of f) at x with the lower level solved for all owners; traceable."""
    problem, exact, clients = hyper.problem, hyper.exact, data.clients
    evaluation = exact.evaluate_within(x, data, warm, TOLERANCE)
    answers = None if evaluation.solution is None else evaluation.solution.y

    def one(index: Array) -> Any:
        party = clients.party(index)

        def mean(function: Callable[[Rows], Any]) -> Any:
            return party.mean(function, problem.upper_samples)

        if problem.scope == "sample":

            def answer(row: dict[int, Array]) -> Array:
                owner = exact.sample_owner(x, {**party.environment, **row})
                return exact.solve(x, owner, jnp.zeros(problem.lower.size, x.dtype)).y

            return mean(lambda rows: hyper.rows(x, party, rows, answer)[1]), jnp.zeros(problem.lower.size)
        y = jnp.zeros(0) if answers is None else answers[0] if problem.scope == "federation" else answers[index]
        if problem.scope == "federation":
            return hyper.partials(x, y, party, mean)[1:]
        return hyper.client(x, y, party, mean)[1], jnp.zeros_like(y)

    gradients, seeds = (
        clients.one_by_one(one)
        if problem.client_program is not None
        else (
            jnp.zeros((clients.size, x.size)),
            jnp.zeros((clients.size, problem.lower.size)),
        )
    )
    gradient, seed = clients.weights @ gradients, clients.weights @ seeds
    if data.server is not None:
        in_x, in_y = server_partials(problem, x, answers, data.server_party)
        gradient, seed = gradient + in_x, seed + in_y
    if problem.scope == "federation":
        assert answers is not None
        owner = partial(exact.federation_owner, x, clients)
        lower = partial(hyper.federation_map, x, answers[0], clients)
        gradient = hyper.gradient(x, gradient, seed, answers[0], owner, lower)
    return evaluation, gradient


def server_partials(problem: CompiledProblem, x: Array, answers: Array | None, party: Party) -> tuple[Array, Array]:
    """Gradients of the server's term in x and in the federation's y (zeros in other scopes)."""
    shared = answers[0] if answers is not None and problem.scope == "federation" else jnp.zeros(problem.lower.size)

    def at(rows: Rows) -> tuple[Array, Array]:
        return jax.grad(lambda v, y: problem.server_value(v, y, party.environment, rows), argnums=(0, 1))(x, shared)

    partials: tuple[Array, Array] = party.mean(at)
    return partials


@double_precision
def evaluated_with_gradient(
    problem: CompiledProblem, x: np.ndarray, warm: np.ndarray | None = None
) -> tuple[Evaluation, np.ndarray]:
    """(evaluation, gradient) of f at x, oriented for minimisation; the gradient is NaN where there is none, or infinite.

    At kinks that the method for the lower level does not tell it is an element between both slopes. ``warm`` are the owners' y (leading axis
    as from ``ExactLower.solve_all``) that an iterative method begins at, at a point nearby.

    Raises
    ------
    EmptyLowerSetError, LowerLevelError
        As for ``ExactLower.at``.
    """
    evaluation, gradient = unchecked_gradient(problem, np.asarray(x, float), warm)
    require_solved(problem, problem.exact.method, x, evaluation)
    return evaluation, np.where(np.abs(gradient) >= STEEP, np.copysign(np.inf, gradient), gradient)


def unchecked_gradient(
    problem: CompiledProblem, x: np.ndarray, warm: np.ndarray | None = None
) -> tuple[Evaluation, np.ndarray]:
    """The same, whatever came of the lower level."""
    hyper = Hypergradient.of(problem)
    program = problem.programs.keep(
        ("gradient program", hyper), lambda: quick_jit(lambda x, data, warm: gradient_at(hyper, x, data, warm))
    )
    method = hyper.exact.method
    if method is None or not method.iterative:
        warm = None
    elif warm is None:
        warm = np.zeros((method.structure.owners, problem.lower.size))
    evaluation, gradient = jax.tree.map(np.asarray, program(x, problem.data(), warm))
    return evaluation, gradient
