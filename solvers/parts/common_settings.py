"""Settings that several algorithms have by the same name: what is required of each, wherever it occurs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, ClassVar

import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.solvers.papers.theory import UPPER_SCHEDULES
from hierfl.solvers.parts.bound import ABSENT
from hierfl.solvers.parts.directions import ESTIMATORS, KINDS
from hierfl.solvers.parts.participation import require_participation
from hierfl.solvers.parts.requirements import require_choice, require_count, require_flag, require_lower, require_number
from hierfl.solvers.parts.step_schedules import require_schedule
from hierfl.solvers.parts.uplink import COMMUNICATIONS

POSITIVE = ("smoothing", "accuracy", "proximal", "server_step")
COUNTS = ("directions", "inner_rounds", "neumann", "edge_rounds")
FLAGS = ("control_variate", "common_random_numbers", "normalise")
WORDS = {
    "estimator": ESTIMATORS,
    "direction_kind": KINDS,
    "absent": ABSENT,
    "communication": COMMUNICATIONS,
    "schedule": UPPER_SCHEDULES,
}
STEPS = ("proximal_step", "ascent_step")
STEPS_OR_NONE = ("inner_step", "linear_step")  # None: one that fits the lower level
NUMBERS_OR_NONE = ("lipschitz", "radius")

CHECKS: dict[str, Callable[[Any, str], None]] = {
    "step_size": lambda value, name: require_schedule(value, name, auto=True),
    "participation": lambda value, name: require_participation(value),
    "batch_size": lambda value, name: require_count(value, name, or_none=True),
    "lower": lambda value, name: None if value is None else require_lower(value),
    **dict.fromkeys(POSITIVE, lambda value, name: require_number(value, name, 0, np.inf)),
    **dict.fromkeys(COUNTS, require_count),
    **dict.fromkeys(FLAGS, require_flag),
    **dict.fromkeys(WORDS, lambda value, name: require_choice(value, name, WORDS[name])),
    **dict.fromkeys(STEPS, require_schedule),
    **dict.fromkeys(STEPS_OR_NONE, lambda value, name: None if value is None else require_schedule(value, name)),
    **dict.fromkeys(NUMBERS_OR_NONE, lambda value, name: None if value is None else require_number(value, name, 0, np.inf)),
}


def require_common(settings: Any) -> None:
    """Check those of an algorithm's settings that others have as well; it checks its own itself.

    Raises ``SettingError``, naming the setting and what to write instead.
    """
    for field in fields(settings):
        value = getattr(settings, field.name)
        chosen = isinstance(value, str) and value == field.default == "auto"  # by the solver itself, as where nothing is said
        if field.name in CHECKS and not chosen:
            CHECKS[field.name](value, field.name)


Requirements = tuple[Callable[[object, CompiledProblem], None], ...]  # of a problem


class FederatedSettings:
    """What the settings of most methods have in common: how they are checked, and bound to a problem."""

    _requirements: ClassVar[Requirements]
    _algorithm: ClassVar[Any]

    def __post_init__(self) -> None:
        require_common(self)

    def _tables(self, problem: CompiledProblem, rounds: int) -> dict[str, Any]:
        """The fields that the algorithm has beside those of its kind."""
        return {}

    def bind(self, problem: CompiledProblem, rounds: int, queries: str = "projected") -> Any:
        """The algorithm for one problem, schedules tabulated.

        Raises ``IncompatibleSolverError`` or ``SettingError``, naming what the solver needs and what the problem has.
        """
        for require in self._requirements:
            require(self, problem)
        if not hasattr(self, "_algorithm"):
            raise TypeError(f"{type(self).__name__} has no bind(self, problem, rounds, queries), which gives the bound method.")
        return self._algorithm.of(self, problem, rounds, queries, **self._tables(problem, rounds))
