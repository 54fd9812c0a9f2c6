"""The Lipschitz constant of y(x) over polyhedra whose sides move, by hand and against difference quotients."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import scipy.stats

import hierfl as hf

N, M = 2, 3


def slope_of(objective: Any, constraints: Any, size: int = 2) -> Any:
    x, y = cp.Variable(size if size == N else (), name="x"), cp.Variable(M, name="y")
    lower = hf.ArgMin(y, objective(x, y), constraints(x, y))
    problem = hf.Problem(hf.Minimize(clients=cp.sum(y)), lower, constraints=[cp.abs(x) <= 2])
    return problem, problem.check(progress=False)


def test_a_budget_that_moves() -> None:
    """Over sum y = x the projection moves by 1/sqrt(3); with two entries at their bound the third moves by 1."""
    for constraints, expected in (
        (lambda x, y: [cp.sum(y) == x], 1 / np.sqrt(3)),
        (lambda x, y: [cp.sum(y) == x, y >= -1], 1.0),
        (lambda x, y: [cp.sum(y) <= x, cp.sum(y) >= x - 1], 1 / np.sqrt(3)),
    ):
        _, report = slope_of(lambda x, y: cp.sum_squares(y), constraints, size=0)
        assert report.constants["L_y"].value == pytest.approx(expected, rel=1e-9)
        assert report["y(x) Lipschitz"].status == "proved"


def test_a_quadratic_is_weighed_by_its_condition() -> None:
    """h = |y|^2_D / 2 - x'y, mu = 1, L = 4: sqrt(4) a + 1 for a = 1 of the box y <= x + 3."""
    curved = np.diag([1.0, 2.0, 4.0])
    _, report = slope_of(
        lambda x, y: 0.5 * cp.quad_form(y, curved) - x[0] * y[0] - x[1] * y[1], lambda x, y: [y[:2] <= x + 3, y >= -9]
    )
    assert report.constants["L_y"].value == pytest.approx(2 * 1 + 1, rel=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_no_difference_quotient_is_larger(seed: int) -> None:
    rng = np.random.default_rng(seed)
    root, rows, sides = rng.standard_normal((M, M)), rng.standard_normal((4, M)), rng.standard_normal((4, N))
    curved, pull = root @ root.T + 0.3 * np.eye(M), rng.standard_normal((N, M))
    problem, report = slope_of(
        lambda x, y: 0.5 * cp.quad_form(y, cp.psd_wrap(curved)) - x @ pull @ y,
        lambda x, y: [rows @ y <= 1 + np.abs(sides).sum(axis=1) * 2.1 + sides @ x, cp.sum(y) <= 5],
    )
    bound, response = report.constants["L_y"].value, problem.implicit.response
    assert np.isfinite(bound) and report["y(x) Lipschitz"].status == "proved"
    points = rng.uniform(-2, 2, (30, N))
    steps = 10 ** rng.uniform(-4, 0, (30, 1)) * rng.standard_normal((30, N))
    for point, other in zip(points, np.clip(points + steps, -2, 2)):
        assert np.linalg.norm(response(point) - response(other)) <= bound * np.linalg.norm(point - other) + 1e-9


def test_a_side_that_stays_asks_for_no_bound_on_the_curvature() -> None:
    _, report = slope_of(lambda x, y: cp.sum(y**4) + cp.sum_squares(y) - x * y[0], lambda x, y: [y[0] + 0 * x <= 1], size=0)
    assert report.constants["L_h"].value == np.inf and report.constants["L_y"].value == pytest.approx(0.5)


def test_what_has_no_constant_or_too_many_rows_says_so() -> None:
    _, report = slope_of(lambda x, y: cp.sum_squares(y), lambda x, y: [x[0] * y[0] + y[1] <= 1])
    assert report["y(x) Lipschitz"].status == "unknown" and "may not be Lipschitz" in report["y(x) Lipschitz"].reason
    x, y = cp.Variable(12, name="x"), cp.Variable(12, name="y")
    sides = [y >= -1, y <= 1, cp.sum(y) <= x[0], np.arange(1.0, 13) @ y <= x[1]]
    large = hf.Problem(hf.Minimize(clients=cp.sum(y)), hf.ArgMin(y, cp.sum_squares(y - x), sides))
    assert "sets of 26 rows" in large.check(progress=False)["y(x) Lipschitz"].reason


def test_the_papers_theorem_has_numbers_over_moving_sides() -> None:
    """A leader's capacity y <= x: [2S] Theorem 1 applies, and L_f counts how the bound moves."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    problem = hf.Problem(
        hf.Minimize(clients=cp.abs(y)), hf.ArgMin(y, cp.square(y - 3), [y <= x, y >= 0]), constraints=[x >= 0, x <= 2]
    )
    (theorem,) = problem.check(epsilon=0.5, progress=False).theorems
    assert theorem.applies and theorem.predicted is not None
    assert problem.check(progress=False).constants["L0_imp"].value == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("attributes", [{"nonneg": True}, {"bounds": [0, 1000]}, {}])
def test_attributes_of_y_are_sides_that_stay(attributes: Any) -> None:
    """y_1 + y_2 / 10 = x with y_1 = 0 moves y_2 by 10: with a sign declared the set is no translation."""
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y", **attributes)
    sides = [y[0] + 0.1 * y[1] == x, *([] if attributes else [y >= 0])]
    lower = hf.ArgMin(y, cp.sum_squares(y + np.array([100.0, 0])), sides)
    problem = hf.Problem(hf.Minimize(clients=cp.square(x) + cp.sum(y)), lower, constraints=[x >= 0, x <= 5])
    quotient = np.linalg.norm(problem.implicit.response(0.5) - problem.implicit.response(0.4)) / 0.1
    assert quotient == pytest.approx(10, rel=1e-6)
    assert quotient <= problem.check(progress=False).constants["L_y"].value * (1 + 1e-6)


def test_rows_that_hold_a_distribution_have_no_constant() -> None:
    x, y, s = cp.Variable(name="x"), cp.Variable(2, name="y"), hf.Sample(name="s")
    problem = hf.Problem(
        hf.Minimize(clients=hf.E(cp.sum_squares(x) + cp.sum(y) + 0 * s)),
        hf.ArgMin(y, cp.sum_squares(y), [y[0] >= s * x, y[1] >= -1], scope="sample"),
        federation=hf.Federation([hf.Client({s: scipy.stats.norm(0, 1)})]),
    )
    assert problem.check(progress=False)["y(x) Lipschitz"].status == "unknown"


# --- The modulus of equilibria whose Jacobian moves: proved, never unsafe, and what is sampled is what was seen.


@pytest.fixture
def pair():
    return cp.Variable(2, name="x"), cp.Variable(2, name="y")


def check(problem, **settings_):
    return problem.check(progress=False, **settings_)


def game(*players, constraints=()):
    """The games' problem: players, and bounds on x."""
    sum_of_squares = sum(cp.sum_squares(v) for player in players for v in player.variables)
    return hf.Problem(hf.Minimize(clients=sum_of_squares), hf.Nash(*players), constraints=list(constraints))


def test_the_modulus_of_a_game_with_curved_costs_is_proved():
    """The symmetric part is at least [[2 + 1/e, 0.45], [0.45, 0.6]], attained at (-1, 0): by hand 0.492."""
    x, y, z = (cp.Variable(name=name) for name in ("x", "y", "z"))
    report = check(
        game(
            hf.Player(y, cp.exp(y) + cp.square(y) + 0.5 * y * z - x * y, [y >= -1, y <= 1]),
            hf.Player(z, cp.power(z, 4) + 0.3 * cp.square(z) + 0.4 * y * z, [z >= -1, z <= 1]),
            constraints=[x >= -1, x <= 1],
        )
    )
    assert report["strong monotonicity"].status == "proved" and report["smoothness"].status == "proved"
    least = np.array([[2 + np.exp(-1), 0.45], [0.45, 0.6]])
    assert report.constants["mu_F"].value == pytest.approx(np.linalg.eigvalsh(least)[0])
    most = np.array([[2 + np.e, 0.5], [0.4, 12.6]])
    smooth, modulus = report.constants["L_F"].value, report.constants["mu_F"].value
    assert np.linalg.norm(most, 2) <= smooth <= 1.2 * np.linalg.norm(most, 2)
    assert report.constants["kappa_F"].value == pytest.approx(smooth / modulus)


@pytest.mark.parametrize("size", [2, 4, 12])
def test_a_coupling_of_either_sign_costs_no_more_than_its_magnitude(size):
    """x y_j z_j for -1 <= x <= 1 beside y'y / 2 and 2 z'z leaves the least eigenvalue of [[1, 1], [1, 4]], whatever the sign."""
    x, y, z = cp.Variable(name="x"), cp.Variable(size, name="y"), cp.Variable(size, name="z")
    report = check(
        game(
            hf.Player(y, 0.5 * cp.sum_squares(y) + x * (y @ z)),
            hf.Player(z, 2 * cp.sum_squares(z) + x * (y @ z)),
            constraints=[x >= -1, x <= 1],
        )
    )
    assert report.constants["mu_F"].value == pytest.approx(np.linalg.eigvalsh([[1, 1], [1, 4]])[0])


def test_what_a_player_adds_alone_counts_as_convex_as_a_whole():
    """No interval tells that log_sum_exp, and a logistic loss over rows, curve upwards; their Hessians are 0 at least."""
    x, y, z = cp.Variable(name="x"), cp.Variable(2, name="y"), cp.Variable(2, name="z")
    rows = np.array([[1.0, 2.0], [3.0, -1.0], [-2.0, 2.0]])
    report = check(
        game(
            hf.Player(y, cp.log_sum_exp(y) + 0.5 * cp.sum_squares(y) + 0.3 * y @ z - x * cp.sum(y)),
            hf.Player(z, cp.sum(cp.logistic(rows @ z)) + 0.5 * cp.sum_squares(z) - 0.1 * y @ z),
            constraints=[x >= -1, x <= 1],
        )
    )
    assert report["strong monotonicity"].status == "proved"
    assert report.constants["mu_F"].value == pytest.approx(0.9)  # 1 - (0.3 - 0.1) / 2
    largest = 1 + np.linalg.eigvalsh(rows.T @ rows)[-1] / 4
    assert largest <= report.constants["L_F"].value <= 2 * largest


def test_the_modulus_holds_for_every_x_and_every_client():
    x, y, z = (cp.Variable(name=name) for name in ("x", "y", "z"))
    k = hf.ClientParameter(name="k", nonneg=True)
    level = hf.Nash(
        hf.Player(y, x * cp.square(y) + y * z, [y >= -1, y <= 1]),
        hf.Player(z, k * cp.square(z) + 0.5 * y * z, [z >= -1, z <= 1]),
    )
    federation = hf.Federation([hf.Client(parameters={k: value}) for value in (1.0, 3.0)])
    report = check(hf.Problem(hf.Minimize(clients=y + z), level, [x >= 1, x <= 2], federation))
    constant = report.constants["mu_F"]
    for value, own in zip((1.0, 3.0), constant.by_client):
        assert own == pytest.approx(np.linalg.eigvalsh([[2.0, 0.75], [0.75, 2 * value]])[0])
    assert report.constants["mu_F of the mean"].value == pytest.approx(np.linalg.eigvalsh([[2, 0.75], [0.75, 4]])[0])
    assert report["strong monotonicity"].status == "proved"


def test_a_mapping_with_elementwise_curves_is_bounded_without_a_game(pair):
    x, y = pair
    mapping = y + cp.logistic(y) + np.array([[0, 0.5], [-0.5, 0]]) @ y - x
    report = check(hf.Problem(hf.Minimize(clients=cp.sum(y)), hf.Equilibrium(y, mapping, [cp.abs(y) <= 1])))
    assert report["strong monotonicity"].status == "proved" and report.constants["mu_F"].value >= 1 - 1e-9
    assert report.constants["L_F"].value <= 2.5


def test_what_is_sampled_is_seen_in_the_declared_set_only():
    """y^2 on [1, 2] has modulus 2, and falls on the other side of 0: the least quotient seen is no less than 2."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    mapping = hf.Function(lambda v: v**2, y) - x
    report = check(hf.Problem(hf.Minimize(clients=y), hf.Equilibrium(y, mapping, [y >= 1, y <= 2]), [x >= 1, x <= 4]))
    found = report["strong monotonicity"]
    assert found.status == "sampled" and found.worst >= 2
    assert "which is no bound" in found.reason and f"at least {found.worst:.6g}" in found.reason


def test_one_lower_level_of_all_has_the_rows_of_every_client() -> None:
    """y = 10 (x - 1) is where the second client's side is, and y = x + 20 where the first one's is."""
    x, y, a, b = cp.Variable(name="x"), cp.Variable(name="y"), hf.ClientParameter(name="a"), hf.ClientParameter(name="b")
    federation = hf.Federation([hf.Client(parameters={a: 1.0, b: 20.0}), hf.Client(parameters={a: 10.0, b: -10.0})])
    lower = hf.ArgMin(y, cp.square(y - 100), [y <= a * x + b], scope="federation")
    report = hf.Problem(hf.Minimize(clients=y), lower, [cp.abs(x) <= 1], federation).check(progress=False)
    assert report.constants["L_y"].value == pytest.approx(10)
