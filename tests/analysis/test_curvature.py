"""mu from below and L from above: against NumPy eigenvalues of explicit Hessians and second differences."""

import cvxpy as cp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hierfl.analysis.curvature_bounds import curvature_bounds, is_quadratic, largest, majorant, perron, smallest
from hierfl.atoms.intervals import Interval


def products_of(matrix):
    return lambda vectors: vectors @ matrix.T


def hessian_of(expression, variable):
    """Of a quadratic expression, by second differences of exact values."""
    size, base = variable.size, np.zeros(variable.shape)

    def value(flat):
        variable.value = flat.reshape(variable.shape)
        return float(expression.value)

    unit = np.eye(size)
    zero = value(base.ravel())
    single = [value(e) for e in unit]
    return np.array(
        [[value(unit[i] + unit[j]) - single[i] - single[j] + zero for j in range(size)] for i in range(size)]
    )


# --- expressions


def test_atoms_without_a_bound_say_so():
    y = cp.Variable(2, name="y")
    bounds = curvature_bounds(cp.sum(cp.exp(y)) + cp.sum_squares(y), [y])
    assert bounds.upper is None and "exp(y)" in bounds.notes[0]
    np.testing.assert_allclose(hessian_of(bounds.lower, y), 2 * np.eye(2), atol=1e-9)
    assert curvature_bounds(cp.norm(y, 1), [y]).upper is None


def test_a_factor_that_moves_with_x_is_taken_at_its_ends():
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    known = {x.id: Interval(np.zeros(2), np.array([1.0, 3.0]))}
    for expression in (
        cp.sum(cp.multiply(1 + x, cp.square(y))),
        cp.sum_squares(cp.multiply(cp.sqrt(1 + x), y) - x),
    ):
        bounds = curvature_bounds(expression, [y], known)
        for parameter, end in bounds.ends.items():
            parameter.value = end.value(known)
        np.testing.assert_allclose(hessian_of(bounds.lower, y), 2 * np.eye(2), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(hessian_of(bounds.upper, y), 2 * np.diag([2.0, 4.0]), rtol=1e-9, atol=1e-9)


def test_huber_is_not_quadratic():
    y = cp.Variable(2)
    assert not is_quadratic(cp.sum(cp.huber(y))) and is_quadratic(cp.sum_squares(y) + cp.sum(y))


# --- spectra


@given(st.integers(0, 10_000), st.sampled_from([1e-8, 1.0, 1e8]))
@settings(deadline=None, max_examples=60)
def test_ends_of_a_spectrum_are_safe_and_close(seed, scale):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 12))
    values = scale * np.sort(rng.choice([0.0, 1e-6, 1.0, 2.0], size) + rng.random(size) * rng.integers(0, 2))
    rotation = np.linalg.qr(rng.standard_normal((size, size)))[0]
    matrix = (rotation * values) @ rotation.T
    matrix = 0.5 * (matrix + matrix.T)
    low, high = smallest(products_of(matrix), size), largest(products_of(matrix), size)
    error = 1e-14 * values[-1]
    assert low.value <= values[0] + error and high.value >= values[-1] - error
    assert low.value >= values[0] - 1e-12 * values[-1] and high.value <= values[-1] * (1 + 1e-12)


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=40)
def test_the_perron_bound_is_never_below_the_norm(seed):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((6, 5)) * rng.integers(0, 2, (6, 5))
    bound = perron(products_of(np.abs(rows).T @ np.abs(rows)), 5)
    assert bound >= np.linalg.eigvalsh(rows.T @ rows)[-1] * (1 - 1e-14)


def test_a_majorant_dominates_entry_by_entry():
    rng = np.random.default_rng(0)
    matrix, y, shift = rng.standard_normal((3, 4)), cp.Variable(4, name="y"), cp.Parameter(3, value=np.ones(3))
    expression = 2 * cp.sum_squares(matrix @ y - shift) - cp.sum(cp.multiply([1, 2, 3, 4], cp.square(y)))
    found = hessian_of(majorant(expression, [y]), y)
    assert (found - np.abs(hessian_of(expression, y)) >= -1e-9).all()


def test_a_majorant_of_a_bilinear_map_keeps_its_constant_factor():
    y = cp.Variable((2, 1), name="y")
    expression = cp.sum_squares(cp.kron(np.array([[1.0, 2.0]]), y)) - cp.sum(cp.square(y))
    found = hessian_of(majorant(expression, [y]), y)
    np.testing.assert_allclose(found, (2 * 5 + 2) * np.eye(2), rtol=1e-6)
