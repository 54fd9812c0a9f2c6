"""The algorithms of [NN], [2S] and [HFL] as printed, line by line in NumPy, against every iterate of a run.

Each helper is one algorithm of a paper, with the lines it transcribes beside it; it knows nothing of hierfl, but for the
draws, which are replayed from a run's keys. The papers' means (1/m) sum_i are over all clients; ``Cohort`` has them with weights,
and over the clients of a round too. The sources that the papers cite for baselines are in ``test_baselines.py``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import cvxpy as cp
import jax
import numpy as np
import pytest

import hierfl as hf
from hierfl.solvers import LFD, ZOHFL, Decay, Extragradient, FedAC, FedRZO, LocalSGD, ProjectedSGD, ProjectionMethod
from tests.draws import chosen, directions, row_numbers, split
from tests.draws import fold_in as fold

Array = np.ndarray
SEED, ROUNDS, N = 5, 12, 2
ETA, GAMMA = 0.1, 0.02
START = np.array([0.3, -0.4])
ROWS = [np.random.default_rng(i).standard_normal((n, N)) for i, n in enumerate((4, 7, 1))]  # of xi
LOWER_ROWS = [np.random.default_rng(9 + i).standard_normal((n, N)) for i, n in enumerate((3, 5, 2))]  # of zeta
ROUND_STREAM, COHORT_STREAM, SERVER_STREAM = 2**31 - 1, 2**31 - 2, 2**31 - 3


@dataclass(frozen=True)
class Cohort:
    """Who takes part, how much each counts, which X_i = {x <= cap_i} it has, and how many local steps it makes."""

    weights: Sequence[float]
    caps: Sequence[float]
    local_steps: Any
    participation: Any = 1.0

    @property
    def size(self) -> int:
        """m."""
        return len(self.weights)

    def present(self, r: int) -> list[int]:
        """The clients of a round: all of them, those of a script, or ceil(participation m) drawn without replacement."""
        if callable(self.participation):
            return self.participation(r)
        if self.participation == 1:
            return list(range(self.size))
        key = fold(fold(jax.random.key(SEED), r), COHORT_STREAM)
        return chosen(key, int(np.ceil(self.participation * self.size)), self.size)

    def steps(self, r: int, i: int) -> int:
        """T_{r+1} - T_r of a client."""
        own = self.local_steps
        return own(r) if callable(own) else own[i]

    def first_step(self, r: int) -> int:
        """T_r: the synchronization index, by the clients that make the most steps."""
        return sum(max(self.steps(s, i) for i in range(self.size)) for s in range(r))

    def combined(self, values: dict[int, Array]) -> Array:
        """(1/m) sum_i v_i; with weights sum_i w_i v_i, of participants times m/|S|, which is unbiased for it."""
        return self.size / len(values) * sum(self.weights[i] * v for i, v in values.items())

    def average(self, x: Array, ends: dict[int, Array]) -> Array:
        """(1/m) sum_i x_i, absent clients standing still on average."""
        return x + self.combined({i: end - x for i, end in ends.items()})

    def project(self, x: Array, i: int) -> Array:
        """P_{X_i}."""
        return np.minimum(x, self.caps[i])

    def federation(self, cap: hf.ClientParameter | None, *samples: hf.Sample, **settings: Any) -> hf.Federation:
        """The clients with their data: of xi, and of zeta where a second sample is given."""
        tables = [dict(zip(samples, rows)) for rows in zip(ROWS, LOWER_ROWS)][: self.size]
        own = [{} if cap is None else {cap: bound} for bound in self.caps]
        clients = [hf.Client(table, values) for table, values in zip(tables, own)]
        return hf.Federation(clients, weights=self.weights, **settings)


def one_two_three(r: int) -> int:
    """Rounds of different lengths."""
    return 1 + r % 3


COHORTS = {
    "as-printed": Cohort([1 / 3] * 3, [0.35, 0.25, 0.6], one_two_three),
    "one-client": Cohort([1.0], [0.25], one_two_three),
    "uneven-weights": Cohort([0.5, 0.2, 0.3], [0.35, 0.25, 0.6], [3, 1, 2]),
    "absent-clients": Cohort([0.5, 0.2, 0.3], [0.35, 0.25, 0.6], one_two_three, 0.5),
}
SCRIPTED = Cohort([0.5, 0.2, 0.3], [0.35, 0.25, 0.6], [3, 1, 2], lambda r: [[1], [0, 2], [0, 1, 2], [2]][r % 4])
every_cohort = pytest.mark.parametrize("cohort", COHORTS.values(), ids=COHORTS)
scripted_too = pytest.mark.parametrize("cohort", [*COHORTS.values(), SCRIPTED], ids=[*COHORTS, "scripted"])


# --- what a run draws, by round r, client i, local step t, lower round s: replayed from its keys -----------------------------


def direction(r: int, i: int, t: int) -> Array:
    """A client's v in S."""
    return directions(step_keys(r, i, t)[0], 1, N)[0]


