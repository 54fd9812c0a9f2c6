"""Runs of methods that ask for f themselves, with all data in this process: nothing is compiled that values do not need."""

from __future__ import annotations

import time

import jax.numpy as jnp
import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.descent.answers import Answers
from hierfl.errors import IncompatibleSolverError
from hierfl.jaxtools.interruption import CutShort, heed
from hierfl.jaxtools.precision import double_precision
from hierfl.runtime.contract import Visit, Visitor
from hierfl.runtime.in_process.execution import InProcess
from hierfl.runtime.records import Begun, BlockEnd, History, Outcome

NOBODY = -1  # is at fault, and has an empty Y(x): such points are not visited


def require_here(runtime: object, solver: object) -> None:
    """Require that the runtime simulates all clients in this process, in double precision.

    Raises ``IncompatibleSolverError``, naming the solver to take elsewhere.
    """
    name = type(solver).__name__
    if not isinstance(runtime, InProcess):
        raise IncompatibleSolverError(
            f"{name} evaluates f with all data in this process, which {type(runtime).__name__} has elsewhere: use ImplicitGradient."
        )
    if runtime.precision != "double" or runtime.schedule is not None:
        raise IncompatibleSolverError(
            f"{name} evaluates f exactly, in double precision and by a schedule of its own: leave the settings of InProcess out, or use "
            f"ImplicitGradient."
        )


@double_precision
def execute_visits(
    problem: CompiledProblem,
    method: Visitor,
    x0: np.ndarray,
    rounds: int,
    seed: int,
    block: int,
    at_end: BlockEnd,
    begun: Begun | None = None,
) -> Outcome:
    """Make ``rounds`` rounds, or fewer where the method ends by itself or has to; ``at_end`` looks at each block, as for a runtime.

    What stands for the clients' memories are the answers that the method was given: with them a run that has ``begun`` goes on.
    """
    state, ended = method.init(jnp.asarray(x0)), None
    answers = Answers() if begun is None else Answers.of(begun.memory)
    records: list[dict[str, float]] = []
    visits = method.visits(x0, seed, answers) if rounds else iter(())
    before = done = 0 if begun is None else begun.rounds
    for _ in range(before):
        state, _, ended = next(visits)
    states = [state]  # before the block, and after each of its rounds
    while done < rounds and ended is None:
        began = time.perf_counter()
        try:
            heed()
            visit = next(visits)
        except CutShort:
            if len(states) > 1:
                at_end(done, state, answers, _history(records[1 - len(states) :]))
            break
        records.append({**visit.record, **_moved(method, state, visit), "seconds": time.perf_counter() - began})
        state, ended, done = visit.state, visit.ended, done + 1
        states.append(state)
        if done % block and done < rounds and ended is None:
            continue
        ending = at_end(done, state, answers, _history(records[1 - len(states) :]))
        if ending is not None:
            made = _history(records[: ending.rounds - before])
            return Outcome(states[ending.rounds - done - 1], answers, made, None)
        states = [state]
    return Outcome(state, answers, _history(records), None, ended)


def _moved(method: Visitor, before: object, visit: Visit) -> dict[str, float]:
    old, new = method.decision(before), method.decision(visit.state)
    return {"move": float(np.linalg.norm(new - old)), "extent": float(np.max(np.abs(new), initial=0.0))}


def _history(records: list[dict[str, float]]) -> History:
    columns = {name: np.array([record[name] for record in records]) for name in (records[0] if records else ())}
    return {**columns, **{name: np.full(len(records), NOBODY) for name in ("fault", "empty")}} if records else {}
