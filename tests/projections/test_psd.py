"""The positive semidefinite cone against CVXPY, Moreau's decomposition, the known derivative and central differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hierfl.projections import psd
from tests.projections.moreau import check_cone
from tests.projections.reference import check_derivatives, nearest

pytestmark = pytest.mark.usefixtures("x64")
project = jax.jit(psd.project)


def rotated(rng, values):
    q = np.linalg.qr(rng.standard_normal((len(values), len(values))))[0]
    z = q * np.asarray(values) @ q.T
    return 0.5 * (z + z.T), q


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(
    st.integers(0, 10**6),
    st.sampled_from([1, 2, 5]),
    st.sampled_from([1e-8, 1.0, 1e8]),
    st.sampled_from(["generic", "low rank", "repeated", "integer", "zero"]),
)
def test_is_the_projection(seed, n, size, kind):
    rng = np.random.default_rng(seed)
    z = {
        "generic": lambda: rng.standard_normal((10, n, n)),
        "low rank": lambda: rng.standard_normal((10, n, 1)) @ rng.standard_normal((10, 1, n)),
        "repeated": lambda: np.eye(n) * rng.standard_normal((10, 1, 1)),
        "integer": lambda: rng.integers(-1, 2, (10, n, n)).astype(float),
        "zero": lambda: np.zeros((10, n, n)),
    }[kind]()
    z = size * (z + z.transpose(0, 2, 1))
    check_cone(project, lambda y: -np.linalg.eigvalsh(y)[0], lambda v: np.linalg.eigvalsh(v)[-1], z)


def test_symmetrises_first():
    z = np.array([[1.0, 4.0], [0.0, 1.0]])
    np.testing.assert_allclose(project(z), [[1.5, 1.5], [1.5, 1.5]], atol=1e-15)
    for seed in range(3):
        z = np.random.default_rng(seed).standard_normal((4, 4))
        np.testing.assert_allclose(project(z), nearest(z, lambda y: [], PSD=True), atol=1e-6)


def test_derivatives():
    rng = np.random.default_rng(1)
    spectra = [
        (2.0, 1, -1, -3),
        (2, 2, -1, -1),
        (1, 1, 1, 1),
        (-1, -1, -1, -1),
        (2, 2 - 1e-10, -1, -1 + 1e-12),
        (1e-3, -1, 5, -5),
    ]
    for seed, values in enumerate(spectra):
        z, q = rotated(rng, values)
        check_derivatives(project, z, seed=seed)
        direction = rng.standard_normal((4, 4))
        direction += direction.T
        plus = np.maximum(values, 0)
        sizes = np.abs(values)
        weights = (plus[:, None] + plus) / (sizes[:, None] + sizes)  # Malick and Sendov (2006) for one sign each
        expected = q @ (weights * (q.T @ direction @ q)) @ q.T
        np.testing.assert_allclose(jax.jvp(project, (z,), (direction,))[1], expected, atol=1e-9)


def test_derivatives_are_finite_at_kinks():
    for z in (
        np.zeros((3, 3)),
        np.diag([1.0, 0, 0]),
        np.diag([1.0, 0, -1]),
        np.diag([1e-14, -1e-14, 1.0]),
        np.ones((3, 3)),
    ):
        jacobian = np.asarray(jax.jacobian(project)(z)).reshape(9, 9)
        assert np.isfinite(jacobian).all()
        assert np.linalg.norm(jacobian, 2) <= 1 + 1e-12
        gradient = jax.grad(lambda z: jnp.sum(project(z) ** 2))(z)
        # the squared distance to the polar cone is differentiable everywhere, its gradient is 2 P(z)
        np.testing.assert_allclose(gradient, 2 * project(z), atol=1e-9)


def test_a_batch_of_a_thousand_and_single_precision():
    z = np.random.default_rng(3).standard_normal((1000, 4, 4))
    batch = jax.vmap(project)(z)
    np.testing.assert_allclose(batch[7], project(z[7]), atol=1e-14)
    with jax.enable_x64(False):
        single = jax.vmap(project)(jnp.asarray(z))
        assert single.dtype == jnp.float32
        np.testing.assert_allclose(single, batch, atol=1e-5)