def sample(r: int, i: int, t: int) -> Array:
    """xi_{i,k}."""
    return ROWS[i][row_numbers(step_keys(r, i, t)[1], 1, len(ROWS[i]))[0]]


def common_direction(r: int) -> Array:
    """The server's v in S, for a whole round."""
    return directions(server_keys(r)[0], 1, N)[0]


def lower_sample(r: int, s: int, i: int, t: int, rows: list[Array], table: int, call: int | None) -> Array:
    """zeta_{i,t} of lower round s, the same for both calls of a round, or each call's own."""
    return rows[i][row_numbers(lower_key(r, s, i, call), 1, len(rows[i]), step=t, table=table)[0]]


@cache
def step_keys(r: int, i: int, t: int) -> tuple[jax.Array, jax.Array]:
    """Of the direction and of the sample, in a client's local step."""
    direction, samples = split(fold(fold(fold(jax.random.key(SEED), r), i), t))
    return direction, split(samples)[1]


@cache
def server_keys(r: int) -> list[jax.Array]:
    """Of the server's direction and of the lower level, in a round."""
    return split(fold(fold(jax.random.key(SEED), r), ROUND_STREAM))


@cache
def lower_key(r: int, s: int, i: int, call: int | None) -> jax.Array:
    """Of a client's samples in a lower round."""
    key = fold(fold(server_keys(r)[1], s), i)
    return key if call is None else fold(key, call)


def agrees(problem: hf.Problem, solver: Any, iterates: Array, **settings: Any) -> hf.Result:
    """A run whose every iterate is the transcription's, to rounding."""
    options = {"rounds": len(iterates) - 1, "seed": SEED, "x0": START, "queries": "raw", "evaluate_every": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hf.LowerLevelWarning)
        result = problem.solve(solver, **{**options, "progress": False, **settings})
    assert np.abs(np.diff(iterates, axis=0)).max(axis=1).min() > 1e-6  # every round moves x
    np.testing.assert_allclose(result.trajectory["x"], iterates, rtol=0, atol=1e-12)
    return result


# --- FedRZO_nn -----------------------------------------------------------------------------------------------------------


def fedrzo_nn(
    f: Callable[[Array, Array], float], cohort: Cohort, x: Array, rounds: int = ROUNDS, gamma: float = GAMMA
) -> Array:
    """[NN] Algorithm 1, which is [2S] Algorithm 1."""
    iterates, n = [x], x.size
    for r in range(rounds):  # 2: for r = 0, 1, ... do
        ends = {}
        for i in cohort.present(r):
            own = x  # 3: Server broadcasts x̂_r to all clients: x_{i,T_r} := x̂_r
            for t in range(cohort.steps(r, i)):  # 4: for k = T_r, ..., T_{r+1} - 1 do in parallel by clients
                xi, v = sample(r, i, t), ETA * direction(r, i, t)  # 5: ξ_{i,k} ∈ D_i and v_{i,k} ∈ ηS
                g = n / ETA**2 * (f(own + v, xi) - f(own, xi)) * v  # 6: (n/η²)(f̃_i(x + v, ξ) - f̃_i(x, ξ)) v
                own = own - gamma * (g + (own - cohort.project(own, i)) / ETA)  # 7: x - γ (g + (x - P_{X_i}(x)) / η)
            ends[i] = own
        x = cohort.average(x, ends)  # 9: x̂_{r+1} := (1/m) Σ_i x_{i,T_{r+1}}
        iterates.append(x)
    return np.array(iterates)


