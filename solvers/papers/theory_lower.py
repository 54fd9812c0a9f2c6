"""With ``schedule="theory"`` the lower solver's accuracy is a hypothesis: the theorem's own solver, or one that is at least as accurate."""

from __future__ import annotations

from typing import Any

import numpy as np

from hierfl.analysis.theorems import Prescription
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.lower_level.certificate import TOLERANCE
from hierfl.errors import SettingError
from hierfl.solvers.lower import Exact, LocalSGD, ProjectedSGD, ProjectionMethod
from hierfl.solvers.papers.theory import AS_PRINTED
from hierfl.solvers.parts.step_schedules import Decay, LogGrowth, tabulate, tabulate_steps


def theory_lower(
    given: Any, problem: CompiledProblem, prescribed: Prescription, rounds: int, steps: int, schedule: str = "theory"
) -> Any:
    """The lower solver of a run of ``steps`` local steps in all by the class's theorem.

    Where none is given it is exact where the lower level holds no data of a client, and else that of the theorem: Algorithm 3 of
    [2S] (Local SGD) in federation scope, Algorithm 2 of [HFL] (projected SGD) for a client, Algorithm 5 of [2S] (projections) for
    a sample. As printed, Local SGD makes as many steps as [2S] Theorem 1 (ii) asks for.

    Raises ``SettingError`` for one that is less accurate than the theorem asks for.
    """
    wanted = _wanted(problem, prescribed, schedule)
    if given is None:
        exact = problem.scope == "sample" or not problem.lower_samples
        return Exact() if exact and problem.scope != "client" else wanted
    if isinstance(given, Exact):
        enough = given.tolerance <= TOLERANCE
    elif isinstance(wanted, LocalSGD):
        enough = isinstance(given, LocalSGD) and given.schedule in ("theory", wanted.schedule)
    elif isinstance(wanted, ProjectedSGD):
        enough = isinstance(given, ProjectedSGD) and given.schedule == "theory"
        enough = enough and _as_many(*(tabulate_steps(s.steps, rounds, problem.num_clients, "steps of ProjectedSGD") for s in (given, wanted)))
    else:
        enough = type(given) is ProjectionMethod and given.step_size == "theory"
        if enough and given.steps != "theory":
            enough = _as_many(*(tabulate(s.steps, max(1, steps), "steps") for s in (given, wanted)))
    if not enough:
        raise SettingError(
            f"schedule={schedule!r} with lower={given}: the theorem asks for lower-level answers as accurate as those of {wanted}. Write "
            f"that, or Exact(), or leave lower out."
        )
    return given


def _wanted(problem: CompiledProblem, prescribed: Prescription, schedule: str) -> Any:
    if problem.scope == "federation":
        return LocalSGD(schedule="theorem-1" if schedule == AS_PRINTED else "theory")
    if problem.scope == "client":
        return ProjectedSGD(steps=Decay(prescribed.local_steps, -0.5), schedule="theory")
    tau = (prescribed.extra or {})["tau"]
    return ProjectionMethod(steps=LogGrowth(tau) if tau > 0 else 1)


def _as_many(given: np.ndarray, wanted: np.ndarray) -> bool:
    return bool((given >= wanted).all())
