"""A row's part of a Cox model whose baseline hazard all clients share: the model is then a sum over rows, and sites send sums.

With jumps exp(a_k) of the baseline's integral at the times t_k of events, minus the log-likelihood of a row with score s is

    sum over k with entry < t_k <= time of exp(s + a_k)   -   event (s + a_k where t_k = time).

It is convex in s and a together. Minimised over a, its sum over all rows is Breslow's partial likelihood of the pooled rows, up to a
constant (Breslow, 1974; Johansen, 1983), and the inverse Hessian's block of the coefficients is that of the partial likelihood.
"""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

import numpy as np

from hierfl.atoms.loaded_late import jnp
from hierfl.atoms.row import AtomRow, OnlyCompiled
from hierfl.errors import DeclarationError, NotConvexError


def _lower(atom: Any, hazard: Any, times: Any, time: Any, event: Any, *entry: Any) -> Any:
    at_risk = times <= time
    if entry:
        at_risk &= entry[0] < times
    jumps = times == time
    right = (event == 0) | ((event == 1) & jumps.any())
    if entry:
        right &= entry[0] < time
    at_event = jnp.where(right, jnp.sum(jnp.where(jumps, hazard, 0.0)), jnp.nan)
    return jnp.where(right, jnp.sum(jnp.where(at_risk, jnp.exp(hazard), 0.0)) - event * at_event, jnp.nan)


class HazardLoss(OnlyCompiled):
    """Minus the log-likelihood of a row; scalar.

    Parameters
    ----------
    hazard
        (K,): s + a, the logarithms of the jumps of the row's integrated hazard; affine.
    times
        (K,): when the baseline jumps, increasing; constants that everybody knows.
    time, event, entry
        As of :class:`hierfl.Cox`; a row with an event that is neither 0 nor 1 or at none of the times,
        or an entry that is not before its time, has no value (NaN).

    Raises
    ------
    DeclarationError
        For a hazard that is not affine, or times that are not increasing.
    """

    atom_row: ClassVar[AtomRow] = AtomRow(
        lower=_lower, smooth=lambda *_: True, twice_smooth=lambda atom: True
    )

    def __init__(self, hazard: Any, times: Any, time: Any, event: Any, *entry: Any) -> None:
        super().__init__(hazard, times, time, event, *entry)
        known = np.asarray(self.args[1].value)
        if not self.args[0].is_affine():
            raise DeclarationError("HazardLoss: the score is not affine in the decisions.")
        if known.ndim != 1 or not np.isfinite(known).all() or not (np.diff(known) > 0).all():
            raise DeclarationError("HazardLoss: times are numbers that increase.")

    def shape_from_args(self) -> tuple[int, ...]:
        return ()

    def sign_from_args(self) -> tuple[bool, bool]:
        return False, False

    def is_atom_convex(self) -> bool:
        """In the hazard, which is affine."""
        return True

    def is_atom_concave(self) -> bool:
        return False

    def is_incr(self, idx: int) -> bool:
        return False

    def is_decr(self, idx: int) -> bool:
        return False

    def _refuse(self) -> NoReturn:
        raise NotConvexError(f"{self.name()}: hierfl compiles it; CVXPY can neither evaluate nor solve it.")
