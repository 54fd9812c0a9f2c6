"""One process of :mod:`tests.benchmarks.first_answer`: asks hierfl everything once, in a session's order, and prints what it waited.

``python -m tests.benchmarks.first_questions PROBLEM NEXT`` prints a JSON object a line, ``{name: seconds}``, as soon as it knows it;
what is refused is ``{name: "error"}``. CVXPY is imported first, by itself: its time is the unit.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    import hierfl as hf
    from tests.bilevel_case import Case

ROUNDS, POINTS = 100, 401


def seconds(ask: Callable[[], Any]) -> tuple[float, Any]:
    """How long a question takes, and its answer."""
    began = time.perf_counter()
    answer = ask()
    return time.perf_counter() - began, answer


def least_seconds(ask: Callable[[int], Any], repeats: int) -> float:
    """The least time of several, after one to warm up."""
    ask(0)
    return min(seconds(lambda k=k: ask(k))[0] for k in range(repeats))


def report(**figures: Any) -> None:
    """Print figures as soon as they are known."""
    print(json.dumps(figures), flush=True)


def equations_of_evaluate(problem: hf.Problem, x: np.ndarray) -> int:
    """Those of f(x) with the lower level solved, as one program."""
    import jax

    from tests.benchmarks.program_size import equations

    compiled = problem.compile()
    with jax.enable_x64(True):
        return equations(jax.make_jaxpr(compiled.exact.evaluate)(x, compiled.data()).jaxpr)


def window(case: Case, centre: np.ndarray, direction: np.ndarray) -> float:
    """A radius with which a slice stays in X."""
    radius = float(max(b - a for a, b in zip(case.low, case.high)))
    while not (case.holds(centre - radius * direction) and case.holds(centre + radius * direction)):
        radius *= 0.8
    return radius


def ask_everything(case: Case, following: Case) -> None:
    """A session with one problem, and the first two questions about the next."""
    import numpy as np

    import hierfl as hf

    points = [np.array(point, float) for point in case.points]
    centre, direction = points[0], np.eye(len(points[0]))[0]
    radius = window(case, centre, direction)

    def told(name: str, ask: Callable[[], Any]) -> Any:
        try:
            took, answer = seconds(ask)
        except hf.HierflError as refusal:
            report(**{name: type(refusal).__name__})
            return None
        report(**{name: took})
        return answer

    def first_value(of: Case) -> tuple[hf.Problem, float]:
        problem = of.declare()
        return problem, problem.implicit(np.array(of.points[0], float))

    answered = told("value", lambda: first_value(case))
    if answered is None:
        return
    problem, value = answered
    gradient = told("gradient", lambda: problem.implicit.gradient(centre))
    told("solve", lambda: problem.solve(rounds=ROUNDS, x0=centre, progress=False))
    told("slice", lambda: problem.implicit.slice(centre, direction, radius, POINTS, progress=False).kinks)
    told("reference", lambda: problem.reference(progress=False))
    report(error=worst_error(case, value, gradient))
    report(again=least_seconds(lambda k: problem.implicit(points[k % len(points)]), 20))
    others = [centre + k * 1e-4 * (points[-1] - centre) for k in range(1, 21)]  # each is asked once
    report(elsewhere=min(seconds(lambda x=x: problem.implicit(x))[0] for x in others))
    report(
        slice_again=least_seconds(
            lambda k: problem.implicit.slice(centre, direction, radius, POINTS, progress=False), 3
        )
    )
    other = told("next_value", lambda: first_value(following))
    if other is not None:
        told("next_gradient", lambda: other[0].implicit.gradient(np.array(following.points[0], float)))
    report(equations=equations_of_evaluate(problem, centre))
    report(cvxpy=solved_again(case))


def worst_error(case: Case, value: float, gradient: np.ndarray | None) -> float:
    """How far the first answers are from the catalogue's, relative to 1 + their size; NaN is infinitely far."""
    import numpy as np

    x = np.array(case.points[0], float)
    pairs = [(np.array([value]), np.array([case.value(x)]))]
    if gradient is not None:
        pairs.append((gradient, case.gradient(x)))
    worst = max(float(np.abs(found - right).max() / (1 + np.abs(right).max())) for found, right in pairs)
    return worst if np.isfinite(worst) else float("inf")


def solved_again(case: Case) -> float | None:
    """Seconds of CVXPY's re-solves of the lower level at one x, for all rows of data; None for an equilibrium."""
    import cvxpy as cp
    import numpy as np

    import hierfl as hf

    if case.level is hf.Equilibrium:
        return None
    problem, x, _, u = case.below

    def answers(k: int) -> None:
        x.value = np.array(case.points[k % len(case.points)], float)
        for row in [None] if u is None else case.data:
            if u is not None:
                u.value = row
            problem.solve(solver=cp.CLARABEL)

    return least_seconds(answers, 6)


def by_blvpy(case: Case) -> None:
    """The whole problem by BLVPY with IPOPT, where both are installed and the problem is one for it."""
    import cvxpy as cp

    import hierfl as hf

    try:
        import blvpy
    except ImportError:
        report(blvpy="not installed")
        return
    if case.data is not None or case.level is hf.Equilibrium:
        report(blvpy="one lower objective only")
        return
    x, y = cp.Variable(len(case.low), **(case.signs or {})), cp.Variable(case.size)
    upper_rows = [x >= case.low, x <= case.high, *case.within(x)]

    def solve() -> None:
        lower = blvpy.LowerProblem(cp.Minimize(case.lower(x, y)), case.rows(x, y), parameters=[x])
        blvpy.BilevelProblem(cp.Minimize(case.upper(x, y)), lower, upper_constraints=upper_rows).solve()

    report(blvpy=seconds(solve)[0])


def main() -> None:
    """Time the imports and then the questions."""
    took, _ = seconds(lambda: __import__("cvxpy"))
    report(unit=took)
    took, _ = seconds(lambda: __import__("hierfl"))
    report(hierfl=took)
    from tests.bilevel_catalogue import CATALOGUE

    cases = {case.name: case for case in CATALOGUE}
    if sys.argv[1] == "--blvpy":
        by_blvpy(cases[sys.argv[2]])
    else:
        ask_everything(cases[sys.argv[1]], cases[sys.argv[2]])


if __name__ == "__main__":
    main()
