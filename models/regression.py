"""Regressions of a federation's rows: linear, logistic, Poisson and Cox, with elastic-net penalties.

min over b of  1/N sum over all rows of loss(row, features . b) + penalty (l1_ratio ||b||_1 + (1 - l1_ratio) ||b||^2 / 2)

All rows count alike, whoever holds them, so that without a penalty the answer is that of the pooled rows; of a Cox model that of the
pooled rows stratified by client. The intercept is not penalised. With ``penalty="held-out"`` each client holds back a share of its rows,
and the penalty is the upper decision: the loss of the rows that were held back is minimised over it (the scaling of penalty and
mixture is that of glmnet: Friedman, Hastie and Tibshirani, 2010).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import cvxpy as cp
import numpy as np

import hierfl as hf
from hierfl.errors import DataError, SettingError
from hierfl.language.aggregates import HazardLoss, require_spells
from hierfl.near_names import near_names, suggests_names

HELD_OUT = "held-out"
BASELINES = ("site", "shared")
RANGE = (1e-6, 1e2)  # of a penalty that is looked for


@suggests_names
class Regression(hf.Problem):
    """What the regressions of this file share: a problem whose variables are ``intercept`` (if any) and ``coefficients`` (p,).

    Parameters
    ----------
    federation
        Who holds which rows, without weights of its own: all rows count alike.
    features
        ``hf.Sample`` of shape (p,), or a ``hf.Schema``, which knows the outcome too.
    outcome
        Scalar ``hf.Sample``; left out with a schema.
    intercept
        Whether there is one.
    penalty
        A number, at least 0, or ``"held-out"``: chosen between 1e-6 and 100 by the loss of rows that are held back, as ``problem.penalty``.
    l1_ratio
        In [0, 1]: the share of the 1-norm.
    held_out, seed
        The share of each client's rows that is held back for ``penalty="held-out"``, at least one row, and how they are drawn.

    Raises
    ------
    SettingError
        For a penalty, ratio or share out of range.
    DataError
        Where a client has fewer than two rows, or its rows elsewhere, and some are to be held back.

    Examples
    --------
    >>> issubclass(hf.models.LogisticRegression, hf.models.regression.Regression)
    True
    """

    _elsewhere: ClassVar[dict[str, str]] = {
        **hf.Problem._elsewhere,
        "fit": "it is fitted by result = problem.solve(); result.inference() has standard errors.",
        "coef_": "result.x has the coefficients, result = problem.solve().",
        "predict": "result.x has the coefficients: predictions are NumPy, such as rows @ result.x[problem.coefficients].",
    }

    def __init__(
        self,
        federation: hf.Federation,
        features: Any,
        outcome: Any = None,
        *,
        intercept: bool = True,
        penalty: float | str = 0.0,
        l1_ratio: float = 0.0,
        held_out: float = 0.25,
        seed: int = 0,
    ) -> None:
        columns = getattr(features, "features", features)
        self._fit(federation, columns, {"outcome": _outcome_of(features, outcome)}, intercept, penalty, l1_ratio, held_out, seed)

    def _fit(
        self,
        federation: hf.Federation,
        features: hf.Sample,
        others: Mapping[str, hf.Sample | None],
        intercept: bool,
        penalty: float | str,
        l1_ratio: float,
        held_out: float,
        seed: int,
    ) -> None:
        """Declare the problem; ``others`` are the samples beside the features that the loss is of."""
        name = type(self).__name__
        if not isinstance(federation, hf.Federation):
            raise SettingError(f"{name}: the first argument is a hf.Federation, not {type(federation).__name__}.")
        if federation.server is not None:
            raise SettingError(f"{name}: the federation's server holds rows, and the model is of clients' rows: make the server a client.")
        if not isinstance(federation.weights, str):
            raise SettingError(f"{name}: all rows count alike, and a federation's weights=[...] are not taken: leave them out, or write the loss as a hf.Problem.")
        chosen = isinstance(penalty, str) and penalty == HELD_OUT
        _require_number(name, "penalty", 0.0 if chosen else penalty)
        _require_number(name, "l1_ratio", l1_ratio)
        _require_number(name, "held_out", held_out)
        if not isinstance(intercept, bool):
            raise SettingError(f"{name}(intercept={intercept!r}): True or False.")
        if not isinstance(seed, int | np.integer) or seed < 0:
            raise SettingError(f"{name}(seed={seed!r}): a whole number, at least 0.")
        self._require_outcomes(federation, others)
        if not isinstance(features, hf.Sample) or len(features.shape) != 1:
            raise SettingError(f"{type(self).__name__}: features are a hf.Sample of shape (p,), or a hf.Schema, not {features!r}.")
        if not 0.0 <= l1_ratio <= 1.0:
            raise SettingError(f"{type(self).__name__}(l1_ratio={l1_ratio!r}): a share, between 0 and 1.")
        if not (chosen or 0 <= float(penalty) < np.inf):
            raise SettingError(f"{type(self).__name__}(penalty={penalty!r}): a number, at least 0, or {HELD_OUT!r}.")
        self.coefficients = cp.Variable(features.shape[0], name="coefficients")
        self.intercept = cp.Variable(name="intercept") if intercept else None
        decisions = [v for v in (self.intercept, self.coefficients) if v is not None]
        spread = l1_ratio * cp.norm1(self.coefficients) if l1_ratio else 0.0
        spread = spread + (0.5 * (1.0 - l1_ratio) * cp.sum_squares(self.coefficients) if l1_ratio < 1.0 else 0.0)
        rows = self._loss(self._score(features), **others)
        for place, client in enumerate(federation.clients):  # what sites hold they look at themselves
            if client.schemas and not client.holds(features):
                raise DataError(f"{name}: {client.called(place)} was read by another hf.Schema than the one that is given: make one schema, for the federation and the model.")
            held = [client.samples.get(one) for one in getattr(rows, "judged", ())]
            if held and all(isinstance(column, np.ndarray) for column in held):
                rows.require_rows(held, client.called(place))
        if not chosen:
            self.penalty = float(penalty)
            objective = rows + self.penalty * spread if penalty else rows
            if (held_out, seed) != (0.25, 0) or (l1_ratio and not penalty):
                nothing = "l1_ratio" if l1_ratio and not penalty else "held_out and seed"
                needs = "a penalty=" if nothing == "l1_ratio" else f"penalty={HELD_OUT!r}"
                raise SettingError(f"{name}: {nothing} would be nothing without {needs}.")
            pooled = hf.Federation(federation.clients, weights="samples", test=federation.test, points=federation.points, edges=federation.edges)
            super().__init__(hf.Minimize(clients=objective), federation=pooled)
            return
        self.penalty = cp.Variable(nonneg=True, name="penalty")
        known = {"features": features, **{name: one for name, one in others.items() if one is not None}}
        unseen = {name: hf.Sample(one.shape, name=f"{one.name()} held out") for name, one in known.items()}
        learnt, judged = (hf.ClientParameter(nonneg=True, name=f"share of rows {what}") for what in ("learnt from", "held out"))
        parties = _with_rows_held_back(federation, known, unseen, (learnt, judged), held_out, seed)
        features_unseen = unseen.pop("features")
        self._require_comparison([{name: party.samples[one] for name, one in unseen.items()} for party in parties])
        above = self._loss(self._score(features_unseen), **{name: unseen.get(name) for name in others})
        super().__init__(
            hf.Minimize(clients=judged * above),
            lower=hf.ArgMin(decisions, learnt * rows + self.penalty * spread),
            constraints=[self.penalty >= RANGE[0], self.penalty <= RANGE[1]],
            federation=hf.Federation(parties, test=federation.test, points=federation.points, edges=federation.edges),
        )

    _outcomes = ("", lambda values: np.ones(len(values), bool))  # what they are, and which are
    _judged, _at_end = "outcome", frozenset[float]()  # the column that is looked at, and values that alone say nothing

    def _require_outcomes(self, federation: hf.Federation, others: Mapping[str, hf.Sample | None]) -> None:
        """Outcomes are not all of them at the end of what they may be, where a likelihood has no maximum."""
        at_end = type(self)._at_end
        outcome = others.get(type(self)._judged)
        if outcome is None:
            return
        seen = [held for client in federation.clients if isinstance(held := client.samples.get(outcome), np.ndarray)]
        if len(seen) == len(federation.clients):
            different: np.ndarray = np.unique(np.concatenate(seen))
            if different.size == 1 and different[0] in at_end:
                raise DataError(f"sample {outcome.name()!r} is {different[0]:g} in every row: a {type(self).__name__} of it has no estimate.")

    def _require_comparison(self, held_out: Sequence[Mapping[str, Any]]) -> None:
        """Rows that are held back tell penalties from each other."""

    def _judged_mean(self, loss: cp.Expression, outcome: hf.Sample) -> cp.Expression:
        """The mean of a loss whose outcome has to be such as the model is of, at sites too, which look at their rows themselves."""
        mean = hf.E(loss)
        mean.judged, mean.judge = (outcome,), partial(_require_outcome, type(self), outcome.name())
        return mean

    def _score(self, features: hf.Sample) -> cp.Expression:
        score = features @ self.coefficients
        return score if self.intercept is None else self.intercept + score

    def _loss(self, score: cp.Expression, **others: Any) -> cp.Expression:
        raise NotImplementedError


class LinearRegression(Regression):
    """Least squares: the loss is (outcome - score)^2 / 2. Parameters and errors as of :class:`Regression`.

    Examples
    --------
    >>> dose, answer = hf.Sample(1, name="dose"), hf.Sample(name="answer")
    >>> client = hf.Client({dose: [[0.0], [1.0], [2.0], [3.0]], answer: [1.0, 3.1, 4.9, 7.0]})
    >>> model = hf.models.LinearRegression(hf.Federation([client]), dose, answer)
    >>> model.solve(progress=False).inference().estimate.round(2)
    array([1.03, 1.98])
    """

    def _loss(self, score: cp.Expression, **others: Any) -> cp.Expression:
        return hf.E(0.5 * cp.square(others["outcome"] - score))


class LogisticRegression(Regression):
    """The outcome is 0 or 1: the loss is log(1 + exp(score)) - outcome score. Parameters and errors as of :class:`Regression`.

    Examples
    --------
    >>> dose, answer = hf.Sample(1, name="dose"), hf.Sample(name="answer")
    >>> client = hf.Client({dose: [[0.0], [1.0], [2.0], [3.0]], answer: [0.0, 1.0, 0.0, 1.0]})
    >>> model = hf.models.LogisticRegression(hf.Federation([client]), dose, answer)
    >>> model.solve(progress=False).inference().estimate.round(2)
    array([-1.36,  0.91])
    """

    _outcomes = ("0 or 1", lambda values: (values == 0) | (values == 1))
    _at_end = frozenset({0.0, 1.0})

    def _loss(self, score: cp.Expression, **others: Any) -> cp.Expression:
        return self._judged_mean(cp.logistic(score) - others["outcome"] * score, others["outcome"])


class PoissonRegression(Regression):
    """The outcome is a count: the loss is exp(score) - outcome score. Parameters and errors as of :class:`Regression`.

    Examples
    --------
    >>> dose, answer = hf.Sample(1, name="dose"), hf.Sample(name="answer")
    >>> client = hf.Client({dose: [[0.0], [1.0], [2.0], [3.0]], answer: [1.0, 1.0, 3.0, 5.0]})
    >>> model = hf.models.PoissonRegression(hf.Federation([client]), dose, answer)
    >>> model.solve(progress=False).inference().estimate.round(2)
    array([-0.24,  0.62])
    """

    _outcomes = ("a number of events, at least 0", lambda values: values >= 0)
    _at_end = frozenset({0.0})

    def _loss(self, score: cp.Expression, **others: Any) -> cp.Expression:
        return self._judged_mean(cp.exp(score) - others["outcome"] * score, others["outcome"])


@suggests_names
class CoxRegression(Regression):
    """Proportional hazards, with a baseline hazard of each client (stratified), or one that all share (pooled).

    Stratified, the loss is :class:`hierfl.Cox`. Pooled, the logarithms of the baseline's jumps at the times of events are decisions beside
    the coefficients, ``model.baseline``, and the fit is Breslow's of the pooled rows; what sites send are then sums over who is at risk at
    each time (``result.inference(of=model.coefficients)`` leaves the jumps out of the table).

    Parameters
    ----------
    federation, features, penalty, l1_ratio, held_out, seed
        As of :class:`Regression`; there is no intercept.
    time, event, entry
        Scalar ``hf.Sample``; with a schema the names of its outcome columns. ``entry`` may be None.
    ties
        As of :class:`hierfl.Cox`: by default ``"efron"``, and ``"breslow"`` of a pooled model, which has no other.
    baseline
        ``"site"``, or ``"shared"``.
    times
        (K,): of a shared baseline, when events happened at any site; None: as seen, where all rows are here. Where a time has no event, the least f has no
        such jump: its logarithm falls without end, the run says so ("runs away"), and the coefficients and their table are as without that time.

    Examples
    --------
    >>> age, week, arrest = hf.Sample(1, name="age"), hf.Sample(name="week"), hf.Sample(name="arrest")
    >>> client = hf.Client({age: [[20.0], [30.0], [25.0], [40.0]], week: [3.0, 8.0, 9.0, 12.0], arrest: [1.0, 1.0, 1.0, 0.0]})
    >>> model = hf.models.CoxRegression(hf.Federation([client]), age, time=week, event=arrest)
    >>> model.solve(progress=False).inference().estimate.round(2)
    array([-0.2])
    """

    _outcomes = ("an event, 1, or a censored time, 0", lambda values: (values == 0) | (values == 1))
    _judged, _at_end = "event", frozenset({0.0})

    def __init__(
        self,
        federation: hf.Federation,
        features: Any,
        *,
        time: Any,
        event: Any,
        entry: Any = None,
        ties: str | None = None,
        baseline: str = "site",
        times: Any = None,
        penalty: float | str = 0.0,
        l1_ratio: float = 0.0,
        held_out: float = 0.25,
        seed: int = 0,
    ) -> None:
        if baseline not in BASELINES:
            raise SettingError(f"CoxRegression(baseline={baseline!r}): {near_names(baseline, BASELINES)}")
        own = {name: _column_of(features, one, name) for name, one in (("time", time), ("event", event), ("entry", entry))}
        self.times, self.baseline = None, None
        if baseline == "shared":
            if ties not in (None, "breslow"):
                raise SettingError(f"CoxRegression(ties={ties!r}, baseline='shared'): events at one time are counted by Breslow's rule there; leave ties out.")
            if isinstance(penalty, str) and penalty == HELD_OUT:
                raise SettingError("CoxRegression(penalty='held-out', baseline='shared'): rows that are held back have events when others have none. Give a number.")
            self.times = _event_times(federation, own["time"], own["event"], times)
            self.baseline = cp.Variable(len(self.times), name="log_baseline")
        elif times is not None:
            raise SettingError("CoxRegression(times=...) is about a shared baseline: write baseline='shared' too.")
        self.ties = ties or ("efron" if self.baseline is None else "breslow")
        self._fit(federation, getattr(features, "features", features), own, False, penalty, l1_ratio, held_out, seed)

    def _require_comparison(self, held_out: Sequence[Mapping[str, Any]]) -> None:
        for own in held_out:
            time, entry = own["time"], own.get("entry", -np.inf)
            if any(((time >= when) & (entry < when)).sum() > 1 for when in time[own["event"] == 1]):
                return
        raise DataError(
            f"CoxRegression(penalty={HELD_OUT!r}): of the rows that are held back, no event is compared with a row that is at risk then at the same "
            f"client: hold more back by held_out=, or give a number."
        )

    def _loss(self, score: cp.Expression, **others: Any) -> cp.Expression:
        if self.baseline is None:
            return hf.Cox(score, **others, ties=self.ties)
        entry = [] if others.get("entry") is None else [others["entry"]]
        mean = hf.E(HazardLoss(score + self.baseline, self.times, others["time"], others["event"], *entry))
        mean.judged = (others["time"], others["event"], *entry)
        mean.judge = partial(_require_events, [one.name() for one in mean.judged], self.times)
        return mean


def _require_outcome(model: type[Regression], name: str, held: Any, whose: str) -> None:
    what, are = model._outcomes
    if not (right := are(held[0])).all():
        raise DataError.unfit(f"sample {name!r} of {whose}", f"has {held[0][~right][0]:g}", f"the outcome of a {model.__name__} is {what}.")


def _require_events(names: Sequence[str], times: Any, held: Any, whose: str) -> None:
    require_spells(names, held, whose)
    if (off := held[0][(held[1] == 1) & ~np.isin(held[0], times)]).size:
        raise DataError.unfit(f"sample {names[0]!r} of {whose}", f"has an event at {float(off[0])!r}", "events happen at one of times=.")


def _event_times(federation: hf.Federation, time: hf.Sample, event: hf.Sample, given: Any) -> np.ndarray:
    """When a shared baseline jumps: at the times given, or when events happened."""
    if not isinstance(federation, hf.Federation):
        raise SettingError(f"CoxRegression: the first argument is a hf.Federation, not {type(federation).__name__}.")
    held = [(client.samples.get(time), client.samples.get(event)) for client in federation.clients]
    here = [when[has == 1] if isinstance(when, np.ndarray) and isinstance(has, np.ndarray) else None for when, has in held]
    if given is None:
        if any(events is None for events in here):
            raise DataError("CoxRegression(baseline='shared'): rows are elsewhere, and when they have events is not known here. Give times=, when events happened at any site.")
        return np.unique(np.concatenate([events for events in here if events is not None]))
    try:
        times = np.unique(np.asarray(given, float).ravel())
    except (TypeError, ValueError):
        times = np.full(1, np.nan)
    if not (times.size and np.isfinite(times).all()):
        raise SettingError(f"CoxRegression(times={given!r}): finite numbers, in the unit of {time.name()!r}, when events happened.")
    return times


def _require_number(model: str, name: str, value: Any) -> None:
    if not isinstance(value, int | float | np.number) or isinstance(value, bool):
        raise SettingError(f"{model}({name}={value!r}): a number" + (f", or {HELD_OUT!r}." if name == "penalty" else ", between 0 and 1."))


def _outcome_of(features: Any, outcome: Any) -> Any:
    own = getattr(features, "outcome", None)
    chosen = outcome if outcome is not None else own
    if not isinstance(chosen, hf.Sample):
        raise SettingError(f"the outcome is a scalar hf.Sample, or that of a hf.Schema with one; not {chosen!r}.")
    return chosen


def _column_of(features: Any, given: Any, name: str) -> Any:
    """A sample, or a schema's by the name of its column."""
    if isinstance(given, hf.Sample) or (given is None and name == "entry"):
        return given
    if not isinstance(given, str):
        raise SettingError(f"CoxRegression({name}={given!r}): a scalar hf.Sample, or with a hf.Schema the name of an outcome's column.")
    outcomes = getattr(features, "outcomes", {})
    if given not in outcomes:
        raise SettingError(f"CoxRegression({name}={given!r}): the schema's outcomes are {', '.join(map(repr, outcomes)) or 'none'}.")
    return outcomes[given]


