"""Lower levels with more than one solution: told, selected as asked, or refused, against vertices and an independent MIP."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

import hierfl as hf
from tests.bilevel_answers import linear_answers, quadratic_answer
from tests.bilevel_case import gradient_by_differences, is_smooth
from tests.compiler.parametric.engines import Engine, near

SEEDS = range(40)
BIG = 50.0  # above every slack and some multiplier of every solution: the numbers are small integers


@contextmanager
def told() -> Iterator[list[warnings.WarningMessage]]:
    """Everything that is warned of."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        yield heard


@dataclass(frozen=True)
class TiedProgram:
    """The followers minimise cost'y over rows @ y <= limits + moves @ x; the leader minimises aim'y + price'x for x in [0, 1]^2."""

    cost: np.ndarray
    rows: np.ndarray
    limits: np.ndarray
    moves: np.ndarray
    aim: np.ndarray
    price: np.ndarray

    def declare(self, selection: str | None = None, square: bool = False) -> hf.Problem:
        """The problem; with ``square`` the leader adds |y|^2, which is convex and no longer linear."""
        x, y = cp.Variable(2, name="x"), cp.Variable(len(self.cost), name="y")
        chosen = {} if selection is None else {"selection": selection}
        below = hf.ArgMin(y, self.cost @ y, [self.rows @ y <= self.limits + self.moves @ x], **chosen)
        upper = self.aim @ y + self.price @ x + (cp.sum_squares(y) if square else 0)
        return hf.Problem(hf.Minimize(clients=upper), lower=below, constraints=[x >= 0, x <= 1])

    def solutions(self, x: np.ndarray) -> np.ndarray:
        """The vertices of all solutions."""
        return linear_answers(self.cost, self.rows, self.limits + self.moves @ x)

    def shortest(self, x: np.ndarray, towards: np.ndarray | float = 0.0) -> np.ndarray:
        """The solution nearest to a point."""
        least = float(self.cost @ self.solutions(x)[0])
        size = len(self.cost)
        rows = np.vstack([self.rows, self.cost])  # what costs no more than the least is a solution
        limits = np.append(self.limits + self.moves @ x, least + 1e-12)
        return quadratic_answer(np.eye(size), np.zeros(size) - towards, rows, limits)

    def values(self, x: np.ndarray) -> np.ndarray:
        """What the leader pays at the vertices of all solutions."""
        return self.solutions(x) @ self.aim + self.price @ x

    def by_mip(self, sign: float, x: np.ndarray | None = None) -> float:
        """sign times the least of sign times the leader's costs over all (x, y, multipliers) that satisfy the followers' conditions.

        Either a row holds with equality or its multiplier is 0, which a binary variable says. x is free unless it is given.
        """
        size, count = len(self.cost), len(self.limits)
        nothing = np.zeros
        within = np.hstack([-self.moves, self.rows, nothing((count, 2 * count))])
        slack = np.hstack([-self.moves, self.rows, nothing((count, count)), -BIG * np.eye(count)])
        balance = np.hstack([nothing((size, 2 + size)), self.rows.T, nothing((size, count))])
        force = np.hstack([nothing((count, 2 + size)), np.eye(count), -BIG * np.eye(count)])
        constraints = [
            LinearConstraint(within, -np.inf, self.limits),
            LinearConstraint(slack, self.limits - BIG, np.inf),
            LinearConstraint(balance, -self.cost, -self.cost),
            LinearConstraint(force, -np.inf, 0),
        ]
        low = np.concatenate([nothing(2) if x is None else x, np.full(size, -np.inf), nothing(2 * count)])
        high = np.concatenate([np.ones(2) if x is None else x, np.full(size + count, np.inf), np.ones(count)])
        kinds = np.concatenate([nothing(2 + size + count), np.ones(count)])
        paid = np.concatenate([self.price, self.aim, nothing(2 * count)])
        found = milp(
            sign * paid,
            integrality=kinds,
            bounds=Bounds(low, high),
            constraints=constraints,
            options={"mip_rel_gap": 0},
        )
        assert found.success, found.message
        return sign * float(found.fun)


