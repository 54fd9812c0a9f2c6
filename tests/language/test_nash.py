"""What a game may and may not declare, and how it prints."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.errors import DeclarationError, NotConvexError
from hierfl.language.player import couples

x, u, v = cp.Variable(2, name="x"), cp.Variable(2, name="u"), cp.Variable(3, name="v")
y, Y = cp.Variable(4, name="y"), cp.Variable((4, 3), name="Y")
S = cp.Variable((3, 3), name="S", symmetric=True)
cap = np.arange(1.0, 5.0)
s = hf.Sample(name="s")
fine_u, fine_v = hf.Player(u, cp.sum_squares(u - x)), hf.Player(v, cp.sum_squares(v) - cp.sum(u) * cp.sum(v))


def game_of(*players: hf.Player) -> hf.Problem:
    """A problem whose lower level these players are."""
    return hf.Problem(hf.Minimize(clients=cp.sum(x)), hf.Nash(*players))


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "no players": (lambda: hf.Nash(), r"at least one hf\.Player"),
    "not a player": (lambda: hf.Nash(fine_u, cp.square(v[0])), r"Nash takes hf\.Player"),
    "no variable": (lambda: hf.Player([], cp.sum(u)), r"Player needs at least one variable"),
    "an expression for a variable": (lambda: hf.Player(u + 1, cp.sum(u)), r"Player takes first what is decided, a cp\.Variable"),
    "no objective": (lambda: hf.Player(u), r"player 'u' needs one objective"),
    "an objective in an objective": (
        lambda: hf.Player(u, maximize=cp.Minimize(cp.sum(u))),
        r"player 'u': give maximize= the expression",
    ),
    "a number for an objective": (
        lambda: hf.Player(u, 3.0),
        r"objective of player 'u' must be a CVXPY expression.*float",
    ),
    "own variable missing": (
        lambda: hf.Player(u, cp.sum_squares(v)),
        r"objective of player 'u' does not mention its own variable 'u'",
    ),
    "a cost of each entry of a longer vector": (
        lambda: hf.Player(v, cp.square(u) + cp.sum(v)),
        r"objective of player 'v' has shape \(2,\), and 'v' has shape \(3,\)",
    ),
    "two owners": (
        lambda: hf.Nash(fine_u, hf.Player([v, u], cp.sum_squares(u) + cp.sum_squares(v))),
        r"variable 'u' is owned by two players \('u' and 'v, u'\)",
    ),
    "the same variable twice": (lambda: hf.Player([u, u], cp.sum_squares(u)), r"names the same variable twice"),
    "a bound on another's variable": (
        lambda: hf.Nash(hf.Player(u, cp.sum_squares(u), [u >= 0, cp.sum(u) + cp.sum(v) <= 1]), fine_v),
        r"constraint .* of player 'u' mentions 'v', which player 'v' owns.*generalised Nash.*hf\.Equilibrium",
    ),
    "a shared capacity": (
        lambda: hf.Player(y, cp.square(y), [y >= 0, cp.sum(y) <= 1]),
        r"constraint sum\(y\) <= 1 of player 'y' couples several of its 4 players.*generalised Nash",
    ),
    "rows of a symmetric matrix": (
        lambda: hf.Player(S, cp.sum(cp.square(S), axis=1)),
        r"'S' is declared symmetric, which couples the 3 players",
    ),
    "a kink": (
        lambda: game_of(hf.Player(u, cp.sum_squares(u) + cp.norm1(u - x))),
        r"norm1\(u - x\) in the objective of player 'u' is not differentiable.*t and the constraint",
    ),
    "a black box": (lambda: hf.Player(u, hf.BlackBox(lambda a: float(a @ a), u)), r"BlackBox, which has no gradient"),
    "a mean that is squared": (
        lambda: hf.Player(u, cp.square(hf.E(s * cp.sum(u)))),
        r"not affine in its mean E\[s \* sum\(u\)\]",
    ),
    "a sample outside a mean": (
        lambda: hf.Nash(hf.Player(u, s * cp.sum(u) + cp.sum_squares(u))),
        r"sample 's' is used outside E",
    ),
    "a mean in sample scope": (
        lambda: hf.Nash(hf.Player(u, hf.E(s * cp.sum(u)) + cp.sum_squares(u)), scope="sample"),
        r"E\[s \* sum\(u\)\] in a sample-scope lower level",
    ),
    "an unknown scope": (lambda: hf.Nash(fine_u, scope="market"), r"unknown scope 'market' of Nash"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_game_is_refused_by_name(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(DeclarationError, match=message):
        make()


def test_many_players_that_only_jax_could_tell_apart_are_refused_with_the_atom() -> None:
    z = cp.Variable(500, name="z")
    with pytest.raises(DeclarationError, match=r"objectives of 500 players are coupled through cumsum\(z\)"):
        hf.Nash(hf.Player(z, cp.square(z) + cp.multiply(z, cp.cumsum(z))))


CONCAVE: dict[str, tuple[Callable[[], hf.Player], str]] = {
    "a concave cost": (lambda: hf.Player(y, -cp.square(y)), r"player 'y' must be convex in y, but it is concave"),
    "a convex profit": (
        lambda: hf.Player(u, maximize=cp.sum_squares(u - x)),
        r"player 'u' must be concave in u, but it is convex",
    ),
    "too strong an economy of scale": (
        lambda: hf.Player(y, cp.multiply(y, 0.1 * cp.sum(y) - 3) - 0.5 * cp.square(y)),
        r"player 'y' must be convex in y given the others', but its second derivative there is -0\.8",
    ),
    "a profit that grows with its own price": (
        lambda: hf.Player(y, maximize=cp.multiply(y, 1 + 0.25 * cp.sum(y))),
        r"player 'y' must be concave in y given the others', but its second derivative there is 0\.5",
    ),
}


@pytest.mark.parametrize("name", CONCAVE)
def test_a_problem_that_curves_the_wrong_way_is_refused(name: str) -> None:
    make, message = CONCAVE[name]
    with pytest.raises(NotConvexError, match=message):
        hf.Problem(hf.Minimize(clients=cp.sum_squares(x)), hf.Nash(make()))


UNCOUPLED = {
    "bounds": lambda: [y >= 0, y <= cap, cp.abs(y) <= 2, 2 * y - 1 >= 0],
    "one player's bound": lambda: [y[2] <= 1, y[1:3] >= -1, y[::-1] <= 4],
    "bounds that move": lambda: [y <= cp.sum(x), cp.multiply(cap, y) + cp.sum(x) <= 5],
    "rows": lambda: [cp.sum(Y, axis=1) <= 1, cp.norm(Y, axis=1) <= cap, Y @ np.ones((3, 2)) <= 1, Y @ np.ones(3) == 1],
    "transposed": lambda: [np.ones(3) @ Y.T <= cap, cp.max(Y.T, axis=0) <= 1],
    "stacked": lambda: [cp.hstack([y, 2 * y]) <= 1, cp.reshape(Y, (12,), order="F") >= 0],
    "squares of rows": lambda: [cp.sum(cp.square(Y), axis=1) <= 1, cp.sum_squares(Y, axis=1) <= 1],
}
COUPLED = {
    "a sum": lambda: [cp.sum(y) <= 1, cap @ y <= 1, cp.mean(Y) <= 1],
    "a ball": lambda: [cp.norm(y) <= 1, cp.sum_squares(y) <= 1, cp.norm(Y, "fro") <= 1, cp.sigma_max(Y) <= 1],
    "a running total": lambda: [cp.cumsum(y) <= 1, cp.cumsum(Y, axis=0) <= 1],
    "an order": lambda: [cp.diff(y) >= 0, y[1:] >= y[:-1], y <= y[::-1]],
    "columns": lambda: [cp.sum(Y, axis=0) <= 1, cp.norm(Y, axis=0) <= 1, cap @ Y <= 1],
    "a network": lambda: [np.ones((4, 4)) @ y <= 1, y + cp.sum(y) <= 3, cp.maximum(y[0], y[1]) <= 1],
    "a cone": lambda: [cp.SOC(y[0], y[1:])],
}


@pytest.mark.parametrize("name", UNCOUPLED)
def test_constraints_on_each_players_own_rows(name: str) -> None:
    assert [couples(constraint, (y, Y)) for constraint in UNCOUPLED[name]()] == [False] * len(UNCOUPLED[name]())


@pytest.mark.parametrize("name", COUPLED)
def test_constraints_that_couple_players(name: str) -> None:
    assert [couples(constraint, (y, Y)) for constraint in COUPLED[name]()] == [True] * len(COUPLED[name]())


def test_quadratic_games_have_mappings_that_cvxpy_knows_to_be_affine() -> None:
    payoff = u @ np.ones((2, 3)) @ v + cp.sum_squares(u - x) - cp.quad_form(v, np.eye(3))
    saddle = hf.Nash(hf.Player(u, cp.Minimize(payoff)), hf.Player(v, cp.Maximize(payoff)))
    assert saddle.kind == "equilibrium" and saddle.variables == (u, v)
    assert [part.shape for part in saddle.expressions] == [(2,), (3,)]
    market = hf.Nash(hf.Player(y, cp.square(y) - cp.multiply(y, 10 - cp.sum(y)), [y >= 0]))
    for part in (*saddle.expressions, *market.expressions):
        assert part.is_affine()


def test_a_game_prints_each_players_problem() -> None:
    rho = hf.ClientParameter(nonneg=True, name="rho")
    payoff = cp.sum_squares(u - x) - cp.sum_squares(v) + cp.sum(u) * cp.sum(v)
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum_squares(u) + cp.sum_squares(x)),
        hf.Nash(
            hf.Player(u, cp.Minimize(payoff + rho * cp.sum(u)), [u >= 0]), hf.Player(v, cp.Maximize(payoff), [v <= 1])
        ),
        federation=hf.Federation([hf.Client(parameters={rho: 1.0}), hf.Client(parameters={rho: 2.0})]),
    )
    assert (
        str(problem)
        == """\
