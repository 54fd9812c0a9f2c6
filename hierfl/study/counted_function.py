"""f for methods from outside: a function of flat arrays that counts what is asked of it, and ends the method where the budget is spent."""

from __future__ import annotations

import inspect
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from jaxtyping import Float

from hierfl.analysis.variable_bounds import require_continuous
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.starting_points import known_box, nearest_in_upper_set
from hierfl.compiler.violations import Violations
from hierfl.descent.implicit_oracle import ImplicitOracle
from hierfl.errors import DivergedError, EmptyLowerSetError, LowerLevelError, SettingError
from hierfl.runtime.records import SCALARS, NotCountedError, together
from hierfl.study.comparison import Curve

OUTSIDE = "method from outside"


class BudgetSpent(BaseException):
    """Ends a method from outside; no ``Exception``, so that nobody takes it for a failure of f."""


class CountedFunction:
    """f of a problem, to be made small: ``f(x)`` of flat arrays ``(n,)``, negated where the declaration maximises.

    Points outside X are asked for at their projections on X, and f is infinite where it has no value, or its answer violates an upper constraint.
    What is asked is counted as a run counts it: a value is one of every client's term and sends n + 1 numbers a client, a gradient n more (and as
    many as a y has that all clients share). At the same x the other of the two solves no lower level again. A budget in gradients ends where as
    many values were asked for, too.

    Attributes
    ----------
    start
        x0, ``(n,)``.
    low, high
        Known bounds of X, ``(n,)``, infinite where there are none.
    spent
        What was counted so far, by the names of a run's history.

    Examples
    --------
    >>> from hierfl.study import CountedFunction
    >>> f = CountedFunction(problem.compile(), {"gradients": 2}, np.array([-1.0, 0.5]))
    >>> f([-1.0, 0.5]), f.gradient([-1.0, 0.5]), f.spent["values"], f.spent["gradients"]
    (0.5, array([0., 0.]), 1, 1)
    """

    def __init__(self, compiled: CompiledProblem, limits: Mapping[str, float], start: Float[np.ndarray, " n"], seconds: float = math.inf, seed: int = 0) -> None:
        require_continuous(compiled.upper.variables, OUTSIDE)
        self.start, self.spent = np.asarray(start, float), dict[str, int]()
        self._compiled, self._limits, self._oracle = compiled, limits, ImplicitOracle(compiled, seed)
        box = known_box(compiled)
        self.low, self.high = box.lo, box.hi
        self._began, self._seconds = time.perf_counter(), seconds
        self._last, self._asked, self._value_there = b"", set[str](), math.inf  # the latest point, what was asked there, and f
        self._lock = threading.RLock()
        self._best = math.inf, self.start
        self._told: list[tuple[dict[str, int], float, float]] = []  # what was spent, seconds, the best value, at every better one

    @property
    def size(self) -> int:
        return self.start.size

    @property
    def bounds(self) -> list[tuple[float | None, float | None]]:
        """``low`` and ``high`` as SciPy takes them, None for infinite ones."""
        return [(None if low == -np.inf else low, None if high == np.inf else high) for low, high in zip(self.low.tolist(), self.high.tolist())]

    @property
    def best(self) -> tuple[float, Float[np.ndarray, " n"]]:
        """The best value so far, and where."""
        return self._best

    def project(self, x: Any) -> Float[np.ndarray, " n"]:
        """The nearest point of X, ``(n,)``, at no cost. Raises ``SettingError`` for what is no such array of real numbers."""
        try:
            point = np.array(x, float) if not np.iscomplexobj(x) else None
        except (TypeError, ValueError):
            point = None
        if point is None:
            raise SettingError(f"f was asked for {x!r}: it is a function of arrays of real numbers.")
        if point.shape != self.start.shape:
            raise SettingError(f"f was asked for x of shape {point.shape}: it is a function of flat arrays of shape {self.start.shape}.")
        return nearest_in_upper_set(self._compiled, point) if np.isfinite(point).all() else point

    def __call__(self, x: Any) -> float:
        """f at x, or at the nearest point of X."""
        point = self.project(x)
        with self._lock:
            again = self._again(point, "value")
            self._charge(values=self._sides, scalars=self._sent(value=not again, gradient=False), **({} if again else self._solved()))
            self._value_there = self._value_there if again else self._value(point)
            self._note(self._value_there, point)
            return self._value_there

    def gradient(self, x: Any) -> Float[np.ndarray, " n"]:
        """The gradient there, next to a kink that of a point nearby; NaN where there is none."""
        if "values" in self._limits:
            raise NotCountedError("a method from outside that asks for gradients is not held by a budget in values: take gradients, floats, lower_solves or seconds.")
        point = self.project(x)
        with self._lock:
            again = self._again(point, "gradient")
            self._charge(gradients=self._sides, scalars=self._sent(value=not again, gradient=True), **({} if again else self._solved()))
            known = self._oracle(point) if np.isfinite(point).all() else None
            if not again:
                there = self._value(point) if known is None else self._feasible(point, known.value, self._oracle.evaluation(known).solution)
                self._value_there = there
                self._note(there, point)
            return np.full(self.size, np.nan) if known is None else np.array(known.slope)

    def begin(self) -> None:
        """Know f at the start, as the curve of any run does: it is not counted, and the clock begins after it."""
        start = self.project(self.start)
        value = self._value(start)
        self._began = time.perf_counter()
        self._note(value, start)

    def _again(self, point: np.ndarray, what: str) -> bool:
        """Whether this is the other question at the latest point; the same one is a new question, whatever the answer."""
        key = point.tobytes()
        if key != self._last or what in self._asked:
            self._last, self._asked = key, {what}
            return False
        self._asked.add(what)
        return True

    # --- what it costs -----------------------------------------------------------------------------------------------

    @property
    def _sides(self) -> int:
        return int(self._compiled.terms_of(self._compiled.num_clients))

    def _sent(self, value: bool, gradient: bool) -> int:
        """x down and a value up, the gradient up; of a y that all clients share that too, and the gradients in it."""
        shared = self._compiled.lower.size if self._compiled.scope == "federation" else 0
        return self._compiled.num_clients * (self.size + shared) * (value + gradient) + self._compiled.num_clients * value

    def _solved(self) -> dict[str, int]:
        """Lower levels: one of the federation, one of each client, or one of each row."""
        return {} if self._compiled.scope is None else {"lower_solves": self._compiled.owners}

    def _charge(self, **cost: int) -> None:
        """Count a question; the data of a lower level that all clients share are sent with the first.

        Raises ``BudgetSpent`` where it would go beyond a limit, and for a limit in what is not counted here ``SettingError``.
        """
        if not self.spent and self._compiled.scope == "federation":
            cost[SCALARS] = cost.get(SCALARS, 0) + self._compiled.lower_scalars
        after = together(self.spent, cost)
        for name, limit in self._limits.items():
            if name not in (SCALARS, "values", "gradients", *self._solved()):
                raise NotCountedError(f"a method from outside has no {name} here that could be counted: its budget is in values, gradients, floats, lower_solves (of a lower level) or seconds.")
            most = max(after.get(name, 0), after.get("values", 0) if name == "gradients" else 0)  # a value is no more than a gradient
            if most > limit and name == "gradients" and not after.get(name):
                raise NotCountedError(
                    f"a method from outside asked for {most:,} values and no gradient: a budget in gradients does not hold it; take values, floats, "
                    f"lower_solves or seconds."
                )
            if most > limit:
                raise BudgetSpent
        if time.perf_counter() - self._began > self._seconds:
            raise BudgetSpent
        self.spent = after

    # --- values ------------------------------------------------------------------------------------------------------

    def _value(self, point: np.ndarray) -> float:
        if not np.isfinite(point).all():
            return math.inf
        try:
            evaluation = self._compiled.exact.at(point)
        except (EmptyLowerSetError, LowerLevelError, DivergedError):
            return math.inf
        value = float(evaluation.value)
        return self._feasible(point, value, evaluation.solution) if math.isfinite(value) else math.inf

    def _feasible(self, point: np.ndarray, value: float, solution: Any) -> float:
        if not self._compiled.coupled.conditions:
            return value
        return value if Violations.at(self._compiled, point, solution.y).feasible else math.inf

    def _note(self, value: float, point: np.ndarray) -> None:
        if value < self._best[0] or not self._told:
            self._best = min(self._best, (value, point), key=lambda pair: pair[0])
            self._told.append((self.spent, time.perf_counter() - self._began, self._best[0]))

    def curve(self, seed: int, status: str) -> Curve:
        """What it has come to, as a curve of the best value so far."""
        told = [*self._told, (self.spent, time.perf_counter() - self._began, self._best[0])]
        names = (SCALARS, "values", "gradients", "lower_solves")
        counts = {name: np.array([spent.get(name, 0) for spent, _, _ in told], float) for name in names}
        sign = self._compiled.sign
        values = np.array([value if math.isfinite(value) else np.nan for _, _, value in told])
        return Curve(seed, status, {**counts, "seconds": np.array([at for _, at, _ in told])}, sign * values, sign * float(values[-1]))


