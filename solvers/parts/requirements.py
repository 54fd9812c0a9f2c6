"""What solvers require of their settings, and of a problem that they are bound to: what is wrong, and what is allowed."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import IncompatibleSolverError, SettingError
from hierfl.language.function import uses_black_box
from hierfl.near_names import near_names

FITTING = {
    "federation": "FedRZO or ImplicitGradient (LocalSGDA for a minimax problem)",
    "client": "ZOHFL, FedRZO or ImplicitGradient",
    "sample": "ZOHFL or FedRZO",
}


# --- of settings ---------------------------------------------------------------------------------------------------------


def require_count(value: Any, name: str, *, or_none: bool = False, none: str = "all rows") -> None:
    """Check for a whole number of at least 1 (or None, which stands for ``none``).

    Raises
    ------
    SettingError
        Naming the setting.
    """
    if value is None and or_none:
        return
    if isinstance(value, bool) or not isinstance(value, (Integral, np.integer)) or value < 1:
        raise SettingError(
            f"{name}={value!r}: a whole number of at least 1{f', or None for {none}' if or_none else ''}."
        )


def require_number(value: Any, name: str, low: float, high: float) -> None:
    """Check for a finite number in (low, high].

    Raises
    ------
    SettingError
        Naming the setting.
    """
    real = isinstance(value, (Real, np.number)) and not isinstance(value, bool)
    if not real or not np.isfinite(float(value)) or not low < float(value) <= high:
        limit = f"a number in ({low:g}, {high:g}]" if np.isfinite(high) else f"a finite number above {low:g}"
        raise SettingError(f"{name}={value!r}: {limit}.")


def require_flag(value: object, name: str) -> None:
    """Check for True or False.

    Raises
    ------
    SettingError
        Naming the setting.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise SettingError(f"{name}={value!r}: True or False.")


def require_lower(value: object) -> None:
    """Check for a lower-level solver.

    Raises
    ------
    SettingError
        Naming some.
    """
    if isinstance(value, type) or not hasattr(value, "bind"):
        raise SettingError(f"lower={value!r}: a lower-level solver such as Exact() or ProjectedSGD(steps=20).")


def require_choice(value: object, name: str, choices: tuple[str, ...]) -> None:
    """Check for one of some words.

    Raises
    ------
    SettingError
        Naming the setting and the nearest word.
    """
    if value not in choices:
        raise SettingError(f"{name}={value!r}: {near_names(value, choices)}")


def require_directions(directions: int, kind: str, size: int) -> None:
    """Check that there are so many directions of a kind in a space of ``size`` dimensions.

    Raises
    ------
    SettingError
        Naming the most that there are.
    """
    if kind == "orthonormal" and directions > size:
        raise SettingError(
            f"directions={directions}: x has {size} scalars, and no more than {size} directions are orthonormal. Write directions={size}, "
            f"or direction_kind='independent'."
        )


# --- of a problem --------------------------------------------------------------------------------------------------------


def require_single_level(solver: object, problem: CompiledProblem) -> None:
    """Check that the problem has no lower level.

    Raises
    ------
    IncompatibleSolverError
        Naming the solvers that treat its scope.
    """
    if problem.scope is not None:
        raise IncompatibleSolverError(
            f"{type(solver).__name__} needs clients' terms of x alone, but this problem has a lower level of {problem.scope} "
            f"scope: f depends on x through y(x) too, and local steps on f_i at a fixed y would not descend on it. Use "
            f"{FITTING[problem.scope]}."
        )


def require_gradients(solver: object, problem: CompiledProblem) -> None:
    """Check that no upper term gives values only.

    Raises
    ------
    IncompatibleSolverError
        Naming the term's black box.
    """
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
    """Check that no client has private constraints on x.

    Raises
    ------
    IncompatibleSolverError
        Naming the solver that treats them.
    """
    if problem.private_set is not None:
        raise IncompatibleSolverError(
            f"{type(solver).__name__} projects x on X at the server, which cannot know a client's private constraints: use "
            f"FedRZO, whose clients pull x towards sets of their own, or write the constraints without hf.ClientParameter."
        )


def require_clients_alone(solver: object, problem: CompiledProblem) -> None:
    """Check that the server has no term.

    Raises
    ------
    IncompatibleSolverError
        Naming the solvers that treat one.
    """
    if problem.server_program is not None:
        raise IncompatibleSolverError(
            f"{type(solver).__name__} corrects the clients' steps by control variates and has no place for a term of the "
            f"server: use FedAvg or FedProx, or give the server's data to a client."
        )
