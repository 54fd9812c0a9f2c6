"""The solver contract: clients that know nothing but their own data and the algorithm's messages take the same path.

Every solver on every class of problem runs twice: with all data at hand, and with each client at a site of its own. There, a
holder of data knows its own rows and constants; everybody else's, of which the numbers of rows alone are public, are
elsewhere (``hf.Elsewhere``); laws are part of the declaration. Whatever reads what is elsewhere has no path.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import cvxpy as cp
import jax
import numpy as np
import pytest
import scipy.stats

import hierfl as hf
from hierfl.compiler.compiled_problem import CompiledProblem, penalised_problem
from hierfl.runtime import Flower, GaussianNoise, InProcess
from hierfl.runtime.contract import TRAFFIC
from hierfl.runtime.privacy.gaussian_noise import require_covered
from hierfl.runtime.sites.aggregation import Aggregation
from hierfl.runtime.sites.parcels import step_name
from hierfl.runtime.sites.rounds import require_buffered
from hierfl.solvers import (
    LFD,
    SCAFFOLD,
    ZOHFL,
    Exact,
    Extragradient,
    FedAvg,
    FedRZO,
    ImplicitBundle,
    ImplicitGradient,
    LocalSGD,
    LocalSGDA,
    Newton,
    ProjectedSGD,
    ProjectionMethod,
    Scaffnew,
)
from hierfl.solvers.standard_errors import sums_at
from tests.runtime.levels_at_sites import common, leaves, personal
from tests.runtime.on_flower.loopback import LoopbackGrid, each_alone

SIZES, STEPS, ROUNDS, SEED = (4, 7, 1), [3, 1, 2], 3, 5
START = np.array([0.3, -0.4])
EVERYBODY, SERVER = -2, -1  # holders of data, beside the clients 0, 1, 2


# --- who knows what ----------------------------------------------------------------------------------------------------


def known(party: int, holder: int) -> np.random.Generator:
    """Where a party's numbers come from, as the holder knows them."""
    return np.random.default_rng([party + 2] if holder in (EVERYBODY, party) else [party + 2, holder + 2])


def client(party: int, holder: int, u: hf.Sample, **parameters: hf.ClientParameter) -> hf.Client:
    rng = known(party, holder)
    if holder not in (EVERYBODY, party):
        return hf.Client({u: hf.Elsewhere(SIZES[party])}, dict.fromkeys(parameters.values(), hf.Elsewhere()))
    return hf.Client(
        {u: rng.standard_normal((SIZES[party], 2))}, {p: rng.uniform(0.2, 0.4) for p in parameters.values()}
    )


def federation(holder: int, u: hf.Sample, **parameters: hf.ClientParameter) -> hf.Federation:
    """Three clients and the server, with rows of their own."""
    own = hf.Client({u: known(SERVER, holder).standard_normal((5, 2))})
    return hf.Federation([client(i, holder, u, **parameters) for i in range(3)], own, weights="samples")


# --- one problem of each class -----------------------------------------------------------------------------------------


@cache
def flat(holder: int) -> hf.Problem:
    x, _, u = leaves()
    term = hf.E(0.5 * cp.square(u @ x - 1))
    return hf.Problem(hf.Minimize(clients=term), constraints=[cp.abs(x) <= 0.5], federation=federation(holder, u))


@cache
def smooth(holder: int) -> hf.Problem:
    x, _, u = leaves()
    objective = hf.Minimize(clients=hf.E(cp.logistic(u @ x) - 0.3 * u @ x), server=hf.E(cp.square(u @ x)))
    return hf.Problem(objective, federation=federation(holder, u))


@cache
def flat_with_server(holder: int) -> hf.Problem:
    x, _, u = leaves()
    objective = hf.Minimize(clients=hf.E(cp.abs(u @ x - 1)), server=hf.E(cp.square(u @ x)))
    return hf.Problem(objective, federation=federation(holder, u))


