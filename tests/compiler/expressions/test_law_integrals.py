"""What lies beyond a point of a law, against SciPy's integrals of the probability."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats as stats
from scipy.integrate import quad

from hierfl.compiler.data.evaluation_nodes import evaluation_nodes
from hierfl.compiler.expressions.law_kinks import LawIntegrals, excess
from hierfl.language.sample import Sample

LAWS: dict[str, tuple[Any, float]] = {  # with the error that 1,024 nodes are to keep
    "normal": (stats.norm(1, 2), 1e-13),
    "far away": (stats.norm(1e6, 1e-3), 1e-8),
    "uniform": (stats.uniform(-1, 3), 1e-13),
    "exponential": (stats.expon(), 1e-13),
    "t": (stats.t(8), 1e-12),
    "heavy tails": (stats.t(3), 1e-10),
    "a kink of the density": (stats.laplace(), 1e-9),
    "jumps of the density": (stats.rv_histogram((np.array([1.0, 5.0, 0.0, 2.0]), np.array([-1.0, 0.0, 0.5, 2.0, 3.0]))), 1e-13),
    "an infinite density": (stats.gamma(0.5), 1e-12),
    "lognormal": (stats.lognorm(1), 1e-11),
}  # fmt: skip
PROBABILITIES = np.array([1e-9, 0.01, 0.2, 0.37, 0.5, 0.77, 0.99, 0.9999])


def integrals(law: Any, points: int = 1024) -> LawIntegrals:
    d = Sample(name="d")
    nodes = evaluation_nodes({d: law}, points, "a client", 0)
    return LawIntegrals.of(law, nodes.values[d.id], nodes.jump)


def whole(part: LawIntegrals) -> jax.Array:
    return jnp.asarray(part.table)


def by_scipy(law: Any, r: float, power: int = 1) -> float:
    """E(d - r)+^power / power: the integral of (t - r)^(power - 1) P(d > t) over t beyond r."""
    low, high = law.support()
    ends = [max(r, low), *(q for q in law.isf([0.999, 0.9, 0.5, 0.1, 1e-3, 1e-6, 1e-9, 1e-12]) if q > max(r, low))]
    ends.append(high)
    tail = sum(
        quad(lambda t: (t - r) ** (power - 1) * law.sf(t), a, b, epsabs=1e-15, epsrel=1e-12, limit=400)[0]
        for a, b in pairwise(ends)
        if b > a
    )
    return float(tail + max(low - r, 0.0) ** power / power)


@pytest.mark.filterwarnings("ignore::scipy.integrate.IntegrationWarning")
@pytest.mark.parametrize("name", LAWS)
def test_the_excess_is_the_law_s(name: str, x64: None) -> None:
    law, error = LAWS[name]
    r = np.array([*law.ppf(PROBABILITIES), law.ppf(1e-9) - 1.0])
    first, second = excess(whole(integrals(law)), jnp.asarray(r))
    scale = float(law.ppf(0.9) - law.ppf(0.1))
    np.testing.assert_allclose(first, [by_scipy(law, p) for p in r], atol=error * scale)
    if name != "heavy tails":  # of their second moment a part lies beyond the nodes
        np.testing.assert_allclose(second, [by_scipy(law, p, 2) for p in r], atol=10 * error * scale**2, rtol=1e-11)


@pytest.mark.parametrize("name", ["normal", "t", "a kink of the density", "lognormal"])
def test_what_the_polynomials_miss_is_told(name: str, x64: None) -> None:
    """With few nodes there is something to see: the true error is no larger than what a tilt adds, twice over."""
    law, _ = LAWS[name]
    of = integrals(law, 64)
    r = law.ppf(PROBABILITIES[1:])
    found = np.asarray(excess(whole(of), jnp.asarray(r))[0])
    told = np.asarray(excess(whole(of.tilted()), jnp.asarray(r))[0]) - found
    error = np.abs(found - [by_scipy(law, p) for p in r])
    assert (error <= 2 * told + 1e-14).all() and error.max() > 1e-10
