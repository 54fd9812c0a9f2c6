"""``Schema``: what the columns of a table mean, so that tables become the rows of samples alike at every site.

Columns are known by name, categories are agreed on, and what happens to missing values is said beforehand: an array that one site makes of its
table has the columns of every other site's, whichever categories or missing values it happens to have.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from cvxpy.expressions.expression import Expression

from hierfl.errors import DataError, DroppedRowsWarning, warn
from hierfl.language.declared_arguments import reserve_ids
from hierfl.language.federation.given_arrays import (
    GivenArray,
    counted,
    names_of_columns,
    numbers_of,
    places_of,
    read_columns,
)
from hierfl.language.federation.sample_values import Elsewhere
from hierfl.language.sample import Sample
from hierfl.near_names import near_names, suggests_names

RESOLVED = 1e-12  # a spread below this share of the mean is the rounding of the mean


@suggests_names
@dataclass(frozen=True)
class Moments:
    """Number, mean and standard deviation of the entries of columns, missing ones left out; immutable.

    They are the sums n, sum x and sum x^2 in another form, which loses no digits where a mean is large beside its spread. Of a few rows
    they tell the rows: a site's owner decides whether they leave. ``repr`` gives all digits, to be written into a shared declaration.

    Parameters
    ----------
    count, mean, sd
        ``{column: number}``, of the same columns; means and standard deviations in the column's unit, these with divisor n.

    Raises
    ------
    DataError
        For other columns in one than in another, or numbers that are no moments.

    Examples
    --------
    >>> two_sites = [hf.Moments({"age": n}, {"age": mean}, {"age": 0.0}) for n, mean in ((1, 60.0), (3, 64.0))]
    >>> hf.Moments.pooled(two_sites).mean["age"]
    63.0
    """

    count: Mapping[str, int]
    mean: Mapping[str, float]
    sd: Mapping[str, float]

    def __post_init__(self) -> None:
        for name in ("count", "mean", "sd"):
            own = getattr(self, name)
            if not isinstance(own, Mapping) or own.keys() != self.count.keys():
                raise DataError(f"Moments({name}=...): one number for each column, those of count.")
            for column, value in own.items():
                if not math.isfinite(value) or (name != "mean" and value < 0):
                    raise DataError(f"Moments({name}=...): {value} of column {column!r} is no {name}.")
            object.__setattr__(self, name, MappingProxyType({**own}))

    def __str__(self) -> str:
        return "\n".join(f"{column}: {n} values, mean {self.mean[column]:.4g}, sd {self.sd[column]:.4g}" for column, n in self.count.items())

    @classmethod
    def of(cls, columns: Sequence[str], rows: np.ndarray) -> Moments:
        """Of an array ``(N, columns)``, in which NaN stands for what is missing."""
        there = ~np.isnan(rows)
        count = there.sum(axis=0)
        mean = np.sum(rows, axis=0, where=there) / np.maximum(count, 1)
        sd = np.sqrt(np.sum(np.square(rows - mean), axis=0, where=there) / np.maximum(count, 1))
        return cls(*(dict(zip(columns, numbers.tolist())) for numbers in (count, mean, sd)))

    @classmethod
    def pooled(cls, each: Iterable[Moments]) -> Moments:
        """Those of all rows of several sites together (Chan, Golub and LeVeque, 1983).

        Raises
        ------
        DataError
            For no sites, or other columns at one than at another.
        """
        sites = [*each]
        if not sites or any(site.mean.keys() != sites[0].mean.keys() for site in sites):
            raise DataError("Moments.pooled(...) takes the moments of sites, all of the same columns.")
        count, mean, sd = {}, {}, {}
        for column in sites[0].mean:
            numbers = ([getattr(site, name)[column] for site in sites] for name in ("count", "mean", "sd"))
            counts, means, sds = (np.array(own, float) for own in numbers)
            together = max(counts.sum(), 1.0)
            middle = counts @ means / together
            count[column], mean[column] = int(counts.sum()), float(middle)
            sd[column] = float(np.sqrt(counts @ (np.square(sds) + np.square(means - middle)) / together))
        return cls(count, mean, sd)

    def constant(self) -> list[str]:
        """The columns that have one value everywhere, or none."""
        return [column for column in self.mean if self.sd[column] <= RESOLVED * abs(self.mean[column])]

    def only(self, columns: Sequence[str]) -> Moments:
        """Those of some columns alone, in that order."""
        each: list[Any] = [{column: own[column] for column in columns} for own in (self.count, self.mean, self.sd)]
        return Moments(*each)

    def __repr__(self) -> str:
        return f"Moments(count={dict(self.count)}, mean={dict(self.mean)}, sd={dict(self.sd)})"

    def __reduce__(self) -> Any:
        return Moments, (dict(self.count), dict(self.mean), dict(self.sd))


POLICIES = ("error", "drop", "indicator")


class EncodedTable(Mapping[Sample, Any]):
    """A table as the rows of a schema's samples: what ``hf.Client`` takes, alone or among other tables.

    ``schema`` is what it was read by, ``dropped`` the number of rows that were left out because values are missing.
    """

    def __init__(self, schema: Schema, rows: Mapping[Sample, Any], dropped: int = 0) -> None:
        self.schema, self.dropped, self._rows = schema, dropped, MappingProxyType({**rows})

    def __getitem__(self, sample: Sample) -> Any:
        return self._rows[sample]

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


class _Read(NamedTuple):
    """A table's columns as they are, in arrays that nobody else has: features with NaN where one is missing, and outcomes."""

    features: np.ndarray
    outcomes: dict[str, np.ndarray]
    dropped: int