@cache
def private_sets(holder: int) -> hf.Problem:
    """Every client has an X_i of its own."""
    x, _, u = leaves()
    rho = hf.ClientParameter(nonneg=True, name="rho")
    return hf.Problem(
        hf.Minimize(clients=hf.E(cp.abs(u @ x - 1))),
        constraints=[cp.abs(x) <= rho],
        federation=federation(holder, u, rho=rho),
    )


@cache
def public_term(holder: int) -> hf.Problem:
    return personal(partial(federation, holder), private=False)


@cache
def private_term(holder: int) -> hf.Problem:
    return personal(partial(federation, holder))


@cache
def common_answer(holder: int) -> hf.Problem:
    return common(partial(federation, holder))


@cache
def coupled(holder: int) -> hf.Problem:
    """Federation scope without constraints: ``Exact`` solves a linear system."""
    x, y, u = leaves()
    return hf.Problem(
        hf.Minimize(clients=hf.E(cp.square(u @ y - 1)) + 0.5 * cp.sum_squares(x)),
        lower=hf.ArgMin(y, hf.E(0.5 * cp.square(u @ y - 1)) + 0.5 * cp.sum_squares(y - x)),
        federation=federation(holder, u),
    )


@cache
def game(holder: int) -> hf.Problem:
    """Minimax, with coupled constraints."""
    x, y, u = leaves()
    payoff = hf.E(0.5 * cp.sum_squares(x - u) + cp.multiply(u @ y, cp.sum(x))) - 0.5 * cp.sum_squares(y)
    return hf.Problem(
        hf.Minimize(clients=payoff),
        lower=hf.ArgMax(y, payoff, [y >= -0.4, y <= x + 0.3]),
        constraints=[x >= -0.5, x <= 0.5],
        federation=federation(holder, u),
    )


@cache
def chain(holder: int) -> hf.Problem:
    """Every client has two lower levels, the second at the answer of the first."""
    x, y, u = leaves()
    z, rho = cp.Variable(2, name="z"), hf.ClientParameter(nonneg=True, name="rho")
    first = hf.ArgMin(y, 0.5 * cp.sum_squares(y - rho + x), [y >= 0], scope="client")
    second = hf.ArgMin(z, cp.sum_squares(z - y) + cp.norm1(z - 1), [z <= 3 * rho], scope="client")
    objective = hf.Minimize(clients=cp.sum_squares(x) + cp.sum_squares(z) + hf.E(cp.square(u @ x)))
    return hf.Problem(objective, [first, second], [cp.abs(x) <= 0.5], federation(holder, u, rho=rho))


def answered(holder_federation: hf.Federation, x: cp.Variable, y: cp.Variable, u: hf.Sample) -> hf.Problem:
    """Sample scope: an equilibrium for every sample."""
    skew = np.array([[2.0, 1.0], [-1.0, 2.0]])
    return hf.Problem(
        hf.Minimize(clients=hf.E(cp.sum_squares(y - u)) + cp.sum(x)),
        lower=hf.Equilibrium(y, skew @ y - u + x, [y >= 0, y <= 1], scope="sample"),
        constraints=[cp.abs(x) <= 0.35],
        federation=holder_federation,
    )


@cache
def samples(holder: int) -> hf.Problem:
    x, y, u = leaves()
    return answered(federation(holder, u), x, y, u)


@cache
def distributions(holder: int) -> hf.Problem:
    """The same with laws instead of rows, which are part of the declaration: everybody knows them."""
    x, y, u = leaves()
    laws = [scipy.stats.uniform(known(i, EVERYBODY).uniform(0, 1), [1.0, 2.0]) for i in range(3)]
    return answered(hf.Federation([hf.Client({u: law}) for law in laws]), x, y, u)


class Case(NamedTuple):
    """A problem as a holder of data declares it, a solver for it, and whether to compare the run's own values as well."""

    problem: Callable[[int], hf.Problem]
    solver: Any
    with_value: bool = False


