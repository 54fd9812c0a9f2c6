"""Smooth terms beside norms and maxima of the data: Newton's method over cones, where y goes to 0 too; against CVXPY."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("pinned", [True, False])
def test_a_client_has_its_answer_alone_and_in_company(seed: int, pinned: bool) -> None:
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((3, 2))
    data = [(rng.standard_normal((n, 2)), rng.uniform(0.3, 2.0, n)) for n in (6, 5, 2)]
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    d, t = hf.Sample(2, name="d"), hf.Sample(nonneg=True, name="t")
    rows = [cp.norm_inf(y) <= 2, *([y[0] == 0] if pinned else [])]
    cost = hf.E(cp.sum(cp.huber(y - d, 0.5))) + hf.E(t * cp.max(w @ y)) + hf.E(t * cp.norm(y - d))
    below = hf.ArgMin(y, cost + 0.1 * cp.sum_squares(y) + 0 * x, rows, scope="client")

    def answers(clients: list[int]) -> np.ndarray:
        held = hf.Federation([hf.Client({d: data[k][0], t: data[k][1]}) for k in clients])
        problem = hf.Problem(hf.Minimize(clients=cp.sum(y)), below, federation=held)
        return np.reshape(problem.implicit.response(0.0), (len(clients), 2))

    together = answers([0, 1, 2])
    for k, (points, weights) in enumerate(data):
        terms = [cp.sum(cp.huber(y - p, 0.5)) + s * cp.max(w @ y) + s * cp.norm(y - p) for p, s in zip(points, weights)]
        cp.Problem(cp.Minimize(sum(terms) / len(terms) + 0.1 * cp.sum_squares(y)), rows).solve(solver=cp.CLARABEL)
        np.testing.assert_allclose(together[k], y.value, atol=2e-4)
        np.testing.assert_allclose(answers([k])[0], together[k], atol=1e-8)