def single_level(cohort: Cohort) -> hf.Problem:
    """f_i = E |u'x - 1|."""
    x, u, cap = cp.Variable(N, name="x"), hf.Sample(N, name="u"), hf.ClientParameter(name="cap")
    return hf.Problem(
        hf.Minimize(clients=hf.E(cp.abs(u @ x - 1))), constraints=[x <= cap], federation=cohort.federation(cap, u)
    )


@scripted_too
def test_fedrzo_nn(cohort: Cohort, x64: None) -> None:
    problem = single_level(cohort)
    solver = FedRZO(
        smoothing=ETA, step_size=GAMMA, local_steps=cohort.local_steps, participation=cohort.participation, batch_size=1
    )
    iterates = fedrzo_nn(lambda z, xi: abs(xi @ z - 1), cohort, START)
    assert any(np.any(iterates > min(cohort.caps), axis=1))  # P_{X_i} is at work
    agrees(problem, solver, iterates)


# --- FedRZO_bl and its lower-level solvers ---------------------------------------------------------------------------------

Gradient = Callable[[Array, Array, Array], Array]  # (x, y, rows) -> the mean gradient in y over some rows
LowerSolver = Callable[[Array, int, Array, int | None], Array]  # (x, round, y_0, call) -> y
MU, SMOOTH = 1.0, 2.0  # of every lower objective here, whose curvature is CURVATURE
CURVATURE = np.array([MU, SMOOTH])


def on_lower_set(x: Array, y: Array) -> Array:
    """P_{Y(x)}, Y(x) = {y <= x + 0.2}."""
    return np.minimum(y, x + 0.2)


@dataclass(frozen=True)
class LowerData:
    """What clients hold for the lower level: rows, and the number of their table."""

    rows: list[Array]
    table: int

    def drawn(self, r: int, s: int, i: int, t: int, call: int | None) -> Array:
        """One row; the same in all calls of a round, or another in each."""
        return lower_sample(r, s, i, t, self.rows, self.table, call)[None]


def lower_average(cohort: Cohort, ends: Sequence[Array]) -> Array:
    """(1/m) Σ_i y_i: all clients solve the lower level, with their weights."""
    return sum(w * end for w, end in zip(cohort.weights, ends))


def local_sgd(
    gradient: Gradient, data: LowerData, cohort: Cohort, x: Array, r: int, y: Array, call: int | None = None
) -> Array:
    """[2S] Algorithm 3, which is [NN] Algorithm 3 with Y(x): every local step is projected."""
    m, kappa = cohort.size, SMOOTH / MU
    a = max(m, 4 * kappa, r) + 1  # 1: a_r := max{m, 4κ_h, r} + 1, ...
    step, steps = 1 / (MU * a), int(np.ceil(2 * a * np.log(a) / m))  # ... γ̃ := 1/(μ_h a_r), H̃ := ⌈2 a_r ln(a_r) / m⌉
    y = on_lower_set(x, y)
    for s in range(m):  # 2: for r̃ = 0, ..., R̃_r - 1 do, R̃_r = m
        ends = []
        for i in range(m):
            own = y  # 3: Server broadcasts ŷ_r̃ to all agents: y_{i,T̃_r̃} := ŷ_r̃
            for t in range(steps):  # 4: for t = T̃_r̃, ..., T̃_{r̃+1} - 1 do in parallel by agents
                own = on_lower_set(
                    x, own - step * gradient(x, own, data.drawn(r, s, i, t, call))
                )  # 5: y - γ̃ ∇_y h_i(x, y, ξ̃)
            ends.append(own)  # 6: Agent i sends y_i to the server
        y = lower_average(cohort, ends)  # 8: ŷ_{r̃+1} := (1/m) Σ_i y_{i,T̃_{r̃+1}}
    return y