Minimiser = Callable[[CountedFunction, np.ndarray, int], Any]


@dataclass(frozen=True)
class OutsideMethod:
    """A method that is no solver of hierfl: ``minimise(f, x0, seed)``; what it returns is not looked at, its best point is what f saw."""

    minimise: Minimiser
    name: str

    def __call__(self, f: CountedFunction, x0: np.ndarray, seed: int) -> Any:
        return self.minimise(f, x0, seed)

    def run(self, f: CountedFunction, seed: int) -> Curve:
        """Until it ends by itself, or the budget does."""
        f.begin()
        try:
            self.minimise(f, f.start.copy(), seed)
        except BudgetSpent:
            return f.curve(seed, "budget spent")
        return f.curve(seed, "ended by itself")


@overload
def adapter(minimise: Minimiser) -> OutsideMethod: ...
@overload
def adapter(*, name: str) -> Callable[[Minimiser], OutsideMethod]: ...
def adapter(minimise: Minimiser | None = None, *, name: str | None = None) -> OutsideMethod | Callable[[Minimiser], OutsideMethod]:
    """Let a method from outside take part in a ``hf.Study``: anything that minimises a callable.

    Parameters
    ----------
    minimise
        ``minimise(f, x0, seed)``: f is a ``CountedFunction`` of flat arrays ``(n,)``, with ``f.gradient``, ``f.bounds`` and ``f.project``; x0 ``(n,)`` is
        where it begins. It may go on as long as it likes: f ends it where the budget is spent, and what it returns is not looked at.
    name
        What it is called in tables; by default as the function is.

    Raises
    ------
    SettingError
        For what cannot be called with three arguments, and a name that is no text.

    Examples
    --------
    >>> from scipy.optimize import minimize
    >>> @hf.study.adapter
    ... def nelder_mead(f, x0, seed):
    ...     minimize(f, x0, method="Nelder-Mead", bounds=f.bounds)
    """
    if not isinstance(name, str | None) or name == "":
        raise SettingError(f"adapter(name={name!r}): what the method is called in tables.")
    if minimise is None:
        return lambda function: _adapted(function, name)
    return _adapted(minimise, name)


def _adapted(minimise: Any, name: str | None) -> OutsideMethod:
    try:
        inspect.signature(minimise).bind(None, None, None)
    except TypeError as error:
        raise SettingError(f"adapter({minimise!r}): a function minimise(f, x0, seed), which this is not ({error}).") from error
    except ValueError:  # written in C: nobody knows
        pass
    return OutsideMethod(minimise, name or str(getattr(minimise, "__name__", type(minimise).__name__)))