def tied(seed: int) -> TiedProgram:
    """A polytope in two or three variables whose cost is parallel to one of its rows, or misses some variables."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 4))
    general = rng.integers(-1, 4, (3, size)).astype(float)
    general[:, 0] = np.maximum(general[:, 0], 1)
    rows = np.vstack([general, np.eye(size), -np.eye(size)])
    limits = np.concatenate([rng.integers(2, 7, 3), rng.integers(1, 5, size), np.zeros(size)]).astype(float)
    moves = np.vstack([rng.integers(0, 3, (3, 2)), np.zeros((2 * size, 2))]).astype(float)
    cost = -general[rng.integers(3)].copy() if seed % 2 else rng.integers(-2, 3, size).astype(float)
    if not seed % 2:
        cost[rng.integers(size)] = 0
    aim, price = rng.integers(-4, 5, size).astype(float), rng.integers(-2, 3, 2).astype(float)
    return TiedProgram(cost, rows, limits, moves, aim, price)


def tells_apart(of: TiedProgram, x: np.ndarray) -> bool:
    return bool(np.ptp(of.values(x)) > 1e-7)


def has_ties(of: TiedProgram, x: np.ndarray) -> bool:
    return len(of.solutions(x)) > 1


def places(seed: int) -> np.ndarray:
    return np.random.default_rng(seed + 500).random((3, 2))


def test_the_family_has_ties() -> None:
    cases = [(tied(seed), x) for seed in SEEDS for x in places(seed)]
    assert sum(has_ties(of, x) for of, x in cases) > len(cases) / 3
    assert sum(tells_apart(of, x) for of, x in cases) > len(cases) / 4
    assert sum(not has_ties(of, x) for of, x in cases) > 5


@pytest.mark.parametrize("seed", SEEDS)
def test_the_mip_agrees_with_the_vertices(seed: int) -> None:
    of = tied(seed)
    for x in places(seed):
        assert of.by_mip(1.0, x) == pytest.approx(of.values(x).min(), abs=1e-6)
        assert of.by_mip(-1.0, x) == pytest.approx(of.values(x).max(), abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_without_a_selection_the_shortest_is_chosen_and_told_once(seed: int, engine: Engine) -> None:
    of = tied(seed)
    problem = engine(of.declare())
    with told() as heard:
        for x in places(seed):
            y = of.shortest(x)
            near(problem.implicit.response(x), y)
            near(problem.implicit(x), of.aim @ y + of.price @ x)
            assert problem.implicit.certificate(x).unique == (not has_ties(of, x))
    assert len(heard) == any(tells_apart(of, x) for x in places(seed)), [str(one.message) for one in heard]


@pytest.mark.parametrize("selection", ["optimistic", "pessimistic"])
@pytest.mark.parametrize("seed", SEEDS)
def test_selected_as_asked(seed: int, selection: str, engine: Engine) -> None:
    of = tied(seed)
    problem = engine(of.declare(selection))
    with told() as heard:
        for x in places(seed):
            values = of.values(x)
            near(problem.implicit(x), values.min() if selection == "optimistic" else values.max())
            y = np.asarray(problem.implicit.response(x))
            least = float(of.cost @ of.solutions(x)[0])
            near(of.cost @ y, least)
            assert np.all(of.rows @ y <= of.limits + of.moves @ x + 1e-9)
    assert not heard, [str(one.message) for one in heard]


@pytest.mark.parametrize("seed", SEEDS)
def test_an_optimistic_leader_with_a_convex_objective(seed: int, engine: Engine) -> None:
    """aim'y + |y|^2 is least at the solution nearest to -aim / 2."""
    of = tied(seed)
    problem = engine(of.declare("optimistic", square=True))
    for x in places(seed):
        y = of.shortest(x, towards=-of.aim / 2)
        near(problem.implicit.response(x), y)
        near(problem.implicit(x), of.aim @ y + y @ y + of.price @ x)


@pytest.mark.parametrize("seed", SEEDS)
def test_gradients_are_right_or_refused_by_name(seed: int, engine: Engine) -> None:
    """Never NaN: that of the function that is asked for, where slopes before and after agree that there is one."""
    of = tied(seed)
    functions = {
        None: lambda x: float(of.aim @ of.shortest(x) + of.price @ x),
        "optimistic": lambda x: float(of.values(x).min()),
        "pessimistic": lambda x: float(of.values(x).max()),
    }
    for selection, f in functions.items():
        problem = engine(of.declare(selection))
        for x in places(seed):
            if not is_smooth(f, x, 1e-4):
                continue
            with told():
                try:
                    found = problem.implicit.gradient(x)
                except hf.HierflError as refusal:
                    assert selection is None and has_ties(of, x), refusal
                    continue
            near(found, gradient_by_differences(f, x, 1e-4), 1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(0, 40, 5))
def test_the_best_x_of_an_optimistic_leader(seed: int, engine: Engine) -> None:
    of = tied(seed)
    assert engine(of.declare("optimistic")).reference(progress=False).value == pytest.approx(of.by_mip(1.0), abs=1e-6)


