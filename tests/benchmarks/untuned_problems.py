"""Ten problems of ten fields, each with its f computed by CVXPY, SciPy or a formula: what ``solve()`` without settings is tried on.

``value`` is written beside the declaration and shares nothing with hierfl: the lower level is solved by CVXPY at a tight
tolerance (a program of parameters, canonicalised once) or by a formula. x is flat, in the order of the declared variables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import jax.numpy as jnp
import numpy as np

import hierfl as hf

TIGHT = {"tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11}


@dataclass(frozen=True)
class Field:
    """A problem of a field: its declaration, f(x) as declared (to minimise or maximise), and a box that holds X."""

    name: str
    declare: Callable[[], hf.Problem]
    value: Callable[[np.ndarray], float]
    low: np.ndarray
    high: np.ndarray
    maximise: bool = False
    balanced: bool = False  # whether the entries of X's points sum to zero beside

    def flat(self, x: Any) -> np.ndarray:
        """x as one vector."""
        parts = x.values() if isinstance(x, dict) else [x]
        return np.concatenate([np.ravel(part) for part in parts])

    def inside(self, x: np.ndarray) -> np.ndarray:
        """A point of X next to x."""
        for _ in range(50 if self.balanced else 1):
            x = np.clip(x, self.low, self.high)
            x = x - x.mean() if self.balanced else x
        return x

    def __str__(self) -> str:
        return self.name


def solver(objective: cp.Expression, constraints: list[cp.Constraint], parameters: list[cp.Parameter], y: cp.Variable):
    """y as a function of the parameters' values, of a convex program."""
    program = cp.Problem(cp.Minimize(objective), constraints)

    def solve(*values: object) -> np.ndarray:
        for parameter, value in zip(parameters, values):
            parameter.value = value
        program.solve(solver=cp.CLARABEL, **TIGHT)
        return np.asarray(y.value)

    return solve


CONSERVE = np.array(
    [[1.0, 0, 1, 0, 0], [-1, 1, 0, 0, 1], [0, 0, -1, 1, -1]]
)  # arcs sa, at, sb, bt, ab; t's row follows
SENT = np.array([6.0, 0, 0])


def tolls() -> Field:
    """A road authority tolls two arcs for revenue; travellers choose their routes."""
    steep, flat = np.array([10.0, 1, 1, 10, 1]), np.array([0.0, 50, 50, 0, 10])
    tolled = np.array([[1.0, 0], [0, 0], [0, 0], [0, 1], [0, 0]])

    def declare() -> hf.Problem:
        x, y = cp.Variable(2, name="toll"), cp.Variable(5, name="flow")
        users = hf.Equilibrium(y, cp.multiply(steep, y) + flat + tolled @ x, [CONSERVE @ y == SENT, y >= 0])
        return hf.Problem(hf.Maximize(clients=(tolled @ x) @ y), users, [x >= 0, x <= 60])

    y, p = cp.Variable(5), cp.Parameter(5)
    flow = solver(0.5 * steep @ cp.square(y) + p @ y, [CONSERVE @ y == SENT, y >= 0], [p], y)
    return Field(
        "toll pricing",
        declare,
        lambda x: float((tolled @ x) @ flow(flat + tolled @ x)),
        np.zeros(2),
        np.full(2, 60.0),
        maximise=True,
    )


def ramps() -> Field:
    """A storage operator moves energy between four hours; three units with ramps serve what is left at least cost."""
    slope, price, dirt = np.array([0.1, 0.3, 0.2]), np.array([10.0, 18, 14]), np.array([1.0, 0.2, 0.5])
    demand, ramp, cap = np.array([60.0, 95, 130, 80]), np.array([18.0, 12, 25]), np.array([70.0, 60, 50])

    def rows(y: cp.Variable, moved: cp.Expression) -> list[cp.Constraint]:
        return [
            cp.sum(y, axis=0) == demand - moved,
            cp.abs(y[:, 1:] - y[:, :-1]) <= np.tile(ramp[:, None], 3),
            y >= 0,
            y <= np.tile(cap[:, None], 4),
        ]

    def cost(y: cp.Variable) -> cp.Expression:
        return cp.sum(cp.multiply(np.tile(slope[:, None], 4), cp.square(y))) / 2 + cp.sum(price @ y)

    def declare() -> hf.Problem:
        x, y = cp.Variable(4, name="moved"), cp.Variable((3, 4), name="output")
        upper = 0.02 * cp.sum_squares(dirt @ y) + cp.sum(price @ y) / 20 + 0.02 * cp.sum_squares(x)
        units = hf.ArgMin(y, cost(y), rows(y, x))
        return hf.Problem(hf.Minimize(clients=upper), units, [cp.sum(x) == 0, x >= -20, x <= 20])

    y, moved = cp.Variable((3, 4)), cp.Parameter(4)
    dispatched = solver(cost(y), rows(y, moved), [moved], y)

    def value(x: np.ndarray) -> float:
        try:
            y = dispatched(x)
        except cp.error.SolverError:
            return 1e9
        if not np.isfinite(np.asarray(y, float)).all():
            return 1e9  # no output is possible
        return float(0.02 * np.sum((dirt @ y) ** 2) + np.sum(price @ y) / 20 + 0.02 * x @ x)

    return Field("dispatch with ramps", declare, value, np.full(4, -20.0), np.full(4, 20.0), balanced=True)


