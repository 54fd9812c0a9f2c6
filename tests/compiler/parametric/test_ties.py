"""Lower levels with more than one solution: told, selected as asked, or refused, against vertices and an independent MIP."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from tests.compiler.parametric.engines import Engine, near


@contextmanager
def told() -> Iterator[list[warnings.WarningMessage]]:
    """Everything that is warned of."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        yield heard


# --- of the literature -----------------------------------------------------------------------------------------------------


def bard_1991(selection: str | None = None) -> hf.Problem:
    """Bard (1991), example 1: at x = 2 both entries of y cost the same, and the leader pays x + y_2."""
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    below = hf.ArgMin(y, 2 * y[0] + x * y[1], [x - y[0] - y[1] <= -4, y >= 0], selection=selection)
    return hf.Problem(hf.Minimize(clients=x + y[1]), lower=below, constraints=[x >= 2, x <= 4])


def lampariello_sagratella(selection: str | None = None) -> hf.Problem:
    """Lampariello and Sagratella (2017): the followers leave y_2 free above 1 - x, without a bound."""
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    below = hf.ArgMin(y, y[0] + 0 * x, [x + y[0] + y[1] >= 1, y >= 0], selection=selection)
    return hf.Problem(
        hf.Minimize(clients=cp.square(x) + cp.square(y[0] + y[1])), lower=below, constraints=[cp.abs(x) <= 1]
    )


def test_bard_1991(engine: Engine) -> None:
    for selection, at_tie in (("optimistic", 2.0), ("pessimistic", 8.0)):
        problem = engine(bard_1991(selection))
        near(problem.implicit(2.0), at_tie)
        near(problem.implicit(3.0), 3.0)
    near(engine(bard_1991("optimistic")).reference(progress=False).value, 2.0)
    with told() as heard:
        problem = engine(bard_1991())
        near(problem.implicit(3.0), 3.0)
        assert problem.implicit.certificate(3.0).unique and not heard
        near(problem.implicit(2.0), 2.0 + 3.0)  # (3, 3) is the shortest of (6 - s, s)
        near(problem.implicit(2.0), 2.0 + 3.0)
    assert len(heard) == 1 and not problem.implicit.certificate(2.0).unique


def test_lampariello_sagratella_2017(engine: Engine) -> None:
    problem = engine(lampariello_sagratella("optimistic"))
    for x in (-0.4, 0.3, 0.5, 1.0):
        near(problem.implicit(x), x**2 + (1 - x) ** 2)
    near(problem.reference(progress=False).value, 0.5)
    with pytest.raises(hf.HierflError):  # a leader who fears the worst fears infinity
        engine(lampariello_sagratella("pessimistic")).implicit(0.3)


# --- other shapes of ties --------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::hierfl.errors.LowerLevelWarning")
@pytest.mark.parametrize("far", [1e-2, 1e-4, 1e-5, 3e-6, 1e-7, 1e-8, 1e-9, 1e-11])
def test_near_a_tie_a_value_does_not_depend_on_what_was_asked_before(far: float) -> None:
    """Rows that held at the last place are tried first: only where no others would do."""

    def declared() -> hf.Problem:
        x, y, c = cp.Variable(name="x"), cp.Variable(2, name="y"), hf.ClientParameter(name="c")
        below = hf.ArgMin(y, -c * y[0] - x * y[1], [y >= 0, cp.sum(y) <= 1], scope="client")
        clients = hf.Federation([hf.Client(parameters={c: value}) for value in (1.0, 2.0, 3.0)])
        return hf.Problem(hf.Minimize(clients=y[0] + 2 * y[1]), below, federation=clients)

    fresh, asked = declared(), declared()
    asked.implicit(0.5)
    asked.implicit(0.9)
    np.testing.assert_array_equal(asked.implicit.response(1 - far), fresh.implicit.response(1 - far))


def test_a_slice_leaves_values_and_multipliers_as_they_were() -> None:
    """Neighbours are solved from each other's answers; of a row that is there twice either may have the multiplier."""

    def declared() -> hf.Problem:
        x, y, r = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.ClientParameter(2, name="r")
        rows = np.array([[1.0, 1.0], [1.0, 1.0], [1.0, -1.0]])
        box = [y <= 2, y >= -2, r @ y <= 3 + x[1]]
        below = hf.ArgMin(y, [-1.1, -0.7] @ y, [rows @ y <= 1 + 0.3 * x[0], *box], scope="client")
        clients = [hf.Client({}, {r: np.array(value)}) for value in ([0.3, 0.1], [-0.2, 0.4])]
        upper = hf.Minimize(clients=[0.3, 0.7] @ y + cp.sum_squares(y))
        return hf.Problem(upper, below, federation=hf.Federation(clients))

    for seed in range(8):
        x = np.random.default_rng(seed).normal(size=2) * 0.3
        fresh, asked = declared(), declared()
        asked.implicit.slice(x, direction=np.array([1.0, 0.5]), points=41, progress=False)
        assert asked.implicit(x) == fresh.implicit(x)
        pairs = zip(asked.implicit.multipliers(x).values(), fresh.implicit.multipliers(x).values())
        assert all(np.array_equal(one, other) for one, other in pairs)


KINKED_SETS: dict[str, Callable[[cp.Variable], list[cp.Constraint]]] = {
    "abs": lambda y: [cp.abs(y) <= 1],
    "norm1": lambda y: [cp.norm1(y) <= 1.5],
    "norm_inf": lambda y: [cp.norm_inf(y) <= 1],
    "maximum": lambda y: [cp.maximum(y, -y) <= 1],
    "pos": lambda y: [cp.pos(y) <= 1, cp.pos(-y) <= 1],
}


@pytest.mark.parametrize("at", [-0.5, 0.0, 0.5])
@pytest.mark.parametrize("name", KINKED_SETS)
def test_selections_over_sets_with_kinks(name: str, at: float) -> None:
    """y[0] + y[1] = x over a set that auxiliary variables describe: no piece of it is preferred by rounding."""
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    first = np.linspace(-1, 1, 2001)
    other = at - first
    size = np.abs(first) + np.abs(other) <= 1.5 + 1e-12 if name == "norm1" else np.abs(other) <= 1 + 1e-12
    for selection, meant in (("optimistic", first[size].min()), ("pessimistic", first[size].max())):
        lower = hf.ArgMin(y, cp.square(y[0] + y[1] - x), KINKED_SETS[name](y), selection=selection)
        implicit = hf.Problem(hf.Minimize(clients=y[0]), lower).implicit
        assert implicit(at) == pytest.approx(meant, abs=1e-12)