def lfd(
    gradient: Gradient, data: LowerData, cohort: Cohort, x: Array, r: int, y: Array, call: int | None = None
) -> Array:
    """LFD of Haddadpour and Mahdavi (2019), full local gradients, as [2S] Case 3 has it: of order m^(-1/3) T^(2/3) local steps."""
    m, kappa = cohort.size, SMOOTH / MU
    a = max(m, 4 * kappa, r) + 1
    total = 2 * a * np.log(a)  # T̃ of Algorithm 3
    steps = int(np.ceil(total ** (2 / 3) / m ** (1 / 3)))
    y = on_lower_set(x, y)
    for _ in range(int(np.ceil(total / steps))):
        ends = []
        for i in range(m):
            own = y
            for _ in range(steps):
                own = on_lower_set(x, own - 1 / (MU * a) * gradient(x, own, data.rows[i]))
            ends.append(own)
        y = lower_average(cohort, ends)
    return y


def fedac(
    gradient: Gradient, data: LowerData, cohort: Cohort, x: Array, r: int, y: Array, call: int | None = None
) -> Array:
    """Yuan and Ma (2020), Algorithm 1 with the parameters of FedAC-I; two rounds of four local steps, projected."""
    rounds, steps, eta = 2, 4, 1 / SMOOTH  # η ∈ (0, 1/L]
    gamma = max(np.sqrt(eta / (MU * steps)), eta)  # γ = max(√(η/(μK)), η), α = 1/(γμ), β = α + 1
    alpha = 1 / (gamma * MU)
    beta = alpha + 1
    w = w_ag = on_lower_set(x, y)
    for s in range(rounds):
        ends, ends_ag = [], []
        for i in range(cohort.size):
            own, ag = w, w_ag
            for t in range(steps):
                md = own / beta + (1 - 1 / beta) * ag  # 4: w_md ← β⁻¹ w + (1 - β⁻¹) w_ag
                g = gradient(x, md, data.drawn(r, s, i, t, call))  # 5: g ← ∇F(w_md; ξ)
                ag = on_lower_set(x, md - eta * g)  # 6: v_ag ← w_md - η g
                own = on_lower_set(
                    x, (1 - 1 / alpha) * own + md / alpha - gamma * g
                )  # 7: v ← (1 - α⁻¹) w + α⁻¹ w_md - γ g
            ends.append(own)
            ends_ag.append(ag)
        w, w_ag = lower_average(cohort, ends), lower_average(cohort, ends_ag)  # 9: w, w_ag ← (1/M) Σ v, (1/M) Σ v_ag
    return w_ag


def fedrzo_bl(
    f: Callable[[Array, Array, Array], float],
    lower: LowerSolver,
    cohort: Cohort,
    x: Array,
    rounds: int = ROUNDS,
    gamma: float = GAMMA,
    published: bool = False,
) -> Array:
    """[2S] Algorithm 2 ([NN] Algorithm 2).

    Its lower level begins where it ended at the last x̂, first at 0, with the same samples in both calls; ``published``: at 0 in
    every round, with samples of its own in each call.
    """
    iterates, n, y = [x], x.size, np.zeros(N)
    for r in range(rounds):  # 2: for r = 0, 1, ... do
        v = ETA * common_direction(r)  # 3: Server generates v_{T_r} ∈ ηS
        calls = (1, 0) if published else (None, None)
        y_plus, y_zero = (  # 4: Server calls FedAvg: y_ε(x̂_r + v_{T_r}) and y_ε(x̂_r)
            lower(at, r, y, call) for at, call in zip((x + v, x), calls)
        )
        ends = {}
        for i in cohort.present(r):
            own = x  # 5: Server broadcasts x̂_r, x̂_r + v_{T_r} and both y_ε; x_{i,T_r} := x̂_r
            for t in range(cohort.steps(r, i)):  # 6: for k = T_r, ..., T_{r+1} - 1 do in parallel by clients
                xi = sample(r, i, t)  # 7: ξ_{i,k} ∈ D_i
                difference = f(own + v, y_plus, xi) - f(own, y_zero, xi)  # 8: the y_ε are those of x̂_r, not of x_{i,k}
                g = n / ETA**2 * difference * v
                own = own - gamma * (g + (own - cohort.project(own, i)) / ETA)  # 9: x - γ (g + (x - P_{X_i}(x)) / η)
            ends[i] = own
        x, y = cohort.average(x, ends), y if published else y_zero  # 11: x̂_{r+1} := (1/m) Σ_i x_{i,T_{r+1}}
        iterates.append(x)
    return np.array(iterates)


