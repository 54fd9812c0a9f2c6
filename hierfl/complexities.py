"""``complexity``: what the papers' tables say of a problem, and what a short run of it takes, for several lower solvers side by side.

The papers' orders are those of [NN] Table 1 and [2S] Tables 1 to 3, and of [HFL] Theorem 1 (iii), (iv): symbols, and their values for a problem's m, K
and kappa. Constants and logarithms are left out there, as here: values compare methods, and are no numbers of rounds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, log1p
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hierfl.compiler.compiled_problem import GRADIENTS, PROJECTIONS, CountedProblem
from hierfl.errors import LowerLevelWarning, SettingError
from hierfl.inspect.argument_checks import require_whole
from hierfl.jaxtools.interruption import whole
from hierfl.language.printing.card import Card, Shown, call_text
from hierfl.result import Result
from hierfl.run_settings import RunSettings
from hierfl.runs import aligned
from hierfl.runtime.in_process.execution import InProcess
from hierfl.runtime.records import Limits
from hierfl.runtime.run import run
from hierfl.solvers import ZOHFL, FedRZO
from hierfl.solvers.lower import LFD, Exact, FedAC, LocalSGD, ProjectedSGD, ProjectionMethod
from hierfl.solvers.lower.lower_solver import Clock
from hierfl.solvers.papers.theory import report
from hierfl.solvers.parts.directions import shifts_of
from hierfl.solvers.parts.step_schedules import rows as rows_of
from hierfl.solvers.parts.zeroth_order_steps import ZerothOrderSteps

if TYPE_CHECKING:
    from hierfl.inspect.assumptions.findings import Theorem
    from hierfl.problem import Problem

UNKNOWN = "not known beforehand"
BY_SCOPE: dict[str | None, tuple[Any, ...]] = {
    "federation": (LocalSGD(), FedAC(), LFD()),
    "client": (ProjectedSGD(),),
    "sample": (ProjectionMethod(),),
    None: (None,),
}


@dataclass(frozen=True)
class MeasuredEffort:
    """What a run of ``rounds`` rounds took: counted while it went on.

    Attributes
    ----------
    gradients, projections
        Evaluations of the lower level's F, each on a minibatch or on all of a client's data, and projections on Y(x), one owner of y
        and one point at a time; None with ``Exact()``, whose method is the compiler's.
    rounds
        Rounds of communication of the lower solver, by what clients sent; None with ``Exact()``, 0 where none is needed.
    scalars, lower_scalars
        Sent down and up, by the upper level and by the lower solver.
    residual
        The lower level's natural residual in the last round, None where there is no lower level: counts compare only where answers are alike.
    """

    gradients: int | None
    projections: int | None
    rounds: int | None
    scalars: int
    lower_scalars: int
    residual: float | None


class Effort(NamedTuple):
    """What a lower solver is to take by its tables: evaluations of F (each on a minibatch, or on all of a client's data), projections on Y(x),
    and rounds of communication. The look at the residual, for the history, is counted with them.
    """

    gradients: int
    projections: int
    rounds: int = 0


@dataclass(frozen=True)
class SolverComplexity:
    """One lower solver: ``printed`` by what (the papers' orders, with their values where K is known), ``predicted`` by its tables, ``measured``."""

    lower: Any
    printed: dict[str, str]
    predicted: Effort | None
    measured: MeasuredEffort

    @property
    def name(self) -> str:
        """The lower solver as it is written."""
        return "no lower level" if self.lower is None else call_text(self.lower)


@dataclass(frozen=True, repr=False)
class Complexity(Shown):
    """A column for each lower solver; prints as a table.

    Attributes
    ----------
    solver
        The upper level's, with its settings.
    theorem
        The class's theorem for the solver's smoothing and accuracy; its numbers are there where all hypotheses are proved.
    rounds
        Rounds of the upper level that were counted.
    columns
        A ``SolverComplexity`` for each lower solver.
    """

    solver: Any
    theorem: Theorem
    rounds: int
    columns: tuple[SolverComplexity, ...]

    def __getitem__(self, place: int) -> SolverComplexity:
        return self.columns[place]

    def __len__(self) -> int:
        return len(self.columns)

    def table(self) -> str:
        """Write the papers' orders, then predicted and measured counts, a row each."""
        rows = [["", *(column.name for column in self.columns)]]
        for what in dict.fromkeys(what for column in self.columns for what in column.printed):
            rows.append([what, *(column.printed.get(what, "not in the papers") for column in self.columns)])
        rows.append([f"in {_rounds(self.rounds)}", *("" for _ in self.columns)])
        for label, count in _counts():
            rows.append([f"  {label}", *(count(column) for column in self.columns)])
        return aligned(rows)

    def __str__(self) -> str:
        title = f"Complexity of {call_text(self.solver)}{self._lower}"
        return "\n".join([title, self._horizon, "", self.table(), "", LEGEND])

    @property
    def _lower(self) -> str:
        if len(self) > 1:
            return f", its lower level solved by each of {len(self)}"
        return "" if self[0].lower is None else f", its lower level solved by {self[0].name}"

    @property
    def _horizon(self) -> str:
        printed, name = self.theorem.printed, self.theorem.name.split(":")[0]
        if printed is None:
            missing = ", ".join(self.theorem.missing) or "a bound on f(x_0) - inf f"
            return f"{name} gives no K for this problem: not proved is {missing}"
        k = "" if printed.iterations is None else f"K = {printed.iterations:.3g} local steps, "
        return f"{name} as printed, for accuracy {self.solver.accuracy:g}: {k}R = {printed.rounds:.3g} rounds, H = {printed.local_steps:.3g}"

    def _card(self) -> Card:
        rows = [
            (
                column.name,
                f"{_number(column.measured.gradients)} gradients, {_number(column.measured.projections)} projections, "
                f"{column.measured.scalars + column.measured.lower_scalars:,} scalars, residual {_residual(column)}",
            )
            for column in self.columns
        ]
        return Card(f"What {_rounds(self.rounds)} of {call_text(self.solver)} took", rows, [("the table", str(self))])


LEGEND = (
    "O(.): as the papers print it, constants and logarithms left out; the number is the order's own, without them. Predicted: by the\n"
    "tables of the lower solver. Measured: counted while a run went on, rounds by what clients sent. A gradient is one of F, on a minibatch or on all of a client's\n"
    "rows; with them are counted those that look at the residual. Counts compare only where the residuals are alike."
)


def complexity(
    problem: Problem,
    solver: Any = None,
    *,
    lower: Sequence[Any] | None = None,
    rounds: int = 10,
    seed: int = 0,
    x0: Any = None,
) -> Complexity:
    """Put the papers' orders, predicted and measured work of several lower solvers into one table.

    The orders are those of [NN] Table 1, [2S] Tables 1 to 3 and [HFL] Theorem 1 (iii), (iv). Each lower solver is run for ``rounds`` rounds
    with a count of every evaluation of F and every projection on Y(x), which is slow: take few rounds.

    Parameters
    ----------
    problem
        What is to be solved.
    solver
        ``FedRZO(...)`` or ``ZOHFL(...)``; its ``smoothing`` and ``accuracy`` are the theorem's. By default ``ZOHFL()`` where every client has a
        y of its own, else ``FedRZO()``.
    lower
        Lower solvers. By default the solver's own, and where it has none those of the papers for the scope: ``LocalSGD()``, ``FedAC()`` and
        ``LFD()`` in federation scope.
    rounds
        Rounds to count, at least 1.
    seed, x0
        Of the runs, as for :meth:`hierfl.Problem.solve`.

    Raises
    ------
    SettingError
        For what is no problem, another solver, no lower solver, or a constant that a lower solver needs and that could not be proved.
    IncompatibleSolverError
        For a lower solver of another scope.

    Examples
    --------
    >>> from hierfl.solvers import FedRZO
    >>> took = hf.complexity(problem, FedRZO(step_size=0.05, local_steps=5), rounds=5)
    """
    if not hasattr(problem, "compile"):
        raise SettingError(f"problem={problem!r}: complexity() is asked of a hf.Problem: hf.complexity(problem).")
    require_whole("rounds", rounds, 1)
    compiled = problem.compile()
    asked = solver if solver is not None else ZOHFL() if compiled.scope == "client" else FedRZO()
    if not isinstance(asked, (FedRZO, ZOHFL)):
        raise SettingError(f"solver={asked!r}: the papers' tables are about FedRZO(...) and ZOHFL(...): write either.")
    if lower is not None and (not isinstance(lower, (list, tuple)) or None in lower):
        raise SettingError(f"lower={lower!r}: a list of lower solvers, such as lower=[LocalSGD(), LFD()].")
    if getattr(asked, "step_size", None) == "auto":
        raise SettingError(
            "step_size='auto' is found by trial runs, which would be counted too: give complexity() a solver with a step."
        )
    own = None if compiled.scope is None else asked.lower
    lowers = tuple(lower if lower is not None else BY_SCOPE[compiled.scope] if own is None else (own,))
    if not lowers:
        raise SettingError("lower=[]: give at least one lower solver, such as lower=[LocalSGD(), FedAC(), LFD()].")
    if compiled.scope is None and lowers != (None,):
        raise SettingError("lower=[...]: the problem has no lower level. Leave lower out.")
    one_by_one = InProcess(schedule="map")
    settings = RunSettings(rounds, seed, x0=x0, evaluate_every=rounds, runtime=one_by_one, progress=False)
    theorem = report(compiled, float(asked.smoothing), float(asked.accuracy), asked.starts).theorems[0]
    with whole():
        columns = tuple(_column(compiled, asked, one, theorem, settings) for one in lowers)
    return Complexity(asked, theorem, rounds, columns)


def _column(compiled: Any, solver: Any, lower: Any, theorem: Theorem, settings: RunSettings) -> SolverComplexity:
    by_it = replace(solver, lower=lower) if lower is not None else solver
    counted, seen = CountedProblem.of(compiled), {}

    def after_the_rounds(done: int, *_: Any) -> None:
        seen.update(counted.counts)  # what comes later is no part of the rounds

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LowerLevelWarning)  # the residual is told instead
        result = run(counted, by_it, replace(settings, callback=after_the_rounds), Limits())
    assert isinstance(result, Result)
    algorithm = by_it.bind(counted, settings.most_rounds, settings.queries)
    predicted = predicted_effort(algorithm, settings.most_rounds)
    measured = _measured(result, algorithm, lower, seen)
    return SolverComplexity(lower, _printed(compiled, by_it, lower, theorem), predicted, measured)


def _measured(result: Result, algorithm: Any, lower: Any, seen: dict[str, int]) -> MeasuredEffort:
    sent = result.communication
    own, level = (int(sum(sent.get(f"{which}scalars_{way}", 0) for way in ("down", "up"))) for which in ("", "lower_"))
    residuals = result.history.get("lower_residual", np.zeros(0))
    exact = isinstance(lower, Exact)
    counted = level > 0 and not exact
    rounds = algorithm.lower.rounds_of(sent["lower_scalars_up"], points_of(algorithm.settings)) if counted else 0
    residual = None if lower is None or not len(residuals) else float(residuals[-1])
    made, projected = (None if exact else seen.get(name, 0) for name in (GRADIENTS, PROJECTIONS))
    return MeasuredEffort(made, projected, None if exact else rounds, own, level, residual)


def _printed(compiled: Any, solver: Any, lower: Any, theorem: Theorem) -> dict[str, str]:
    m, horizon = compiled.num_clients, None if theorem.printed is None else theorem.printed.iterations
    if isinstance(solver, ZOHFL):
        return {"rounds": HFL_ROUNDS, "lower steps of a client": HFL_STEPS}
    constants = report(compiled, float(solver.smoothing), float(solver.accuracy), solver.starts).constants
    mu, smooth = (float(constants.get(f"{name}_F", constants.get(f"{name}_h", 0.0))) for name in ("mu", "L"))
    of_a_call, in_all = ROUNDS.get(type(lower), (None, None))
    known = {
        "rounds of the upper level": UPPER_ROUNDS,
        "rounds of a lower call": of_a_call,
        "rounds in all": in_all,
        "lower projections": lower_projections(lower, mu, smooth),
    }
    return {what: order.said(m, horizon) for what, order in known.items() if order is not None}


def _counts() -> list[tuple[str, Any]]:
    """The rows of counts: what they are, and a column's entry."""
    rows: list[tuple[str, Any]] = []
    for name in Effort._fields:
        rows.append((f"lower {name}, predicted", lambda column, name=name: _predicted(column, name)))
        rows.append(("  measured", lambda column, name=name: _number(getattr(column.measured, name))))
    rows += [
        ("scalars sent by the upper level", lambda column: f"{column.measured.scalars:,}"),
        ("scalars sent by the lower solver", lambda column: f"{column.measured.lower_scalars:,}"),
        ("residual of y at the end", _residual),
    ]
    return rows


def _predicted(column: SolverComplexity, name: str) -> str:
    known = "0" if column.lower is None else UNKNOWN
    return known if column.lower is None or column.predicted is None else f"{getattr(column.predicted, name):,}"


def _rounds(number: int) -> str:
    return f"{number} round" + ("" if number == 1 else "s")


def _number(count: int | None) -> str:
    return "not counted" if count is None else f"{count:,}"


def _residual(column: SolverComplexity) -> str:
    return "-" if column.measured.residual is None else f"{column.measured.residual:.2g}"


# --- the papers' orders, and the lower level's effort by the tables of its solver ------------------------------------------


@dataclass(frozen=True)
class Order:
    """An order in the papers' symbols, and its value at (m, K)."""

    symbols: str
    value: Callable[[float, float], float]

    def said(self, m: float, horizon: float | None) -> str:
        if horizon is None or not isfinite(horizon):
            return f"O({self.symbols})"
        return f"O({self.symbols}) ~ {self.value(m, horizon):.3g}"


UPPER_ROUNDS = Order("(m K)^(3/4)", lambda m, k: (m * k) ** 0.75)
HFL_ROUNDS = "O((L_0 sqrt(n) / eta + L_0^2 n + n^2 / eta^2)^2 eps^-2)"
HFL_STEPS = "O((L_0 sqrt(n) / eta + L_0^2 n + n^2 / eta^2)^3 eps^-3)"


# Rounds of communication of a call ([2S] Table 2; T of the last round, T_r = m^-1 (r + 1)^(2/3)), and of both levels together ([NN] Table 1, [2S] Tables 2, 3)
ROUNDS: dict[type, tuple[Order | None, Order | None]] = {
    LocalSGD: (Order("m", lambda m, k: m), Order("m^(7/4) K^(3/4)", lambda m, k: m**1.75 * k**0.75)),
    FedAC: (Order("m^(1/3)", lambda m, k: m ** (1 / 3)), Order("m^(13/12) K^(3/4)", lambda m, k: m ** (13 / 12) * k**0.75)),
    LFD: (
        Order("m^(1/3) T^(1/3)", lambda m, k: m ** (1 / 3) * (UPPER_ROUNDS.value(m, k) ** (2 / 3) / m) ** (1 / 3)),
        Order("(m K)^(11/12)", lambda m, k: (m * k) ** (11 / 12)),
    ),
    ProjectionMethod: (None, UPPER_ROUNDS),
}


def lower_projections(lower: object, mu: float, smooth: float) -> Order | None:
    """Projections of Algorithm 5 of [2S] over all rounds (its Table 3)."""
    if type(lower) is not ProjectionMethod:
        return None
    ratio = (mu / smooth) ** 2 if 0 < smooth < inf else 0.0
    growth = -log1p(-ratio) if ratio < 1 else inf
    return Order("m K / ln(1 / (1 - kappa^-2))", lambda m, k: m * k / growth if growth > 0 else inf)


def predicted_effort(algorithm: Any, rounds: int) -> Effort | None:
    """Add up the calls of ``rounds`` rounds; the upper level's rounds of communication are not among them.

    None where nobody knows beforehand: an exact lower solver goes on to a residual, absent clients of client and sample scope are drawn (in
    federation scope the lower solver asks everybody), and minibatches of all
    rows (``batch_size=None``) in sample scope are as long as each client's data.
    """
    lower, problem = algorithm.lower, algorithm.problem
    if not hasattr(lower, "evaluations") or not (algorithm.federated or algorithm.cohorts.everybody):
        return None
    points = points_of(algorithm.settings)
    if algorithm.federated:
        made = sum(int(lower.evaluations(Clock(r, 0), 0)) for r in range(rounds))
        projected = (made - rounds * problem.num_clients) * lower.rule.sequences + 2 * rounds  # every sequence in every local step
        lower_rounds = int(np.sum(rows_of(lower.lower_rounds, 0, rounds)))
        return Effort(points * made, points * projected * _projects(problem), lower_rounds)
    owners = 1 if problem.scope == "client" else algorithm.oracle.batch_size
    if owners is None:
        return None
    calls = [int(lower.evaluations(Clock(r, k), client)) for r, k, client in _steps(algorithm, rounds)]
    asked = points * owners
    return Effort(asked * sum(calls), asked * (sum(calls) + len(calls)) * _projects(problem))


def points_of(settings: Any) -> int:
    """At how many points an estimate asks for y."""
    estimator = getattr(settings, "estimator", "central")  # ZO-HFL's
    return len(shifts_of(settings.directions, 1.0, estimator)[0])


def _steps(algorithm: Any, rounds: int) -> list[tuple[int, int, int]]:
    """(round, local step over all rounds, client) of every estimate; a client without local steps still tells f_i once."""
    clients = range(algorithm.problem.num_clients)
    if not isinstance(algorithm, ZerothOrderSteps):
        return [(r, r, client) for r in range(rounds) for client in clients]
    steps, found = algorithm.steps, []
    for r, own in enumerate(rows_of(steps.counts, 0, rounds)):
        counts = np.broadcast_to(own, algorithm.problem.num_clients)
        estimates = [(client, t) for client in clients for t in range(max(1, counts[client]))]
        found += [(r, int(steps.first_steps[r]) + t, client) for client, t in estimates]
    return found


def _projects(problem: Any) -> int:
    """1 where Y(x) is not all of the space, else 0."""
    return int(problem.lower_set.kind != "free")
