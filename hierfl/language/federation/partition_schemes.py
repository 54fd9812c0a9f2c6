"""Partition schemes: how a pool of samples is spread over clients, by class or group too. Seeded; nothing is lost or used twice."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Protocol

import numpy as np

from hierfl.errors import DataError
from hierfl.language.federation.given_arrays import require_unmasked
from hierfl.near_names import suggests_names

_TRIES = 1000


class Scheme(Protocol):
    """A rule that spreads a pool of row numbers over clients."""

    def assign(self, pool: np.ndarray, clients: int | None, rng: np.random.Generator, rows: int) -> list[np.ndarray]:
        """Return the row numbers of each client: a partition of ``pool``, whose entries index a data set of ``rows`` rows."""


@suggests_names
@dataclass(frozen=True)
class IID:
    """Equal shares (up to one sample) of a random order."""

    def assign(self, pool: np.ndarray, clients: int | None, rng: np.random.Generator, rows: int) -> list[np.ndarray]:
        count = _client_count(pool, clients, "IID()", 1)
        return np.array_split(rng.permutation(pool), count)


@suggests_names
@dataclass(frozen=True, eq=False)
class Dirichlet:
    """Per class, the clients' shares are drawn from Dirichlet(alpha): the smaller alpha, the more heterogeneous.

    Parameters
    ----------
    alpha
        Concentration, positive.
    labels
        Class of every row of the data set, ``(N,)``, or one-hot ``(N, classes)``.
    min_samples
        Redraw until every client has at least this many.

    Raises
    ------
    DataError
        If alpha is not positive, the labels do not match, or no draw gives every client enough.
    """

    alpha: float
    labels: Any = field(repr=False)
    min_samples: int = 10

    def __post_init__(self) -> None:
        _check_alpha(self.alpha, "Dirichlet")
        _check_count(self.min_samples, "Dirichlet", "min_samples", 0)

    def assign(self, pool: np.ndarray, clients: int | None, rng: np.random.Generator, rows: int) -> list[np.ndarray]:
        labels = class_labels(self.labels, rows, "Dirichlet")[pool]
        count = _client_count(pool, clients, f"Dirichlet(min_samples={self.min_samples})", self.min_samples)
        members = [pool[labels == c] for c in np.unique(labels)]
        for _ in range(_TRIES):
            cuts = [_cuts(rng.dirichlet(np.full(count, self.alpha)), len(own)) for own in members]
            sizes = np.sum([np.diff([0, *cut, len(own)]) for cut, own in zip(cuts, members)], axis=0)
            if sizes.min() >= self.min_samples:
                pieces = [np.split(rng.permutation(own), cut) for own, cut in zip(members, cuts)]
                return [np.concatenate([piece[k] for piece in pieces]) for k in range(count)]
        raise DataError(
            f"Dirichlet({self.alpha:g}) gave some of {count} clients fewer than {self.min_samples} of {len(pool)} samples in {_TRIES} "
            f"draws: lower min_samples, raise alpha, or use fewer clients."
        )


@suggests_names
@dataclass(frozen=True, eq=False)
class Shards:
    """Sort by label, cut into ``k`` shards per client, deal them at random (McMahan et al., 2017).

    ``labels`` are given as to :class:`Dirichlet`.
    """

    k: int
    labels: Any = field(repr=False)

    def __post_init__(self) -> None:
        _check_count(self.k, "Shards", "k", 1)

    def assign(self, pool: np.ndarray, clients: int | None, rng: np.random.Generator, rows: int) -> list[np.ndarray]:
        labels = class_labels(self.labels, rows, "Shards")
        count = _client_count(pool, clients, f"Shards(k={self.k})", self.k)
        shuffled = rng.permutation(pool)
        ordered = shuffled[np.argsort(labels[shuffled], kind="stable")]
        shards = np.array_split(ordered, count * self.k)
        dealt = rng.permutation(count * self.k).reshape(count, self.k)
        return [np.concatenate([shards[s] for s in hand]) for hand in dealt]


@suggests_names
@dataclass(frozen=True)
class Quantity:
    """The same distribution for all in unequal amounts: the sizes are Dirichlet(alpha) shares, at least one sample each."""

    alpha: float

    def __post_init__(self) -> None:
        _check_alpha(self.alpha, "Quantity")

    def assign(self, pool: np.ndarray, clients: int | None, rng: np.random.Generator, rows: int) -> list[np.ndarray]:
        count = _client_count(pool, clients, "Quantity", 1)
        cuts = _cuts(rng.dirichlet(np.full(count, self.alpha)), len(pool) - count)
        sizes = 1 + np.diff([0, *cuts, len(pool) - count])
        return np.split(rng.permutation(pool), np.cumsum(sizes)[:-1])


@suggests_names
@dataclass(frozen=True, eq=False)
class ByGroup:
    """One client for each distinct value of ``groups`` ``(N,)``, in sorted order; ``clients`` may be omitted."""

    groups: Any = field(repr=False)

    def assign(self, pool: np.ndarray, clients: int | None, rng: np.random.Generator, rows: int) -> list[np.ndarray]:
        groups = class_labels(self.groups, rows, "ByGroup")
        names = np.unique(groups)
        if clients is not None and clients != len(names):
            raise DataError(
                f"ByGroup has {len(names)} distinct groups, but clients={clients}; omit clients or make them agree."
            )
        parts = [pool[groups[pool] == name] for name in names]
        for name, part in zip(names, parts):
            if part.size == 0:
                raise DataError(f"ByGroup: group {name.item()!r} has no samples left after the test and server shares.")
        return parts


SCHEMES = {f"hf.{scheme.__name__}": scheme for scheme in (IID, Dirichlet, Shards, Quantity, ByGroup)}


def _check_alpha(alpha: Any, owner: str) -> None:
    # above 1e300 the gamma variates behind Dirichlet draws overflow
    if not isinstance(alpha, Real) or not 0 < float(alpha) <= 1e300:
        raise DataError(f"{owner}(alpha={alpha!r}): alpha must be positive and finite.")


def _check_count(count: Any, owner: str, name: str, least: int) -> None:
    if not isinstance(count, Integral) or isinstance(count, bool) or count < least:
        raise DataError(f"{owner}({name}={count!r}): a whole number, {least} or more.")


def _cuts(shares: np.ndarray, total: int) -> np.ndarray:
    """Where to cut ``total`` rows into parts of these shares."""
    return np.floor(np.cumsum(shares)[:-1] * total + 1e-9).astype(int).clip(0, total)


def _client_count(pool: np.ndarray, clients: int | None, owner: str, least: int) -> int:
    """The number of clients, checked to be given, and to leave each of them at least ``least`` rows."""
    if clients is None:
        raise DataError(f"{owner} needs clients=...: the number of clients.")
    if len(pool) < clients * max(1, least):
        raise DataError(f"{owner}: {len(pool)} samples cannot give each of {clients} clients at least {max(1, least)}.")
    return clients


def class_labels(labels: Any, rows: int, owner: str) -> np.ndarray:
    """One label per row, from labels ``(N,)`` or one-hot rows ``(N, classes)``.

    Raises ``DataError`` if there is not one label for each row, a label is missing (NaN) or masked, labels cannot be
    compared with each other, or a matrix is not one-hot.
    """
    require_unmasked(labels, f"the labels of {owner}")
    try:
        array = np.asarray(labels)
        distinct = np.unique(array)
    except (TypeError, ValueError) as error:
        raise DataError(f"{owner}: the labels are not one array of comparable values: {error}.") from error
    if array.ndim not in (1, 2) or (array.dtype == object and not _all_strings(array)):
        raise DataError(
            f"{owner}: labels of shape {array.shape} and dtype {array.dtype}; expected one class per row, ({rows},), or one-hot rows."
        )
    if len(array) != rows:
        raise DataError(
            f"{owner} has {len(array)} labels for {rows} rows of data: one label for each row of the whole data set."
        )
    if array.dtype.kind == "f" and np.isnan(distinct).any():
        raise DataError(f"{owner}: {int(np.isnan(array).sum())} labels are NaN; give every row a class.")
    if array.ndim == 1:
        return array
    if array.shape[1] == 1:
        return array[:, 0]
    if array.dtype.kind not in "biuf" or not np.isin(distinct, (0, 1)).all() or (array.sum(axis=1) != 1).any():
        raise DataError(f"{owner}: a label matrix must be one-hot (one 1 in every row); else give one class per row.")
    return np.argmax(array, axis=1)


def _all_strings(array: np.ndarray) -> bool:
    return all(isinstance(entry, str) for entry in array.flat)
