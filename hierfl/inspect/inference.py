"""Standard errors, intervals and tests of an M-estimator that a declaration contains.

The estimator b minimises L(b) = sum over clients i of w_i L_i(b), where L_i is a mean, a sum or an aggregate over the client's rows. With
H the Hessian of L at b and psi_j the derivative of grad L in the weight of row j (its influence; for a mean, the gradient of the row's own
loss times the row's weight), the covariance is

* ``"model"``: c phi H^-1, where every row weighs c: the inverse information, for a loss that is a negative log-likelihood. phi is 1, and
  for a quadratic loss the dispersion 2 sum(loss) / (N - p).
* ``"robust"``: H^-1 (sum over rows of psi_j psi_j') H^-1, the sandwich, right when the model is not.
* ``"clustered"``: the same with the sums of each client's psi_j in place of psi_j: rows of one client may depend on one another.

Clients are asked for sums over their rows alone: gradient, Hessian, sum of psi psi', sum of psi, loss.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
from cvxpy.atoms.affine.binary_operators import DivExpression, MulExpression
from cvxpy.atoms.affine.sum import Sum
from cvxpy.atoms.affine.unary_operators import NegExpression
from cvxpy.atoms.elementwise.power import Power, PowerApprox
from cvxpy.constraints import Equality, Inequality
from jax import Array
from scipy import stats

from hierfl.analysis.curvature_bounds import is_quadratic
from hierfl.analysis.enclosure import Enclosure
from hierfl.analysis.hoist import instantiate
from hierfl.analysis.variable_bounds import attribute_constraints
from hierfl.atoms.algebra import addends, nodes_of
from hierfl.compiler.data.tables import Data
from hierfl.compiler.layout import Layout
from hierfl.compiler.lower_level.structure import nonsmooth_atom
from hierfl.compiler.oracles import Oracles
from hierfl.compiler.row_sums import POWERS, RowLoss, RowSums
from hierfl.errors import DataError, NoGradientError, SettingError
from hierfl.house_style import house_style, panels, require_axes
from hierfl.jaxtools.cheap_jit import quick_jit
from hierfl.jaxtools.precision import double_precision
from hierfl.language.aggregates import Cox, HazardLoss
from hierfl.language.expectation import RowAggregate, total
from hierfl.language.printing.card import Card, Shown
from hierfl.language.printing.text import expression_text
from hierfl.language.sample import Sample
from hierfl.near_names import near_names

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hierfl.result import Result

KINDS = ("model", "robust", "clustered")
FAR = 0.05  # standard errors from the estimator, at which a point is none
SINGULAR = 1e-11  # the least eigenvalue of a Hessian of unit diagonal, below which entries are not told apart
ESTIMABLE = 1e-6  # of a direction that the rows do not tell, the most that an entry which they tell has
RUN_OFF = (0.05, 5.0)  # of an entry that looks as if it ran off: the most |z|, and share of that error of rows, and beside a penalty the least |estimate|
FEW = 30  # clusters, below which the sandwich is rough
BINDS = 1e-7  # of the size of a constraint's sides
SHOWN = 40  # rows of a printed table


@dataclass(frozen=True, repr=False, eq=False)
class Inference(Shown):
    """An estimate with its uncertainty; arrays (p,), in the order of the variable's entries.

    Attributes
    ----------
    names
        Of the entries: the columns of the data that they multiply, where these have names.
    estimate, standard_error, z, p_value
        z is the estimate over its standard error, the p-value that of |z| under the standard normal law, two-sided.
    low, high
        Ends of the interval of the confidence ``level``.
    covariance
        (p, p).
    kind
        ``"model"``, ``"robust"`` or ``"clustered"``.
    rows
        N, how many rows the estimate rests on.
    notes
        What the numbers rest on, where that is not a matter of course.

    Examples
    --------
    >>> dose, answer = hf.Sample(1, name="dose"), hf.Sample(name="answer")
    >>> client = hf.Client({dose: [[0.0], [1.0], [2.0], [3.0]], answer: [1.0, 3.1, 4.9, 7.0]})
    >>> table = hf.models.LinearRegression(hf.Federation([client]), dose, answer).solve(progress=False).inference()
    >>> table.names, table.standard_error.round(3)
    (('intercept', 'coefficients[0]'), array([0.079, 0.042]))
    """

    names: tuple[str, ...]
    estimate: np.ndarray
    covariance: np.ndarray
    kind: str
    level: float
    rows: int
    notes: tuple[str, ...] = ()

    @property
    def standard_error(self) -> np.ndarray:
        """Square roots of the covariance's diagonal."""
        return np.sqrt(np.diag(self.covariance))

    @property
    def z(self) -> np.ndarray:
        """The estimate over its standard error."""
        return self.estimate / self.standard_error

    @property
    def p_value(self) -> np.ndarray:
        """Two-sided, of z under the standard normal law."""
        return 2.0 * stats.norm.sf(np.abs(self.z))

    @property
    def low(self) -> np.ndarray:
        """The lower end of the interval."""
        return self.estimate - stats.norm.isf(0.5 * (1.0 - self.level)) * self.standard_error

    @property
    def high(self) -> np.ndarray:
        """The upper end of the interval."""
        return self.estimate + stats.norm.isf(0.5 * (1.0 - self.level)) * self.standard_error

    def contrast(self, weights: Mapping[str, float] | np.ndarray, name: str = "contrast") -> Inference:
        """A linear combination of the entries, as ``{name: weight}`` or an array (p,), with its own interval and test.

        Raises
        ------
        SettingError
            For a name that no entry has, or several, what is no number, or an array of another length.
        """
        if isinstance(weights, Mapping):
            for unknown in weights.keys() - set(self.names):
                raise SettingError(f"contrast: {unknown!r} is no entry's name: {near_names(str(unknown), self.names)}")
            for shared in (name for name in weights if self.names.count(name) > 1):
                raise SettingError(f"contrast: {self.names.count(shared)} entries are named {shared!r}: give an array, one weight for each entry.")
        asked = [weights.get(entry, 0.0) for entry in self.names] if isinstance(weights, Mapping) else weights
        try:
            row = np.asarray(asked, float)
        except (TypeError, ValueError):
            raise SettingError(f"contrast: weights are numbers, {{name: weight}} or one for each entry, not {weights!r}.") from None
        if row.shape != self.estimate.shape:
            raise SettingError(f"contrast: {row.shape} weights for {self.estimate.size} entries.")
        moved, spread = np.atleast_1d(row @ self.estimate), np.atleast_2d(row @ self.covariance @ row)
        return Inference((name,), moved, spread, self.kind, self.level, self.rows, self.notes)

    def to_pandas(self) -> pd.DataFrame:
        """A row for each entry: estimate, standard error, ends of the interval, z and p. Needs pandas."""
        import pandas as pd

        columns = dict(zip(("estimate", "standard error", "low", "high", "z", "p"), self._columns))
        return pd.DataFrame(columns, index=list(self.names))

    @property
    def _columns(self) -> tuple[np.ndarray, ...]:
        return self.estimate, self.standard_error, self.low, self.high, self.z, self.p_value

    def latex(self) -> str:
        """The table in LaTeX, for ``booktabs``."""
        names = [re.sub(r"([_%&#$])", r"\\\1", name) for name in self.names]
        lines = [
            rf"{name} & {b:.4g} & {se:.4g} & [{low:.4g}, {high:.4g}] & {z:.2f} & {_p_text(p)} \\"
            for name, b, se, low, high, z, p in zip(names, *self._columns)
        ]
        head = rf"& estimate & s.e. & {100 * self.level:g}\,\% interval & $z$ & $p$ \\"
        return "\n".join([r"\begin{tabular}{lrrrrr}", r"\toprule", head, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}"])

    def plot(self, ax: Axes | None = None, *, exponentiate: bool = False, style: str = "screen") -> Figure:
        """A forest plot: estimates and their intervals; ``exponentiate`` shows ratios (of hazards, odds, rates) on a logarithmic axis."""
        middle, low, high = self.estimate, self.low, self.high
        if exponentiate:
            middle, low, high = np.exp(middle), np.exp(low), np.exp(high)
        require_axes(ax)
        with house_style(style):
            new = panels(1, 6.0, 1.0 + 0.32 * len(self.names), style) if ax is None else (cast("Figure", ax.get_figure(root=True)), [ax])
            figure, (axes,) = new
            places = np.arange(len(self.names))
            axes.errorbar(middle, places, xerr=[middle - low, high - middle], fmt="o", capsize=3, markersize=4)
            axes.axvline(1.0 if exponentiate else 0.0, color="0.5", linewidth=0.8)
            if exponentiate:
                axes.set_xscale("log")
                axes.margins(x=0.1)
                for write in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
                    write(lambda value, _: f"{value:g}")
            axes.set_yticks(places, self.names)
            axes.invert_yaxis()
            axes.set_xlabel(f"{'ratio' if exponentiate else 'estimate'}, {100 * self.level:g} % interval ({self.kind})")
        return figure

    def __str__(self) -> str:
        width = max(len(name) for name in self.names)
        end = f"{100 * self.level:g} % interval"
        lines = [f"{'':<{width}}  {'estimate':>11}  {'s.e.':>10}  {end:^25}  {'z':>8}  {'p':>8}"]
        for name, b, se, low, high, z, p in list(zip(self.names, *self._columns))[:SHOWN]:
            lines.append(f"{name:<{width}}  {b:>11.5g}  {se:>10.4g}  {low:>12.5g} {high:>12.5g}  {z:>8.2f}  {_p_text(p):>8}")
        if len(self.names) > SHOWN:
            lines.append(f"... {len(self.names) - SHOWN} more")
        return "\n".join([*lines, f"{self.rows:,} rows, {self.kind} standard errors", *self.notes])

    def _card(self) -> Card:
        entries = zip(self.names, self.estimate, self.low, self.high, self.p_value)
        rows = [(name, f"{b:.5g} ({low:.5g} to {high:.5g}), p {_p_text(p)}") for name, b, low, high, p in entries]
        return Card(f"{100 * self.level:g} % intervals, {self.kind} standard errors, {self.rows:,} rows", rows, [("table", str(self))])


def inference(
    result: Result,
    *,
    level: float = 0.95,
    kind: str = "model",
    of: cp.Variable | None = None,
    small_sample: bool = False,
    runtime: Any = None,
) -> Inference | tuple[Inference, ...]:
    """What :meth:`hierfl.Result.inference` gives."""
    if kind not in KINDS:
        raise SettingError(f"inference(kind={kind!r}): {near_names(kind, KINDS)}")
    if not isinstance(small_sample, bool):
        raise SettingError(f"inference(small_sample={small_sample!r}): True or False.")
    if not isinstance(level, int | float | np.number) or not 0.0 < level < 1.0:
        raise SettingError(f"inference(level={level!r}): a confidence level lies between 0 and 1, such as 0.95.")
    estimator = _Estimator.of(result, of, runtime)
    estimator.require_regular()
    sums = estimator.sums()
    if estimator.scope == "client":
        each = [jax.tree.map(lambda part, k=k: part[k : k + 1], sums) for k in range(estimator.oracles.num_clients)]
        return tuple(estimator.told(own, kind, level, small_sample, k) for k, own in enumerate(each))
    return estimator.told(sums, kind, level, small_sample, None)


@dataclass(frozen=True, eq=False)
class _Estimator:
    """The M-estimator that one level is: its loss, its flat value, and who has a copy. ``runtime`` says where its rows are asked for."""

    oracles: Oracles
    layout: Layout
    point: np.ndarray  # (owners, p)
    constraints: tuple[Any, ...]
    loss: RowLoss
    scope: str
    x: np.ndarray
    ask: Callable[[np.ndarray], RowSums] | None  # at a point, of clients elsewhere
    only: cp.Variable | None  # whose entries are told; None: all

    @classmethod
    def of(cls, result: Result, of: cp.Variable | None, runtime: Any) -> _Estimator:
        problem = result.require_problem("inference")
        if of is not None and not isinstance(of, cp.Variable):
            raise SettingError(f"inference(of={of!r}): a cp.Variable of the problem, such as {problem.upper_variables[0].name()}.")
        compiled = problem.compile()
        if compiled.elsewhere and runtime is None:
            raise DataError("inference: clients hold their data elsewhere. Name the runtime that reaches them: result.inference(runtime=hf.runtime.Dask(...)).")
        declaration, level = compiled.declaration, compiled.declaration.lower_level
        x = compiled.upper.flatten(result.x, "x")
        lower = level is not None if of is None else any(of is v for v in (level.variables if level else ()))
        if of is not None and not lower and not any(of is v for v in compiled.upper.variables):
            raise SettingError(f"inference(of={of.name()!r}): it is no variable of the problem.")
        if not lower:
            if level is not None:
                why = "f(x) is a function of x through y(x), and x is no M-estimator of the rows"
                raise SettingError(f"inference(of={of.name() if of is not None else 'x'!r}): {why}. Ask about y: of={level.variables[0].name()}.")
            if declaration.objective.server is not None:
                raise SettingError("inference: the server's own term is no client's; put its rows into a client.")

            ask = None if runtime is None else lambda point: problem.sums_at(point, runtime)
            return cls(compiled, compiled.upper, x[None], declaration.constraints, RowLoss.above(compiled), "federation", x, ask, of)
        if runtime is not None:
            raise SettingError("inference(runtime=...): sites are asked about x, the variables of a problem without a lower level; leave it out.")
        assert level is not None
        if level.kind not in ("argmin", "argmax") or level.scope == "sample" or compiled.several:
            what = f"y is no M-estimator of clients' rows: a {type(level).__name__} of {level.scope} scope"
            raise SettingError(f"inference: {what}. It is about an ArgMin or ArgMax of federation or client scope.")
        y = problem.implicit.response(result.x)
        parts = [y]
        if compiled.scope != "federation" and compiled.num_clients > 1:
            parts = [{name: part[k] for name, part in y.items()} if isinstance(y, Mapping) else y[k] for k in range(compiled.num_clients)]
        point = np.stack([compiled.lower.flatten(part, "y") for part in parts])
        scope = level.scope if compiled.num_clients > 1 else "federation"
        return cls(compiled, compiled.lower, point, level.constraints, RowLoss.below(compiled), scope, x, None, of)

    def require_regular(self) -> None:
        """Rows, not laws; and a loss with a second derivative. Raises ``SettingError`` or ``NoGradientError``, naming what is in the way."""
        if not self.loss.averages:
            raise SettingError("inference: the level contains no E, total or aggregate of rows, so that nothing is estimated from data.")
        if any(table.weights is not None for table in self._tables):
            raise SettingError("inference: clients hold distributions, of which there are no rows to learn from.")
        ids = {v.id for v in self.layout.variables}
        rough = nonsmooth_atom([self.loss.expression], ids, Enclosure(self.oracles.declaration.known_bounds))
        if rough is not None:
            inside = ", ".join(v.name() for v in self.layout.variables if any(v.id == one.id for one in rough.variables()))
            kinks = f"{expression_text(rough)} has kinks in {inside}, where an estimate has no normal law"
            raise NoGradientError(f"inference: {kinks}. Use a smooth loss (cp.huber, cp.logistic) and a smooth penalty (cp.sum_squares).")

    @double_precision
    def sums(self) -> RowSums:
        """Of every client, weighted as in the objective."""
        oracles = self.oracles

        def of_clients(data: Data, points: Array, x: Array) -> Any:
            return data.clients.one_by_one(lambda place: self.loss.sums(data.clients.party(place), points[place], x))

        if self.ask is None:
            points = jnp.asarray(np.broadcast_to(self.point, (self.oracles.num_clients, self.layout.size)))
            # kept with the problem: another kind of error, or another point, is the same program
            program = oracles.programs.keep(("inference", self.layout is oracles.lower), lambda: quick_jit(of_clients))
            found = program(oracles.data(), points, jnp.asarray(self.x))
        else:
            found = self.ask(self.point[0])
        weights = np.asarray(oracles.static_data.clients.weights) if self.scope == "federation" else np.ones(self.oracles.num_clients)
        return RowSums(*(np.asarray(part) * np.reshape(weights**power, (-1, *(1,) * (part.ndim - 1))) for part, power in zip(found, POWERS)))

    def told(self, sums: RowSums, kind: str, level: float, small_sample: bool, client: int | None) -> Inference:
        """The table, from the sums of all clients, or of the one that has a copy of its own."""
        counts = self._counts if client is None else self._counts[client : client + 1]
        if client is None and not self._counted.all():  # a client that weighs nothing has no rows in the estimate
            sums, counts = RowSums(*(part[self._counted] for part in sums)), counts[self._counted]
        rows = int(counts.sum())
        estimate = self.point[0 if client is None else client]
        hessian = sums.hessian.sum(axis=0)
        whose = "" if client is None else f" of {self.oracles.declaration.client_called(client)}"
        unit = np.sqrt(np.abs(np.diag(hessian)))
        unit = np.where(unit > 0, unit, 1.0)
        values, vectors = np.linalg.eigh(hessian / unit / unit[:, None])  # units are no matter
        names = self._entry_names()
        asked = np.flatnonzero([self.only is None or v is self.only for v in self.layout.variables for _ in range(v.size)])
        told = values > SINGULAR
        p = int(told.sum())
        if values[0] < -SINGULAR or np.any(np.abs(vectors[np.ix_(asked, ~told)]) > ESTIMABLE):
            flat = np.abs(vectors[:, ~told]).max(axis=1)
            together = [name for name, part in zip(names, flat) if part > 0.1]
            why = f"its rows do not tell {', '.join(together)} apart, or their likelihood has no maximum (separation, no events)"
            advice = "Leave out a column that is constant or follows from others, or add a ridge penalty"
            raise NoGradientError(f"inference: the Hessian of the loss{whose} is singular at the estimate: {why}. {advice}.")
        # of entries that no row tells of, such as a baseline's jump when nobody is at risk, nothing is said; the others are as without them
        inverse = (vectors[:, told] / values[told]) @ vectors[:, told].T / unit / unit[:, None]
        penalised = np.abs(sums.without).max() > 1e-12 * (1.0 + np.abs(sums.gradient).max())
        if kind == "model":
            covariance, notes = self._model(sums, inverse, counts, p, client, whose)
        elif kind == "clustered" and len(counts) < 2:
            raise SettingError(f"inference(kind='clustered'): a client's rows are one cluster, and there is one only{whose}: take kind='robust'.")
        else:
            score = sums.influence.T @ sums.influence if kind == "clustered" else sums.outer.sum(axis=0)
            if rows <= p and (small_sample or not penalised):
                nothing = "of which N / (N - p) could be made: leave small_sample out" if penalised else "and errors of 0: take fewer columns, or add a ridge penalty"
                raise SettingError(f"inference(kind={kind!r}): {rows} rows{whose} leave nothing beside {p} estimates, {nothing}.")
            if small_sample:
                groups = len(counts)
                score = score * (groups / (groups - 1) * (rows - 1) / (rows - p) if kind == "clustered" else rows / (rows - p))
            covariance, notes = inverse @ score @ inverse, []
        rows_spread = np.sqrt(np.diag(inverse @ sums.outer.sum(axis=0) @ inverse))
        information = covariance
        if kind != "model":  # the inverse information of a likelihood whose rows weigh what they weigh on average; of another loss nothing
            weight = self._shares(sums, counts, client) @ counts / counts.sum() if self._is_likelihood else 0.0
            information = weight * inverse
        # what looks as if the likelihood had no maximum along it: without curvature, and with rows that pull even less
        spread, large = np.sqrt(np.diag(information)), (np.abs(estimate) > RUN_OFF[1]) | (not penalised)
        off = large & (np.abs(estimate) < RUN_OFF[0] * spread) & (rows_spread < RUN_OFF[0] * spread)
        self._require_estimate(sums, inverse, np.where(off, np.inf, np.maximum(np.sqrt(np.diag(covariance)), rows_spread)), whose, client)
        if kind != "model":  # whose rows pull no more where there is no maximum, which is no certainty
            covariance = np.where(off | off[:, None], np.nan, covariance)
        learned = np.diag(sums.outer.sum(axis=0))
        untold = told.all() & (learned == 0.0) & learned.any()
        if untold[asked].any():  # a column of zeros beside a penalty, whose curvature is no information
            covariance = np.where(untold[:, None] | untold, np.nan, covariance)
            notes.append(f"no row{whose} tells of {', '.join(names[place] for place in asked if untold[place])}: what is estimated there is the penalty's alone, without a standard error")
        if kind == "clustered":
            notes.append(f"{len(counts)} clusters" + (": so few make these errors rough" if len(counts) < FEW else ""))
        if off[asked].any():
            apart = ", ".join(names[place] for place in asked if off[place])
            notes.append(f"{apart}: so little curvature may mean that the likelihood has no maximum (separation): look at the rows, or add a ridge penalty")
        names = tuple(names[place] for place in asked)
        if getattr(self.oracles.declaration.federation, "moments", None) is not None:
            notes.append("numeric columns are standardised: their numbers are per standard deviation (federation.moments)")
        if binding := ", ".join(self._binding(client)):  # with next to no multiplier
            notes.append(f"{binding} holds with equality at the estimate: there is no normal law at the edge of a constraint, and the intervals do not count that")
        if penalised:
            notes.append("penalised: estimates are drawn towards the penalty's minimum, and the intervals do not count that")
        estimate, covariance = estimate[asked], covariance[np.ix_(asked, asked)]
        return Inference(names, estimate, 0.5 * (covariance + covariance.T), kind, level, rows, tuple(notes))

    def _model(
        self, sums: RowSums, inverse: np.ndarray, counts: np.ndarray, p: int, client: int | None, whose: str
    ) -> tuple[np.ndarray, list[str]]:
        """c phi H^-1; of the entries ``p`` are told apart."""
        if len(self._tables) > 1:
            raise SettingError("inference(kind='model'): the loss is of several tables, whose rows weigh differently: take kind='robust'.")
        if len({isinstance(one, total) for one in self.loss.averages}) > 1:
            raise SettingError("inference(kind='model'): the loss has means beside totals, so that rows weigh differently: take kind='robust'.")
        if np.any(np.ptp(sums.factors, axis=1) > 1e-12 * sums.factors[:, 1]):
            raise SettingError("inference(kind='model'): several losses are added with different factors: take kind='robust'.")
        shares = self._shares(sums, counts, client)
        if np.ptp(shares) > 1e-9 * shares.max():
            uneven = "rows of different clients weigh differently, and the loss is no log-likelihood of all rows"
            raise SettingError(f"inference(kind='model'): {uneven}. Take Federation(weights='samples'), or kind='robust'.")
        rows = counts.sum()
        inner = [one.per_sample for one in self.loss.averages if not isinstance(one, RowAggregate)]
        if inner and all(map(is_quadratic, inner)):
            found = _residuals_of(inner[0]) if len(self.loss.averages) == 1 else None
            if found is None:
                what = f"{expression_text(inner[0])} is quadratic, and no square of residuals, of which a dispersion could be estimated"
                advice = "write hf.E(cp.square(outcome - score)), penalties outside of hf.E, or take kind='robust'"
                raise SettingError(f"inference(kind='model'): {what}: {advice}.")
            (residuals, factor), freedom = found, int(rows) * found[0] - p
            if freedom <= 0:
                raise SettingError(f"inference: {rows} rows{whose} are not enough for a dispersion beside {p} estimates: take kind='robust'.")
            squares = sums.loss.sum() / shares[0] / freedom
            alike = f", one for all {residuals} residuals of a row: kind='robust' takes each as it is" if residuals > 1 else ""
            return 2.0 * shares[0] * squares * inverse, [f"residual variance {squares / factor:.6g}, from {freedom} degrees of freedom{alike}"]
        return shares[0] * inverse, [] if self._is_log_likelihood else ["the loss is taken for the negative logarithm of a likelihood; kind='robust' need not be"]

    def _shares(self, sums: RowSums, counts: np.ndarray, client: int | None) -> np.ndarray:
        """What a row of each client weighs that weighs anything."""
        weights = np.asarray(self.oracles.static_data.clients.weights)[self._counted] if client is None else np.ones(1)
        return np.asarray(weights * sums.factors[:, 1] / (1.0 if isinstance(self.loss.averages[0], total) else counts))

    @property
    def _counted(self) -> np.ndarray:
        return np.asarray(self.oracles.static_data.clients.weights) > 0

    @property
    def _is_log_likelihood(self) -> bool:
        """Whether every mean is known to be the negative logarithm of one, its factor included."""
        return all(isinstance(one, Cox) or (not isinstance(one, RowAggregate) and _is_log_likelihood_of_row(one.per_sample)) for one in self.loss.averages)

    @property
    def _is_likelihood(self) -> bool:
        """Whether the loss looks like the negative logarithm of one whose rows have curvature of their own."""
        inner = [one.per_sample for one in self.loss.averages if not isinstance(one, RowAggregate)]
        return all(isinstance(one, Cox) for one in self.loss.averages) or any(isinstance(a, cp.logistic | cp.exp | HazardLoss) for one in inner for a in nodes_of(one))

    def _require_estimate(self, sums: RowSums, inverse: np.ndarray, spread: np.ndarray, whose: str, client: int | None) -> None:
        """The point is where the gradient vanishes, to a small part of a standard error."""
        step = inverse @ sums.gradient.sum(axis=0)
        away = float(np.max(np.abs(step) / np.where(spread > 0, spread, np.inf), initial=0.0))
        if fixed := ", ".join(expression_text(one) for one in self.constraints if isinstance(one, Equality)):
            raise NoGradientError(f"inference: {fixed} binds{whose}: there is no normal law at the edge of a constraint. Put an equation into the score.")
        if away <= FAR:
            return
        why = ": the run ended before the answer. Go on with more rounds; columns of very different sizes are best standardised"
        why += " (Federation.from_frames(..., standardise=True))."
        if binding := ", ".join(self._binding(client)):
            why = f", since {binding} binds: there is no normal law at the edge of a constraint."
        raise NoGradientError(f"inference: the estimate{whose} is {away:.2g} standard errors from where the gradient of the loss vanishes{why}")

    def _binding(self, client: int | None) -> list[str]:
        """The inequalities that hold with equality at the estimate, as far as they have no private constants."""
        own = zip(self.layout.variables, self.layout.split(self.point[0 if client is None else client]).values())
        values = {**dict(zip(self.oracles.upper.variables, self.oracles.upper.split(self.x).values())), **dict(own)}
        names = []
        for one in [*self.constraints, *attribute_constraints(self.layout.variables)]:
            (fixed,) = instantiate([one], values)
            if isinstance(fixed, Inequality) and not fixed.parameters():
                left, right = (np.asarray(side.value) for side in fixed.args)
                if not np.all(right - left > BINDS * (1.0 + np.abs(left) + np.abs(right))):
                    names.append(expression_text(one))
            elif isinstance(fixed, Equality):
                names.append(expression_text(one))
        return names

    @property
    def _counts(self) -> np.ndarray:
        return np.sum([np.asarray(table.counts) for table in self._tables], axis=0)

    @property
    def _tables(self) -> list[Any]:
        return [table for table in self.oracles.static_data.clients.tables if set(table.samples) & set(self.loss.samples)]

    def _entry_names(self) -> tuple[str, ...]:
        """The columns that a variable's entries multiply, where they have names; else the entries themselves."""
        federation, names = self.oracles.declaration.federation, []
        columns = federation.columns if federation else {}
        for variable in self.layout.variables:
            axis, known = _columns_at(self.loss.expression, variable, columns) or (0, None)
            for place in np.ndindex(variable.shape):
                at = [known[of] if known and along == axis else str(of) for along, of in enumerate(place)]
                names.append(at[0] if known and len(at) == 1 else f"{variable.name()}[{', '.join(at)}]" if at else variable.name())
        return tuple(names)


def _columns_at(part: Any, variable: cp.Variable, columns: Mapping[Any, Any]) -> tuple[int, tuple[str, ...]] | None:
    """Along which axis of the variable a sample's columns lie, and their names, where the expression multiplies them by it."""
    if isinstance(part, MulExpression) and any(side is variable for side in part.args):
        left, right = part.args
        other, axis = (right, variable.ndim - 1) if left is variable else (left, max(variable.ndim - 2, 0))
        labels: Sequence[Any] = columns[other][0] if isinstance(other, Sample) and other in columns else ()
        own = labels[-2 if left is variable and other.ndim > 1 else -1] if len(labels) > 1 else None
        if own is not None and len(own) == variable.shape[axis]:
            return axis, tuple(map(str, own))
    below = (_columns_at(argument, variable, columns) for argument in getattr(part, "args", ()))
    return next((found for found in below if found is not None), None)


def _is_log_likelihood_of_row(loss: Any) -> bool:
    """Whether it is logistic(s), exp(s) or the loss of a hazard, as it stands or negated, and beside it what is linear: for exp(s) there has to be that."""
    terms = addends(loss.args[0] if isinstance(loss, Sum) else loss)
    curved = [term.args[0] if isinstance(term, NegExpression) else term for term in terms if not term.is_affine()]
    return len(curved) == 1 and (isinstance(curved[0], cp.logistic | HazardLoss) or (isinstance(curved[0], cp.exp) and len(terms) > 1))


def _residuals_of(loss: Any) -> tuple[int, float] | None:
    """How many residuals of one row a loss is the sum of squares of, and by what these are multiplied; None where it is not that."""
    factor = 1.0
    while isinstance(loss, NegExpression) or (isinstance(loss, cp.multiply | MulExpression | DivExpression) and any(one.is_constant() and not one.parameters() for one in loss.args)):
        inner = next(one for one in loss.args if not one.is_constant() or one.parameters())
        factor *= np.prod([np.abs(one.value) ** (-1 if isinstance(loss, DivExpression) else 1) for one in loss.args if one is not inner])
        loss = inner
    square = isinstance(loss, Power | PowerApprox) and float(loss.p.value) == 2.0
    if not (square or isinstance(loss, cp.quad_over_lin)) or not loss.args[0].is_affine() or loss.shape not in ((), (1,)):
        return None
    return int(loss.args[0].size), factor


def _p_text(p: float) -> str:
    return "< 1e-4" if p < 1e-4 else f"{p:.4f}"
