"""Means and standard deviations of columns: what sites tell of their tables, so that all standardise by the same numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from hierfl.errors import DataError
from hierfl.near_names import suggests_names

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
            counts, means, sds = (
                np.array([getattr(site, name)[column] for site in sites], float) for name in ("count", "mean", "sd")
            )
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
        return Moments(
            {column: self.count[column] for column in columns},
            {column: self.mean[column] for column in columns},
            {column: self.sd[column] for column in columns},
        )

    def __repr__(self) -> str:
        return f"Moments(count={dict(self.count)}, mean={dict(self.mean)}, sd={dict(self.sd)})"

    def __reduce__(self) -> Any:
        return Moments, (dict(self.count), dict(self.mean), dict(self.sd))
