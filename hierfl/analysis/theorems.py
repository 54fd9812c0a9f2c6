"""What the papers' theorems prescribe and predict, as functions of the constants; as printed, and corrected.

[NN]  Qiu, Shanbhag, Yousefian (2023), Proposition 1.
[2S]  Qiu, Shanbhag, Yousefian (2024), Proposition 1, Theorems 1 and 2.
[HFL] Qiu, Kim, Yousefian (2025), Proposition 1, Theorem 1.

All bound E|grad f^eta|^2 at a random iterate. ``gap`` stands for f^eta(x_0) - inf f^eta, an upper bound of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, exp, inf, log, log1p, pi, sqrt
from typing import Any


@dataclass(frozen=True)
class Constants:
    """The constants that the theorems mention; ``n`` upper scalars, ``m`` clients.

    ``lipschitz`` is L_0 (without a lower level) or L_0^imp, ``lipschitz_y`` L_{0,y}^f, ``slope`` L_{0,x}^{grad h} / mu_h (the
    Lipschitz constant of y(x) there), ``variance`` nu^2, ``b1`` and ``b2`` the set dissimilarity, ``mu`` and ``smooth`` mu_h
    (mu_F) and L_{1,y}^h (L_F), ``start`` a bound on the squared distance of the lower solver's start from y(x),
    ``server_smooth`` L_1^{f_1}, ``server_variance`` sigma^2, ``lower_variance`` the largest sigma_i^2, ``swing`` a bound on
    f^eta - inf f^eta over X.
    """

    n: int
    m: int
    smoothing: float
    gap: float = inf
    lipschitz: float = inf
    lipschitz_y: float = 0.0
    slope: float = 0.0
    variance: float = 0.0
    b1: float = 0.0
    b2: float = 0.0
    mu: float = 0.0
    smooth: float = inf
    start: float = inf
    server_smooth: float = 0.0
    server_variance: float = 0.0
    lower_variance: float = 0.0
    swing: float = inf
    value: float = 0.0
    lowest: float = 0.0


@dataclass(frozen=True)
class Prescription:
    """A setting under which a bound on E|grad f^eta|^2 reaches the accuracy.

    ``iterations`` is the horizon K of local steps, ``rounds`` R, ``step`` gamma (its value in round 0 for [HFL]),
    ``local_steps`` H; ``thetas`` the theorem's constants; ``extra`` further settings by name,
    ``lower`` the lower solver of a run.
    """

    rounds: float
    step: float
    local_steps: float
    bound: float
    thetas: dict[str, float]
    iterations: float | None = None
    extra: dict[str, float] | None = None
    lower: str | None = None


HORIZON_LIMIT = 1e300


def local_steps(horizon: float, m: int) -> float:
    """H = ceil((K / m^3)^(1/4))."""
    return float(max(1, ceil((horizon / m**3) ** 0.25))) if horizon < HORIZON_LIMIT else inf


def steps_given(given: float | None) -> Callable[[float, int], float]:
    """H as a function of the horizon and m: the theorems' choice, or a number that is given."""
    return local_steps if given is None else lambda horizon, m: float(given)


def least_horizon(
    c: Constants,
    epsilon: float,
    bound: Callable[[Constants, float, float, float], float],
    limit: Callable[[Constants, float], float],
    steps_of: Callable[[float, int], float],
    step_of: Callable[[float], float],
    thetas: dict[str, float],
) -> Prescription:
    """The least K (to a part in 10^9, by bisection of its logarithm) from which on the bound and the limits hold."""

    def met(horizon: float) -> bool:
        steps, step = steps_of(horizon, c.m), step_of(horizon)
        return step <= limit(c, steps) and bound(c, horizon, step, steps) <= epsilon

    high = 1.0
    while high < HORIZON_LIMIT and not met(high):
        high *= 2
    if high >= HORIZON_LIMIT:
        return Prescription(inf, 0.0, inf, inf, thetas, inf)
    low = high / 2
    while high - low > max(1.0, 1e-9 * high):
        middle = exp(0.5 * (log(low) + log(high)))
        low, high = (low, middle) if met(middle) else (middle, high)
    horizon = float(ceil(high)) if met(float(ceil(high))) else high
    steps, step = steps_of(horizon, c.m), step_of(horizon)
    return Prescription(float(ceil(horizon / steps)), step, steps, bound(c, horizon, step, steps), thetas, horizon)


