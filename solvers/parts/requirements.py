"""What solvers require of their settings, and of a problem that they are bound to: what is wrong, and what is allowed.

A minimax problem is known by its gradients: y maximises what x minimises.
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Population
from hierfl.errors import IncompatibleSolverError, SettingError
from hierfl.jaxtools.cheap_jit import quick_jit
from hierfl.language.function import uses_black_box
from hierfl.near_names import as_given, near_names

FITTING = {
    "federation": "FedRZO or ImplicitGradient (LocalSGDA for a minimax problem)",
    "client": "ZOHFL, FedRZO or ImplicitGradient",
    "sample": "ZOHFL or FedRZO",
}


# --- of settings ---------------------------------------------------------------------------------------------------------


def require_count(value: Any, name: str, *, least: int = 1, or_none: bool = False, none: str = "all rows") -> None:
    """Check for a whole number of at least ``least`` (or None, which stands for ``none``). Raises ``SettingError``, naming the setting."""
    if value is None and or_none:
        return
    if isinstance(value, bool) or not isinstance(value, (Integral, np.integer)) or value < least:
        raise SettingError(
            f"{name}={value!r}: a whole number of at least {least}{f', or None for {none}' if or_none else ''}."
        )


def require_number(value: Any, name: str, low: float, high: float) -> None:
    """Check for a finite number in (low, high]. Raises ``SettingError``, naming the setting."""
    real = isinstance(value, (Real, np.number)) and not isinstance(value, bool)
    if not real or not np.isfinite(float(value)) or not low < float(value) <= high:
        limit = f"a number in ({low:g}, {high:g}]" if np.isfinite(high) else "a finite number" + (f" above {low:g}" if np.isfinite(low) else "")
        raise SettingError(f"{name}={value!r}: {limit}.")


def require_flag(value: object, name: str) -> None:
    """Check for True or False. Raises ``SettingError``, naming the setting."""
    if not isinstance(value, (bool, np.bool_)):
        raise SettingError(f"{name}={value!r}: True or False.")


def require_lower(value: object) -> None:
    """Check for a lower-level solver. Raises ``SettingError``, naming some."""
    if isinstance(value, type) or not hasattr(value, "bind"):
        raise SettingError(f"lower={as_given(value)}: a lower-level solver such as Exact() or ProjectedSGD(steps=20).")


def require_choice(value: object, name: str, choices: tuple[str, ...]) -> None:
    """Check for one of some words. Raises ``SettingError``, naming the setting and the nearest word."""
    if value not in choices:
        raise SettingError(f"{name}={value!r}: {near_names(value, choices)}")


def require_directions(directions: int, kind: str, size: int) -> None:
    """Check that there are so many directions of a kind in a space of ``size`` dimensions.

    Raises ``SettingError``, naming the most that there are.
    """
    if kind == "orthonormal" and directions > size:
        raise SettingError(
            f"directions={directions}: x has {size} scalars, and no more than {size} directions are orthonormal. Write directions={size}, "
            f"or direction_kind='independent'."
        )


# --- of a problem --------------------------------------------------------------------------------------------------------


def require_single_level(solver: object, problem: CompiledProblem) -> None:
    """Check that the problem has no lower level. Raises ``IncompatibleSolverError``, naming the solvers that treat its scope."""
    if problem.scope is not None:
        raise IncompatibleSolverError(
            f"{type(solver).__name__} needs clients' terms of x alone, but this problem has a lower level of {problem.scope} "
            f"scope: f depends on x through y(x) too, and steps on f_i at a fixed y would not descend on it. Use "
            f"{FITTING[problem.scope]}, or leave the solver out: solve() takes one that fits."
        )


def require_gradients(solver: object, problem: CompiledProblem) -> None:
    """Check that no upper term gives values only. Raises ``IncompatibleSolverError``, naming the term's black box."""
    for side, term in (
        ("server", problem.declaration.objective.server),
        ("clients'", problem.declaration.objective.clients),
    ):
        box = uses_black_box([term]) if term is not None else None
        if box is not None:
            raise IncompatibleSolverError(
                f"{type(solver).__name__} differentiates the {side} term, but {box.name()} is a BlackBox (values only): use "
                f"FedZO, FedRZO or ZOHFL, which evaluate the clients' terms, or write it as a hf.Function."
            )


def require_public_set(solver: object, problem: CompiledProblem) -> None:
    """Check that no client has private constraints on x. Raises ``IncompatibleSolverError``, naming the solver that treats them."""
    if problem.private_set is not None:
        raise IncompatibleSolverError(
            f"{type(solver).__name__} projects x on X at the server, which cannot know a client's private constraints: use "
            f"FedRZO, whose clients pull x towards sets of their own, or write the constraints without hf.ClientParameter."
        )


def require_clients_alone(solver: object, problem: CompiledProblem) -> None:
    """Check that the server has no term. Raises ``IncompatibleSolverError``, naming the solvers that treat one."""
    if problem.server_program is not None:
        raise IncompatibleSolverError(
            f"{type(solver).__name__} has no place for a term of the server: use FedAvg or FedProx, or give the server's data to a client."
        )


def is_opposed(problem: CompiledProblem) -> bool:
    """Whether every client's lower objective is its upper term, negated, in y: found out once, at random points."""
    return problem.programs.keep(("opposed", problem.parameter_values), lambda: _sampled(problem))


def _sampled(problem: CompiledProblem) -> bool:
    """Whether grad_y of every client's lower objective is that of its term, at random points of X and Y(x)."""

    def difference(clients: Population, index: Array, key: Array) -> Array:
        party, (x_key, y_key, row_key) = clients.party(index), jax.random.split(key, 3)
        own, rows = party.environment, party.batch(row_key, 8)
        x = problem.project_upper(jax.random.normal(x_key, (problem.upper.size,), float), own)
        y = problem.project_lower(x, jax.random.normal(y_key, (problem.lower.size,), float), own)
        ascent = jax.grad(lambda z: problem.client_value(x, z, own, rows))(y)
        descent = problem.operator(x, y, own, rows)
        return jnp.max(jnp.abs(ascent + descent)) / (1 + jnp.max(jnp.abs(ascent)))

    every, keys = jnp.arange(problem.num_clients), jax.random.split(jax.random.key(0), problem.num_clients)
    program = problem.programs.keep("opposition", lambda: quick_jit(jax.vmap(difference, (None, 0, 0))))
    differences = program(problem.laid_out().clients, every, keys)
    seen = differences[jnp.isfinite(differences)]
    return bool(seen.size > 0 and jnp.all(seen <= 1e-9))