LOWER_SOLVERS: dict[str, tuple[Any, Callable[..., Array]]] = {
    "LocalSGD": (LocalSGD(schedule="theory", batch_size=1), local_sgd),
    "LFD": (LFD(schedule="certified"), lfd),
    "FedAC": (FedAC(rounds=2, steps=4, batch_size=1), fedac),
}


def fedrzo(cohort: Cohort, lower: Any) -> FedRZO:
    """The settings of these tests."""
    return FedRZO(
        smoothing=ETA,
        step_size=GAMMA,
        local_steps=cohort.local_steps,
        participation=cohort.participation,
        batch_size=1,
        lower=lower,
    )


def bilevel(cohort: Cohort, solver: Callable[..., Array]) -> tuple[hf.Problem, Callable[..., float], LowerSolver]:
    """f_i = E |u'y - 1| + ||x||^2 / 2; h_i = y'Dy/2 - (x + E z)'y has data of its own. With f_i and the lower solver in NumPy."""
    x, y, cap = cp.Variable(N, name="x"), cp.Variable(N, name="y"), hf.ClientParameter(name="cap")
    u, z = hf.Sample(N, name="u"), hf.Sample(N, name="z")
    problem = hf.Problem(
        hf.Minimize(clients=hf.E(cp.abs(u @ y - 1)) + 0.5 * cp.sum_squares(x)),
        lower=hf.ArgMin(y, 0.5 * CURVATURE @ cp.square(y) - x @ y - hf.E(z @ y), [y <= x + 0.2]),
        constraints=[x <= cap],
        federation=cohort.federation(cap, u, z),
    )

    def gradient(at: Array, own: Array, rows: Array) -> Array:
        return CURVATURE * own - at - rows.mean(axis=0)

    def f(at: Array, own: Array, xi: Array) -> float:
        return abs(xi @ own - 1) + 0.5 * at @ at

    return problem, f, partial(solver, gradient, LowerData(LOWER_ROWS, 1), cohort)


BILEVEL = [("LocalSGD", cohort) for cohort in COHORTS] + [("FedAC", "absent-clients"), ("LFD", "absent-clients")]


@pytest.mark.parametrize(("name", "clients"), BILEVEL)
def test_fedrzo_bl(name: str, clients: str, x64: None) -> None:
    cohort, (settings, solver) = COHORTS[clients], LOWER_SOLVERS[name]
    problem, f, lower = bilevel(cohort, solver)
    agrees(problem, fedrzo(cohort, settings), fedrzo_bl(f, lower, cohort, START))


