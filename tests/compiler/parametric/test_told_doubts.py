"""What is said of answers that cannot be trusted; variables and conditions that constraints alone mention; weights of zero."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.compiler.lower_level.methods import parametric_program

x, y, z = cp.Variable(name="x"), cp.Variable(2, name="y"), cp.Variable(name="z")
TOTAL = cp.sum(y) - x
LEVELS = {
    "ArgMin": lambda: hf.ArgMin(y, cp.square(TOTAL), [y >= 0, y <= 3]),
    "ArgMax": lambda: hf.ArgMax(y, -cp.square(TOTAL), [y >= 0, y <= 3]),
    "Equilibrium": lambda: hf.Equilibrium(y, cp.hstack([TOTAL, TOTAL]), [y >= 0, y <= 3]),
    "Nash": lambda: hf.Nash(hf.Player(y, cp.square(TOTAL + z), [y >= 0]), hf.Player(z, cp.square(z + TOTAL), [z >= 0])),
}


def told(asked: Any) -> str:
    """The warnings, or the error, of a question."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            asked()
        except hf.HierflError as error:
            return str(error)
    return " ".join(str(one.message) for one in heard)


@pytest.mark.parametrize("name", LEVELS)
def test_selections_are_recommended_where_they_may_be_made(name: str) -> None:
    def asked() -> hf.ImplicitFunction:
        return hf.Problem(hf.Minimize(clients=cp.square(y[0] - 1) + cp.square(x)), LEVELS[name]()).implicit

    for words in (told(lambda: asked()(1.0)), told(lambda: asked().gradient(1.0))):  # it is said once for a problem
        assert "several solutions" in words
        if name.startswith("Arg"):
            assert 'selection="optimistic"' in words
        else:
            assert 'selection="' not in words and "a small multiple of y in its mapping" in words


def test_a_bound_beyond_the_size_of_y_is_no_bound() -> None:
    """y(x) = x (1, 3), and is found; a curvature of 1e-16 beside 1 bounds no error of it."""
    level = hf.ArgMin(y, np.array([1.0, 1e-16]) @ cp.square(y - x * np.array([1.0, 3.0])))
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y)), level)
    words = told(lambda: problem.implicit(1.0))
    np.testing.assert_allclose(problem.implicit.response(1.0), [1.0, 3.0], rtol=1e-12)
    assert "no useful bound" in words and "may be right" in words and "known to about" not in words


def test_what_f_does_not_see_may_be_anything_and_what_it_sees_is_warned_of() -> None:
    x, y, t = (cp.Variable(name=name) for name in "xyt")
    level = hf.ArgMin([y, t], cp.square(y - x), [t <= y + 1, t >= y - 1])
    quiet = hf.Problem(hf.Minimize(server=cp.square(y) + x), level)
    assert float(quiet.implicit(0.5)) == pytest.approx(0.75, abs=1e-9)
    seen = hf.Problem(hf.Minimize(server=cp.square(y) + t), level)
    with pytest.warns(hf.LowerLevelWarning, match="several solutions"):
        seen.implicit(0.5)


@pytest.mark.parametrize("curved", [False, True], ids=["closed form", "program"])
def test_a_condition_on_x_empties_the_set(curved: bool) -> None:
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    sum_rows = [cp.norm(y - x) <= 2, cp.sum(y) <= 5] if curved else [y >= 0]
    problem = hf.Problem(hf.Minimize(server=cp.square(x) + y[0]), hf.ArgMin(y, cp.sum_squares(y - x), [*sum_rows, cp.square(x) <= 1, x >= -0.25]))
    assert float(problem.implicit(0.5)) == pytest.approx(0.75, abs=1e-9)
    with pytest.raises(hf.EmptyLowerSetError, match=r"x = \[2\.\]: x itself does not satisfy square\(x\) <= 1\."):
        problem.implicit(2.0)
    found = problem.solve(progress=False)
    assert found.x == pytest.approx(-0.25 if curved else 0.0, abs=1e-6)  # x^2 + x falls to -1/2, x^2 + max(x, 0) to 0
    line = problem.implicit.slice(0.0, direction=1.0, radius=2.0, points=81, progress=False)
    assert np.isfinite(line.value).sum() == np.sum((line.t >= -0.25) & (line.t <= 1.0))