HALF = {"participation": 0.5}  # two of three clients in a round
SCRIPT = {"participation": np.tile([[False, True, False], [True, False, True], [True] * 3], (4, 1))}
LOCAL = {"smoothing": 0.1, "step_size": 0.02, "local_steps": STEPS, "batch_size": 2}
DESCENT = {"step_size": 0.1, "local_steps": STEPS, "batch_size": 2}
BY_PROJECTION = {"steps": 4, "step_size": 0.1}

CASES = {
    "ZOHFL, a term at the server and at the clients": Case(flat_with_server, ZOHFL(**HALF, batch_size=2, directions=2)),
    "ZOHFL, public clients' term": Case(public_term, ZOHFL(**HALF, local_steps=3)),
    "ZOHFL, private clients' term": Case(private_term, ZOHFL(**HALF, local_steps=[3, 0, 2], batch_size=2)),
    "ZOHFL, sample scope": Case(
        samples, ZOHFL(lower=ProjectedSGD(steps=3), batch_size=2, absent="renormalise", **HALF)
    ),
    "ZOHFL, scalars": Case(flat, ZOHFL(communication="scalars", batch_size=2, **HALF)),
    "FedRZO, one level": Case(flat, FedRZO(**LOCAL, **HALF)),
    "FedRZO, private sets": Case(private_sets, FedRZO(**LOCAL, estimator="central", directions=2)),
    "FedRZO, control variates": Case(flat, FedRZO(**LOCAL, control_variate=True, **HALF)),
    "FedRZO, client scope": Case(public_term, FedRZO(**LOCAL, lower=ProjectedSGD(steps=3, batch_size=2), **HALF), True),
    "FedRZO, two levels": Case(chain, FedRZO(smoothing=0.05, step_size=0.005), True),
    "FedRZO, sample scope": Case(samples, FedRZO(**LOCAL, lower=ProjectionMethod(**BY_PROJECTION)), True),
    "FedRZO, distributions": Case(distributions, FedRZO(**LOCAL, lower=Extragradient(**BY_PROJECTION))),
    "FedRZO, LocalSGD": Case(common_answer, FedRZO(**LOCAL, lower=LocalSGD(rounds=2, steps=3, batch_size=2), **HALF)),
    "FedRZO, LFD": Case(common_answer, FedRZO(**LOCAL, lower=LFD(rounds=2, steps=3))),
    "FedRZO, Exact": Case(common_answer, FedRZO(**LOCAL, lower=Exact()), True),
    "FedRZO, scalars": Case(coupled, FedRZO(**LOCAL, communication="scalars", lower=LFD(rounds=2, steps=3), **HALF)),
    "FedRZO, minimax": Case(game, FedRZO(**LOCAL, lower=LFD(rounds=2, steps=3))),
    "ImplicitGradient, client scope": Case(private_term, ImplicitGradient()),
    "ImplicitGradient, sample scope": Case(
        samples, ImplicitGradient(batch_size=2, lower=ProjectionMethod(**BY_PROJECTION))
    ),
    "ImplicitGradient, federation scope": Case(common_answer, ImplicitGradient(**HALF)),
    "ImplicitGradient, a linear system": Case(coupled, ImplicitGradient()),
    "FedAvg": Case(flat, FedAvg(**DESCENT, **HALF)),
    "FedAvg, server": Case(flat_with_server, FedAvg(**DESCENT)),
    "SCAFFOLD": Case(flat, SCAFFOLD(**DESCENT, **HALF)),
    "Scaffnew": Case(flat, Scaffnew(step_size=0.1, probability=0.5, batch_size=2)),
    "ZOHFL, a script": Case(private_term, ZOHFL(**SCRIPT, directions=2, direction_kind="orthonormal", local_steps=2)),
    "FedRZO, a script": Case(flat, FedRZO(**LOCAL, **SCRIPT, communication="scalars", absent="renormalise")),
    "Newton": Case(smooth, Newton()),
    "LocalSGDA": Case(game, LocalSGDA(**DESCENT, **HALF), True),
}


def at_sites(case: str) -> Flower:
    """A runtime whose sites each declare the problem for themselves."""
    return Flower(LoopbackGrid(each_alone(CASES[case].problem)), shared_seeds=True)


