"""Gradients at points where y(x) is given by a formula: f's own, or refused where its slopes differ, as NumPy's projections say."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.errors import NoGradientError

Projection = Callable[[np.ndarray], np.ndarray]
SIZE, WAYS, STEP = 4, 400, 1e-6
x, y = cp.Variable(SIZE, name="x"), cp.Variable(SIZE, name="y")
t, u = cp.Variable(name="t"), cp.Variable(name="u")
COUNT = hf.Sample(name="count")


def on_simplex(z: np.ndarray) -> np.ndarray:
    high = np.sort(z)[::-1]
    means = (np.cumsum(high) - 1.0) / np.arange(1, z.size + 1)
    return np.maximum(z - means[np.flatnonzero(high > means)[-1]], 0.0)


def on_l1_ball(z: np.ndarray) -> np.ndarray:
    return z if np.abs(z).sum() <= 1.0 else np.sign(z) * on_simplex(np.abs(z))


SETS: dict[str, tuple[list[cp.Constraint], Projection]] = {
    "box": ([y >= -1, y <= 1], lambda z: np.clip(z, -1.0, 1.0)),
    "ball": ([cp.norm(y) <= 1], lambda z: z / max(1.0, float(np.linalg.norm(z)))),
    "simplex": ([y >= 0, cp.sum(y) == 1], on_simplex),
    "l1 ball": ([cp.norm1(y) <= 1], on_l1_ball),
    "halfspace": ([cp.sum(y) <= 1], lambda z: z - max(0.0, z.sum() - 1.0) / SIZE),
    "moving box": ([y >= cp.abs(x)[::-1] - 1], lambda z: np.maximum(z, np.abs(z[::-1]) - 1.0)),
}
UPPER: dict[str, tuple[cp.Expression, Callable[[np.ndarray], float]]] = {
    "linear": (np.arange(1.0, 5.0) @ y, lambda v: float(np.arange(1.0, 5.0) @ v)),
    "one entry": (y[1], lambda v: float(v[1])),
    "quadratic": (cp.sum_squares(y - 1), lambda v: float(np.sum((v - 1) ** 2))),
    "two entries": (cp.sum_squares(y[:2] - 2), lambda v: float(np.sum((v[:2] - 2) ** 2))),
    "kinked": (cp.norm1(y) + y[0], lambda v: float(np.abs(v).sum() + v[0])),
}


def slope(f: Callable[[np.ndarray], float], at: np.ndarray) -> np.ndarray | None:
    """f's gradient from one-sided differences along many directions; None where no vector explains them all."""
    rng = np.random.default_rng(3)
    ways = rng.standard_normal((WAYS, at.size))
    along = np.array([(f(at + STEP * way) - f(at)) / STEP for way in ways])
    found = np.linalg.lstsq(ways, along, rcond=None)[0]
    return found if np.abs(ways @ found - along).max() < 1e-3 else None


def points(rng: np.random.Generator) -> list[np.ndarray]:
    """One at ties of most of the sets, one where some hold, one without any."""
    tied = np.array([1.0, 0.0, 0.0, 0.0])[rng.permutation(SIZE)]
    return [tied, np.array([0.5, -0.5, 2.0, 0.0])[rng.permutation(SIZE)], 2.0 * rng.standard_normal(SIZE)]


@pytest.mark.parametrize("upper", UPPER)
@pytest.mark.parametrize("kind", SETS)
def test_gradients_are_refused_exactly_where_the_slopes_differ(kind: str, upper: str) -> None:
    (constraints, projection), (term, value) = SETS[kind], UPPER[upper]
    problem = hf.Problem(hf.Minimize(clients=term), lower=hf.ArgMin(y, cp.sum_squares(y - x), constraints))
    for at in points(np.random.default_rng(len(kind) * len(upper))):
        expected = slope(lambda z: value(projection(z)), at)
        if expected is None:
            with pytest.raises(NoGradientError, match="not differentiable there"):
                problem.implicit.gradient(at)
        else:
            np.testing.assert_allclose(problem.implicit.gradient(at), expected, atol=1e-4)


def test_one_owner_at_a_kink_is_enough() -> None:
    clients = [hf.Client({COUNT: np.arange(-3.0, 37.0)}), hf.Client({COUNT: np.arange(-3.0, 57.0)})]
    lower = hf.ArgMin(u, cp.square(u - t - COUNT), [u >= 0], scope="sample")
    problem = hf.Problem(hf.Minimize(clients=hf.E(u)), lower=lower, federation=hf.Federation(clients))
    with pytest.raises(NoGradientError):
        problem.implicit.gradient(0.0)
    assert problem.implicit.gradient(0.5) == pytest.approx((37 / 40 + 57 / 60) / 2)


def scalar(
    upper: cp.Expression, lower: cp.Expression, rows: list[cp.Constraint], above: tuple[cp.Constraint, ...] = ()
) -> hf.Problem:
    return hf.Problem(hf.Minimize(clients=upper), constraints=above, lower=hf.ArgMin(u, lower, rows))


