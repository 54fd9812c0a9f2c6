"""``Cox``, ``Worst`` and ``CVaR``: what all rows of a holder say together, beside their mean and their sum; ``HazardLoss``, of a row.

The first three are convex, and stand wherever ``E`` does, at either level; O(N log N) in the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, NoReturn

import cvxpy as cp
import numpy as np
from cvxpy.expressions.expression import Expression

from hierfl.atoms.intervals import Interval
from hierfl.atoms.loaded_late import jax, jnp
from hierfl.atoms.row import AtomRow, OnlyCompiled, Unknown
from hierfl.atoms.writing.spelling import Spelling
from hierfl.errors import DataError, DeclarationError, NotConvexError
from hierfl.language.expectation import E, RowAggregate, averages_of, total
from hierfl.language.printing.text import expression_text
from hierfl.near_names import near_names, suggests_names

TIES = ("efron", "breslow")
CANCELLED = 1e-7  # of all hazards up to a time: what is left below it, after those who enter later are taken out, is rounding


def _is_smooth(*_: Any) -> bool:
    return True


def require_spells(names: Sequence[str], held: Sequence[np.ndarray], whose: str) -> None:
    """Raise ``DataError`` where times, events and, if there are any, entries of a holder are none, by the samples' names."""
    time, event, *entry = held
    of_event = f"sample {names[1]!r} of {whose}"
    if (wrong := event[(event != 0) & (event != 1)]).size:
        raise DataError.unfit(of_event, f"has {wrong[0]:g}", "an event is 1, a censored time 0.")
    if not entry and (early := np.flatnonzero(time < 0)).size:
        row = f"has in row {early[0]} the time {time[early[0]]:g}"
        raise DataError.unfit(f"sample {names[0]!r} of {whose}", row, "without entry= times count from the start, and none is below 0.")
    if entry and (late := np.flatnonzero(entry[0] >= time)).size:
        row = f"has in row {late[0]} the entry {entry[0][late[0]]:g} beside the time {time[late[0]]:g}"
        raise DataError.unfit(f"sample {names[2]!r} of {whose}", row, "entries are before times.")