def over(above: float, below: float) -> float:
    """The quotient, infinity where ``below`` is 0."""
    return above / below if below > 0 else inf


# --- Proposition 1 of [NN] and of [2S]: without a lower level --------------------------------------------------------


def step_limit_nn(c: Constants, steps: float, corrected: bool = False) -> float:
    """gamma <= min{eta / (4 L0 n), 1 / (4 H), eta / (12 sqrt(3) B2 (L0 n + 1) H)}.

    Corrected, also <= eta / (4 (L0 n + 1)): f^eta is (L0 n + 1) / eta-smooth, as the proof shows.
    """
    reach = c.lipschitz * c.n
    limits = [over(c.smoothing, 4 * (reach + corrected)), 1 / (4 * steps)]
    return min(*limits, over(c.smoothing, 12 * sqrt(3) * c.b2 * (reach + 1) * steps))


def bound_nn(c: Constants, horizon: float, step: float, steps: float, corrected: bool = False) -> float:
    """The error bound of Proposition 1 (i) for K = ``horizon``, gamma = ``step`` and H = ``steps``.

    Corrected, with the smoothness that the proof shows, (L0 n + 1) / eta, where it then writes L0 n / eta.
    """
    eta, n, lipschitz = c.smoothing, c.n, c.lipschitz
    reach = lipschitz * n + corrected
    return (
        8 * c.gap / (step * (horizon + 1))
        + 12 * step * reach * n**2 / (eta * c.m) * (2 * c.variance / eta**2 + lipschitz**2)
        + 36
        * steps**2
        * step**2
        * (lipschitz * n + 1) ** 2
        / eta**2
        * ((6 * n**2 * c.variance + 2 * c.b1**2) / eta**2 + (3 + 4 * c.b2**2) * lipschitz**2 * n**2)
    )


def prescribe_nn(c: Constants, epsilon: float, corrected: bool, given: float | None = None) -> Prescription:
    """The least horizon K with gamma = sqrt(m / K), H = ceil((K / m^3)^(1/4)), or a given H, that meets the bound and its step limits."""
    bound, limit = partial(bound_nn, corrected=corrected), partial(step_limit_nn, corrected=corrected)
    return least_horizon(c, epsilon, bound, limit, steps_given(given), lambda k: sqrt(c.m / k), {})


# --- Theorem 2 of [2S]: two-stage problems ---------------------------------------------------------------------------


def thetas_2s(c: Constants) -> dict[str, float]:
    """Theta_1..Theta_5 of [2S] Theorem 2."""
    n, eta, reach = c.n, c.smoothing, c.lipschitz * c.n + 1
    return {
        "Theta_1": reach * n**2 / eta * c.lipschitz**2,
        "Theta_2": 5 * reach**2 / (8 * eta**2),
        "Theta_3": 20 * n**2 / eta**2 * c.lipschitz_y**2,
        "Theta_4": 36 * n**2 / eta**2 * c.lipschitz_y**2,
        "Theta_5": 9 * (2 * c.b1**2 / eta**2 + (4 * c.b2**2 + 1) * c.lipschitz**2 * n**2),
    }


def step_limit_2s(c: Constants, steps: float, corrected: bool = False) -> float:
    """gamma <= min{1 / (12 sqrt(6) H B2 sqrt(Theta_2)), eta / (16 (L n + 1))}.

    Corrected, also <= 1 / (sqrt(24) H), which the proof uses (Lemma 13 (ii)) and the statement omits.
    """
    printed = over(1.0, 12 * sqrt(6) * steps * c.b2 * sqrt(thetas_2s(c)["Theta_2"]))
    return min(printed, c.smoothing / (16 * (c.lipschitz * c.n + 1)), 1 / (sqrt(24) * steps) if corrected else inf)