def minimax(cohort: Cohort) -> tuple[hf.Problem, Callable[..., float], LowerSolver]:
    """[2S] §4: Algorithm 2 with h̃_i := -f̃_i and D̃_i := D_i; f_i = E |u'x - 1| + (1'x) u'y - y'Dy/2."""
    x, y, cap = cp.Variable(N, name="x"), cp.Variable(N, name="y"), hf.ClientParameter(name="cap")
    u = hf.Sample(N, name="u")
    payoff = hf.E(cp.abs(u @ x - 1) + cp.multiply(u @ y, cp.sum(x))) - 0.5 * CURVATURE @ cp.square(y)
    problem = hf.Problem(
        hf.Minimize(clients=payoff),
        lower=hf.ArgMax(y, payoff, [y <= x + 0.2]),
        constraints=[x <= cap],
        federation=cohort.federation(cap, u),
    )

    def f(at: Array, own: Array, xi: Array) -> float:
        return abs(xi @ at - 1) + np.sum(at) * (xi @ own) - 0.5 * CURVATURE @ own**2

    def gradient_of_minus_f(at: Array, own: Array, rows: Array) -> Array:
        return CURVATURE * own - np.sum(at) * rows.mean(axis=0)

    return problem, f, partial(local_sgd, gradient_of_minus_f, LowerData(ROWS, 0), cohort)


@every_cohort
def test_fedrzo_mm(cohort: Cohort, x64: None) -> None:
    problem, f, lower = minimax(cohort)
    solver = fedrzo(cohort, LocalSGD(schedule="theory", batch_size=1))
    agrees(problem, solver, fedrzo_bl(f, lower, cohort, START))


# --- FedRZO_2s -----------------------------------------------------------------------------------------------------------

TAU, ALPHA = 2.0, 0.1
SKEW = np.array([[2.0, 1.0], [-1.0, 2.0]])


def projection_method(x: Array, xi: Array, k: int, tau: float, alpha: float, extra: bool = False) -> Array:
    """[2S] Algorithm 5, for G(x, y, ξ) = SKEW y - ξ + x on Y(x, ξ) = [0.3 ξ - 1, 0.3 ξ + x + 1], from y_0 = 0.

    ``extra`` takes the step at the place that it leads to, as Korpelevich (1976) does.
    """
    low, high = 0.3 * xi - 1, 0.3 * xi + x + 1
    y = np.clip(np.zeros(N), low, high)
    for _ in range(int(np.ceil(tau * np.log(k + 1)))):  # 2: t_k = ⌈τ ln(k + 1)⌉; 3: for t = 0, 1, ..., t_k - 1 do
        ahead = np.clip(y - alpha * (SKEW @ y - xi + x), low, high)  # 4: y_{t+1} = P_{Y(x,ξ)} (y_t - α G(x̂_k, y_t, ξ))
        y = np.clip(y - alpha * (SKEW @ ahead - xi + x), low, high) if extra else ahead
    return y  # 6: Return y_{t_k}


def fedrzo_2s(
    f: Callable[[Array, Array, Array], float],
    cohort: Cohort,
    x: Array,
    rounds: int = ROUNDS,
    gamma: float = GAMMA,
    tau: float = TAU,
    alpha: float = ALPHA,
    first: int = 0,
    extra: bool = False,
) -> Array:
    """[2S] Algorithm 4. It counts k from 0, where Algorithm 5 takes k > 0: ``first`` is what the latter is called with."""
    iterates, n = [x], x.size
    for r in range(rounds):  # 2: for r = 0, 1, ... do
        ends = {}
        for i in cohort.present(r):
            own = x  # 3: Server broadcasts x̂_r to all clients; x_{i,T_r} := x̂_r
            for t in range(cohort.steps(r, i)):  # 4: for k = T_r, ..., T_{r+1} - 1 do in parallel by clients
                k = cohort.first_step(r) + t
                xi, v = (sample(r, i, t), ETA * direction(r, i, t))  # 5: ξ_{i,k} ∈ D_i and v_{i,k} ∈ ηS, and ...
                y_zero, y_plus = (
                    projection_method(at, xi, first + k, tau, alpha, extra) for at in (own, own + v)
                )  # ... Algorithm 5 twice
                g = n / ETA**2 * (f(own + v, y_plus, xi) - f(own, y_zero, xi)) * v  # 6
                own = own - gamma * (g + (own - cohort.project(own, i)) / ETA)  # 7: x - γ (g + (x - P_{X_i}(x)) / η)
            ends[i] = own
        x = cohort.average(x, ends)  # 9: x̂_{r+1} := (1/m) Σ_i x_{i,T_{r+1}}
        iterates.append(x)
    return np.array(iterates)


