"""log_det below: its domain is the inside of a cone that no row bounds, where a nearest point to zero or to ones is not."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf

KINDS = {
    "attribute": (lambda n: cp.Variable((n, n), PSD=True), lambda s: []),
    "constraint": (lambda n: cp.Variable((n, n), symmetric=True), lambda s: [s >> 0]),
    "only its own domain": (lambda n: cp.Variable((n, n), symmetric=True), lambda s: []),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_the_proximal_point_of_a_determinant(kind: str, seed: int) -> None:
    """argmin |S - T|^2 / 2 - c log det S has T's eigenvectors and the eigenvalues (w + sqrt(w^2 + 4 c)) / 2."""
    rng = np.random.default_rng(seed)
    n = 1 + seed
    t, d, w = (part + part.T for part in rng.normal(size=(3, n, n)))
    make, constraints = KINDS[kind]
    x, s = cp.Variable(name="x"), make(n)
    lower = hf.ArgMin(s, cp.sum_squares(s - t - x * d) / 2 - 0.3 * cp.log_det(s), constraints(s))
    implicit = hf.Problem(hf.Minimize(clients=cp.trace(w @ s)), lower).implicit

    def value(at: float) -> float:
        values, vectors = np.linalg.eigh(t + at * d)
        return float(np.trace(w @ (vectors * (values + np.sqrt(values**2 + 1.2)) / 2) @ vectors.T))

    assert implicit(0.4) == pytest.approx(value(0.4), abs=1e-9)
    assert implicit.gradient(0.4) == pytest.approx((value(0.401) - value(0.399)) / 0.002, abs=1e-4)


def test_an_inverse_is_the_answer_without_a_quadratic_term() -> None:
    x, s = cp.Variable(name="x"), cp.Variable((2, 2), PSD=True)
    lower = hf.ArgMin(s, x * cp.trace(s) - cp.log_det(s))
    implicit = hf.Problem(hf.Minimize(clients=cp.trace(s)), lower).implicit
    assert implicit(2.0) == pytest.approx(1.0, abs=1e-9)
    assert implicit.gradient(2.0) == pytest.approx(-0.5, abs=1e-6)