# --- the same path -----------------------------------------------------------------------------------------------------


class Run(NamedTuple):
    """x, the objective and the scalars sent of every round, and the run's own value at the end."""

    path: np.ndarray
    objective: np.ndarray
    sent: list[list[int]]
    own_value: float


def bound(case: str, holder: int) -> tuple[CompiledProblem, Any]:
    compiled = CASES[case].problem(holder).compile()
    return compiled, CASES[case].solver.bind(compiled, ROUNDS)


def run(runtime: Any, problem: CompiledProblem, algorithm: Any, with_value: bool = False) -> Run:
    path = []

    def record(done: int, state: Any, memory: Any, history: Any) -> None:
        path.append(np.asarray(algorithm.decision(state)))

    with jax.enable_x64(True):
        outcome = runtime.execute(problem, algorithm, START, ROUNDS, SEED, 1, record)
        own_value = float(outcome.own_value(path[-1]).value) if with_value else 0.0
    sent = [outcome.history[way].tolist() for way in TRAFFIC]
    return Run(np.stack(path), outcome.history["objective"], sent, own_value)


@pytest.mark.slow
@pytest.mark.parametrize("case", list(CASES))
def test_sites_of_their_own_take_the_same_path(case: str, x64: None) -> None:
    here, there, with_value = bound(case, EVERYBODY), bound(case, SERVER), CASES[case].with_value
    wanted, found = run(InProcess(), *here, with_value), run(at_sites(case), *there, with_value)
    assert np.abs(np.diff(wanted.path, axis=0)).max() > 1e-6  # it goes somewhere
    np.testing.assert_allclose(found.path, wanted.path, rtol=0, atol=1e-10)
    np.testing.assert_allclose(found.objective, wanted.objective, rtol=0, atol=1e-10)
    np.testing.assert_allclose(found.own_value, wanted.own_value, rtol=0, atol=1e-10)
    assert found.sent == wanted.sent


@pytest.mark.parametrize("holder", [0, SERVER])
def test_rows_elsewhere_are_no_data_of_this_process(holder: int, x64: None) -> None:
    with pytest.raises(
        hf.DataError, match="needs everybody's data in this process, and those of client . are elsewhere"
    ):
        run(InProcess(), *bound("FedAvg, server", holder))


def test_a_step_is_a_method_of_the_algorithm(x64: None) -> None:
    _, algorithm = bound("FedRZO, LFD", EVERYBODY)
    assert step_name(algorithm.local_steps, algorithm) == "local_steps"
    assert step_name(algorithm.lower.local_round, algorithm) == "oracle.lower.local_round"
    with pytest.raises(TypeError, match="no method of BoundFedRZO"):
        step_name(lambda party, memory, received, key: (memory, None), algorithm)


# --- upper constraints that mention y: the server hears means, and no answer

DEMANDS, CAPS = (4.0, 5.0, 6.0), (1.0, 2.0, 0.8)
ESTIMATED = FedRZO(smoothing=0.05, step_size=0.005)
FEW_ROUNDS: dict[str, Any] = {"rounds": 3, "x0": 5.0, "seed": 3, "progress": False}


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


def apart(declared: Callable[[int], hf.Problem]) -> Flower:
    return Flower(LoopbackGrid(each_alone(declared)), shared_seeds=True)


@pytest.mark.slow
def test_the_server_hears_what_is_violated_together() -> None:
    """The same path as with all data here; of the violation the weighted mean alone. Who has not declared the constraint refuses."""
    here, there = market(EVERYBODY), market(-1)
    with pytest.warns(hf.FeasibilityWarning, match="violated by .* at all clients together"):
        far = there.solve(ESTIMATED, runtime=apart(market), penalty=1.0, **FEW_ROUNDS)
    with pytest.raises(hf.SiteError, match="another problem is declared here"):
        there.solve(ESTIMATED, runtime=apart(lambda holder: market(holder, capped=False)), penalty=1.0, **FEW_ROUNDS)
    violated = np.mean(np.maximum(0, np.maximum(0, np.array(DEMANDS) - far.x) - CAPS))
    assert far.violation.worst == pytest.approx(violated, rel=1e-9)
    assert far.value == pytest.approx(float(far.x) ** 2, rel=1e-12)
    with pytest.warns(hf.FeasibilityWarning):
        same = here.solve(ESTIMATED, penalty=1.0, **FEW_ROUNDS)
    np.testing.assert_allclose(far.x, same.x, rtol=0, atol=1e-10)
    with pytest.raises(hf.HierflError, match="elsewhere"):
        there.solve(ImplicitBundle(), **FEW_ROUNDS)


