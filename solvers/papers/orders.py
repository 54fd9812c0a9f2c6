"""Orders of complexity as the papers' tables print them: symbols, and their values for a problem's m, K and kappa.

[NN] Table 1 and [2S] Tables 1 to 3, and [HFL] Theorem 1 (iii), (iv). Constants and logarithms are left out there, as here: values
compare methods, and are no numbers of rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite, log1p

from hierfl.analysis.theorems import Prescription
from hierfl.solvers.lower import LFD, FedAC, LocalSGD, ProjectionMethod


@dataclass(frozen=True)
class Order:
    """An order in the papers' symbols, and its value at (m, K)."""

    symbols: str
    value: Callable[[float, float], float]

    def said(self, m: float, horizon: float | None) -> str:
        """The symbols, with the value where the horizon is known."""
        if horizon is None or not isfinite(horizon):
            return f"O({self.symbols})"
        return f"O({self.symbols}) ~ {self.value(m, horizon):.3g}"


UPPER_ROUNDS = Order("(m K)^(3/4)", lambda m, k: (m * k) ** 0.75)
HFL_ROUNDS = "O((L_0 sqrt(n) / eta + L_0^2 n + n^2 / eta^2)^2 eps^-2)"
HFL_STEPS = "O((L_0 sqrt(n) / eta + L_0^2 n + n^2 / eta^2)^3 eps^-3)"


def lower_rounds(lower: object) -> Order | None:
    """Rounds of communication in a call of a federated lower solver ([2S] Table 2); T of the last round, T_r = m^-1 (r + 1)^(2/3)."""
    if isinstance(lower, LocalSGD):
        return Order("m", lambda m, k: m)
    if isinstance(lower, FedAC):
        return Order("m^(1/3)", lambda m, k: m ** (1 / 3))
    if isinstance(lower, LFD):
        return Order(
            "m^(1/3) T^(1/3)", lambda m, k: m ** (1 / 3) * (UPPER_ROUNDS.value(m, k) ** (2 / 3) / m) ** (1 / 3)
        )
    return None


def total_rounds(lower: object) -> Order | None:
    """Rounds of communication of both levels together ([NN] Table 1, [2S] Tables 2 and 3); None where no table has the solver."""
    if isinstance(lower, LocalSGD):
        return Order("m^(7/4) K^(3/4)", lambda m, k: m**1.75 * k**0.75)
    if isinstance(lower, FedAC):
        return Order("m^(13/12) K^(3/4)", lambda m, k: m ** (13 / 12) * k**0.75)
    if isinstance(lower, LFD):
        return Order("(m K)^(11/12)", lambda m, k: (m * k) ** (11 / 12))
    return UPPER_ROUNDS if type(lower) is ProjectionMethod else None


def lower_projections(lower: object, mu: float, smooth: float) -> Order | None:
    """Projections of Algorithm 5 of [2S] over all rounds (its Table 3)."""
    if type(lower) is not ProjectionMethod:
        return None
    ratio = (mu / smooth) ** 2 if 0 < smooth < inf else 0.0
    growth = -log1p(-ratio) if ratio < 1 else inf
    return Order("m K / ln(1 / (1 - kappa^-2))", lambda m, k: m * k / growth if growth > 0 else inf)


def horizon_of(printed: Prescription | None) -> float | None:
    """K of a theorem as printed, where its hypotheses are proved."""
    return None if printed is None else printed.iterations