def bound_2s(c: Constants, horizon: float, step: float, steps: float) -> float:
    """The error bound of [2S] Theorem 2 (ii), with sum of epsilon_k <= B (1 + ln K) as for its t_k."""
    t = thetas_2s(c)
    errors = c.start * (1 + log(horizon))
    return (
        8 * c.gap / (step * horizon)
        + 8 * step * t["Theta_1"] / c.m
        + 8 * steps**2 * step**2 * t["Theta_2"] * t["Theta_5"]
        + (8 * steps**2 * step**2 * t["Theta_2"] * t["Theta_4"] + 8 * t["Theta_3"]) * errors / horizon
    )


def contraction_growth(mu: float, smooth: float) -> float:
    """The least tau of Theorem 2 (iii), -1 / ln(1 - 1 / kappa^2) with kappa = L / mu; 0 where kappa is 1."""
    ratio = (mu / smooth) ** 2
    return -1 / log1p(-ratio) if ratio < 1 else 0.0


def prescribe_2s(c: Constants, epsilon: float, corrected: bool, given: float | None = None) -> Prescription:
    """gamma = sqrt(m / K), H = ceil((K / m^3)^(1/4)) or a given H; alpha = mu / L^2 and the least tau of t_k = ceil(tau ln(k + 1)) lower steps."""
    limit = partial(step_limit_2s, corrected=corrected)
    upper = least_horizon(c, epsilon, bound_2s, limit, steps_given(given), lambda k: sqrt(c.m / k), thetas_2s(c))
    return replace(upper, extra={"alpha": c.mu / c.smooth**2, "tau": contraction_growth(c.mu, c.smooth)})


# --- Theorem 1 of [2S]: bilevel and minimax problems -----------------------------------------------------------------


def thetas_bl(c: Constants) -> dict[str, float]:
    """Theta_1..Theta_5 of [2S] Theorem 1."""
    n, eta, reach = c.n, c.smoothing, c.lipschitz * c.n + 1
    return {
        "Theta_1": 3 * reach * n**2 / (2 * eta) * c.lipschitz**2,
        "Theta_2": 5 * reach**2 / (8 * eta**2),
        "Theta_3": c.slope**2 * 20 * n**2 / eta**2 * c.lipschitz_y**2,
        "Theta_4": 96 * n**2 / eta**2 * c.lipschitz_y**2,
        "Theta_5": 48 * c.b1**2 / eta**2 + (96 * c.b2**2 + 1) * c.lipschitz**2 * n**2,
    }


def step_limit_bl(c: Constants, steps: float) -> float:
    """gamma <= min{max{2, sqrt(.1 Theta_3), 4 B2 sqrt(3 Theta_2), 4 B2 sqrt(3 Theta_3)}^-1 / (4 H), eta / (24 (L n + 1))}."""
    t = thetas_bl(c)
    largest = max(2.0, sqrt(0.1 * t["Theta_3"]), *(4 * c.b2 * sqrt(3 * t[name]) for name in ("Theta_2", "Theta_3")))
    return min(1 / (4 * steps * largest), c.smoothing / (24 * (c.lipschitz * c.n + 1)))


def bound_bl(c: Constants, horizon: float, step: float, steps: float) -> float:
    """The error bound of [2S] Theorem 1 (i) with the lower level solved exactly (every epsilon_r = 0)."""
    t = thetas_bl(c)
    drift = 8 * steps**2 * step**2 * max(t["Theta_2"], t["Theta_3"]) * t["Theta_5"]
    return 8 * c.gap / (step * horizon) + 8 * step * t["Theta_1"] / c.m + drift


def bound_bl_corrected(c: Constants, horizon: float, step: float, steps: float) -> float:
    """Without independence that is not there ([2S] Lemma 9): one local step a round, and no division by m.

    A direction shared by all clients leaves E|mean of g|^2 <= n^2 L^2; at H = 1 no client has moved from the broadcast
    point, so that the drift terms vanish.
    """
    assert steps == 1
    return 8 * c.gap / (step * horizon) + 8 * step * thetas_bl(c)["Theta_1"]


