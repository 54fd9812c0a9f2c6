"""The theorems' numbers, against plain transcriptions of the papers' formulas."""

from math import ceil, log, pi, sqrt

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierfl.analysis.curvature_bounds import curvature_bounds, is_quadratic, largest, majorant, perron, smallest
from hierfl.analysis.theorems import (
    Constants,
    bound_2s,
    bound_bl,
    bound_nn,
    lower_settings_hfl,
    prescribe_2s,
    prescribe_bl,
    prescribe_bl_corrected,
    prescribe_hfl,
    prescribe_nn,
    step_limit_2s,
    step_limit_bl,
    step_limit_nn,
    thetas_hfl,
)

N, M, ETA = 3, 4, 0.2
L0, LY, SLOPE, NU2, B1, B2, GAP = 1.5, 2.0, 0.7, 0.4, 0.3, 1.0, 2.5
C = Constants(
    n=N, m=M, smoothing=ETA, gap=GAP, lipschitz=L0, lipschitz_y=LY, slope=SLOPE, variance=NU2, b1=B1, b2=B2,
    mu=0.5, smooth=2.0, start=4.0, server_smooth=1.2, server_variance=0.9, lower_variance=0.8, swing=3.0,
    value=1.1, lowest=0.6,
)  # fmt: skip


def test_proposition_1_of_nn():
    # [2S] Proposition 1 (i): the step sizes and the three terms of the bound
    K, gamma, H = 1e6, 1e-4, 7
    assert step_limit_nn(C, H) == min(ETA / (4 * L0 * N), 1 / (4 * H), ETA / (12 * sqrt(3) * B2 * (L0 * N + 1) * H))
    expected = (
        8 * GAP / (gamma * (K + 1))
        + (12 * gamma * L0 * N**3) / (ETA * M) * (2 * NU2 / ETA**2 + L0**2)
        + (36 * H**2 * gamma**2 * (L0 * N + 1) ** 2)
        / ETA**2
        * ((6 * N**2 * NU2 + 2 * B1**2) / ETA**2 + (3 + 4 * B2**2) * L0**2 * N**2)
    )
    assert bound_nn(C, K, gamma, H) == pytest.approx(expected)


def test_proposition_1_of_nn_corrected():
    """f^eta is (L_0 n + 1) / eta-smooth, and the descent lemma takes that where the proof then writes L_0 n / eta."""
    K, gamma, H = 1e6, 1e-4, 7
    smoothness = (L0 * N + 1) / ETA
    assert step_limit_nn(C, H, corrected=True) <= 1 / (4 * smoothness)
    added = 12 * gamma * (smoothness - L0 * N / ETA) * N**2 / M * (2 * NU2 / ETA**2 + L0**2)
    assert bound_nn(C, K, gamma, H, corrected=True) == pytest.approx(bound_nn(C, K, gamma, H) + added)
    assert prescribe_nn(C, 1e-2, corrected=True).rounds > prescribe_nn(C, 1e-2, corrected=False).rounds


def test_theorem_1_of_bl():
    # [2S] Theorem 1 with exact lower solutions
    K, gamma, H = 1e8, 1e-6, 5
    T1 = 3 * (L0 * N + 1) * N**2 / (2 * ETA) * L0**2
    T2 = 5 * (L0 * N + 1) ** 2 / (8 * ETA**2)
    T3 = SLOPE**2 * 20 * N**2 / ETA**2 * LY**2
    T5 = 48 * B1**2 / ETA**2 + (96 * B2**2 + 1) * L0**2 * N**2
    expected = 8 / (gamma * K) * GAP + 8 * gamma * T1 / M + 8 * H**2 * gamma**2 * max(T2, T3) * T5
    assert bound_bl(C, K, gamma, H) == pytest.approx(expected)
    largest = max(2, sqrt(0.1 * T3), 4 * B2 * sqrt(3 * T2), 4 * B2 * sqrt(3 * T3))
    assert step_limit_bl(C, H) == pytest.approx(min(1 / largest / (4 * H), ETA / (24 * (L0 * N + 1))))