B = np.array([1.4, -2.0, 0.3])
ROWS = np.array([[0.5, 0.2, 0.1], [1.0, -1.0, 2.0]])  # the first is short of its margin at B, the second is not
SLOPES: dict[str, tuple[Callable[[Any], Any], np.ndarray]] = {  # a term, and its gradient at B
    "norm1": (cp.norm1, np.sign(B)),
    "norm_inf": (cp.norm_inf, np.array([0.0, -1.0, 0.0])),
    "max": (cp.max, np.array([1.0, 0.0, 0.0])),
    "hinges": (lambda y: cp.sum(cp.pos(1 - ROWS @ y)), -ROWS[0]),
    "of a sum": (lambda y: cp.abs(cp.sum(y)) + cp.max(cp.abs(y)), np.sign(B.sum()) + np.array([0.0, -1.0, 0.0])),
}


def declared(term: Callable[[Any], Any], order: tuple[int, int]) -> hf.Problem:
    """min 0.5 |y - b|^2 + x_i term(y) + 0.5 x_j |y|^2."""
    x, y = cp.Variable(2, name="x", nonneg=True), cp.Variable(3, name="y")
    below = 0.5 * cp.sum_squares(y - B) + cp.multiply(x[order[0]], term(y))
    below += 0.5 * cp.multiply(x[order[1]], cp.sum_squares(y))
    return hf.Problem(hf.Minimize(clients=cp.sum_squares(y - 1)), hf.ArgMin(y, below))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=str)
@pytest.mark.parametrize("name", SLOPES)
def test_gradients_into_x(name: str, order: tuple[int, int]) -> None:
    term, slope = SLOPES[name]
    problem = declared(term, order)
    expected = np.zeros(2)
    expected[list(order)] = -2 * (B - 1) @ slope, -2 * (B - 1) @ B
    assert problem.implicit(np.zeros(2)) == pytest.approx(np.sum((B - 1) ** 2), abs=1e-12)
    np.testing.assert_allclose(problem.implicit.gradient(np.zeros(2)), expected, atol=1e-10)


def test_a_norm_without_weight_has_no_gradient_that_is_known() -> None:
    """Over a second-order cone the side is not told apart: a gradient of zero, as if the weight did nothing, would be wrong."""
    problem = declared(cp.norm, (0, 1))
    assert problem.implicit(np.zeros(2)) == pytest.approx(np.sum((B - 1) ** 2), abs=1e-10)
    with pytest.raises(hf.NoGradientError):
        problem.implicit.gradient(np.zeros(2))