@suggests_names
@dataclass(frozen=True, init=False, repr=False, eq=False)
class Schema:
    """What the columns of a table mean; immutable. It owns the samples that stand for them.

    Features are one sample, ``schema.features``, with named columns, ``schema.columns``: numbers in their unit, for each further
    category a column of zeros and ones (treatment coding, ``"ward=B"``; the first category is the reference), and at last the
    indicators of missing values (``"age missing"``).

    Parameters
    ----------
    outcome
        The column of the outcome, or several, such as ``["time", "event"]``: numbers, true and false as 1 and 0.
    numeric
        The columns of numbers, in the order that the features have.
    categorical
        ``{column: categories}``, two or more, the reference first. They are agreed on by all sites: one that lacks a category has its
        column all the same, and a value that is no category is an error.
    missing
        What happens to missing values (None, NaN, NaT, NA, null): ``"error"``; ``"drop"``, rows that lack one are left out, which the client tells
        and a warning says; ``"indicator"``, a column that is 1 where the value is missing, beside which a number is
        0 after standardisation, so the mean of what is there (0 in its unit where nothing is standardised), and a category the
        reference, so that "missing" is a category more. Without a penalty the filled-in constant moves the indicator's coefficient alone; of values that are
        not missing at random the method is biased (Jones, 1996). Or ``{column: policy}``, others ``"error"``. Outcomes are never
        filled in: ``"indicator"`` is an error where one is missing.
    name
        Stands before the samples' names where a problem has several schemas.

    Raises
    ------
    DataError
        For a column that is named twice, fewer than two categories, a set of them, an unknown policy, no features.

    Examples
    --------
    >>> schema = hf.Schema("relapse", numeric=["age"], categorical={"ward": ["A", "B", "C"]})
    >>> schema.columns
    ('age', 'ward=B', 'ward=C')
    >>> import pandas
    >>> patients = pandas.DataFrame({"ward": ["C", "A"], "age": [61, 47], "relapse": [True, False]})
    >>> hf.Client.from_frame(patients, schema, name="north").samples[schema.features]
    array([[61.,  0.,  1.],
           [47.,  0.,  0.]])
    """

    features: Sample
    columns: tuple[str, ...]
    numeric: tuple[str, ...]
    categorical: Mapping[str, tuple[Any, ...]]
    outcomes: Mapping[str, Sample]
    missing: Mapping[str, str]
    moments: Moments | None

    def __init__(
        self,
        outcome: str | Sequence[str],
        numeric: Sequence[str] = (),
        categorical: Mapping[str, Sequence[Any]] | None = None,
        missing: str | Mapping[str, str] = "error",
        name: str | None = None,
    ) -> None:
        outcomes = (outcome,) if isinstance(outcome, str) else _names("outcome", outcome)
        numbers = _names("numeric", numeric)
        if categorical is not None and not isinstance(categorical, Mapping):
            raise DataError("Schema(categorical=...) takes a mapping {column: [category, ...]}.")
        groups = {column: _categories(column, own) for column, own in (categorical or {}).items()}
        read = [*outcomes, *numbers, *groups]
        if twice := [column for place, column in enumerate(read) if column in read[:place]]:
            raise DataError(f"Schema names column {twice[0]!r} twice: a column is an outcome, a number or a category.")
        policies = _policies(missing, read, outcomes)
        columns = [*numbers, *(f"{column}={one}" for column, own in groups.items() for one in own[1:])]
        columns += [f"{column} missing" for column in (*numbers, *groups) if policies[column] == "indicator"]
        if not outcomes or not columns:
            raise DataError("a Schema has an outcome and one feature at least: numeric=[...] or categorical={...}.")
        if len({*columns}) < len(columns):
            raise DataError(f"Schema: two features would have one name among {', '.join(columns)}; rename a column.")
        before = "" if name is None else f"{name}_"
        features, told = Sample(len(columns), name=f"{before}features"), {o: Sample(name=f"{before}{o}") for o in outcomes}
        vars(self).update(features=features, columns=tuple(columns), numeric=numbers, moments=None)
        mappings: dict[str, Mapping[str, Any]] = {"categorical": groups, "outcomes": told, "missing": policies}
        vars(self).update({name: MappingProxyType(own) for name, own in mappings.items()})

    def __getstate__(self) -> dict[str, Any]:
        return {name: dict(own) if isinstance(own, MappingProxyType) else own for name, own in vars(self).items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({n: MappingProxyType(own) if isinstance(own, dict) else own for n, own in state.items()})
        reserve_ids([self.features, *self.outcomes.values()])

    def __deepcopy__(self, memo: dict[int, Any]) -> Schema:
        """Itself: nobody changes it."""
        return self

    @property
    def outcome(self) -> Sample | Mapping[str, Sample]:
        """The outcome's sample, a scalar; with several outcomes their samples by column."""
        return next(iter(self.outcomes.values())) if len(self.outcomes) == 1 else self.outcomes

    @property
    def reference(self) -> dict[str, Any]:
        """Of each column of categories the one that has no column of its own, as its effect is in the intercept."""
        return {column: own[0] for column, own in self.categorical.items()}

    @property
    def center(self) -> np.ndarray:
        """What is taken off the columns, ``(p,)``, in their units, which is the means of numeric columns once they are standardised, else zeros."""
        mean = {} if self.moments is None else self.moments.mean
        return np.array([mean.get(column, 0.0) for column in self.columns])

    @property
    def scale(self) -> np.ndarray:
        """What the columns are divided by, ``(p,)``, which is standard deviations of numeric columns once they are standardised, else ones."""
        sd = {} if self.moments is None else self.moments.sd
        return np.array([sd.get(column, 1.0) for column in self.columns])

    def __getitem__(self, column: str) -> Sample | Expression:
        """The sample of an outcome, or the entry of ``features`` of this name. Raises ``DataError``, with the nearest."""
        if column in self.outcomes:
            return self.outcomes[column]
        if column not in self.columns:
            raise DataError(f"{self!r} has no {column!r}: {near_names(column, [*self.outcomes, *self.columns])}")
        return self.features[self.columns.index(column)]

    def encoded(self, frame: Any, name: str | None = None) -> EncodedTable:
        """The rows of a table as values of the schema's samples, to be given to :class:`hierfl.Client` beside other tables or parameters.

        Parameters and errors are those of :meth:`hierfl.Client.from_frame`.
        """
        return self.encoded_together({name: frame})[0]

    def encoded_together(self, frames: Mapping[Any, Any], standardise: bool = False) -> list[EncodedTable]:
        """The tables of several clients by name, each read once; standardised, if they are to be, by the moments of all their rows.

        Errors are those of :meth:`hierfl.Client.from_frame` and :meth:`standardised`.
        """
        read = {name: self._read(frame, name) for name, frame in frames.items()}
        if dropped := [f"{_who(name)}: {_dropped(own)}" for name, own in read.items() if own.dropped]:
            warn(DroppedRowsWarning(f"{'; '.join(dropped)}, because values are missing."))
        schema = self
        if standardise:
            schema = self.standardised([Moments.of(self.columns, own.features) for own in read.values()])
        return [schema._encoded(own) for own in read.values()]

    def elsewhere(self, rows: int) -> EncodedTable:
        """What declares a client whose table is at its site, ``hf.Client(schema.elsewhere(120), name="north")``: the number of rows,
        those that are dropped not counted, and the names of the columns. The site gives ``hf.Client.from_frame(table, schema, name="north")``.

        Raises
        ------
        DataError
            If ``rows`` is no number of rows.
        """
        held = {outcome: Elsewhere(rows) for outcome in self.outcomes.values()}
        return EncodedTable(self, {self.features: Elsewhere(rows, self.columns), **held})

    def moments_of(self, frame: Any, name: str | None = None) -> Moments:
        """What a site tells for standardisation: number, mean and standard deviation of the entries of each column, missing ones left out.

        Parameters and errors are those of :meth:`hierfl.Client.from_frame`.
        """
        return Moments.of(self.columns, self._read(frame, name).features)

    def standardised(self, moments: Moments | Iterable[Moments]) -> Schema:
        """The schema, of the same samples, by which numeric columns are read as (value - mean) / sd; other columns stay zeros and ones.

        Parameters
        ----------
        moments
            :class:`hierfl.Moments` that all agree on, or those of each site (:meth:`moments_of`), which are pooled.

        Raises
        ------
        DataError
            If the schema is standardised already; for columns that are constant at all sites, or have no moments.
        """
        if self.moments is not None:
            raise DataError(f"{self!r} is standardised already; begin with the schema as it was declared.")
        together = moments if isinstance(moments, Moments) else Moments.pooled(moments)
        if absent := [column for column in self.numeric if column not in together.mean]:
            raise DataError(f"standardising {self!r}: there are no moments of {', '.join(map(repr, absent))}.")
        if constant := [column for column in self.columns if column in together.constant()]:
            told = ", ".join(f"{column!r} ({together.mean[column]:.6g})" for column in constant)
            raise DataError(
                f"columns {told} are constant at all sites, so that their coefficients cannot be told from the intercept: leave out the column, the "
                f"category, or the indicator (missing={{'age': 'indicator'}} makes some alone) in hf.Schema, or read the tables with standardise=False."
            )
        new = object.__new__(Schema)
        vars(new).update(vars(self), moments=together.only(self.numeric))
        return new

    def require_same_moments(self, other: Schema, at: str, label: str) -> None:
        """Require that two tables of one schema, that of ``label`` and that of ``at``, were standardised by the same numbers.

        Raises
        ------
        DataError
            Naming both.
        """
        if self.moments != other.moments:
            one = "hf.Schema(...).standardised(moments) or hf.Federation.from_frames(..., standardise=True)"
            raise DataError(f"the tables of {label} and {at} are not standardised alike: read both by one schema, {one}.")

    def on_original_scale(self, coefficients: Any, intercept: float = 0.0) -> tuple[np.ndarray, float]:
        """Coefficients ``(p,)`` and an intercept for columns in their own units, from those for the columns as they are read.

        ``coefficients / schema.scale``, and the intercept less ``schema.center @ (coefficients / schema.scale)``; standard errors of coefficients
        are divided by ``schema.scale`` alike. An indicator has besides what its number's mean adds: in its own unit a missing one is 0.

        Raises
        ------
        DataError
            For another number of coefficients, and of a schema that has standardised nothing: the one that has is another.
        """
        own = np.array(coefficients, float)
        if own.shape != (len(self.columns),):
            raise DataError(f"coefficients have shape {own.shape}; expected one for each of {', '.join(self.columns)}.")
        if self.moments is None:
            raise DataError(f"{self!r} has standardised nothing, so that there is no other scale: the schema of a federation that is standardised is federation.schema.")
        own /= self.scale
        offset = dict(zip(self.columns, self.center * own))
        for column in (one for one in self.numeric if self.missing[one] == "indicator"):
            own[self.columns.index(f"{column} missing")] += offset[column]
        return own, float(intercept - sum(offset.values()))

    def __repr__(self) -> str:
        standardised = "" if self.moments is None else ", standardised"
        return f"Schema({', '.join(self.outcomes)} by {', '.join(self.columns)}{standardised})"

    def _read(self, frame: Any, name: str | None) -> _Read:
        """A table's columns, with the rows that are dropped left out."""
        who = _who(name)
        table = read_columns(frame, [*self.outcomes, *self.numeric, *self.categorical], who)
        rows = len(table[next(iter(self.outcomes))])
        if rows == 0:
            raise DataError(f"the table of {who} has no rows: every party that holds a sample needs at least one.")
        numbers, places, gone = {}, {}, {}
        for column in (*self.outcomes, *self.numeric):
            numbers[column], gone[column] = numbers_of(table[column], f"column {column!r} of {who}")
        for column, own in self.categorical.items():
            places[column] = places_of(table[column], own, f"column {column!r} of {who}")
            gone[column] = places[column] < 0
        kept = ~np.any([gone[c] for c in gone if self.missing[c] == "drop"] or [np.zeros(rows, bool)], axis=0)
        self._refuse_missing({c: absent for c, absent in gone.items() if absent.any()}, who, rows)
        if not kept.any():
            raise DataError(f"the table of {who}: each of its {rows} rows lacks a value, and none is left.")
        filled: list[np.ndarray] = [numbers[column] for column in self.numeric]
        filled += [places[c] == place for c, own in self.categorical.items() for place in range(1, len(own))]
        filled += [gone[c] for c in (*self.numeric, *self.categorical) if self.missing[c] == "indicator"]
        features = np.stack([column[kept] for column in filled], axis=1).astype(float, copy=False)
        outcomes = {column: numbers[column][kept] for column in self.outcomes}
        return _Read(features, outcomes, int(rows - kept.sum()))

    def _refuse_missing(self, gone: Mapping[str, np.ndarray], who: str, rows: int) -> None:
        """Refuse missing values that nothing was said about, and missing outcomes that are not to be dropped."""
        refused = {column: absent for column, absent in gone.items() if self.missing[column] == "error"}
        if not refused:
            return
        outcome = next((column for column in refused if column in self.outcomes), None)
        hint = "" if outcome is None else f" The outcome {outcome!r} is never filled in."
        policies = "'drop'" if outcome is not None else "'indicator'"
        raise DataError(
            f"the table of {who} has missing values: {counted(refused, rows)}. Fill them in, leave those rows out, or say what is meant by "
            f"hf.Schema(missing='drop'), or by column, missing={{{next(iter(refused))!r}: {policies}}}.{hint}"
        )

    def _encoded(self, read: _Read) -> EncodedTable:
        """What was read as arrays that nobody else has."""
        features = read.features
        if self.moments is not None:
            features -= self.center
            features /= self.scale
        features[np.isnan(features)] = 0.0  # beside an indicator
        names = names_of_columns(self.columns)
        held: dict[Sample, Any] = {self.features: GivenArray(features, (None, names), own=True)}
        held |= {self.outcomes[c]: GivenArray(values, (None,), own=True) for c, values in read.outcomes.items()}
        return EncodedTable(self, held, read.dropped)


def _who(name: str | None) -> str:
    return "the client" if name is None else f"client {name!r}"


def _dropped(read: _Read) -> str:
    return f"{read.dropped} of {read.dropped + len(read.features)} rows are left out"


def _names(setting: str, given: Any) -> tuple[str, ...]:
    if isinstance(given, (str, Mapping, set, frozenset)) or not isinstance(given, Iterable):
        raise DataError(f"Schema({setting}={given!r}): a list of columns, in order, such as [{'age'!r}].")
    names = tuple(given)
    if wrong := [one for one in names if not isinstance(one, str)]:
        raise DataError(f"Schema({setting}=...): {wrong[0]!r} is no name of a column; columns are known by name.")
    return names


def _categories(column: str, given: Any) -> tuple[Any, ...]:
    """The categories of a column, two or more, each once."""
    if isinstance(given, (str, Mapping, set, frozenset)) or not isinstance(given, Iterable):
        raise DataError(
            f"Schema(categorical={{{column!r}: {given!r}}}): a list of categories, the reference first; sets have no order."
        )
    own = tuple(one.item() if isinstance(one, np.generic) else one for one in given)
    if len(own) < 2 or len({*own}) < len(own) or any(one is None or one != one for one in own):
        raise DataError(f"Schema: {column!r} has categories {own}; two or more, each once, and missing is none of them.")
    return own


def _policies(given: Any, read: Sequence[str], outcomes: Sequence[str]) -> dict[str, str]:
    """What happens to missing values, by column."""
    own = given if isinstance(given, Mapping) else {}
    for column in own:
        if column not in read:
            raise DataError(f"Schema(missing={{{column!r}: ...}}): {near_names(column, read)}")
    for policy in own.values() if isinstance(given, Mapping) else (given,):
        if policy not in POLICIES:
            raise DataError(f"Schema(missing={policy!r}): {near_names(policy, POLICIES)}")
    if wrong := [column for column in outcomes if own.get(column) == "indicator"]:
        raise DataError(f"Schema(missing={{{wrong[0]!r}: 'indicator'}}): an outcome is never filled in; 'error' or 'drop'.")
    every = "error" if isinstance(given, Mapping) else given
    default = {column: "error" if every == "indicator" and column in outcomes else every for column in read}
    return default | dict(own)