class Cox(RowAggregate):
    """The negative log partial likelihood of a proportional hazards model, divided by the number of rows, as ``E`` is.

    Rows are those of one client: over a federation the model is stratified by site, each with a baseline hazard of its own, and with
    ``weights="samples"`` the sum is the stratified partial likelihood over all N rows.

    Parameters
    ----------
    score
        The log relative hazard of one sample, a scalar that is affine in the decisions, such as ``features @ beta``.
    time
        Scalar ``hf.Sample``: when the sample had the event, or was last seen.
    event
        Scalar ``hf.Sample``: 1 for an event, 0 for a censored time.
    entry
        Scalar ``hf.Sample``, or None: since when it was under observation, before ``time`` (left truncation; intervals of covariates that
        change). None: from the start.
    ties
        What is made of events at one time: ``"efron"``, or ``"breslow"``.

    Raises
    ------
    DeclarationError
        For a score that is no scalar, columns that are no scalar samples, unknown ``ties``.
    DataError
        For events that are neither 0 nor 1, or an entry that is not before its time, naming the client (when a problem is made).

    References
    ----------
    D. R. Cox, "Partial likelihood", Biometrika 62 (1975); B. Efron, "The efficiency of Cox's likelihood function for censored
    data", JASA 72 (1977).

    Examples
    --------
    >>> beta, features = cp.Variable(3), hf.Sample(3)
    >>> time, event = hf.Sample(name="time"), hf.Sample(name="event")
    >>> hf.Cox(features @ beta, time=time, event=event).is_convex()
    True
    """

    symbol = "Cox"
    settings = ("ties",)
    atom_row: ClassVar[AtomRow] = AtomRow(
        smooth=_is_smooth,
        twice_smooth=_is_smooth,
        range=lambda node, arguments: Interval(np.zeros(()), np.full((), np.inf)),
        spellings=(Spelling("Cox", {"ties": "efron"}),),
    )

    @suggests_names
    def __init__(self, score: Any, time: Any = None, event: Any = None, entry: Any = None, ties: str = "efron") -> None:
        if ties not in TIES:
            raise DeclarationError(f"Cox(ties={ties!r}): {near_names(ties, TIES)}")
        for name, column in (("time", time), ("event", event)):
            if column is None:
                raise DeclarationError(f"Cox(score, time=..., event=...) needs {name}=, a scalar hf.Sample.")
        self.ties = ties
        super().__init__(score, time, event, *(() if entry is None else (entry,)))
        if not self.args[0].is_affine():
            raise DeclarationError(
                f"Cox: the score {expression_text(self.args[0])} is not affine in the decisions, so that the partial likelihood is not known to be convex."
            )

    def sign_from_args(self) -> tuple[bool, bool]:
        """Nonnegative: who has an event is among those at risk."""
        return True, False

    def is_incr(self, idx: int) -> bool:
        """An event's score lowers it, others' raise it."""
        return False

    def is_decr(self, idx: int) -> bool:
        return False

    def require_rows(self, held: Sequence[np.ndarray], whose: str) -> None:
        require_spells([one.name() for one in self.args[1:]], held, whose)

    def reduce(self, values: Any, columns: Sequence[Any], weights: Any, count: Any) -> Any:
        time, event, *entry = columns
        case = weights * count  # 1 each; what a case more would change is the derivative in it
        present = case > 0
        falling = jnp.argsort(jnp.where(present, -time, jnp.inf))  # rows that are none come last
        score, when, event, case, present = (each[falling] for each in (values, time, event * present, case, present))
        highest = jax.lax.stop_gradient(jnp.max(jnp.where(present, score, -jnp.inf)))
        hazard = jnp.where(present, case * jnp.exp(score - highest), 0.0)
        below = jnp.where(present, -when, jnp.inf)
        last = jnp.searchsorted(below, below, side="right") - 1  # of those at risk: all of that time, and of later ones
        at_risk = jnp.cumsum(hazard)[last]
        if entry:
            started = jnp.where(present, -entry[0][falling], jnp.inf)
            order = jnp.argsort(started)
            later = jnp.concatenate([jnp.zeros(1, values.dtype), jnp.cumsum(hazard[order])])
            left = at_risk - later[jnp.searchsorted(started[order], below, side="right")]
            at_risk = jnp.where(left > CANCELLED * at_risk, left, jnp.nan)
        real = event > 0
        # scores so far apart that rounding decides who is at risk have no value, rather than a wrong one
        at_risk = jnp.where(real, jnp.where(at_risk > jnp.finfo(values.dtype).tiny, at_risk, jnp.nan), 1.0)
        if self.ties == "breslow":
            return jnp.sum(case * event * (jnp.log(at_risk) + highest - score)) / count
        rows = len(values)
        deaths, died, tied = (jax.ops.segment_sum(event * each, last, rows)[last] for each in (jnp.ones(rows), case, hazard))
        before = jnp.cumsum(event) - event
        rank = before - jax.ops.segment_min(before, last, rows)[last]
        some = jnp.where(real, deaths, 1.0)
        logarithm = jnp.log(jnp.where(real, at_risk - rank / some * tied, 1.0)) + highest
        return jnp.sum(event * (died / some * logarithm - case * score)) / count


class Worst(RowAggregate):
    """The largest loss of a holder's rows.

    Parameters
    ----------
    loss
        A scalar per-sample expression, convex where it is minimised.

    Examples
    --------
    >>> w, reading = cp.Variable(), hf.Sample()
    >>> hf.Worst(cp.square(w - reading)).is_convex()
    True
    """

    symbol = "Worst"
    tail = 0.0  # the share of the rows that it is of; of one row at least
    atom_row: ClassVar[AtomRow] = AtomRow(
        opaque=True,
        range=lambda node, arguments: arguments[0],
        spellings=(Spelling("Worst"),),
    )

    def sign_from_args(self) -> tuple[bool, bool]:
        return self.args[0].is_nonneg(), self.args[0].is_nonpos()

    def is_incr(self, idx: int) -> bool:
        return idx == 0

    def is_decr(self, idx: int) -> bool:
        return False

    def above(self, bound: Any) -> Any:
        """An expression whose least value over ``bound`` is this (Rockafellar and Uryasev, 2000), in means and totals."""
        return bound + total(cp.pos(self.args[0] - bound))

    def reduce(self, values: Any, columns: Sequence[Any], weights: Any, count: Any) -> Any:
        return jnp.max(jnp.where(weights > 0, values, -jnp.inf))