@pytest.mark.slow
@pytest.mark.parametrize("solver", [ESTIMATED, ZOHFL(smoothing=0.05, step_size=0.005), ImplicitGradient(step_size=0.005)])
def test_a_mean_over_clients_is_told_by_its_parts(solver: Any) -> None:
    """The same path as with all data here; all that is sent in a round beyond the plain problem's is a number of each client, its part in the mean."""
    settings = FEW_ROUNDS | {"x0": 3.5}
    with pytest.warns(hf.FeasibilityWarning):
        far = capped_together(-1).solve(solver, runtime=apart(capped_together), penalty=10.0, **settings)
        same = capped_together(EVERYBODY).solve(solver, penalty=10.0, **settings)
    np.testing.assert_allclose(far.x, same.x, rtol=0, atol=1e-10)
    assert far.violation.worst == pytest.approx(np.mean(np.maximum(0, np.array(DEMANDS) - far.x)) - 1, rel=1e-9)
    plain = market(EVERYBODY, capped=False).solve(solver, **settings)
    assert far.x > plain.x + 0.01  # the price has moved it
    assert far.communication["lower_scalars_up"] == 3 * FEW_ROUNDS["rounds"]


def test_what_would_hide_messages_is_refused_beside_a_mean_over_clients() -> None:
    problem = penalised_problem(capped_together(EVERYBODY).compile())
    algorithm = ESTIMATED.bind(problem, 5)
    for require in (require_covered, require_buffered, Aggregation("median", 0.1).require_fitting):
        with pytest.raises(hf.IncompatibleSolverError, match="mean"):
            require(problem, algorithm)


@pytest.mark.slow
def test_with_noise_nothing_is_asked_beyond_the_run() -> None:
    """Its epsilon is of a message a round: what f and the violation are, clients would withhold, and nobody asks them."""
    crossed: list[Any] = []
    runtime = Flower(LoopbackGrid(each_alone(market)), noise=GaussianNoise(1.0, 8.0), watcher=crossed.append)
    with pytest.warns(hf.FeasibilityWarning, match="is not known"):
        result = market(-1).solve(ESTIMATED, runtime=runtime, penalty=1.0, **FEW_ROUNDS)
    sent = sum(one.way == "up" and one.step == "local_steps" for one in crossed)
    assert sent == len(CAPS) * result.settings["privacy"]["released"] == len(CAPS) * FEW_ROUNDS["rounds"]


def test_sites_say_of_their_rows_what_the_rows_say(x64: None) -> None:
    """The sums of standard errors, asked of sites of their own."""
    x, u = np.array([0.3, -0.2]), leaves()[2]
    found = sums_at(bound("Newton", SERVER)[0], x, at_sites("Newton"))
    for place in range(3):
        held = client(place, EVERYBODY, u).samples[u]
        mean = 1 / (1 + np.exp(-held @ x))
        psi = held * (mean - 0.3)[:, None] / len(held)
        np.testing.assert_allclose(found.gradient[place], psi.sum(axis=0), atol=1e-14)
        np.testing.assert_allclose(found.outer[place], psi.T @ psi, atol=1e-14)
        np.testing.assert_allclose(found.influence[place], psi.sum(axis=0), atol=1e-14)
        np.testing.assert_allclose(found.hessian[place], (held.T * (mean * (1 - mean))) @ held / len(held), atol=1e-14)