@pytest.mark.parametrize(
    "problem",
    [
        pytest.param(scalar(u, cp.square(u + 1), [u >= t, u >= -t]), id="two rows hold"),
        pytest.param(scalar(cp.abs(u), cp.square(u - t), []), id="a kink of the upper objective"),
        pytest.param(scalar(u, cp.square(u) - 2 * u * cp.abs(t), []), id="a kink in x"),
        pytest.param(
            hf.Problem(hf.Maximize(clients=u), lower=hf.ArgMax(u, -cp.square(u - t), [u >= 0])), id="of an argmax"
        ),
        pytest.param(hf.Problem(hf.Minimize(cp.maximum(t, 0))), id="without a lower level"),
        pytest.param(hf.Problem(hf.Minimize(cp.sqrt(cp.square(t)))), id="a root of a square"),
    ],
)
def test_kinks_at_zero_are_refused(problem: hf.Problem) -> None:
    with pytest.raises(NoGradientError):
        problem.implicit.gradient(0.0)
    assert abs(problem.implicit.gradient(0.25)) == pytest.approx(1.0)


def test_gradients_that_a_convention_at_the_tie_would_miss() -> None:
    inside = scalar(u, cp.square(u + 1), [u >= 0, u <= t], above=(t >= 0,))  # y = 0 for all t
    assert inside.implicit.gradient(0.0) == 0.0
    v = cp.Variable(2, name="v")
    both = hf.Problem(hf.Minimize(clients=cp.sum(v)), lower=hf.ArgMin(v, cp.sum_squares(v - t), [v[0] >= 0, v[1] <= 0]))
    assert both.implicit.gradient(0.0) == pytest.approx(1.0, abs=1e-9)  # max(t, 0) + min(t, 0) = t


def test_steep_pieces_and_points_near_a_kink_have_gradients() -> None:
    steep = scalar(1e6 * cp.square(u - 1) + u, cp.square(u - t), [u >= 0])
    assert steep.implicit.gradient(1.0) == pytest.approx(1.0)
    assert scalar(u, cp.square(u - t), [u >= 0]).implicit.gradient(1e-8) == 1.0
    with pytest.raises(NoGradientError):
        scalar(u, cp.square(u - t), [u >= 0.3]).implicit.gradient(0.1 + 0.2)
    assert scalar(cp.power(cp.abs(u), 1.5), cp.square(u - t), []).implicit.gradient(0.0) == 0.0


def test_pieces_of_the_upper_objective_that_random_points_miss_make_no_envelope() -> None:
    far = cp.maximum(0, cp.minimum(y[0], y[1])) + cp.pos(y[2] - 50)
    problem = hf.Problem(hf.Minimize(clients=far), lower=hf.ArgMin(y, cp.sum_squares(y - x)))
    np.testing.assert_allclose(problem.implicit.gradient([1.0, 2.0, 60.0, 0.0]), [1.0, 0.0, 1.0, 0.0])


@pytest.mark.parametrize("n", [20, 300])
def test_an_upper_objective_that_y_does_not_change_has_the_gradient_of_the_rest(n: int) -> None:
    """y is on spheres about 0 of fixed and of moving radius, of which the objective sees the lengths alone: f = 1 + (2 + x)^2 + x^2."""
    x, y = cp.Variable(name="x"), cp.Variable(n, name="y")
    far = np.random.default_rng(0).normal(size=n) * 5
    balls = [cp.norm(y[: n // 2]) <= 1, cp.norm(y[n // 2 :]) <= 2 + x]
    lower = hf.ArgMin(y, 0.5 * cp.sum_squares(y - far * (1 + 0.1 * x)), balls)
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y) + cp.square(x)), lower=lower)
    assert problem.implicit(0.3) == pytest.approx(1 + 2.3**2 + 0.09, abs=1e-9)
    assert problem.implicit.gradient(0.3) == pytest.approx(2 * 2.3 + 0.6, abs=1e-9)


@pytest.mark.parametrize("beside", [cp.norm(y[:2]) <= 2, cp.sum(cp.exp(y[:2])) <= 40, y[1] <= 4], ids=["ball", "exponentials", "rows alone"])
def test_two_rows_that_hold_at_once_are_a_kink_beside_cones_too(beside: cp.Constraint) -> None:
    """y1 = min(x1, x2), and y2 = 1 besides: multipliers are shared out at will, and their mean says (1/2, 1/2)."""

    def declared(second: cp.Expression, above: cp.Expression) -> hf.Problem:
        below = cp.sum_squares(y[:2] - 1) + cp.sum_squares(y[2:])
        return hf.Problem(hf.Minimize(clients=above), hf.ArgMin(y, below, [y[0] <= x[0], 2 * y[0] <= 2 * second, beside]), [cp.sum(x[2:]) == 0])

    at = np.array([0.5, 0.5, 0.0, 0.0])
    with pytest.raises(NoGradientError):
        declared(x[1], cp.sum(y)).implicit.gradient(at)
    np.testing.assert_allclose(declared(x[0], cp.sum(y)).implicit.gradient(at), [1, 0, 0, 0], atol=1e-8)  # both say the same
    np.testing.assert_allclose(declared(x[1], y[1] + x[1]).implicit.gradient(at), [0, 1, 0, 0], atol=1e-8)  # f does not see y1