class CVaR(Worst):
    """The conditional value at risk: the mean of the ``1 - level`` share of a holder's rows with the largest losses.

    A row on the edge of that share counts in part.

    Parameters
    ----------
    loss
        A scalar per-sample expression, convex where it is minimised.
    level
        In [0, 1): 0 is the mean; towards 1 it becomes :class:`Worst`.

    Raises
    ------
    DeclarationError
        For a level outside [0, 1).

    References
    ----------
    Rockafellar, R. T., and Uryasev, S., "Optimization of conditional value-at-risk", Journal of Risk 2 (2000).

    Examples
    --------
    >>> w, reading = cp.Variable(), hf.Sample()
    >>> hf.CVaR(cp.abs(w - reading), level=0.9).is_convex()
    True
    """

    symbol = "CVaR"
    atom_row: ClassVar[AtomRow] = replace(Worst.atom_row, spellings=(Spelling("CVaR", {"level": 0.95}),))
    settings = ("level",)

    @suggests_names
    def __init__(self, loss: Any, level: float = 0.95) -> None:
        if not isinstance(level, int | float) or not 0 <= level < 1:
            raise DeclarationError(f"CVaR(level={level!r}): the level is a number in [0, 1), such as 0.95; hf.Worst is its limit at 1.")
        self.level = float(level)
        super().__init__(loss)

    @property
    def tail(self) -> float:  # type: ignore[override]
        return 1.0 - self.level

    def above(self, bound: Any) -> Any:
        return bound + E(cp.pos(self.args[0] - bound)) / (1.0 - self.level)

    def reduce(self, values: Any, columns: Sequence[Any], weights: Any, count: Any) -> Any:
        order = jnp.argsort(jnp.where(weights > 0, jnp.where(jnp.isnan(values), -jnp.inf, -values), jnp.inf))
        share = weights[order]
        room = (1.0 - self.level) - (jnp.cumsum(share) - share)
        taken = jax.lax.stop_gradient(jnp.clip(room, 0.0, share))
        return jnp.sum(jnp.where(taken > 0, taken * values[order], 0.0)) / (1.0 - self.level)


def tails_of(part: Any) -> list[Worst]:
    """The aggregates of a tail of the rows in an expression."""
    return [one for one in averages_of(part) if isinstance(one, Worst)]


def without_tails(expression: Expression, bounds: Sequence[Any]) -> Expression:
    """An expression whose least value over the ``bounds``, one for each aggregate of a tail, is that of the expression."""
    return tails_replaced(expression, [tail.above(bound) for tail, bound in zip(tails_of(expression), bounds)])


def opened_tails(expression: Expression, own: Any) -> tuple[Expression, list[cp.Variable]]:
    """An expression whose least value over the variables beside it is that of the expression: one for each tail, and, by ``own``, each client."""
    ends = [cp.Variable(() if own is None else own.shape) for _ in tails_of(expression)]
    return without_tails(expression, ends if own is None else [own @ every for every in ends]), ends


def tails_replaced(expression: Expression, others: Sequence[Any]) -> Expression:
    """The expression with others in the place of its aggregates of a tail."""
    over = dict(zip(map(id, tails_of(expression)), others))

    def replaced(part: Any) -> Any:
        if id(part) in over:
            return over[id(part)]
        return part.copy([replaced(one) for one in part.args]) if tails_of(part) else part

    return replaced(expression)


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


class HazardLoss(Unknown, OnlyCompiled):
    """Minus the log-likelihood of a row; scalar.

    ``hazard`` (K,) is s + a, the logarithms of the jumps of the row's integrated hazard, affine; ``times`` (K,) are when the baseline jumps,
    increasing constants that everybody knows, or there is a ``DeclarationError``. ``time``, ``event``, ``entry`` are as of :class:`hierfl.Cox`; a
    row with an event that is neither 0 nor 1 or at none of the times, or an entry that is not before its time, has no value (NaN).
    """

    atom_row: ClassVar[AtomRow] = AtomRow(lower=_lower, smooth=_is_smooth, twice_smooth=_is_smooth)

    @suggests_names
    def __init__(self, hazard: Any, times: Any, time: Any, event: Any, *entry: Any) -> None:
        super().__init__(hazard, times, time, event, *entry)
        known = np.asarray(self.args[1].value)
        if not self.args[0].is_affine():
            raise DeclarationError("HazardLoss: the score is not affine in the decisions.")
        if known.ndim != 1 or not np.isfinite(known).all() or not (np.diff(known) > 0).all():
            raise DeclarationError("HazardLoss: times are numbers that increase.")

    def shape_from_args(self) -> tuple[int, ...]:
        return ()

    def is_atom_convex(self) -> bool:
        """In the hazard, which is affine."""
        return True

    def _refuse(self) -> NoReturn:
        raise NotConvexError(f"{self.name()}: hierfl compiles it; CVXPY can neither evaluate nor solve it.")