def two_stage(cohort: Cohort) -> tuple[hf.Problem, Callable[..., float]]:
    """f_i = E ||y(x, u) - u||^2 + 1'x; Y(x, u) moves with x and with the sample. With f_i in NumPy."""
    x, y, cap = cp.Variable(N, name="x"), cp.Variable(N, name="y"), hf.ClientParameter(name="cap")
    u = hf.Sample(N, name="u")
    limits = [y >= 0.3 * u - 1, y <= 0.3 * u + x + 1]
    problem = hf.Problem(
        hf.Minimize(clients=hf.E(cp.sum_squares(y - u)) + cp.sum(x)),
        lower=hf.Equilibrium(y, SKEW @ y - u + x, limits, scope="sample"),
        constraints=[x <= cap],
        federation=cohort.federation(cap, u),
    )
    return problem, lambda at, own, xi: np.sum((own - xi) ** 2) + np.sum(at)


@scripted_too
def test_fedrzo_2s(cohort: Cohort, x64: None) -> None:
    """Where clients take part by a script, over the extragradient method."""
    problem, f = two_stage(cohort)
    extra = cohort is SCRIPTED
    method = Extragradient if extra else ProjectionMethod
    lower = method(steps=lambda k: TAU * np.log(k + 1), step_size=ALPHA, start="zero")
    iterates = fedrzo_2s(f, cohort, START, extra=extra)
    agrees(problem, fedrzo(cohort, lower), iterates)


# --- ZO-HFL --------------------------------------------------------------------------------------------------------------

SERVER_ROWS = np.random.default_rng(20).standard_normal((5, N))
RADII = [0.8, 0.3, 0.5]  # of the private Y_i(x) = {||y - x|| <= radius_i}
TAUS = {1: [2.0], 3: [2.0, 0.0, 1.5]}  # the second of three is a straggler, H = 0


def local_steps(i: int, x: Array, count: int, y: Array, zeta: Callable[[int], Array]) -> Array:
    """[HFL] Algorithm 2, for h_i = E (u'y - 1)^2 / 2 + ||y - x||^2 / 4."""

    def project(z: Array) -> Array:
        length = np.linalg.norm(z - x)
        return x + (z - x) * min(1.0, RADII[i] / length) if length > 0 else z

    y = project(y)  # 1: client i chooses y_0
    for t in range(count):  # 2: for t = 0, 1, ..., H_{i,r} - 1 do
        row = zeta(t)  # 3: client i generates a random sample ζ_{i,t} ∈ D̃_i
        y = project(
            y - 0.1 / (t + 1) * ((row @ y - 1) * row + 0.5 * (y - x))
        )  # 4: Π_{Y_i(x)}[y - γ̃_t ∇_y h̃_i(x, y, ζ)]
    return y  # 6: return y_{H_{i,r}}