def prescribe_bl(c: Constants, epsilon: float, given: float | None = None) -> Prescription:
    """As printed: gamma = sqrt(m / K), H = ceil((K / m^3)^(1/4)) or a given H."""
    steps = steps_given(given)
    return least_horizon(c, epsilon, bound_bl, step_limit_bl, steps, lambda k: sqrt(c.m / k), thetas_bl(c))


def prescribe_bl_corrected(c: Constants, epsilon: float) -> Prescription:
    """One local step a round, gamma = 1 / sqrt(K); half of the accuracy is left to the lower level's error.

    ``extra["lower_error"]`` is the mean squared error of y that this half allows: 8 * 20 n^2 L_y^2 / eta^2 times it (the
    coefficient of the proof's inequality (19) before the factor that only belongs to the drift).
    """
    half = least_horizon(c, epsilon / 2, bound_bl_corrected, step_limit_bl, steps_given(1.0), lambda k: 1 / sqrt(k), thetas_bl(c))
    weight = 8 * 20 * c.n**2 / c.smoothing**2 * c.lipschitz_y**2
    return replace(half, extra={"lower_error": over(epsilon / 2, weight)})


# --- Theorem 1 of [HFL]: hierarchical problems -----------------------------------------------------------------------


def smoothness_hfl(c: Constants) -> float:
    """L^f = L_1^{f_1} + L_0^imp sqrt(n) / eta."""
    return c.server_smooth + c.lipschitz * sqrt(c.n) / c.smoothing


def lower_settings_hfl(c: Constants) -> dict[str, float]:
    """Proposition 1 with gamma~ = 2 / mu, so that mu gamma~ > 1, and the least Gamma = 2 L^2 gamma~ / mu.

    ``C`` is the numerator max{2 sigma^2 gamma~^2 / (mu gamma~ - 1), Gamma |y_0 - y|^2} of its bound; ``tau`` the least
    number of local steps for which C / tau <= 1.
    """
    step = 2 / c.mu
    offset = 2 * c.smooth**2 * step / c.mu
    numerator = max(2 * c.lower_variance * step**2 / (c.mu * step - 1), offset * c.start)
    return {"step": step, "Gamma": offset, "C": numerator, "tau": float(max(1, ceil(numerator)))}


def thetas_hfl(c: Constants, corrected: bool = False) -> dict[str, float]:
    """Theta_1..Theta_3 of [HFL] Theorem 1, as printed.

    Corrected, Theta_1 = 16 L^f (sup f^eta - inf f^eta), since 1 / gamma_r does not telescope; Theta_3 times C / tau.
    """
    lower = lower_settings_hfl(c)
    return {
        "Theta_1": smoothness_hfl(c) * (16 * c.swing if corrected else 4 * (abs(c.value) + abs(c.lowest))),
        "Theta_2": 64 * sqrt(2 * pi) * c.lipschitz**2 * c.n + 4 * c.server_variance,
        "Theta_3": 6 * c.n**2 / c.smoothing**2 * c.lipschitz_y**2 * (lower["C"] / lower["tau"] if corrected else 1.0),
    }


def prescribe_hfl(c: Constants, epsilon: float, corrected: bool) -> Prescription:
    """gamma_r = 1 / (4 L^f sqrt(r + 1)), H_r = ceil(tau sqrt(r + 1)), R = (sum of Theta / epsilon)^2."""
    thetas, lower = thetas_hfl(c, corrected), lower_settings_hfl(c)
    total = sum(thetas.values())
    rounds = float(max(1, ceil((total / epsilon) ** 2))) if total / epsilon < sqrt(HORIZON_LIMIT) else inf
    return Prescription(rounds, 1 / (4 * smoothness_hfl(c)), lower["tau"], total / sqrt(rounds), thetas, None, lower)


@dataclass(frozen=True)
class TheoremPoint:
    """The random iterate x_k* at which the class's theorem bounds E|grad f^eta|^2, drawn before the run from its seed.

    ``iterate`` is the mean of the clients' iterates after ``round`` rounds and ``local_step`` steps of the next, ``x`` its
    projection on X, and ``value`` f(x) with the lower level solved.
    """

    x: Any
    iterate: Any
    value: float
    round: int
    local_step: int
