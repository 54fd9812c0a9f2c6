"""ZO-HFL: its options, and its results on problems with known answers; the printed algorithm is in ``test_printed_algorithms.py``."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import cvxpy as cp
import numpy as np
import pytest
import scipy.stats

import hierfl as hf
from hierfl.solvers import ZOHFL, FedAC, FedRZO, ImplicitGradient, LocalSGD

RADIUS = 0.8


def personalised_ridge() -> hf.Problem:
    """f_1 = E_server (u'x - 1)^2, f_2 = ||x - y||^2 / 2, h = E (u'y - 1)^2 / 2 + ||y - x||^2 / 4, ||y - x|| <= RADIUS."""
    rng = np.random.default_rng(0)
    data, server = [rng.standard_normal((n, 3)) for n in (4, 7, 1)], rng.standard_normal((5, 3))
    x, y, u = cp.Variable(3, name="x"), cp.Variable(3, name="y"), hf.Sample(3, name="u")
    return hf.Problem(
        hf.Minimize(server=hf.E(cp.square(u @ x - 1)), clients=0.5 * cp.sum_squares(x - y)),
        lower=hf.ArgMin(
            y,
            hf.E(0.5 * cp.square(u @ y - 1)) + 0.25 * cp.sum_squares(y - x),
            [cp.norm(y - x) <= RADIUS],
            scope="client",
        ),
        federation=hf.Federation([hf.Client({u: d}) for d in data], server=hf.Client({u: server})),
    )


def test_projected_server_step_keeps_x_feasible() -> None:
    x = cp.Variable(4, name="x", nonneg=True)
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum_squares(x - np.array([2.0, -1.0, 0.5, 0.0]))), constraints=[cp.sum(x) == 1]
    )
    result = problem.solve(
        ZOHFL(step_size=0.05, smoothing=0.05, directions=4, direction_kind="orthonormal"), rounds=400, progress=False
    )
    assert result.x.min() >= 0 and result.x.sum() == pytest.approx(1)
    np.testing.assert_allclose(result.x, [1, 0, 0, 0], atol=0.05)
    assert np.max(result.distances) < 1e-9


def test_private_constraints_on_x() -> None:
    x, cap = cp.Variable(name="x"), hf.ClientParameter(name="cap")
    problem = hf.Problem(
        hf.Minimize(clients=cp.square(x - 5)),
        constraints=[x >= 0, x <= cap],
        federation=hf.Federation([hf.Client(parameters={cap: 1.0}), hf.Client(parameters={cap: 3.0})]),
    )
    for solver in (ZOHFL(), ImplicitGradient()):  # the server cannot know them
        with pytest.raises(hf.errors.IncompatibleSolverError, match="private constraints"):
            problem.solve(solver, progress=False)
    result = problem.solve(FedRZO(smoothing=0.01, step_size=0.002, local_steps=5), rounds=600, progress=False)
    assert result.x == pytest.approx(1.0, abs=1e-2)  # on X, the intersection
    assert result.distances[1] == 0


SCRIPT = """
import warnings; warnings.simplefilter("ignore")
import numpy as np
from tests.solvers.test_zohfl import personalised_ridge
from hierfl.solvers import ZOHFL
print(personalised_ridge().solve(ZOHFL(local_steps=3), rounds=12, seed=7, progress=False).x.tobytes().hex())
"""


@pytest.mark.optimised  # as the other process is
def test_same_seed_same_bits_in_two_processes() -> None:
    apart = {**os.environ, "HIERFL_CACHE": "off"}  # which compiles its programs itself
    other = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, env=apart).stdout
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        here = personalised_ridge().solve(ZOHFL(local_steps=3), rounds=12, seed=7, progress=False).x.tobytes().hex()
    assert len(here) == 48
    assert here == other.strip()


def test_private_upper_terms_send_one_difference_per_direction() -> None:
    x, s = cp.Variable(2, name="x"), hf.Sample(2, name="s")
    problem = hf.Problem(
        hf.Minimize(clients=hf.E(cp.sum_squares(x - s))),
        federation=hf.Federation([hf.Client({s: scipy.stats.norm()})] * 3),
    )
    result = problem.solve(ZOHFL(directions=2), rounds=2, progress=False)
    assert result.communication["scalars_up_per_round"] == 3 * 2


def test_raw_queries_look_outside_x() -> None:
    x = cp.Variable(name="x")
    problem = hf.Problem(
        hf.Minimize(clients=hf.BlackBox(lambda v: float(v) if v <= 1 else 100.0, x)), constraints=[x <= 1, x >= 0]
    )
    projected = problem.solve(ZOHFL(smoothing=0.1, step_size=1e-12), rounds=3, x0=1.0, progress=False)
    raw = problem.solve(ZOHFL(smoothing=0.1, step_size=1e-12), rounds=3, x0=1.0, queries="raw", progress=False)
    assert projected.history["objective"].max() <= 1
    assert raw.history["objective"].max() > 10


def test_host_callbacks_keep_double_precision_inside_a_run() -> None:
    x, y, s = cp.Variable(name="x"), cp.Variable(2, name="y"), hf.Sample(2, name="s")
    data = np.random.default_rng(0).standard_normal((4, 2))
    problem = hf.Problem(
        hf.Minimize(clients=hf.BlackBox(lambda a, b: float(a**2 + np.sum(b)), x, y)),
        lower=hf.ArgMin(y, hf.E(cp.sum_squares(y - s)) + cp.sum_squares(y - x), [cp.norm1(y) <= 1], scope="client"),
        federation=hf.Federation([hf.Client({s: data}), hf.Client({s: data[:1]})]),
    )
    result = problem.solve(ZOHFL(step_size=0.1, local_steps=5), rounds=3, progress=False)
    assert result.history["objective"].dtype == np.float64 and np.isfinite(result.value)


def test_server_terms_in_y_are_refused_with_the_way_out() -> None:
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    problem = hf.Problem(hf.Minimize(server=cp.square(y)), lower=hf.ArgMin(y, cp.square(y - x)))
    with pytest.raises(hf.IncompatibleSolverError, match="move it to clients"):
        problem.solve(ZOHFL(), rounds=1, progress=False)


def test_a_lower_solver_of_the_federation_is_refused_for_a_client_alone() -> None:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    lower = hf.ArgMin(y, cp.sum_squares(y - x), scope="federation")
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y)), lower, federation=hf.Federation([hf.Client()]))
    for solver in (FedAC(), LocalSGD()):
        with pytest.raises(hf.IncompatibleSolverError, match="a client for its own y"):
            problem.solve(ZOHFL(lower=solver), progress=False)


@pytest.mark.parametrize("scope", ["client", "sample"])
def test_a_lower_solver_of_the_federation_names_those_of_other_scopes(scope: str) -> None:
    x, y, s = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.Sample(2, name="s")
    lower = hf.ArgMin(y, cp.sum_squares(y - x) + hf.E(y @ s) if scope == "client" else cp.sum_squares(y - x - s), scope=scope)
    federation = hf.Federation([hf.Client({s: np.eye(2) * k}) for k in (1, 2)])
    problem = hf.Problem(hf.Minimize(clients=hf.E(cp.sum_squares(y - s))), lower, federation=federation)
    for solver in (FedAC(), LocalSGD()):
        with pytest.raises(hf.IncompatibleSolverError, match=rf"federation scope, but this one has {scope} scope: .*ProjectedSGD"):
            problem.solve(ZOHFL(lower=solver, step_size=0.1), rounds=1, progress=False)
