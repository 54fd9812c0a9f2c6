"""Sets cut by a strip or a ball, against CVXPY, closed forms, and what characterises a projection."""

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hierfl.projections import ball, box, box_with_hyperplane, intersection, simplex
from tests.projections.reference import check_derivatives, check_projection, nearest

pytestmark = pytest.mark.usefixtures("x64")
ANY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
N = 6


def ball_and_strip(z, centre, radius, a, low, high):
    return intersection.with_strip(lambda y: ball.project(y, centre, radius), z, a, low, high)


def box_and_ball(z, lower, upper, centre, radius):
    return intersection.with_ball(lambda y: box.project(y, lower, upper), z, centre, radius)


BALL_AND_STRIP, BOX_AND_BALL = jax.jit(ball_and_strip), jax.jit(box_and_ball)


@ANY
@given(
    st.integers(0, 10**6),
    st.sampled_from(["slab", "halfspace", "hyperplane"]),
    st.sampled_from([1e-8, 1.0, 1e8]),
    st.sampled_from([1e-3, 1.0, 1e3]),
)
def test_ball_and_strip_is_the_projection(seed, kind, size, distance):
    rng = np.random.default_rng(seed)
    centre, radius, a = (
        size * rng.standard_normal(N),
        size * rng.random(),
        10.0 ** rng.integers(-8, 9) * rng.standard_normal(N),
    )
    inside = rng.standard_normal(N)
    value = a @ (centre + 0.9 * rng.random() * radius * inside / np.linalg.norm(inside))
    width = size * rng.random() * np.linalg.norm(a)
    low = {"slab": value - width, "halfspace": -np.inf, "hyperplane": value}[kind]
    high = value if kind == "hyperplane" else value + width * rng.random()
    points = centre + size * distance * rng.standard_normal((20, N))
    check_projection(
        lambda z: BALL_AND_STRIP(z, centre, radius, a, low, high)[0],
        lambda y: max(max(a @ y - high, low - a @ y) / np.linalg.norm(a), np.linalg.norm(y - centre) - radius),
        points,
    )
    _, residuals = jax.vmap(lambda z: BALL_AND_STRIP(z, centre, radius, a, low, high))(points)
    assert (residuals <= 1e-12 * (1 + size)).all()


@ANY
@given(st.integers(0, 10**6), st.sampled_from([1e-8, 1.0, 1e8]), st.sampled_from([1e-3, 1.0, 1e3]))
def test_box_and_ball_is_the_projection(seed, size, distance):
    rng = np.random.default_rng(seed)
    lower, upper = -size * rng.random(N), size * rng.random(N)
    inside = lower + (upper - lower) * rng.random(N)
    centre = 2 * size * rng.standard_normal(N)
    radius = np.linalg.norm(inside - centre) * 1.01
    points = size * distance * rng.standard_normal((20, N))
    check_projection(
        lambda z: BOX_AND_BALL(z, lower, upper, centre, radius)[0],
        lambda y: max((lower - y).max(), (y - upper).max(), np.linalg.norm(y - centre) - radius),
        points,
    )
    _, residuals = jax.vmap(lambda z: BOX_AND_BALL(z, lower, upper, centre, radius))(points)
    assert (residuals <= 1e-12 * (1 + size)).all()


def test_agrees_with_cvxpy():
    rng = np.random.default_rng(0)
    z, centre, a = 3 * rng.standard_normal(N), rng.standard_normal(N), rng.standard_normal(N)
    value = float(a @ centre)
    p, residual = BALL_AND_STRIP(z, centre, 1.2, a, value - 0.5, value - 0.2)
    expected = nearest(z, lambda y: [cp.norm(y - centre) <= 1.2, a @ y >= value - 0.5, a @ y <= value - 0.2])
    np.testing.assert_allclose(p, expected, atol=1e-6)
    assert float(residual) <= 1e-15
    lower, upper = np.full(N, -0.3), np.full(N, 0.4)
    p, residual = BOX_AND_BALL(z, lower, upper, centre, np.linalg.norm(centre))
    expected = nearest(z, lambda y: [y >= lower, y <= upper, cp.norm(y - centre) <= np.linalg.norm(centre)])
    np.testing.assert_allclose(p, expected, atol=1e-5)
    assert float(residual) <= 1e-15


def test_a_box_cut_by_a_strip_is_the_strip_family():
    rng = np.random.default_rng(1)

    @jax.jit
    def project(z, a, low, high, lower, upper):
        return intersection.with_strip(lambda y: box.project(y, lower, upper), z, a, low, high)[0]

    in_one = jax.jit(box_with_hyperplane.project)
    for z in 3 * rng.standard_normal((20, N)):
        a, lower, upper = rng.standard_normal(N), -rng.random(N), rng.random(N)
        value = float(a @ (lower + upper) / 2)
        for low, high in ((value, value), (value - 0.1, value + 0.1), (-np.inf, value)):
            expected = in_one(z, a, low, high, lower, upper)
            np.testing.assert_allclose(project(z, a, low, high, lower, upper), expected, atol=1e-13)