def test_columns_that_are_alike_are_told_at_any_size_and_share_what_is_theirs() -> None:
    """Least squares of 3,000 rows in 200 columns, the last one the first again: solved as a linear system, whose y of least norm gives both the same."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3_000, 200))
    rows[:, -1] = rows[:, 0]
    target = rows @ np.ones(200) + rng.normal(size=3_000)
    w, u, b = cp.Variable(200, name="w"), hf.Sample(200, name="u"), hf.Sample(name="b")
    federation = hf.Federation([hf.Client({u: rows[k::3], b: target[k::3]}) for k in range(3)])

    def implicit(above: Any) -> hf.ImplicitFunction:
        level = hf.ArgMin(w, hf.E(cp.square(u @ w - b - x)))
        return hf.Problem(hf.Minimize(clients=above), level, federation=federation).implicit

    with pytest.warns(hf.errors.HierflWarning, match="several solutions, and the upper objective depends on which: that of least norm"):
        found = implicit(cp.sum_squares(w)).response(0.5)
    np.testing.assert_allclose(found, np.linalg.lstsq(rows, target + 0.5)[0], atol=1e-9)
    assert not told(lambda: implicit(cp.square(w[0] + w[-1] - x))(0.5))  # it is the same at all of them


LOGISTIC, HUBER = (lambda u, b: cp.logistic(-b * u)), (lambda u, b: cp.huber(u - b))


@pytest.mark.parametrize("iterated", [False, True])
@pytest.mark.parametrize(("loss", "box"), [(LOGISTIC, None), (HUBER, 0.09)], ids=["logistic", "huber"])
def test_large_levels_tell_columns_that_are_alike_from_columns_that_nearly_are(
    loss: Any, box: float | None, iterated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where w[0] and w[-1] are told apart by f alone, or by columns a ten-thousandth apart: curvatures of 1e-8 beside 1 are curvatures.

    By the program, and by Newton's method on y, to which still larger levels are left and which chooses nothing.
    """
    if iterated:
        monkeypatch.setattr(parametric_program, "OPEN_WORK", 0.0)
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(3_000, 200))
    signs = np.sign(rows @ np.ones(200) + 9 * rng.normal(size=3_000))
    w, u, b = cp.Variable(200, name="w"), hf.Sample(200, name="u"), hf.Sample(name="b")

    def implicit(apart: float, above: Any, **chosen: Any) -> hf.ImplicitFunction:
        told_by = rows.copy()
        told_by[:, -1] = rows[:, 0] + apart * rows[:, -1]
        level = hf.ArgMin(w, hf.E(loss(u @ w, b)) + x * w[1] / 100, [] if box is None else [cp.abs(w) <= box], **chosen)
        return hf.Problem(hf.Minimize(server=above), level, federation=hf.Federation([hf.Client({u: told_by, b: signs})])).implicit

    several = implicit(0.0, cp.square(w[0] - 1))
    taken = "that at which the iteration ends" if iterated else "that of least norm"
    with pytest.warns(hf.errors.HierflWarning, match=f"several solutions, and .* depends on which: {taken}"):
        several(0.5)
    assert several.certificate(0.5).unique is False
    assert not told(lambda: implicit(0.0, cp.square(w[0] + w[-1] - x))(0.5))
    assert not told(lambda: implicit(1e-4, cp.square(w[0] - 1))(0.5))
    best = implicit(0.0, cp.square(w[0] - 1), selection="optimistic")
    if iterated:
        with pytest.warns(hf.errors.HierflWarning, match="has chosen nothing"):
            best(0.5)
        return
    assert not told(lambda: best(0.5))
    together = several.response(0.5)[[0, -1]].sum()  # what both have between them is the same at all solutions
    np.testing.assert_allclose(best(0.5), 0.0 if box is None else (min(box, together + box) - 1.0) ** 2, atol=1e-8)


@pytest.mark.parametrize(("seed", "iterated"), [(1, False), (3, False), (1, True), (3, True)])
def test_a_fall_without_end_is_not_answered_where_rounding_of_a_long_y_hides_it(
    seed: int, iterated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 columns part 500 rows, so that the losses are used up along a way on which the linear term falls: y of 1e20 is no solution."""
    if iterated:
        monkeypatch.setattr(parametric_program, "OPEN_WORK", 0.0)
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(500, 300))
    signs = np.sign(rows @ np.ones(300) + 9 * rng.normal(size=500))
    w, u, b = cp.Variable(300, name="w"), hf.Sample(300, name="u"), hf.Sample(name="b")
    level = hf.ArgMin(w, hf.E(cp.logistic(-b * (u @ w))) + x * w[1] / 100)
    implicit = hf.Problem(hf.Minimize(server=cp.square(w[0] - 1)), level, federation=hf.Federation([hf.Client({u: rows, b: signs})])).implicit
    for at in (0.5, 0.6, 0.7):
        with pytest.raises(hf.LowerLevelError, match="unbounded below|may not attain its infimum"):
            implicit(at)
