"""Bounds that constraints imply: analytic cases, and never a feasible point outside."""

from fractions import Fraction

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import hierfl as hf
from hierfl.analysis.enclosure import enclose
from hierfl.analysis.variable_bounds import bounds_of
from hierfl.atoms.intervals import Interval
from hierfl.errors import NotConvexError

INF = np.inf
A = np.array([[1.0, 2.0, 1.0], [0.0, 1.0, -1.0]])
P = cp.Parameter(nonneg=True)

CASES = [
    (lambda x: [x >= 0], [0, 0, 0], [INF] * 3),
    (lambda x: [x >= 0, x <= [1, 2, 3]], [0, 0, 0], [1, 2, 3]),
    (lambda x: [cp.abs(x) <= 1], [-1] * 3, [1] * 3),
    (lambda x: [cp.sum(x) == 1, x >= 0], [0] * 3, [1] * 3),
    (lambda x: [cp.norm(x - np.array([1, 2, 3])) <= 2], [-1, 0, 1], [3, 4, 5]),
    (lambda x: [cp.norm(x, 1) <= 2], [-2] * 3, [2] * 3),
    (lambda x: [cp.norm(x, "inf") <= 2], [-2] * 3, [2] * 3),
    (lambda x: [cp.sum_squares(x) <= 4], [-2] * 3, [2] * 3),
    (lambda x: [cp.quad_over_lin(x, 2) <= 2], [-2] * 3, [2] * 3),
    (lambda x: [cp.square(2 * x) <= 16], [-2] * 3, [2] * 3),
    (lambda x: [A @ x <= 1, x >= 0], [0] * 3, [1, 0.5, 1]),
    (lambda x: [x >= P], [0] * 3, [INF] * 3),
    (lambda x: [x[0] >= 1, x[1:] <= 2], [1, -INF, -INF], [INF, 2, 2]),
    (lambda x: [cp.max(x) <= 2, cp.min(x) >= 1], [1] * 3, [2] * 3),
    (lambda x: [2 * x <= 4, -x <= 1, x / 2 >= 0.25], [0.5] * 3, [2] * 3),
    (lambda x: [cp.SOC(cp.Constant(2.0), x)], [-2] * 3, [2] * 3),
    (lambda x: [cp.exp(x) <= 1], [-INF] * 3, [0] * 3),
    (lambda x: [x[0] <= 1, x[1] <= x[0], x[2] <= x[1]], [-INF] * 3, [1] * 3),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_bounds_follow(case):
    x = cp.Variable(3, name="x")
    constraints, low, high = CASES[case]
    found = bounds_of(constraints(x), [x])[x.id]
    np.testing.assert_allclose(found.lo, low, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.hi, high, rtol=1e-9, atol=1e-9)


ENDS = st.sampled_from([-INF, -2.0, -1.0, 0.0, 1.0, 2.0, INF])


@given(st.tuples(ENDS, ENDS), st.tuples(ENDS, ENDS), st.sampled_from(["<=", ">=", "=="]), st.data())
def test_what_a_factor_leaves_to_the_other(of_x, of_y, relation, data):
    """Where both a factor and the product may be 0, the other factor is anything: (1 - build) * y == 0 says nothing of y."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    known = {one.id: Interval(*map(np.asarray, sorted(ends))) for one, ends in ((x, of_x), (y, of_y))}
    assume(all(interval.lo < INF and interval.hi > -INF for interval in known.values()))
    at_x, at_y = (data.draw(st.sampled_from([v for v in (-2.0, -1.0, 0.0, 1.0, 2.0) if i.lo <= v <= i.hi])) for i in known.values())
    product, bound = cp.multiply(x, y), at_x * at_y
    found = bounds_of([{"<=": product <= bound, ">=": product >= bound, "==": product == bound}[relation]], [x, y], known)
    assert found[x.id].lo <= at_x <= found[x.id].hi and found[y.id].lo <= at_y <= found[y.id].hi


def test_semidefinite_matrices_with_a_trace():
    s = cp.Variable((2, 2), name="s", symmetric=True)
    found = bounds_of([s >> 0, cp.trace(s) <= 2], [s])[s.id]
    np.testing.assert_allclose(found.lo, [[0, -2], [-2, 0]], atol=1e-12)
    np.testing.assert_allclose(found.hi, [[2, 2], [2, 2]], atol=1e-12)


def test_a_matrix_that_is_not_symmetric_is_semidefinite_in_its_symmetric_part_alone():
    m = cp.Variable((2, 2), name="m")
    found = bounds_of([m >> 0, cp.trace(m) <= 2], [m])[m.id]
    skew = np.array([[1, 50.0], [-50, 1]])  # z' m z = |z|^2
    assert ((found.lo <= skew) & (skew <= found.hi)).all()
    np.testing.assert_array_equal([found.lo[0, 0], found.hi[0, 0]], [0, 2])
    bounded = bounds_of([m >> 0, cp.trace(m) <= 2, m[0, 1] <= 1, m[0, 1] >= -1], [m])[m.id]
    np.testing.assert_allclose([bounded.lo[1, 0], bounded.hi[1, 0]], [-5, 5], atol=1e-12)  # |m01 + m10| <= 2 sqrt(2 * 2)


def test_an_empty_set_changes_nothing_false():
    x = cp.Variable(name="x")
    found = bounds_of([x >= 1, x <= 0], [x])[x.id]
    assert found.lo <= found.hi


# --- the use: signs in the convexity of the lower level


def declared(constraints, attributes=None):
    x, y = cp.Variable(2, name="x", **(attributes or {})), cp.Variable(2, name="y")
    lower = hf.ArgMin(y, cp.sum(cp.multiply(1 + x, cp.square(y))) - 2 * cp.sum(y))
    return hf.Problem(hf.Minimize(clients=cp.sum_squares(y - x)), lower, constraints=constraints(x))


@pytest.mark.parametrize(
    ("constraints", "point"),
    [
        (lambda x: [x >= 0], [0.0, 3.0]),
        (lambda x: [cp.abs(x) <= 1], [-0.9, 1.0]),
        (lambda x: [cp.norm(x) <= 0.5], [-0.3, 0.4]),
        (lambda x: [x == 3], [3.0, 3.0]),
    ],
)
def test_a_factor_is_nonnegative_because_of_the_constraints_on_x(constraints, point):
    found = declared(constraints).implicit.response(np.array(point))
    np.testing.assert_allclose(found, 1 / (1 + np.array(point)), atol=1e-8)


def test_a_factor_that_may_be_negative_is_refused():
    with pytest.raises(NotConvexError, match="no curvature"):
        declared(lambda x: [x >= -1.5])


def test_a_client_parameter_counts_with_its_values():
    rho, x, y = hf.ClientParameter(name="rho"), cp.Variable(name="x"), cp.Variable(name="y")

    def problem(values):
        federation = hf.Federation([hf.Client(parameters={rho: v}) for v in values])
        return hf.Problem(
            hf.Minimize(clients=cp.square(y)), hf.ArgMin(y, rho * cp.square(y - x), scope="client"), (), federation
        )

    problem([1.0, 2.0])
    with pytest.raises(NotConvexError):
        problem([1.0, -2.0])


def test_a_set_convex_because_of_the_constraints_on_x():
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    lower = hf.ArgMin(y, cp.sum_squares(y - 3), [cp.sum(cp.multiply(1 + x, cp.square(y))) <= 1])
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y)), lower, constraints=[cp.abs(x) <= 1])
    at = np.array([1.0, 0.0])
    z = cp.Variable(2)
    tight = {"tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10}
    direct = cp.Problem(cp.Minimize(cp.sum_squares(z - 3)), [cp.sum(cp.multiply(1 + at, cp.square(z))) <= 1])
    direct.solve(solver=cp.CLARABEL, **tight)
    np.testing.assert_allclose(problem.implicit.response(at), z.value, rtol=1e-5)


def test_a_threshold_that_may_change_says_nothing_of_its_present_value():
    x, bound = cp.Variable(bounds=[-10, 10]), cp.Parameter(nonneg=True, value=0.1)
    interval = enclose(cp.huber(x, bound), {x.id: Interval(np.array(-10.0), np.array(10.0))})
    for bound.value in (0.1, 5.0, 20.0):
        x.value = 10.0
        assert interval.lo <= cp.huber(x, bound).value <= interval.hi
    assert enclose(cp.huber(cp.Variable(), cp.Parameter(nonneg=True))).hi == np.inf


LINEAR = (  # (the atom, the weights of its entries)
    (lambda x: cp.sum(x), np.ones((1, 6))),
    (lambda x: cp.sum_largest(x, 6), np.ones((1, 6))),
    (lambda x: cp.kron(np.array([[-0.3], [-0.7]]), cp.reshape(x, (6, 1), order="F")), np.kron([[-0.3], [-0.7]], np.eye(6))),
    (lambda x: cp.convolve([-0.3, -0.7], x), -0.3 * np.eye(7, 6) - 0.7 * np.eye(7, 6, -1)),
)


@pytest.mark.parametrize("atom", range(len(LINEAR)))
@pytest.mark.parametrize("above", [0.0, INF])
def test_sums_are_rounded_outward(atom, above):
    rng, (function, weights) = np.random.default_rng(atom), LINEAR[atom]
    for _ in range(50):
        point, x = rng.uniform(-1, 1, 6) * 10.0 ** rng.integers(0, 3, 6), cp.Variable(6)
        found = enclose(function(x), {x.id: Interval(point, point + above)})
        exact = [sum(Fraction(w) * Fraction(p) for w, p in zip(row, point)) for row in weights]
        assert all(Fraction(low) <= e for low, e in zip(found.lo.ravel(), exact) if np.isfinite(low))
        assert all(e <= Fraction(high) for high, e in zip(found.hi.ravel(), exact) if np.isfinite(high))


def test_bounds_that_overflow_are_infinite():
    x = cp.Variable((2, 2))
    known = {x.id: Interval(np.full((2, 2), -1e200), np.full((2, 2), 2e200))}
    for product in (1e200 * np.eye(2) @ x, x @ x):
        found = enclose(product, known)
        assert (found.lo == -INF).all() and (found.hi == INF).all()