minimize over x in R^2
    sum_i w_i * (sum_squares(u) + sum_squares(x))
where (u, v) = (u, v)(x) is a Nash equilibrium of
    player u:
        minimize over u in R^2
            sum_i w_i * (sum_squares(u - x) - sum_squares(v) + sum(u) * sum(v) + rho_i * sum(u))
        subject to u >= 0
    player v:
        maximize over v in R^3
            sum_squares(u - x) - sum_squares(v) + sum(u) * sum(v)
        subject to v <= 1
with 2 clients (weights uniform)"""
    )
    latex = problem.latex()
    assert r"\text{ is a Nash equilibrium}" in latex
    assert r"u \in \underset{u \in \mathbb{R}^{2}}{\operatorname{argmin}}" in latex
    assert r"v \in \underset{v \in \mathbb{R}^{3}}{\operatorname{argmax}}" in latex
    assert "Player(v: maximize" in repr(problem)


def test_many_players_print_as_one() -> None:
    a = hf.Sample(name="a")
    firms = cp.Variable(3, name="q", nonneg=True)
    level = hf.Nash(
        hf.Player(firms, cp.square(firms) - cp.multiply(firms, a - cp.sum(firms)), [firms <= cap[:3]]), scope="sample"
    )
    problem = hf.Problem(
        hf.Minimize(clients=hf.E(cp.sum(firms)) + cp.sum_squares(x)),
        level,
        federation=hf.Federation([hf.Client({a: np.arange(3.0)})]),
    )
    assert """\
where q = q(a) is, for each sample a, a Nash equilibrium of
    each player j of 3:
        minimize over q[j] in R
            (square(q) - q * (a - sum(q)))[j]
        subject to q >= 0
                   q <= [1, 2, 3]
""" in str(problem)
    assert r"q_{j} \in \underset{q_{j} \in \mathbb{R}}{\operatorname{argmin}}" in problem.latex()
    assert r"\text{for each } j = 1, \ldots, 3" in problem.latex()


def test_one_players_row_may_be_a_number_in_another_shape():
    x, y = cp.Variable(name="x"), cp.Variable(1, name="y")
    game = hf.Nash(hf.Player(y, cp.reshape(cp.sum_squares(y - x), (1,), order="F")))
    assert hf.Problem(hf.Minimize(clients=cp.sum(y)), game).implicit(0.7) == pytest.approx(0.7)
