"""Intervals contain every value: arithmetic and expressions against sampled points."""

import cvxpy as cp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hierfl.analysis.enclosure import enclose
from hierfl.atoms.intervals import Interval, matmul

finite = st.floats(-1e3, 1e3, allow_nan=False, allow_subnormal=False)


@st.composite
def boxes(draw, shape):
    first, second = draw(arrays(float, shape, elements=finite)), draw(arrays(float, shape, elements=finite))
    return Interval(np.minimum(first, second), np.maximum(first, second))


def points(box, count, rng):
    return box.lo + rng.random((count, *box.shape)) * (box.hi - box.lo)


def assert_inside(value, interval):
    assert (interval.lo <= value).all() and (value <= interval.hi).all()


@given(boxes((3,)), boxes((3,)), st.integers(0, 1000))
@settings(deadline=None, max_examples=60)
def test_arithmetic_contains_every_result(a, b, seed):
    rng = np.random.default_rng(seed)
    for x, y in zip(points(a, 5, rng), points(b, 5, rng)):
        assert_inside(x + y, a + b)
        assert_inside(x - y, a - b)
        assert_inside(x * y, a * b)
        if (np.abs(y) > 0).all():
            assert_inside(1 / y, b.inverse())


@given(boxes((2, 3)), boxes((3, 2)), st.integers(0, 1000))
@settings(deadline=None, max_examples=60)
def test_matrix_products_contain_every_result(a, b, seed):
    rng = np.random.default_rng(seed)
    for x, y in zip(points(a, 4, rng), points(b, 4, rng)):
        assert_inside(x @ y, matmul(a, b))
        assert_inside(x @ y, matmul(Interval.of(x), b))
        assert_inside(x @ y, matmul(a, Interval.of(y)))


def test_sums_that_are_exact_keep_their_sign():
    x = cp.Variable(2)
    known = {x.id: Interval(np.array([0.1, 1.0]), np.array([2.0, np.inf]))}
    assert (enclose(x - np.array([0.1, 1.0]), known).lo == 0).all()
    assert (enclose(1 + cp.multiply(3.0, x), known).lo >= 1).all()


def test_bounds_are_tight_for_single_occurrences():
    x = cp.Variable(2)
    box = {x.id: Interval(np.array([-1.0, 2.0]), np.array([3.0, 2.5]))}
    found = enclose(cp.sum_squares(x), box)
    np.testing.assert_allclose([found.lo, found.hi], [4.0, 9 + 6.25], rtol=1e-12)


def test_unknown_atoms_and_leaves_are_unbounded():
    x, p = cp.Variable(2), cp.Parameter(nonneg=True)
    p.value = 1.0  # a present value may change: it bounds nothing
    assert not enclose(x).is_bounded
    found = enclose(p)
    assert found.lo == 0 and found.hi == np.inf


def test_a_threshold_that_may_change_says_nothing_of_its_present_value():
    x, bound = cp.Variable(bounds=[-10, 10]), cp.Parameter(nonneg=True, value=0.1)
    interval = enclose(cp.huber(x, bound), {x.id: Interval(np.array(-10.0), np.array(10.0))})
    for bound.value in (0.1, 5.0, 20.0):
        x.value = 10.0
        assert_inside(cp.huber(x, bound).value, interval)
    assert enclose(cp.huber(cp.Variable(), cp.Parameter(nonneg=True))).hi == np.inf
