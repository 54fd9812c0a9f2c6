"""Upper constraints that mention y where clients' data are at sites of their own: the server hears means, and no answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.compiler.compiled_problem import penalised_problem
from hierfl.runtime import Flower, GaussianNoise
from hierfl.runtime.privacy.gaussian_noise import require_covered
from hierfl.runtime.sites.aggregation import Aggregation
from hierfl.runtime.sites.rounds import require_buffered
from hierfl.solvers import ZOHFL, FedRZO, ImplicitBundle, ImplicitGradient
from tests.runtime.on_flower.loopback import LoopbackGrid, each_alone

EVERYBODY = -2
DEMANDS, CAPS = (4.0, 5.0, 6.0), (1.0, 2.0, 0.8)
SOLVER = FedRZO(smoothing=0.05, step_size=0.005)
SETTINGS: dict[str, Any] = {"rounds": 3, "x0": 5.0, "seed": 3, "progress": False}


def market(holder: int, *, capped: bool = True, together: bool = False) -> hf.Problem:
    """y_i = max(0, d_i - x) is at most a cap that only client i knows: x = 5.2 is the least."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    demand, cap = hf.ClientParameter(name="demand"), hf.ClientParameter(name="cap")
    clients = [
        hf.Client(parameters={demand: d, cap: c} if holder in (EVERYBODY, k) else dict.fromkeys([demand, cap], hf.Elsewhere()))
        for k, (d, c) in enumerate(zip(DEMANDS, CAPS))
    ]
    lower = hf.ArgMin(y, 0.5 * cp.square(y - demand + x), [y >= 0], scope="client")
    given = [hf.E(y) <= 1 if together else y <= cap] if capped else []
    return hf.Problem(hf.Minimize(clients=cp.square(x)), lower, [x <= 10, *given], hf.Federation(clients))


def capped_together(holder: int) -> hf.Problem:
    """The mean over the clients is at most 1: x = 4 is the least."""
    return market(holder, together=True)


def at_sites(declared: Callable[[int], hf.Problem]) -> Flower:
    return Flower(LoopbackGrid(each_alone(declared)), shared_seeds=True)


@pytest.mark.slow
def test_the_server_hears_what_is_violated_together() -> None:
    """The same path as with all data here; of the violation the weighted mean alone. Who has not declared the constraint refuses."""
    here, there = market(EVERYBODY), market(-1)
    with pytest.warns(hf.FeasibilityWarning, match="violated by .* at all clients together"):
        far = there.solve(SOLVER, runtime=at_sites(market), penalty=1.0, **SETTINGS)
    with pytest.raises(hf.SiteError, match="another problem is declared here"):
        there.solve(SOLVER, runtime=at_sites(lambda holder: market(holder, capped=False)), penalty=1.0, **SETTINGS)
    violated = np.mean(np.maximum(0, np.maximum(0, np.array(DEMANDS) - far.x) - CAPS))
    assert far.violation.worst == pytest.approx(violated, rel=1e-9)
    assert far.value == pytest.approx(float(far.x) ** 2, rel=1e-12)
    with pytest.warns(hf.FeasibilityWarning):
        same = here.solve(SOLVER, penalty=1.0, **SETTINGS)
    np.testing.assert_allclose(far.x, same.x, rtol=0, atol=1e-10)
    with pytest.raises(hf.HierflError, match="elsewhere"):
        there.solve(ImplicitBundle(), **SETTINGS)


@pytest.mark.slow
@pytest.mark.parametrize("solver", [SOLVER, ZOHFL(smoothing=0.05, step_size=0.005), ImplicitGradient(step_size=0.005)])
def test_a_mean_over_clients_is_told_by_its_parts(solver: Any) -> None:
    """The same path as with all data here; all that is sent in a round beyond the plain problem's is a number of each client, its part in the mean."""
    settings = SETTINGS | {"x0": 3.5}
    with pytest.warns(hf.FeasibilityWarning):
        far = capped_together(-1).solve(solver, runtime=at_sites(capped_together), penalty=10.0, **settings)
        same = capped_together(EVERYBODY).solve(solver, penalty=10.0, **settings)
    np.testing.assert_allclose(far.x, same.x, rtol=0, atol=1e-10)
    assert far.violation.worst == pytest.approx(np.mean(np.maximum(0, np.array(DEMANDS) - far.x)) - 1, rel=1e-9)
    plain = market(EVERYBODY, capped=False).solve(solver, **settings)
    assert far.x > plain.x + 0.01  # the price has moved it
    assert far.communication["lower_scalars_up"] == 3 * SETTINGS["rounds"]


def test_what_would_hide_messages_is_refused_beside_a_mean_over_clients() -> None:
    problem = penalised_problem(capped_together(EVERYBODY).compile())
    algorithm = SOLVER.bind(problem, 5)
    for require in (require_covered, require_buffered, Aggregation("median", 0.1).require_fitting):
        with pytest.raises(hf.IncompatibleSolverError, match="mean"):
            require(problem, algorithm)


@pytest.mark.slow
def test_with_noise_nothing_is_asked_beyond_the_run() -> None:
    """Its epsilon is of a message a round: what f and the violation are, clients would withhold, and nobody asks them."""
    crossed: list[Any] = []
    runtime = Flower(LoopbackGrid(each_alone(market)), noise=GaussianNoise(1.0, 8.0), watcher=crossed.append)
    with pytest.warns(hf.FeasibilityWarning, match="is not known"):
        result = market(-1).solve(SOLVER, runtime=runtime, penalty=1.0, **SETTINGS)
    sent = sum(one.way == "up" and one.step == "local_steps" for one in crossed)
    assert sent == len(CAPS) * result.settings["privacy"]["released"] == len(CAPS) * SETTINGS["rounds"]
