"""The modulus of equilibria whose Jacobian moves: proved, never unsafe, and what is sampled is what was seen."""

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hierfl as hf
from hierfl.compiler.expressions.program import NO_ROWS


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


@given(st.integers(0, 10_000))
@settings(max_examples=8, deadline=None)
def test_moduli_of_moving_jacobians_are_safe(seed):
    rng = np.random.default_rng(seed)
    x, y, z = cp.Variable(name="x"), cp.Variable(2, name="y"), cp.Variable(2, name="z")
    curved = [cp.exp, cp.logistic, lambda v: cp.power(v, 4), lambda v: cp.huber(v, 0.5), lambda v: cp.log_sum_exp(v)]
    terms = [cp.sum(curved[k](rng.standard_normal((2, 2)) @ v)) for k, v in zip(rng.integers(0, 5, 2), (y, z))]
    a, b, c = rng.uniform(0.1, 2, 3)
    matrix = rng.standard_normal((2, 2))
    players = (
        hf.Player(y, terms[0] + a * (2 + x) * cp.sum_squares(y) + cp.sum(matrix @ z) * y[0], [cp.abs(y) <= 1]),
        hf.Player(z, terms[1] + b * cp.sum_squares(z) + c * (1 + y[1]) * cp.sum(cp.square(z)), [cp.abs(z) <= 1]),
    )
    problem = game(*players, constraints=[x >= -1, x <= 1])
    report, compiled = check(problem, samples=4), problem.compile()
    own = compiled.data().clients.party(0).environment
    for _ in range(20):
        first, second = rng.uniform(-1, 1, (2, 4))
        at = rng.uniform(-1, 1, 1)
        step = first - second
        change = np.asarray(compiled.operator(at, first, own, NO_ROWS) - compiled.operator(at, second, own, NO_ROWS))
        assert (
            change @ step >= (report.constants["mu_F"].value - 1e-6) * (step @ step)
            or report.constants["mu_F"].value == 0
        )
        assert np.linalg.norm(change) <= report.constants["L_F"].value * np.linalg.norm(step) * (1 + 1e-6)


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
