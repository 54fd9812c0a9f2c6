"""The envelope theorem's case: the upper term and the lower level have proportional gradients in y."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.atoms.table import row_of
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Data
from hierfl.compiler.expressions.program import Rows
from hierfl.jaxtools.cheap_jit import quick_jit
from hierfl.jaxtools.precision import double_precision
from hierfl.language.printing.text import expression_text

ROUNDING = 1e-9  # of the upper gradient, whose size says nothing: f may be written in any unit
FURTHER = 10.0, 1e3  # draws of this size where there are pieces
DRAWS = 8  # points of Y(x) whose mean is inside as a rule, where a single one is at its end


@double_precision
def gradients_coincide(problem: CompiledProblem) -> bool:
    """Whether the clients' upper terms and the lower level have proportional gradients in y, at random points.

    Atoms with branches, of which random points see some, have to be the same in both.
    """
    if not problem.lower.size or problem.scope == "sample" or problem.client_program is None:
        return False
    level, term = problem.declaration.lower_level, problem.declaration.objective.clients
    assert level is not None
    pieces = _pieces([term], problem)
    if not pieces <= _pieces(level.expressions, problem):  # on another piece they may differ
        return False
    data, rng = problem.laid_out(), np.random.default_rng(11)
    pairs = problem.programs.keep(
        "gradients in y", lambda: quick_jit(lambda x, y, data: _gradients(problem, x, y, data))
    )
    draws = []
    for size in (1.0, 1.0, 1.0, *(FURTHER if pieces else ())):
        x, y = rng.standard_normal(problem.upper.size), size * rng.standard_normal((DRAWS, problem.lower.size))
        draws.append(tuple(map(np.asarray, pairs(x, y, data))))
    uppers, lowers = (np.stack(parts) for parts in zip(*draws))  # (draws, owners, size)
    sizes = np.sum(lowers * lowers, axis=-1)
    if not np.isfinite(sizes).all() or (sizes == 0).any():
        return False
    ratios = np.sum(uppers * lowers, axis=-1) / sizes
    ratio = ratios[0, 0]
    alike = _alike(uppers, ratio * lowers, ROUNDING * np.linalg.norm(uppers, axis=-1))
    # beside large constants gradients are all alike, and what tells them apart is how they change
    noise = 64 * np.finfo(float).eps * np.linalg.norm(uppers, axis=-1).max()
    changes = np.diff(uppers, axis=0), ratio * np.diff(lowers, axis=0)
    return (
        alike
        and _alike(*changes, ROUNDING * np.linalg.norm(changes[0], axis=-1) + noise)
        and bool(np.ptp(ratios) <= ROUNDING * abs(ratio))
    )


def _pieces(expressions: Sequence[Any], problem: CompiledProblem) -> set[str]:
    """The atoms over y that have branches, or may have: in words."""
    own, found, left = {v.id for v in problem.lower.variables}, set(), list(expressions)
    while left:
        node = left.pop()
        row = row_of(node)
        if (row.switches is not None or row.opaque) and any(v.id in own for v in node.variables()):
            found.add(expression_text(node))
        left += getattr(node, "args", ())
    return found


def _alike(some: np.ndarray, others: np.ndarray, allowed: np.ndarray) -> bool:
    """Whether vectors differ by what is allowed at most."""
    return bool((np.linalg.norm(some - others, axis=-1) <= allowed).all())


def _gradients(problem: CompiledProblem, x: Array, y: Array, data: Data) -> tuple[Array, Array]:
    """(grad_y f_i, F) of every client on all its data, in federation scope of their mean: (owners, size) each."""
    clients = data.clients
    x = problem.upper_set.project(x, clients.party(0).environment)

    def one(index: Array) -> tuple[Array, Array]:
        party = clients.party(index)
        own, level = party.environment, problem.lower_set
        at = problem.environment(x, None, own)
        inside = y[0] if level is None else jnp.mean(jax.vmap(lambda z: level.project(z, at))(y), axis=0)

        def upper(rows: Rows) -> Array:
            return jax.grad(lambda v: problem.client_value(x, v, party.environment, rows))(inside)

        def lower(rows: Rows) -> Array:
            return problem.operator(x, inside, party.environment, rows)

        return party.mean(upper, problem.upper_samples), party.mean(lower, problem.lower_samples)

    of_clients = clients.one_by_one(one)
    if problem.scope != "federation":
        return of_clients
    return jax.tree.map(lambda parts: (clients.weights @ parts)[None], of_clients)