def budgets() -> Field:
    """Six clients fit their own models within an l1 budget near a shared centre, which is chosen by their validation errors."""
    rng = np.random.default_rng(5)
    truth = rng.standard_normal(5) + 0.3 * rng.standard_normal((6, 5))
    train, held = rng.standard_normal((6, 8, 5)), rng.standard_normal((6, 10, 5))
    seen = np.einsum("mnk,mk->mn", train, truth) + 0.3 * rng.standard_normal((6, 8))
    later = np.einsum("mnk,mk->mn", held, truth) + 0.3 * rng.standard_normal((6, 10))
    budget = np.array([2.0, 3, 2.5, 4, 1.5, 3])

    def declare() -> hf.Problem:
        x, y = cp.Variable(5, name="centre"), cp.Variable(5, name="own")
        a, b = hf.Sample(5, name="a"), hf.Sample(name="b")
        c, d = hf.Sample(5, name="c"), hf.Sample(name="d")
        allowed = hf.ClientParameter(nonneg=True, name="budget")
        own = hf.ArgMin(y, hf.E(cp.square(a @ y - b)) + cp.sum_squares(y - x), [cp.norm1(y) <= allowed], scope="client")
        clients = [
            hf.Client({a: train[i], b: seen[i], c: held[i], d: later[i]}, {allowed: budget[i]}) for i in range(6)
        ]
        return hf.Problem(
            hf.Minimize(clients=hf.E(cp.square(c @ y - d))), own, [cp.abs(x) <= 5], hf.Federation(clients)
        )

    y, matrix, target, size = cp.Variable(5), cp.Parameter((8, 5)), cp.Parameter(8), cp.Parameter(nonneg=True)
    near = cp.Parameter(5)
    fit = solver(
        cp.sum_squares(matrix @ y - target) / 8 + cp.sum_squares(y - near),
        [cp.norm1(y) <= size],
        [matrix, target, size, near],
        y,
    )

    def value(x: np.ndarray) -> float:
        own = [fit(train[i], seen[i], budget[i], x) for i in range(6)]
        return float(np.mean([np.mean((held[i] @ own[i] - later[i]) ** 2) for i in range(6)]))

    return Field("ridge with l1 budgets", declare, value, np.full(5, -5.0), np.full(5, 5.0))


def elastic_net() -> Field:
    """The two weights of an elastic net, chosen by the error on held-out data."""
    rng = np.random.default_rng(3)
    truth = np.array([1.5, -2, 0, 0, 0.7, 0, 0, 0])
    train, held = rng.standard_normal((12, 8)), rng.standard_normal((30, 8))
    seen = train @ truth + 0.8 * rng.standard_normal(12)
    later = held @ truth + 0.8 * rng.standard_normal(30)

    def cost(y: cp.Variable, first: cp.Expression, second: cp.Expression) -> cp.Expression:
        return cp.sum_squares(train @ y - seen) / 24 + first * cp.norm1(y) + 0.5 * second * cp.sum_squares(y)

    def declare() -> hf.Problem:
        x, y = cp.Variable(2, nonneg=True, name="weights"), cp.Variable(8, name="coefficients")
        net = hf.ArgMin(y, cost(y, x[0], x[1]))
        return hf.Problem(
            hf.Minimize(clients=cp.sum_squares(held @ y - later) / 30), net, [x >= np.array([0, 1e-3]), x <= 5]
        )

    y, first, second = cp.Variable(8), cp.Parameter(nonneg=True), cp.Parameter(nonneg=True)
    fit = solver(cost(y, first, second), [], [first, second], y)
    return Field(
        "elastic net",
        declare,
        lambda x: float(np.mean((held @ fit(x[0], x[1]) - later) ** 2)),
        np.array([0, 1e-3]),
        np.full(2, 5.0),
    )