def test_theorem_2_of_2s():
    K, gamma, H = 1e8, 1e-6, 5
    T1 = (L0 * N + 1) * N**2 / ETA * L0**2
    T2 = 5 * (L0 * N + 1) ** 2 / (8 * ETA**2)
    T3 = 20 * N**2 / ETA**2 * LY**2
    T4 = 36 * N**2 / ETA**2 * LY**2
    T5 = 9 * (2 * B1**2 / ETA**2 + (4 * B2**2 + 1) * L0**2 * N**2)
    errors = 4.0 * (1 + log(K))  # epsilon_k <= B / (k + 1)
    expected = (
        8 / (gamma * K) * GAP
        + 8 * gamma * T1 / M
        + 8 * H**2 * gamma**2 * T2 * T5
        + (8 / K * H**2 * gamma**2 * T2 * T4 + 8 / K * T3) * errors
    )
    assert bound_2s(C, K, gamma, H) == pytest.approx(expected)
    assert step_limit_2s(C, H) == pytest.approx(min(1 / (12 * sqrt(6) * H * B2 * sqrt(T2)), ETA / (16 * (L0 * N + 1))))
    found = prescribe_2s(C, 0.1, corrected=False).extra
    assert found["alpha"] == 0.5 / 2.0**2 and found["tau"] == pytest.approx(-1 / log(1 - (0.5 / 2.0) ** 2))


def test_theorem_1_of_hfl():
    Lf = 1.2 + L0 * sqrt(N) / ETA
    T1 = 4 * Lf * (1.1 + 0.6)
    T2 = 64 * sqrt(2 * pi) * L0**2 * N + 4 * 0.9
    T3 = 6 * N**2 / ETA**2 * LY**2
    printed = prescribe_hfl(C, 0.1, corrected=False)
    assert list(printed.thetas.values()) == pytest.approx([T1, T2, T3])
    assert printed.rounds == ceil(((T1 + T2 + T3) / 0.1) ** 2)
    assert printed.step == pytest.approx(1 / (4 * Lf))
    # corrected: Theta_1 = 16 L^f (sup - inf), Theta_3 times C / tau
    corrected = prescribe_hfl(C, 0.1, corrected=True)
    lower = lower_settings_hfl(C)
    assert lower["step"] * 0.5 > 1 and lower["Gamma"] >= 2 * 2.0**2 * lower["step"] / 0.5  # Proposition 1's hypotheses
    numerator = max(2 * 0.8 * lower["step"] ** 2 / (0.5 * lower["step"] - 1), lower["Gamma"] * 4.0)
    expected = [16 * Lf * 3.0, T2, T3 * numerator / ceil(numerator)]
    assert list(corrected.thetas.values()) == pytest.approx(expected)
    assert thetas_hfl(C)["Theta_1"] < corrected.thetas["Theta_1"]


@pytest.mark.parametrize("epsilon", [1.0, 1e-3])
def test_prescribed_horizons_meet_the_bound_and_the_step_limits(epsilon):
    for found, bound, limit in (
        (prescribe_nn(C, epsilon, corrected=False), bound_nn, step_limit_nn),
        (prescribe_bl(C, epsilon), bound_bl, step_limit_bl),
    ):
        K, gamma, H = found.iterations, found.step, found.local_steps
        assert gamma == pytest.approx(sqrt(M / K)) and pytest.approx(ceil((K / M**3) ** 0.25)) == H
        assert gamma <= limit(C, H) and bound(C, K, gamma, H) <= epsilon
        assert bound(C, K / 4, sqrt(4 * M / K), ceil((K / 4 / M**3) ** 0.25)) > epsilon or 2 * gamma > limit(C, H)


def test_the_corrected_bilevel_setting_gains_nothing_from_more_clients():
    few, many = (
        prescribe_bl_corrected(Constants(**{**C.__dict__, "m": m}), 0.1) for m in (2, 200)
    )  # [2S] Lemma 9's gap
    assert few.rounds == many.rounds and few.local_steps == 1
    # the lower level's mean squared error keeps 8 * 20 n^2 L_y^2 / eta^2 * error within the other half
    assert 8 * 20 * N**2 / ETA**2 * LY**2 * few.extra["lower_error"] == pytest.approx(0.05)


def test_accuracies_out_of_reach_are_infinite():
    assert prescribe_nn(Constants(**{**C.__dict__, "gap": float("inf")}), 0.1, corrected=False).rounds == float("inf")


