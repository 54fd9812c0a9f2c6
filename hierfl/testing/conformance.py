"""Runs and lower levels held against answers that hierfl had no part in, and runs against each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hierfl.compiler.lower_level.choice import METHODS
from hierfl.errors import IncompatibleSolverError
from hierfl.jaxtools.precision import double_precision
from hierfl.problem import Problem
from hierfl.result import Result
from hierfl.testing.cases import CASES, Case, CaseAnswer

TOLERANCE = 1e-6  # of answers, CVXPY's among them
ALIKE = 1e-9  # of runs: the same numbers, added in another order
STEP = 1e-5  # of differences of f

MakeRuntime = Callable[[Case, Problem], Any]


@dataclass(frozen=True)
class CaseFinding:
    """What was seen of one case: ``outcome`` is ``"conforms"``, ``"refused"`` or ``"fails"``, ``said`` the reason of the latter two.

    Examples
    --------
    >>> from hierfl.testing import CASES, conform_lower
    >>> conform_lower(cases=CASES[2:3]).findings[0].outcome
    'conforms'
    """

    case: Case
    outcome: str
    said: str = ""

    def __str__(self) -> str:
        return f"{self.outcome:9} {self.case}{': ' + self.said if self.said else ''}"


@dataclass(frozen=True)
class Conformance:
    """The findings, printed a line each.

    Examples
    --------
    >>> from hierfl.testing import CASES, conform_lower
    >>> print(conform_lower(cases=CASES[2:3]))
    conforms  client y, free, tables
    """

    findings: tuple[CaseFinding, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings))

    def of(self, outcome: str) -> list[Case]:
        """The cases with that outcome."""
        return [finding.case for finding in self.findings if finding.outcome == outcome]

    @property
    def conforms(self) -> bool:
        """Whether nothing fails, and not everything is refused."""
        return not self.of("fails") and bool(self.of("conforms"))

    def require(self) -> Conformance:
        """The report itself.

        Raises
        ------
        AssertionError
            If something fails, or all is refused; says what.
        """
        if not self.conforms:
            raise AssertionError(f"not conforming:\n{self}")
        return self


def conform(
    solver: Any,
    runtime: Any | MakeRuntime | Mapping[str, Any | MakeRuntime] | None = None,
    *,
    cases: Sequence[Case] | None = None,
    rounds: int = 3,
    seed: int = 0,
    replay: Callable[[Case, np.ndarray], np.ndarray] | None = None,
) -> Conformance:
    """Run a solver on every case that it can take, and hold what it tells against the case's own answers.

    f and y that a result reports are those of the answer at its x, and its certificate says so. On a runtime the run is the one in process:
    the same x and values, round by round, except where the runtime makes no rounds (``asynchronous=True``), whose results are held against
    answers alone, and those that a runtime refuses beside others that conform.

    Parameters
    ----------
    solver
        The solver with its settings.
    runtime
        A runtime, or a function of (case, problem) that makes one for each, or several of them by name; None for runs in process alone.
    cases, rounds, seed
        What is run, and how; None for all of ``CASES``.
    replay
        A round by other means, from the case and x to the next x, for solvers whose rounds are written down in a line or two (such
        as :func:`gradient_steps`); the run in process has to follow it.

    Examples
    --------
    >>> from hierfl.solvers import ImplicitGradient
    >>> from hierfl.testing import CASES, conform, gradient_steps
    >>> print(conform(ImplicitGradient(step_size=0.1), cases=CASES[2:3], replay=gradient_steps(0.1)))
    conforms  client y, free, tables
    """
    several = runtime if isinstance(runtime, Mapping) else {} if runtime is None else {"the runtime": runtime}
    settings: dict[str, Any] = {"rounds": rounds, "seed": seed, "evaluate_every": 1, "progress": False}

    def faults(case: Case) -> Iterator[str]:
        here = case.problem().solve(solver, x0=case.start, **settings)
        yield from _against_answer("in process", here, case)
        if replay is not None:
            yield from _against_replay(here, case, replay)
        refused: list[IncompatibleSolverError] = []
        for name, given in several.items():
            problem = case.problem()
            where = given if hasattr(given, "execute") else given(case, problem)
            try:
                there = problem.solve(solver, runtime=where, x0=case.start, **settings)
            except IncompatibleSolverError as refusal:
                refused.append(refusal)
                continue
            yield from _against_answer(f"on {name}", there, case)
            if not getattr(where, "asynchronous", False):
                yield from _against_run(name, here, there)
        if refused and len(refused) == len(several):
            raise refused[0]

    return Conformance(tuple(_found(case, faults) for case in (CASES if cases is None else cases)))


def conform_lower(
    method: str | None = None,
    *,
    cases: Sequence[Case] | None = None,
    points: Sequence[Sequence[float]] = ((0.35, -0.2), (0.7, 0.5)),
) -> Conformance:
    """Have lower levels solved by an exact method (its name as in ``Exact(method=...)``; None for the compiler's choice), and hold f and y against answers.

    Examples
    --------
    >>> from hierfl.testing import CASES, conform_lower
    >>> print(conform_lower(cases=CASES[2:3]))
    conforms  client y, free, tables
    """

    @double_precision
    def faults(case: Case) -> Iterator[str]:
        exact = case.problem().compile().exact.by(method)
        for point in points:
            x, told = np.asarray(point, float), case.answer(np.asarray(point, float))
            found = exact.at(x)
            assert found.solution is not None  # these cases have a lower level
            yield from _apart(f"f at {point}", float(found.value), told.value, TOLERANCE)
            yield from _apart(f"y at {point}", found.solution.y, told.y, TOLERANCE)

    if method is not None and method not in METHODS:
        raise IncompatibleSolverError(f"there is no method {method!r}: one of {', '.join(METHODS)}.")
    return Conformance(tuple(_found(case, faults) for case in (CASES if cases is None else cases) if case.scope is not None))


def gradient_steps(step_size: float) -> Callable[[Case, np.ndarray], np.ndarray]:
    """A round that is a projected gradient step on f: what ``ImplicitGradient``, and one local step of FedAvg or SCAFFOLD, make of all data.

    The gradient is that of the answers, by differences.

    Examples
    --------
    >>> from hierfl.testing import CASES, gradient_steps
    >>> after = gradient_steps(0.1)(CASES[0], np.zeros(2))
    """

    def one(case: Case, x: np.ndarray) -> np.ndarray:
        moves = STEP * np.eye(len(x))
        slopes = [(case.answer(x + move).value - case.answer(x - move).value) / (2 * STEP) for move in moves]
        return np.clip(x - step_size * np.array(slopes), -1.0, 1.0)

    return one


def _found(case: Case, faults: Callable[[Case], Iterator[str]]) -> CaseFinding:
    """What is found of a case; whatever is raised is told, since a report has all cases in it."""
    try:
        said = "; ".join(faults(case))
    except IncompatibleSolverError as refusal:
        return CaseFinding(case, "refused", str(refusal).splitlines()[0])
    except Exception as error:
        return CaseFinding(case, "fails", f"{type(error).__name__}: {error}")
    return CaseFinding(case, "fails" if said else "conforms", said)


def _against_answer(where: str, result: Result, case: Case) -> Iterator[str]:
    """How a result's f and y differ from the answer at its x."""
    told: CaseAnswer = case.answer(np.asarray(result.x))
    yield from _apart(f"f {where}", result.value, told.value, TOLERANCE)
    if case.scope is not None:
        yield from _apart(f"y {where}", _owners(result.y), told.y, 1e3 * TOLERANCE)
        off = np.linalg.norm(_owners(result.y) - told.y, axis=1).max() - 1e3 * TOLERANCE
        if not off <= result.certificate.error_bound:
            yield f"y {where}: off by more than its certificate's {result.certificate.error_bound:.1e}"


def _against_replay(result: Result, case: Case, replay: Callable[[Case, np.ndarray], np.ndarray]) -> Iterator[str]:
    x, path = case.start, [case.start]
    for _ in range(len(result.trajectory["x"]) - 1):
        x = replay(case, x)
        path.append(x)
    yield from _apart("x of the rounds written down", result.trajectory["x"], np.array(path), 10 * TOLERANCE)


def _against_run(name: str, here: Result, there: Result) -> Iterator[str]:
    """How a run on a runtime differs from the one in process: what the holders of the data say of the run's own y is the same as well."""
    yield from _apart(f"x on {name} and in process", there.trajectory["x"], here.trajectory["x"], ALIKE)
    yield from _apart(f"f on {name} and in process", there.value, here.value, ALIKE)
    if here.own_value is not None:
        own = np.nan if there.own_value is None else there.own_value
        yield from _apart(f"the algorithm's own value on {name} and in process", own, here.own_value, ALIKE)
    found, told = there.certificate.own_residual, here.certificate.own_residual
    if not np.isnan(told):
        yield from _apart(f"the own y's residual on {name} and in process", found, told, 10 * ALIKE)


def _owners(y: Any) -> np.ndarray:
    """The public y of a result as (owners, size)."""
    if isinstance(y, dict):
        return np.column_stack([np.ravel(part) for part in y.values()])
    whole = np.concatenate([np.asarray(part) for part in y]) if isinstance(y, list) else np.asarray(y)
    return whole.reshape(-1, whole.shape[-1])


def _apart(what: str, found: Any, told: Any, tolerance: float) -> Iterator[str]:
    """That two answers differ, where they do."""
    found, told = np.asarray(found, float), np.asarray(told, float)
    if found.shape != told.shape:
        yield f"{what}: of shape {found.shape}, not {told.shape}"
        return
    off = float(np.max(np.abs(found - told), initial=0.0))
    if not off <= tolerance * (1.0 + float(np.max(np.abs(told), initial=0.0))):
        yield f"{what}: off by {off:.1e}"