def capacity() -> Field:
    """A planner widens five roads at a price; travellers choose their routes (Wardrop)."""
    room, empty = np.array([1.0, 2, 2, 1, 1]), np.array([1.0, 5, 5, 1, 0.5])
    steep, price = np.array([3.0, 2, 2, 3, 1]), np.array([2.0, 3, 3, 2, 1])

    def declare() -> hf.Problem:
        x, y = cp.Variable(5, name="added"), cp.Variable(5, name="flow")
        late = cp.multiply(steep, cp.inv_pos(room + x))
        users = hf.Equilibrium(y, cp.multiply(late, y) + empty, [CONSERVE @ y == SENT, y >= 0])
        spent = late @ cp.square(y) + empty @ y
        return hf.Problem(hf.Minimize(clients=spent + price @ x), users, [x >= 0, x <= 10])

    y, late = cp.Variable(5), cp.Parameter(5, nonneg=True)
    flow = solver(0.5 * late @ cp.square(y) + empty @ y, [CONSERVE @ y == SENT, y >= 0], [late], y)

    def value(x: np.ndarray) -> float:
        now = steep / (room + x)
        y = flow(now)
        return float(now @ y**2 + empty @ y + price @ x)

    return Field("capacity under Wardrop", declare, value, np.zeros(5), np.full(5, 10.0))


def robust() -> Field:
    """A regression against the worst weights of its twelve samples within a ball around equal ones."""
    rng = np.random.default_rng(11)
    features = rng.standard_normal((12, 3))
    targets = features @ np.array([1.0, -1, 0.5]) + 0.5 * rng.standard_normal(12)
    targets[:2] += 3

    def declare() -> hf.Problem:
        x, p = cp.Variable(3, name="coefficients"), cp.Variable(12, name="weights")
        loss = p @ cp.square(features @ x - targets)
        worst = hf.ArgMax(p, loss, [cp.sum(p) == 1, p >= 0, cp.norm2(p - 1 / 12) <= 0.2])
        return hf.Problem(hf.Minimize(clients=loss), worst)

    p, losses = cp.Variable(12), cp.Parameter(12)
    weigh = solver(-losses @ p, [cp.sum(p) == 1, p >= 0, cp.norm2(p - 1 / 12) <= 0.2], [losses], p)

    def value(x: np.ndarray) -> float:
        now = (features @ x - targets) ** 2
        return float(weigh(now) @ now)

    return Field("robust regression", declare, value, np.full(3, -5.0), np.full(3, 5.0))


def principal() -> Field:
    """A principal shares revenue and pays a bonus that saturates; five agents choose their efforts."""
    cost, worth = np.array([0.8, 1.0, 1.5, 2.0, 3.0]), 4.0

    def declare() -> hf.Problem:
        share, bonus = cp.Variable(name="share"), cp.Variable(name="bonus", nonneg=True)
        effort, own = cp.Variable(nonneg=True, name="effort"), hf.ClientParameter(nonneg=True, name="cost")
        agent = hf.ArgMax(
            effort, share * effort + bonus * cp.log1p(effort) - 0.5 * own * cp.square(effort), scope="client"
        )
        kept = (worth - share) * effort - bonus * cp.log1p(effort)
        agents = hf.Federation([hf.Client(parameters={own: c}) for c in cost])
        return hf.Problem(hf.Maximize(clients=kept), agent, [share >= 0, share <= worth, bonus <= 5], agents)

    def value(x: np.ndarray) -> float:
        share, bonus = x
        # share + bonus / (1 + e) = cost e
        effort = (share - cost + np.sqrt((share - cost) ** 2 + 4 * cost * (share + bonus))) / (2 * cost)
        return float(np.mean((worth - share) * effort - bonus * np.log1p(effort)))

    return Field("principal and agents", declare, value, np.zeros(2), np.array([worth, 5.0]), maximise=True)


def meta() -> Field:
    """Six features of one hidden layer, shared by four tasks that fit their own heads by ridge regression."""
    rng = np.random.default_rng(2)
    phase, height = rng.uniform(0, np.pi, 4), rng.uniform(0.5, 2, 4)
    t, later = rng.uniform(-3, 3, (4, 12)), rng.uniform(-3, 3, (4, 12))
    s, held = height[:, None] * np.sin(t + phase[:, None]), height[:, None] * np.sin(later + phase[:, None])
    begin = rng.standard_normal((2, 6))  # of the layer: x is what is added to it

    def features(w: jnp.ndarray, b: jnp.ndarray, t: jnp.ndarray) -> jnp.ndarray:
        return jnp.tanh((begin[0] + w) * t + begin[1] + b)

    def declare() -> hf.Problem:
        w, b, y = cp.Variable(6, name="w"), cp.Variable(6, name="b"), cp.Variable(6, name="head")
        at, seen = hf.Sample(name="t"), hf.Sample(name="s")
        new, truth = hf.Sample(name="t_later"), hf.Sample(name="s_later")

        def error(at: hf.Sample, seen: hf.Sample) -> cp.Expression:
            return cp.square(y @ hf.Function(features, w, b, at, shape=(6,)) - seen)

        head = hf.ArgMin(y, hf.E(error(at, seen)) + 0.05 * cp.sum_squares(y), scope="client")
        clients = [hf.Client({at: t[i], seen: s[i], new: later[i], truth: held[i]}) for i in range(4)]
        return hf.Problem(
            hf.Minimize(clients=hf.E(error(new, truth))), head, [cp.abs(w) <= 5, cp.abs(b) <= 5], hf.Federation(clients)
        )

    def value(x: np.ndarray) -> float:
        total, (w, b) = 0.0, begin + x.reshape(2, 6)
        for i in range(4):
            now = np.tanh(np.outer(t[i], w) + b)
            head = np.linalg.solve(now.T @ now / 12 + 0.05 * np.eye(6), now.T @ s[i] / 12)
            total += np.mean((np.tanh(np.outer(later[i], w) + b) @ head - held[i]) ** 2) / 4
        return float(total)

    return Field("meta-learning", declare, value, np.full(12, -5.0), np.full(12, 5.0))