# --- of the literature -----------------------------------------------------------------------------------------------------


def bard_1991(selection: str | None = None) -> hf.Problem:
    """Bard (1991), example 1: at x = 2 both entries of y cost the same, and the leader pays x + y_2."""
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    chosen = {} if selection is None else {"selection": selection}
    below = hf.ArgMin(y, 2 * y[0] + x * y[1], [x - y[0] - y[1] <= -4, y >= 0], **chosen)
    return hf.Problem(hf.Minimize(clients=x + y[1]), lower=below, constraints=[x >= 2, x <= 4])


def yezza(selection: str | None = None) -> hf.Problem:
    """Yezza (1996), example 3.1: y jumps from 1 to 0 at x = 1/4, where all of [0, 1] are solutions."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    chosen = {} if selection is None else {"selection": selection}
    below = hf.ArgMin(y, -(1 - 4 * x) * y - 2 * x - 2, [y >= 0, y <= 1], **chosen)
    return hf.Problem(hf.Minimize(clients=-(4 * x - 3) * y + 2 * x + 1), lower=below, constraints=[x >= 0, x <= 1])


def lampariello_sagratella(selection: str | None = None) -> hf.Problem:
    """Lampariello and Sagratella (2017): the followers leave y_2 free above 1 - x, without a bound."""
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    chosen = {} if selection is None else {"selection": selection}
    below = hf.ArgMin(y, y[0] + 0 * x, [x + y[0] + y[1] >= 1, y >= 0], **chosen)
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


def test_yezza_1996(engine: Engine) -> None:
    for selection, at_tie in (("optimistic", 1.5), ("pessimistic", 3.5)):
        problem = engine(yezza(selection))
        near(problem.implicit(0.25), at_tie)
        near(problem.implicit(0.1), 4 - 0.2)
        near(problem.implicit(0.6), 2.2)


def test_lampariello_sagratella_2017(engine: Engine) -> None:
    problem = engine(lampariello_sagratella("optimistic"))
    for x in (-0.4, 0.3, 0.5, 1.0):
        near(problem.implicit(x), x**2 + (1 - x) ** 2)
    near(problem.reference(progress=False).value, 0.5)
    with pytest.raises(hf.HierflError):  # a leader who fears the worst fears infinity
        engine(lampariello_sagratella("pessimistic")).implicit(0.3)


# --- other shapes of ties --------------------------------------------------------------------------------------------------


def flat_quadratic(selection: str | None, aim: np.ndarray) -> hf.Problem:
    """The followers only care for y_1 + y_2, which is to be x, over a box."""
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    chosen = {} if selection is None else {"selection": selection}
    below = hf.ArgMin(y, cp.square(y[0] + y[1] - x), [y >= 0, y <= 1], **chosen)
    return hf.Problem(hf.Minimize(clients=aim @ y + 0.1 * cp.square(x)), lower=below)


def test_convex_quadratics_with_ties(engine: Engine) -> None:
    """At x = 1.2 the solutions are (s, 1.2 - s), s in [0.2, 1]; beyond 2 only (1, 1) is left."""
    aim = np.array([1.0, -2.0])
    for selection, value in (("optimistic", 0.2 - 2), ("pessimistic", 1 - 0.4), (None, -0.6)):
        with told():
            problem = engine(flat_quadratic(selection, aim))
            near(problem.implicit(1.2), value + 0.144)
            near(problem.implicit(2.5), -1 + 0.625)
    assert not problem.implicit.certificate(1.2).unique


def test_ties_that_the_leader_does_not_see_are_not_told(engine: Engine) -> None:
    problem = engine(flat_quadratic(None, np.array([1.0, 1.0])))
    with told() as heard:
        near(problem.implicit(1.2), 1.2 + 0.144)
        near(problem.implicit.gradient(1.2), 1 + 0.24)
    assert not heard, [str(one.message) for one in heard]


def test_a_maximising_leader_and_followers(engine: Engine) -> None:
    """Signs turn with the direction: an optimistic leader who maximises gets the most."""
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    for selection, most in (("optimistic", 3.0), ("pessimistic", -1.0)):
        below = hf.ArgMax(y, y[0] + y[1] + 0 * x, [cp.sum(y) <= 1, y >= 0], selection=selection)
        near(engine(hf.Problem(hf.Maximize(clients=3 * y[0] - y[1] + x), lower=below)).implicit(0.0), most)


def test_an_unknown_selection_is_refused() -> None:
    y = cp.Variable(name="y")
    with pytest.raises(hf.DeclarationError, match="selection"):
        hf.ArgMin(y, cp.square(y), selection="hopeful")


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