def zo_hfl(
    cohort: Cohort,
    x: Array,
    common: bool,
    start: str,
    rounds: int = ROUNDS,
    tau: float | None = None,
    zero: bool = False,
) -> Array:
    """[HFL] Algorithm 1, for f_1 = E (u'x - 1)^2 and f_2 = ||x - y||^2 / 2; ``common`` samples in a pair, or its own in each call.

    ``tau`` is that of all clients; ``zero`` says that the mean is (1/m) times the participants' sum.
    """
    iterates, n, last = [x], x.size, [x] * cohort.size

    def f_2(at: Array, y: Array) -> float:
        return 0.5 * np.sum((at - y) ** 2)

    def zeta(i: int, key: jax.Array, t: int) -> Array:
        return ROWS[i][row_numbers(key, 1, len(ROWS[i]), step=t)[0]]

    for r in range(rounds):  # 2: for r = 0, 1, ..., R - 1 do
        key, present = fold(jax.random.key(SEED), r), cohort.present(r)
        v = dict(zip(present, directions(fold(key, ROUND_STREAM), len(present), n)))  # 3: server generates v_{i,r} ∈ S
        answers = {}
        for i in present:  # 4: for i = 1, ..., m do
            pair = split(fold(key, i), 1)[0]
            keys = [split(call)[0] for call in ([pair, pair] if common else split(pair))]
            count = int(
                np.ceil((TAUS[cohort.size][i] if tau is None else tau) * np.sqrt(r + 1) - 1e-9)
            )  # H_{i,r} = ⌈τ_i √(r + 1)⌉
            points = [x + ETA * v[i], x - ETA * v[i]]
            firsts = points if start == "query" else [last[i]] * 2
            answers[i] = [  # 5: client i calls Algorithm 2 twice, and obtains y_i^+ and y_i^-
                local_steps(i, point, count, first, partial(zeta, i, own))
                for point, first, own in zip(points, firsts, keys)
            ]
            last[i] = np.mean(answers[i], axis=0)
        xi = SERVER_ROWS[row_numbers(fold(key, SERVER_STREAM), 1, len(SERVER_ROWS))[0]]
        g = {  # 7: (n/2η)(f_2(x̂ + ηv_i, y_i^+) - f_2(x̂ - ηv_i, y_i^-)) v_i
            i: n / (2 * ETA) * (f_2(x + ETA * v[i], plus) - f_2(x - ETA * v[i], minus)) * v[i]
            for i, (plus, minus) in answers.items()
        }
        share = len(present) / cohort.size if zero else 1.0
        estimate = 2 * (xi @ x - 1) * xi + share * cohort.combined(g)  # 7: ∇f̃_1(x̂_r, ξ_r) + (1/m) Σ_i g_i
        x = x - 0.01 / np.sqrt(r + 1) * estimate  # 8: x̂_{r+1} = x̂_r - γ_r ĝ
        iterates.append(x)
    return np.array(iterates)


def hierarchical(cohort: Cohort) -> hf.Problem:
    """The server's f_1 on rows of its own, the clients' personal models in balls around x."""
    x, y, radius = cp.Variable(N, name="x"), cp.Variable(N, name="y"), hf.ClientParameter(name="radius")
    u = hf.Sample(N, name="u")
    clients = [hf.Client({u: rows}, {radius: own}) for rows, own in zip(ROWS, RADII)][: cohort.size]
    return hf.Problem(
        hf.Minimize(server=hf.E(cp.square(u @ x - 1)), clients=0.5 * cp.sum_squares(x - y)),
        lower=hf.ArgMin(
            y,
            hf.E(0.5 * cp.square(u @ y - 1)) + 0.25 * cp.sum_squares(y - x),
            [cp.norm(y - x) <= radius],
            scope="client",
        ),
        federation=hf.Federation(clients, server=hf.Client({u: SERVER_ROWS}), weights=cohort.weights),
    )


HIERARCHICAL = [(cohort, False, "query") for cohort in [*COHORTS.values(), SCRIPTED]] + [(SCRIPTED, True, "warm")]


@pytest.mark.parametrize(("cohort", "common", "start"), HIERARCHICAL, ids=[*COHORTS, "scripted", "scripted and shared"])
def test_zo_hfl(cohort: Cohort, common: bool, start: str, x64: None) -> None:
    problem = hierarchical(cohort)
    solver = ZOHFL(
        smoothing=ETA,
        batch_size=1,
        participation=cohort.participation,
        common_random_numbers=common,
        lower=ProjectedSGD(steps=[Decay(tau, -0.5) for tau in TAUS[cohort.size]], batch_size=1, start=start),
    )
    result = agrees(problem, solver, zo_hfl(cohort, START, common, start))
    sent, present = result.communication, sum(len(cohort.present(r)) for r in range(ROUNDS))
    assert (sent["scalars_down"], sent["scalars_up"]) == (2 * N * present, 2 * N * present)
    assert sent["participants_per_round"] == present / ROUNDS
