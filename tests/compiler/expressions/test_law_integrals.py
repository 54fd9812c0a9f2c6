"""What lies beyond a point of a law, against SciPy's integrals of the probability."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import scipy.stats as stats
from hypothesis import assume, given
from hypothesis import strategies as st

import hierfl as hf
from hierfl.compiler.data.evaluation_nodes import evaluation_nodes
from hierfl.compiler.expressions.law_kinks import LawIntegrals
from hierfl.language.sample import Sample


def integrals(law: Any, points: int = 1024) -> LawIntegrals:
    d = Sample(name="d")
    nodes = evaluation_nodes({d: law}, points, "a client", 0)
    return LawIntegrals.of(law, nodes.values[d.id], nodes.jump)


# --- Where densities jump: the places themselves, what is told of such laws, and the kinks that answers have there.


EDGES = np.array([0.0, 1.0, 2.0, 2.5, 3.0, 7.0, 8.0, 8.25])
SHARES = np.array([3.0, 0.0, 0.0, 5.0, 2.0, 0.0, 4.0])


def histogram(shares: np.ndarray, edges: np.ndarray) -> Any:
    return stats.rv_histogram((shares / np.diff(edges), edges), density=True)()


def jumps(law: Any) -> np.ndarray:
    d = hf.Sample(name="d")
    nodes = evaluation_nodes({d: law}, 1024, "a client", 0)
    return np.unique(np.round(nodes.values[d.id][nodes.jump], 12))


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 1.0, 1.01, 3.0, 20.0]), st.sampled_from([0.02, 0.3, 5.0])),
        min_size=1,
        max_size=8,
    )
)
def test_the_edges_of_every_histogram(bins: list[tuple[float, float]]) -> None:
    heights, widths = np.array(bins).T
    if not heights.any():
        heights = heights + 1.0
    edges = np.append(0.0, np.cumsum(widths))
    edges = edges[(first := np.flatnonzero(heights)[0]) : (last := np.flatnonzero(heights)[-1]) + 2]
    heights = heights[first : last + 1]
    heights = heights / (heights @ np.diff(edges))
    seen = 1 / (
        512 * 8 * heights[heights > 0].min()
    )  # 512 nodes are spread evenly; between two of them an eighth of the way is seen
    assume(np.diff(edges).min() > seen and (heights * np.diff(edges))[heights > 0].min() > 0.01)
    changes = np.append(True, np.append(np.diff(heights) != 0, True))
    law = stats.rv_histogram((heights, edges), density=True)
    np.testing.assert_allclose(jumps(law), edges[changes], atol=1e-11 * np.ptp(edges))  # its ends are SciPy's quantiles


def response(law: Any) -> hf.Problem:
    """y minimises (y - x)^2 / 2 + 2 E(d - y)+, so that y = x + 2 P(d > y): its slope is 1 / (1 + 2 density(y))."""
    x, y, d = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="d")
    return hf.Problem(
        hf.Minimize(clients=cp.square(y - 2.3) + 0.1 * x),
        lower=hf.ArgMin(y, cp.square(y - x) / 2 + 2 * hf.E(cp.pos(d - y))),
        federation=hf.Federation([hf.Client({d: law})]),
    )


@pytest.mark.parametrize(
    "law, places",
    [
        (stats.uniform(1, 2), [1, 3]),
        (stats.expon(), [0]),
        (stats.norm(2, 1), []),
        (histogram(SHARES, EDGES), [0, 1, 2.5, 3, 7, 8, 8.25]),
    ],
    ids=["uniform", "exponential", "normal", "bins and gaps"],
)
def test_a_slice_has_a_kink_where_y_passes_a_jump(law: Any, places: list[float]) -> None:
    problem, at = response(law), np.array(places)
    looked = problem.implicit.slice(0.0, direction=1.0, radius=9.0, points=91, progress=False)
    np.testing.assert_allclose([kink.t for kink in looked.kinks], at - 2 * law.sf(at), atol=1e-9)
    for kink, place in zip(looked.kinks, places):
        for slope, side in ((kink.left_slope, -1e-9), (kink.right_slope, 1e-9)):
            density = law.pdf(place + side)
            assert slope == pytest.approx(0.1 + 2 * (place - 2.3) / (1 + 2 * density), abs=1e-6)
        assert "of client 0, whose law has a jump of its density at" in str(kink)


@pytest.mark.parametrize("count", [3, 7, 40])
def test_moments_of_bins_and_gaps_are_integrated_bin_by_bin(count: int) -> None:
    generator = np.random.default_rng(count)
    edges = np.cumsum(generator.uniform(0.1, 2.0, count + 1))
    shares = generator.integers(0, 4, count) + (np.arange(count) % 3 == 0)
    law = histogram(shares / shares.sum(), edges)
    d, x = hf.Sample(name="d"), cp.Variable(name="x")
    problem = hf.Problem(
        hf.Minimize(clients=hf.E(x * d + cp.square(d - x))), federation=hf.Federation([hf.Client({d: law})])
    )
    p = shares / shares.sum()
    mean = p @ (edges[1:] + edges[:-1]) / 2
    square = p @ (edges[1:] ** 2 + edges[1:] * edges[:-1] + edges[:-1] ** 2) / 3
    error = 1e-12 if count < 40 else 1e-4  # so few points are left for every bin
    assert problem.implicit(2.0) == pytest.approx(2 * mean + square - 4 * mean + 4, rel=error)
    assert problem.implicit.gradient(2.0) == pytest.approx(mean - 2 * mean + 4, rel=1e-12)
