"""Reference optima against independent evaluations with CVXPY, known local minima, and closed forms."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.models import coupled_minimax, nonsmooth_toy
from tests.inspect.known_functions import problem_of, toy
from tests.small_declarations import two_wells


def test_both_local_minima_of_a_cournot_leader() -> None:
    """4 followers with capacity 1.5, a = 10, b = 1: local minima near 1.905 and 4.06."""
    found = two_wells().reference(restarts=8)
    assert found.x == pytest.approx(4.06, abs=5e-3)
    assert found.value == pytest.approx(-4.3772, abs=1e-4)
    near = [value for point, value in zip(found.points, found.local_minima) if abs(point - 1.905) < 5e-3]
    assert near == pytest.approx([-3.8095], abs=1e-4)


def test_a_deep_well_is_told_from_a_wide_one_in_a_small_set() -> None:
    x, y = cp.Variable(3, name="x"), cp.Variable(3, name="y")
    wells = cp.minimum(cp.sum_squares(1e5 * y - 0.5), 60 * cp.sum_squares(1e5 * y + 0.5) - 0.5)
    found = hf.Problem(hf.Minimize(clients=wells), hf.ArgMin(y, cp.sum_squares(y - x)), [cp.abs(x) <= 1e-5]).reference(progress=False)
    np.testing.assert_allclose(found.local_minima, [-0.5, 0.0], atol=1e-6)


def test_a_black_box_is_searched_by_its_values() -> None:
    """y(x) = x, and each coordinate minimises |t - a| + t^2 / 10: a where 0.2 |a| is below 1."""
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    box = hf.BlackBox(lambda v: float(np.abs(v[0] - 0.5) + np.abs(v[1] + 0.25)), y)
    lower = hf.ArgMin(y, cp.sum_squares(y - x))
    problem = hf.Problem(hf.Minimize(clients=box + 0.1 * cp.sum_squares(x)), lower=lower, constraints=[x >= -1, x <= 1])
    found = problem.reference(restarts=2)
    assert "a bundle method on differences of values" in found.guarantee
    np.testing.assert_allclose(found.x, [0.5, -0.25], atol=1e-6)
    assert found.value == pytest.approx(0.1 * (0.25 + 0.0625), abs=1e-6)


def test_what_cannot_be_treated_is_named() -> None:
    with pytest.raises(hf.errors.SettingError, match="101 scalars"):
        nonsmooth_toy(101).reference()
    with pytest.raises(hf.errors.SettingError, match="restarts"):
        nonsmooth_toy(1).reference(restarts=0)
    for seed in (-1, "a"):  # a grid draws nothing, and passed over it
        with pytest.raises(hf.errors.SettingError, match="seed="):
            nonsmooth_toy(1).reference(seed=seed)  # type: ignore[arg-type]
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    empty = hf.Problem(
        hf.Minimize(clients=x + y),
        lower=hf.ArgMin(y, cp.square(y - x), [y >= 1, y <= x]),
        constraints=[cp.abs(x) <= 0.5],
    )
    with pytest.raises(hf.LowerLevelError, match="at any of"):
        empty.reference()


# --- Witnesses against convexity are witnesses, and convex functions have none.


def test_a_witness_against_convexity_is_one() -> None:
    problem = nonsmooth_toy(2)
    found = problem.implicit.convexity(np.zeros(2), 1.0, progress=False)
    middle = 0.5 * (found.a + found.b)
    np.testing.assert_allclose(found.middle, middle)
    assert found.violated and found.violation == pytest.approx(
        toy(middle) - 0.5 * (toy(found.a) + toy(found.b)), abs=1e-9
    )
    assert "not convex" in str(found)


def test_no_witness_on_convex_functions() -> None:
    assert not coupled_minimax().implicit.convexity(0.3, 0.5, progress=False).violated
    x = cp.Variable(3, name="x")
    for convex in (cp.norm(x), cp.exp(cp.sum(x)), np.array([1.0, -2.0, 3.0]) @ x):
        found = hf.Problem(hf.Minimize(clients=convex)).implicit.convexity(np.zeros(3), 2.0, progress=False)
        assert not found.violated and "does not prove" in str(found)


def test_what_is_maximised_is_asked_to_be_concave() -> None:
    x = cp.Variable(2, name="x")
    found = hf.Problem(hf.Maximize(clients=-cp.sum_squares(x))).implicit.convexity(np.zeros(2), progress=False)
    assert not found.violated and "does not prove that f is concave" in str(found)
    found = hf.Problem(hf.Maximize(clients=cp.sum_squares(x))).implicit.convexity(np.zeros(2), progress=False)
    apart = found.a - found.b
    assert found.violated and found.violation == pytest.approx(apart @ apart / 4)
    assert "not concave" in str(found) and "below the mean" in str(found)


def test_a_witness_is_written_with_the_names_of_variables() -> None:
    ship, price = cp.Variable((3, 4), name="ship"), cp.Variable(name="price")
    problem = hf.Problem(hf.Minimize(clients=-cp.sum_squares(ship) - cp.square(price)))
    text = repr(problem.implicit.convexity({ship: np.zeros((3, 4)), price: 0.0}, samples=8, progress=False))
    assert "ship = [[" in text and "price = " in text
    assert not any(raw in text for raw in ("Variable(", "array(", "\n"))


@pytest.mark.parametrize("seed", [0, 1])
def test_rounding_of_terms_that_cancel_is_no_witness(seed: int) -> None:
    """Up to 3e-4 of rounding is left of terms of 1e10 to 5e11 in convex quadratics of size 1; a concave part far above it shows."""
    v, target = cp.Variable(2, name="v"), np.full(50, 1e5)
    rows = np.random.default_rng(0).standard_normal((50, 2))
    shifted = cp.sum_squares(v + 1e5) - 2e5 * cp.sum(v) - 2e10  # v'v
    convex = [
        hf.Minimize(server=shifted),
        hf.Minimize(server=cp.sum_squares(v) + 1e10, clients=-1e10 + 0 * cp.sum(v)),
        hf.Minimize(server=cp.sum_squares(v) + 1e10 - 1e10),
        hf.Minimize(server=cp.sum_squares(rows @ v - target) - float(target @ target)),
    ]
    for objective in convex:
        found = hf.Problem(objective).implicit.convexity(np.zeros(2), seed=seed, progress=False)
        assert not found.violated and "does not prove" in str(found)
    saddle = hf.Problem(hf.Minimize(server=shifted - 1.01 * cp.square(v[0])))
    found = saddle.implicit.convexity(np.zeros(2), seed=seed, progress=False)
    apart = found.a - found.b  # of f = v_2^2 - v_1^2 / 100, by the parallelogram law
    assert found.violated and 0.01 * apart[0] ** 2 - apart[1] ** 2 == pytest.approx(4 * found.violation, abs=1e-4)


@pytest.mark.parametrize("step", [cp.floor, lambda t: cp.ceil(t) / 2, lambda t: cp.sign(t) / 1024])
def test_steps_are_witnesses(step: Any) -> None:
    """The values of a step function are multiples of a power of two, but not by rounding."""
    v = cp.Variable(2, name="v")
    assert problem_of(step(3 * v[0])).implicit.convexity(np.zeros(2), progress=False).violated


def test_pairs_without_values_are_not_counted() -> None:
    """y(x) is -1 on x <= -1, and there is none beyond."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    problem = hf.Problem(hf.Minimize(clients=y), hf.ArgMin(y, cp.square(y), [y >= x, y <= -1]))
    with pytest.raises(
        hf.SettingError, match=r"no value at one or more points of every one of the 3,328 pairs .*Y\(x\) is empty"
    ):
        problem.implicit.convexity(5.0, 0.1, progress=False)
    half = problem.implicit.convexity(-1.0, 0.5, progress=False)
    assert not half.violated and half.pairs > 0 and half.undefined > 0 and half.pairs + half.undefined == 13 * 256
    assert f"among {half.pairs:,} pairs ({half.undefined:,} more have no value" in str(half)
    whole = problem.implicit.convexity(-3.0, 0.5, progress=False)
    assert (whole.pairs, whole.undefined) == (13 * 256, 0) and "more have" not in str(whole)


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"radius": 0}, "radius=0: a finite number above 0"),
        ({"samples": 0}, "samples=0: a whole number of at least 1"),
        ({"seed": "a"}, "seed='a': a whole number of at least 0"),
    ],
)
def test_settings_of_convexity_are_named(asked: dict, named: str) -> None:
    with pytest.raises(hf.SettingError, match=named):
        nonsmooth_toy(1).implicit.convexity([1.0], **({"progress": False} | asked))


def test_settings_of_proofs_and_of_searches_are_not_ignored_by_the_others() -> None:
    for given in ({"gap": 1e-3}, {"time_limit": 5.0}, {"certificate": "global", "restarts": 3}):
        with pytest.raises(hf.SettingError, match=f"{list(given)[-1]}= of reference is for"):
            nonsmooth_toy(1).reference(**given)  # type: ignore[arg-type]