def test_a_matrix_set():
    """Symmetric matrices with eigenvalues at most 1 (in Frobenius norm) and a trace."""

    def spectral(matrix):
        values, vectors = jnp.linalg.eigh((matrix + matrix.T) / 2)
        return (vectors * jnp.clip(values, 0, 1)) @ vectors.T

    z = np.random.default_rng(3).standard_normal((4, 4))
    p, residual = intersection.with_strip(spectral, z, jnp.eye(4), 1.5, 1.5)
    values = np.asarray(
        box_with_hyperplane.project(np.linalg.eigvalsh((z + z.T) / 2), np.ones(4), 1.5, 1.5, np.zeros(4), np.ones(4))
    )
    np.testing.assert_allclose(np.linalg.eigvalsh(p), np.sort(values), atol=1e-13)
    assert float(residual) <= 1e-15


def test_a_face_of_a_polytope():
    """The hyperplane only touches D: the multiplier is finite all the same, and large for a far point."""
    lower, upper, a = np.zeros(N), np.ones(N), np.array([1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    for far in (1.0, 1e4, 1e8):
        z = far * np.linspace(-1, 1, N)
        p, residual = intersection.with_strip(lambda y: box.project(y, lower, upper), jnp.asarray(z), a, 2.0, 2.0)
        np.testing.assert_allclose(p, np.r_[1.0, 1.0, np.clip(z[2:], 0, 1)], atol=1e-10 * (1 + far))
        assert float(residual) <= 1e-15


def test_a_hyperplane_touching_a_ball():
    z, a = np.linspace(-3, 3, N), np.eye(N)[0]
    p, residual = BALL_AND_STRIP(z, np.zeros(N), 1.0, a, 1.0, 1.0)
    assert float(residual) <= 1e-14
    np.testing.assert_allclose(p, a, atol=3e-7)  # a single point: sqrt(eps) at best


def test_a_ball_touching_a_box():
    z, centre = np.linspace(-3, 3, N), np.r_[2.0, np.full(N - 1, 0.5)]
    p, residual = BOX_AND_BALL(z, np.zeros(N), np.ones(N), centre, 1.0)
    assert float(residual) <= 1e-15
    np.testing.assert_allclose(p, np.r_[1.0, np.full(N - 1, 0.5)], atol=3e-7)


@pytest.mark.parametrize("distance", [1e-6, 1e-2, 10.0])
def test_an_empty_intersection_leaves_a_residual(distance):
    z, a = np.linspace(-1, 1, N), np.ones(N)
    p, residual = BALL_AND_STRIP(z, np.zeros(N), 1.0, a, N**0.5 + distance, np.inf)
    assert np.isfinite(p).all() and float(residual) == pytest.approx(
        distance / N**0.5 / (1 + np.linalg.norm(z)), rel=1e-3
    )
    p, residual = BOX_AND_BALL(z, np.zeros(N), np.ones(N), np.r_[2.0 + distance, np.zeros(N - 1)], 1.0)
    assert np.isfinite(p).all() and float(residual) == pytest.approx(distance / (1 + np.linalg.norm(z)), rel=1e-6)
    p, residual = BALL_AND_STRIP(z, np.zeros(N), 1.0, np.zeros(N), distance, distance)
    assert np.isfinite(p).all() and float(residual) > 0


def test_infinite_and_vanishing_bounds():
    z, zero = np.linspace(-1, 1, N), np.zeros(N)
    np.testing.assert_array_equal(BALL_AND_STRIP(z, zero, 9.0, np.ones(N), -np.inf, np.inf)[0], z)
    np.testing.assert_array_equal(BALL_AND_STRIP(z, zero, 9.0, zero, -1.0, 1.0)[0], z)
    np.testing.assert_array_equal(BOX_AND_BALL(z, zero - 1, zero + 1, zero, np.inf)[0], z)
    np.testing.assert_array_equal(BOX_AND_BALL(z, zero - 1, zero + 1, zero + 0.5, 0.0)[0], zero + 0.5)


def cut_ball(z, centre, radius, a, low, high):
    return ball_and_strip(z, centre, radius, a, low, high)[0]


def sliced_ball(z, centre, a, b):
    return ball_and_strip(z, centre, 1.2, a, b, b)[0]


def cut_box(z, lower, upper, centre, radius):
    return box_and_ball(z, lower, upper, centre, radius)[0]


def test_derivatives():
    rng = np.random.default_rng(4)
    for seed in range(3):
        z, centre, a = 3 * rng.standard_normal(N), rng.standard_normal(N), rng.standard_normal(N)
        value = float(a @ centre)
        check_derivatives(cut_ball, z, centre, 1.2, a, value - 0.3, value - 0.1, seed=seed)
        check_derivatives(sliced_ball, z, centre, a, value, seed=seed)
        lower, upper = -rng.random(N), rng.random(N)
        check_derivatives(cut_box, z, lower, upper, centre, np.linalg.norm(centre), seed=seed)
        check_derivatives(cut_box, z, lower, upper, centre, 1e3, seed=seed)


def test_a_batch_of_a_thousand_and_single_precision():
    z = np.random.default_rng(5).standard_normal((1000, N))

    def project(z):
        return intersection.with_ball(lambda y: simplex.project(y, 1.0), z, jnp.full(N, 0.2), 0.3)

    batch, residuals = jax.jit(jax.vmap(project))(z)
    assert (np.asarray(residuals) <= 1e-15).all()
    np.testing.assert_allclose(batch[7], project(jnp.asarray(z[7]))[0], atol=1e-14)
    with jax.enable_x64(False):
        single, _ = jax.jit(jax.vmap(project))(jnp.asarray(z, jnp.float32))
        assert single.dtype == jnp.float32
        np.testing.assert_allclose(single, batch, atol=5e-6)
