"""Boxes cut by a strip against sorting, and what characterises a projection."""

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hierfl.projections import box_with_hyperplane
from tests.projections.reference import check_projection

pytestmark = pytest.mark.usefixtures("x64")
PROJECT, GAP = jax.jit(box_with_hyperplane.project), jax.jit(box_with_hyperplane.gap)
ANY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
N = 8


def example(rng, kind):
    """A nonempty set (a, low, high, lower, upper) through a random point of the box."""
    a = rng.standard_normal(N)
    lower, upper = -rng.random(N), rng.random(N)
    if "integer" in kind:
        a, lower, upper = np.round(2 * a), np.round(3 * lower), np.round(3 * upper)
    if "unbounded" in kind:
        lower[rng.random(N) < 0.5], upper[rng.random(N) < 0.5] = -np.inf, np.inf
    if "uneven" in kind:
        a, lower, upper = (side * 10.0 ** rng.uniform(-4, 4, N) for side in (a, lower, upper))
    if "free" in kind:
        lower, upper = np.full(N, -np.inf), np.full(N, np.inf)
    if "pinned" in kind:
        upper[:3] = lower[:3]
    inside = np.where(np.isfinite(lower), lower, -1) + rng.integers(0, 3, N) / 2 * np.where(
        np.isfinite(upper - lower), upper - lower, 0
    )
    value = a @ inside
    low, high = value - rng.random(), value + rng.random()
    if "hyperplane" in kind:
        low = high = value
    if "halfspace" in kind:
        low = -np.inf
    if "vertex" in kind:  # the strip meets the box in a face only
        low = high = np.sum(np.maximum(a * lower, a * upper))
    return a, low, high, lower, upper


def violation(a, low, high, lower, upper):
    return lambda y: max(
        max(a @ y - high, low - a @ y) / max(np.linalg.norm(a), 1e-300), (lower - y).max(), (y - upper).max()
    )


@ANY
@given(
    st.integers(0, 10**6),
    st.sampled_from(
        ["slab", "hyperplane", "halfspace", "vertex", "unbounded hyperplane", "pinned slab", "integer hyperplane",
         "integer vertex", "unbounded halfspace", "integer unbounded slab", "free hyperplane", "free halfspace", "free integer slab", "uneven hyperplane"]
    ),
    st.sampled_from([1e-8, 1.0, 1e8]),
    st.sampled_from([1e-3, 1.0, 1e3]),
)  # fmt: skip
def test_is_the_projection(seed, kind, scale, distance):
    rng = np.random.default_rng(seed)
    a, low, high, lower, upper = example(rng, kind)
    size = 10.0 ** rng.integers(-8, 9)
    bounds = (a * size, low * size * scale, high * size * scale, lower * scale, upper * scale)
    points = scale * distance * rng.standard_normal((30, N))
    check_projection(lambda z: PROJECT(z, *bounds), violation(*bounds), points)
    assert float(GAP(*bounds)) <= 0


def test_agrees_with_the_sorted_simplex_at_every_scale():
    rng = np.random.default_rng(0)
    for exponent in range(-8, 9):
        total = 10.0**exponent
        for z in (rng.standard_normal(1000), total * rng.standard_normal(1000), 1e8 * rng.random(1000)):
            p = np.asarray(PROJECT(z, np.ones(1000), total, total, np.zeros(1000), np.full(1000, np.inf)))
            ordered = np.sort(z)[::-1].astype(np.longdouble)
            thresholds = (np.cumsum(ordered) - total) / np.arange(1, 1001)
            theta = thresholds[np.sum(ordered > thresholds) - 1]
            np.testing.assert_allclose(p, np.maximum(z - theta, 0).astype(float), atol=1e-14 * (1 + np.abs(z).max()))
            assert abs(p.sum() - total) <= 1e-13 * total


def test_breakpoints_in_geometric_progression():
    """The worst case of Newton's method on such functions: every piece ends just before the root of its continuation."""
    z = 2.0 ** -np.arange(500.0)
    bounds = (np.ones(500), 1e-140, 1e-140, np.zeros(500), np.full(500, np.inf))
    p = np.asarray(PROJECT(z, *bounds))
    assert p.sum() == pytest.approx(1e-140, rel=1e-12) and p[0] == pytest.approx(1e-140, rel=1e-12)
    zigzag = np.concatenate([z, -z])
    caps = np.concatenate([z, np.full(500, 1e-3)])
    check_projection(
        lambda y: PROJECT(y, np.ones(1000), 0.5, 0.5, np.zeros(1000), caps),
        violation(np.ones(1000), 0.5, 0.5, np.zeros(1000), caps),
        np.stack([zigzag, 10 * zigzag, -zigzag, zigzag**2]),
    )


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (-1.0, np.inf), (-np.inf, np.inf), (0.0, 0.0)])
def test_a_vanishing_normal_leaves_the_box(low, high):
    z = np.linspace(-2, 2, N)
    p = PROJECT(z, np.zeros(N), low, high, -np.ones(N), np.ones(N))
    np.testing.assert_array_equal(p, np.clip(z, -1, 1))
    assert float(GAP(np.zeros(N), low, high, -np.ones(N), np.ones(N))) <= 0


@pytest.mark.parametrize(
    "bounds",
    [
        (np.ones(N), 9.0, 9.0, np.zeros(N), np.ones(N)),
        (np.ones(N), -np.inf, -1e-9, np.zeros(N), np.full(N, np.inf)),
        (np.zeros(N), 1.0, 2.0, np.zeros(N), np.ones(N)),
        (np.ones(N), 2.0, 1.0, np.zeros(N), np.ones(N)),
        (np.ones(N), 0.0, 1.0, np.ones(N) * 1e-8, np.zeros(N)),
        (1e8 * np.ones(N), 8e-2 + 1e-9, np.inf, np.zeros(N), np.full(N, 1e-10)),
    ],
)
def test_an_empty_set_has_a_positive_gap_and_a_finite_point(bounds):
    assert float(GAP(*bounds)) > 0
    assert np.isfinite(PROJECT(np.linspace(-1, 1, N), *bounds)).all()