# --- mu from below and L from above: against NumPy eigenvalues of explicit Hessians and second differences.


def products_of(matrix):
    return lambda vectors: vectors @ matrix.T


def hessian_of(expression, variable):
    """Of a quadratic expression, by second differences of exact values."""
    size, base = variable.size, np.zeros(variable.shape)

    def value(flat):
        variable.value = flat.reshape(variable.shape)
        return float(expression.value)

    unit = np.eye(size)
    zero = value(base.ravel())
    single = [value(e) for e in unit]
    return np.array(
        [[value(unit[i] + unit[j]) - single[i] - single[j] + zero for j in range(size)] for i in range(size)]
    )


# --- expressions


def test_atoms_without_a_bound_say_so():
    y = cp.Variable(2, name="y")
    bounds = curvature_bounds(cp.sum(cp.exp(y)) + cp.sum_squares(y), [y])
    assert bounds.upper is None and "exp(y)" in bounds.notes[0]
    np.testing.assert_allclose(hessian_of(bounds.lower, y), 2 * np.eye(2), atol=1e-9)
    assert curvature_bounds(cp.norm(y, 1), [y]).upper is None


def test_a_square_of_what_is_not_affine_is_bounded_by_convexity_alone():
    y = cp.Variable(2, name="y")
    assert curvature_bounds(cp.square(3 * cp.square(y[0]) - 10), [y]).lower is None  # -120 at 0
    for convex in (cp.sum_squares(cp.pos(y)), cp.quad_over_lin(cp.exp(y), 2), cp.square(3 * cp.pos(y[0]))):
        bounds = curvature_bounds(convex, [y])
        assert bounds.upper is None and not hessian_of(bounds.lower, y).any()


def test_huber_is_not_quadratic():
    y = cp.Variable(2)
    assert not is_quadratic(cp.sum(cp.huber(y))) and is_quadratic(cp.sum_squares(y) + cp.sum(y))


# --- spectra


@given(st.integers(0, 10_000), st.sampled_from([1e-8, 1.0, 1e8]))
@settings(deadline=None, max_examples=60)
def test_ends_of_a_spectrum_are_safe_and_close(seed, scale):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 12))
    values = scale * np.sort(rng.choice([0.0, 1e-6, 1.0, 2.0], size) + rng.random(size) * rng.integers(0, 2))
    rotation = np.linalg.qr(rng.standard_normal((size, size)))[0]
    matrix = (rotation * values) @ rotation.T
    matrix = 0.5 * (matrix + matrix.T)
    low, high = smallest(products_of(matrix), size), largest(products_of(matrix), size)
    error = 1e-14 * values[-1]
    assert low.value <= values[0] + error and high.value >= values[-1] - error
    assert low.value >= values[0] - 1e-12 * values[-1] and high.value <= values[-1] * (1 + 1e-12)


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=40)
def test_the_perron_bound_is_never_below_the_norm(seed):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((6, 5)) * rng.integers(0, 2, (6, 5))
    bound = perron(products_of(np.abs(rows).T @ np.abs(rows)), 5)
    assert bound >= np.linalg.eigvalsh(rows.T @ rows)[-1] * (1 - 1e-14)


def test_a_majorant_dominates_entry_by_entry():
    rng = np.random.default_rng(0)
    matrix, y, shift = rng.standard_normal((3, 4)), cp.Variable(4, name="y"), cp.Parameter(3, value=np.ones(3))
    expression = 2 * cp.sum_squares(matrix @ y - shift) - cp.sum(cp.multiply([1, 2, 3, 4], cp.square(y)))
    found = hessian_of(majorant(expression, [y]), y)
    assert (found - np.abs(hessian_of(expression, y)) >= -1e-9).all()


def test_a_majorant_of_a_bilinear_map_keeps_its_constant_factor():
    y = cp.Variable((2, 1), name="y")
    expression = cp.sum_squares(cp.kron(np.array([[1.0, 2.0]]), y)) - cp.sum(cp.square(y))
    found = hessian_of(majorant(expression, [y]), y)
    np.testing.assert_allclose(found, (2 * 5 + 2) * np.eye(2), rtol=1e-6)