def market() -> Field:
    """A regulator taxes emissions and subsidises clean output; six producers compete in quantities (Nash)."""
    cost, dirt = np.array([2.0, 2.5, 3, 4, 5, 5.5]), np.array([1.0, 0.9, 0.7, 0.3, 0.1, 0.0])
    clean, cap = (dirt < 0.2).astype(float), np.array([3.0, 3, 4, 4, 2, 2])
    bend = np.array([0.2, 0.1, 0.3, 0.2, 0.4, 0.3])

    def declare() -> hf.Problem:
        x, y = cp.Variable(2, name="tax_and_subsidy"), cp.Variable(6, name="output")
        price = 14 - 0.8 * cp.sum(y)
        profit = cp.multiply(y, price - cost - x[0] * dirt + x[1] * clean) - cp.multiply(bend, cp.square(y))
        damage = 0.6 * cp.square(dirt @ y)
        welfare = 14 * cp.sum(y) - 0.4 * cp.square(cp.sum(y)) - cost @ y - bend @ cp.square(y) - damage
        game = hf.Nash(hf.Player(y, maximize=profit, constraints=[y >= 0, y <= cap]))
        return hf.Problem(hf.Maximize(clients=welfare - 0.1 * cp.square(x[1])), game, [x >= 0, x <= 10])

    y, net = cp.Variable(6), cp.Parameter(6)
    potential = bend @ cp.square(y) + 0.4 * cp.square(cp.sum(y)) + 0.4 * cp.sum_squares(y) + net @ y
    play = solver(potential, [y >= 0, y <= cap], [net], y)

    def value(x: np.ndarray) -> float:
        y = play(cost - 14 + x[0] * dirt - x[1] * clean)
        total = y.sum()
        welfare = 14 * total - 0.4 * total**2 - cost @ y - bend @ y**2 - 0.6 * (dirt @ y) ** 2
        return float(welfare - 0.1 * x[1] ** 2)

    return Field("Nash game of six", declare, value, np.zeros(2), np.full(2, 10.0), maximise=True)


def recourse() -> Field:
    """Capacity of two plants is bought before the demand of two markets is known; shipping is a linear program (recourse)."""
    cost = np.array([1.0, 2.3, 2.6, 1.1, 9.0, 8.0])  # four routes, two shortages
    serve = np.array([[1.0, 0, 1, 0, 1, 0], [0, 1, 0, 1, 0, 1]])
    use = np.array([[1.0, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0]])
    demand = np.array([[3.1, 2.2], [4.3, 1.7], [2.4, 3.9], [5.2, 2.8], [3.7, 3.3], [1.9, 4.6], [4.8, 4.1], [2.7, 2.6]])
    price = np.array([2.5, 2.2])

    def declare() -> hf.Problem:
        x, y, u = cp.Variable(2, name="capacity"), cp.Variable(6, name="shipped"), hf.Sample(2, name="demand")
        ship = hf.ArgMin(y, cost @ y, [serve @ y >= u, use @ y <= x, y >= 0], scope="sample")
        return hf.Problem(
            hf.Minimize(clients=price @ x + hf.E(cost @ y)),
            ship,
            [x >= 0, x <= 10],
            hf.Federation([hf.Client({u: demand})]),
        )

    y, room, wanted = cp.Variable(6), cp.Parameter(2), cp.Parameter(2)
    ship = solver(cost @ y, [serve @ y >= wanted, use @ y <= room, y >= 0], [room, wanted], y)

    def value(x: np.ndarray) -> float:
        return float(price @ x + np.mean([cost @ ship(np.maximum(x, 0), u) for u in demand]))

    return Field("recourse", declare, value, np.zeros(2), np.full(2, 10.0))


FIELDS = [make() for make in (tolls, ramps, budgets, elastic_net, capacity, robust, principal, meta, market, recourse)]