def _with_rows_held_back(
    federation: hf.Federation,
    known: Mapping[str, hf.Sample],
    unseen: Mapping[str, hf.Sample],
    shares: tuple[hf.ClientParameter, hf.ClientParameter],
    share: float,
    seed: int,
) -> list[hf.Client]:
    """The clients with two tables, the rows that are learnt from and others of the same kind, and their shares of all rows of each kind, by which clients that weigh
    alike count as their rows do."""
    if not 0.0 < share < 1.0:
        raise SettingError(f"held_out={share!r}: the share of a client's rows that is held back, between 0 and 1.")
    parts = []
    for place, client in enumerate(federation.clients):
        counts = {client.num_samples(sample) for sample in known.values()}
        if None in counts or any(not isinstance(client.samples[sample], np.ndarray) for sample in known.values()):
            raise DataError(f"{client.called(place)}: rows can be held back where they are here, as arrays: give the client two tables yourself.")
        count = int(max(n for n in counts if n is not None))
        if count < 2:
            raise DataError(f"{client.called(place)} has {count} row, and one to learn from and one to hold back are needed.")
        order = np.random.default_rng([seed, place]).permutation(count)
        back = min(count - 1, max(1, round(share * count)))
        parts.append((np.sort(order[back:]), np.sort(order[:back])))
    totals = [sum(len(own[kind]) for own in parts) for kind in (0, 1)]
    parties = []
    for client, chosen in zip(federation.clients, parts):
        tables = [
            {sample: client.given(known[name]).taken(rows) for name, sample in own.items()}
            for own, rows in zip((known, unseen), chosen)
        ]
        own_shares = {of: len(parts) * len(rows) / total for of, rows, total in zip(shares, chosen, totals)}
        party = hf.Client(tables, {**client.parameters, **own_shares}, name=client.name)
        object.__setattr__(party, "schemas", client.schemas)  # by which its rows were read, standardised or not
        parties.append(party)
    return parties
