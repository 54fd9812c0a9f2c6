"""Partition schemes, and ``Federation.split``: one data set among a test set, the server and the clients; nothing is lost or used twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from numbers import Integral, Real
from typing import Any, Protocol

import numpy as np

from hierfl.errors import DataError
from hierfl.language.federation.client import Client
from hierfl.language.federation.given_arrays import (
    GivenArray,
    common_order,
    require_same_rows,
    require_unmasked,
    row_labels,
    rows_of,
)
from hierfl.language.federation.sample_values import (
    Elsewhere,
    check_table,
    in_one_order,
    parameters_by_client,
    sample_value,
)
from hierfl.language.sample import ClientParameter, Sample
from hierfl.near_names import as_given, near_names, suggests_names

_TRIES = 1000


class Scheme(Protocol):
    """A rule that spreads a pool of row numbers over clients."""

    def assign(self, pool: np.ndarray, clients: int | None, rng: np.random.Generator, rows: int) -> list[np.ndarray]:
        """Return the row numbers of each client: a partition of ``pool``, whose entries index a data set of ``rows`` rows."""


@suggests_names
@dataclass(frozen=True)
class IID:
    """Equal shares (up to one sample) of a random order.

    Examples
    --------
    >>> a = hf.Sample(name="a")
    >>> hf.Federation.split({a: np.arange(10.0)}, clients=3, scheme=hf.IID())
    Federation(3 clients, 3..4 samples of a; weights uniform)
    """

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

    Examples
    --------
    >>> a, digit = hf.Sample(name="a"), np.arange(100) % 4
    >>> hf.Federation.split({a: np.arange(100.0)}, clients=3, scheme=hf.Dirichlet(0.5, digit))
    Federation(3 clients, 25..47 samples of a; weights uniform)
    """

    alpha: float
    labels: Any = field(repr=False)
    min_samples: int = 10

    def __post_init__(self) -> None:
        _check_alpha(self.alpha, "Dirichlet")
        _check_count(self.min_samples, "Dirichlet", "min_samples", 0)

    def assign(self, pool: np.ndarray, clients: int | None, rng: np.random.Generator, rows: int) -> list[np.ndarray]:
        labels = _class_labels(self.labels, rows, "Dirichlet")[pool]
        count = _client_count(pool, clients, f"Dirichlet(min_samples={self.min_samples})", self.min_samples)
        members = [pool[labels == c] for c in np.unique(labels)]
        for _ in range(_TRIES):
            cuts = [_cuts(rng.dirichlet(np.full(count, self.alpha)), len(own)) for own in members]
            sizes = np.sum([np.diff([0, *cut, len(own)]) for cut, own in zip(cuts, members)], axis=0)
            if sizes.min() >= self.min_samples:
                pieces = [np.split(rng.permutation(own), cut) for own, cut in zip(members, cuts)]
                return [np.concatenate([piece[k] for piece in pieces]) for k in range(count)]
        said = f"Dirichlet({self.alpha:g}) gave some of {count} clients fewer than {self.min_samples} of {len(pool)} samples"
        raise DataError(f"{said} in {_TRIES} draws: lower min_samples, raise alpha, or use fewer clients.")


@suggests_names
@dataclass(frozen=True, eq=False)
class Shards:
    """Sort by label, cut into ``k`` shards per client, deal them at random (McMahan et al., 2017).

    ``labels`` are given as to :class:`Dirichlet`.

    Examples
    --------
    >>> a, digit = hf.Sample(name="a"), np.arange(100) % 4
    >>> hf.Federation.split({a: np.arange(100.0)}, clients=4, scheme=hf.Shards(2, digit))
    Federation(4 clients, 25 samples of a; weights uniform)
    """

    k: int
    labels: Any = field(repr=False)

    def __post_init__(self) -> None:
        _check_count(self.k, "Shards", "k", 1)

    def assign(self, pool: np.ndarray, clients: int | None, rng: np.random.Generator, rows: int) -> list[np.ndarray]:
        labels = _class_labels(self.labels, rows, "Shards")
        count = _client_count(pool, clients, f"Shards(k={self.k})", self.k)
        shuffled = rng.permutation(pool)
        ordered = shuffled[np.argsort(labels[shuffled], kind="stable")]
        shards = np.array_split(ordered, count * self.k)
        dealt = rng.permutation(count * self.k).reshape(count, self.k)
        return [np.concatenate([shards[s] for s in hand]) for hand in dealt]


@suggests_names
@dataclass(frozen=True)
class Quantity:
    """The same distribution for all in unequal amounts: the sizes are Dirichlet(alpha) shares, at least one sample each.

    Examples
    --------
    >>> a = hf.Sample(name="a")
    >>> hf.Federation.split({a: np.arange(100.0)}, clients=3, scheme=hf.Quantity(1.0))
    Federation(3 clients, 3..69 samples of a; weights uniform)
    """

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
    """One client for each distinct value of ``groups`` ``(N,)``, in sorted order; ``clients`` may be omitted.

    Examples
    --------
    >>> a, hospital = hf.Sample(name="a"), ["north", "south", "north"]
    >>> hf.Federation.split({a: np.arange(3.0)}, scheme=hf.ByGroup(hospital))
    Federation(2 clients, 1..2 samples of a; weights uniform)
    """

    groups: Any = field(repr=False)

    def assign(self, pool: np.ndarray, clients: int | None, rng: np.random.Generator, rows: int) -> list[np.ndarray]:
        groups = _class_labels(self.groups, rows, "ByGroup")
        names = np.unique(groups)
        if clients is not None and clients != len(names):
            raise DataError(f"ByGroup has {len(names)} distinct groups, and clients={clients}; omit it, or make them agree.")
        parts = [pool[groups[pool] == name] for name in names]
        for name, part in zip(names.tolist(), parts):
            if part.size == 0:
                raise DataError(f"ByGroup: group {name!r} has no samples left after the test and server shares.")
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


def _class_labels(labels: Any, rows: int, owner: str) -> np.ndarray:
    """One label per row, from labels ``(N,)`` or one-hot rows ``(N, classes)``.

    Raises ``DataError`` if there is not one label for each row, a label is missing (NaN, NaT) or masked, labels cannot be
    compared with each other, or a matrix is not one-hot.
    """
    require_unmasked(labels, f"the labels of {owner}")
    try:
        array = np.asarray(labels)
        distinct = np.unique(array)
    except (TypeError, ValueError) as error:
        raise DataError(f"{owner}: the labels are not one array of comparable values: {error}.") from error
    if array.ndim not in (1, 2) or (array.dtype == object and not all(isinstance(entry, str) for entry in array.flat)):
        raise DataError(
            f"{owner}: labels of shape {array.shape} and dtype {array.dtype}; expected one class per row, ({rows},), or one-hot rows."
        )
    if len(array) != rows:
        raise DataError(
            f"{owner} has {len(array)} labels for {rows} rows of data: one label for each row of the whole data set."
        )
    if array.dtype.kind in "fcmM" and np.isnan(distinct).any():
        raise DataError(f"{owner}: {int(np.isnan(array).sum())} labels are NaN or NaT; give every row a class.")
    if array.ndim == 1:
        return array
    if array.shape[1] == 1:
        return array[:, 0]
    if array.dtype.kind not in "biuf" or not np.isin(distinct, (0, 1)).all() or (array.sum(axis=1) != 1).any():
        raise DataError(f"{owner}: a label matrix must be one-hot (one 1 in every row); else give one class per row.")
    return np.argmax(array, axis=1)


def split_data(
    samples: Mapping[Sample, Any],
    clients: int | None,
    scheme: Scheme | None,
    server_fraction: float,
    test_fraction: float,
    parameters: Mapping[ClientParameter, Any] | None,
    seed: int,
    min_samples: int,
) -> tuple[list[Client], Client | None, dict[Sample, GivenArray] | None]:
    """(the clients with their rows and parameters, the server with its share if any, the held-out rows if any).

    The rows are shuffled, the test share is set aside, then the server's share, and the rest is spread by the scheme.

    The arguments and the errors are those of ``Federation.split``.
    """
    whole = _whole_table(samples)
    _check_settings(clients, scheme, server_fraction, test_fraction, seed, min_samples)
    row_count = len(next(iter(whole.values())).array)  # a table's arrays are of one length
    rng = np.random.default_rng(seed)
    test, training = _cut(rng.permutation(row_count), test_fraction, "test_fraction")
    server, pool = _cut(training, server_fraction, "server_fraction")
    parts = _in_row_order(scheme or IID(), whole).assign(pool, clients, rng, row_count)
    for index, part in enumerate(parts):
        if len(part) < min_samples:
            said = f"client {index} gets {len(part)} of {len(pool)} samples, fewer than min_samples={min_samples}"
            raise DataError(f"{said}: lower min_samples, use fewer clients, or a scheme that is less uneven.")
    given = parameters_by_client({} if parameters is None else parameters, len(parts))

    def rows(chosen: np.ndarray) -> dict[Sample, GivenArray]:
        """Some rows, which nobody else holds; columns have the names that they had."""
        order = np.sort(chosen)
        parts = {sample: (rows_of(own.array, order), (None, *own.labels[1:])) for sample, own in whole.items()}
        return {sample: GivenArray(*part, own=True) for sample, part in parts.items()}

    holders = [Client([rows(part)], own) for part, own in zip(parts, given)]
    return holders, Client([rows(server)]) if server.size else None, rows(test) if test.size else None


def _check_settings(
    clients: int | None,
    scheme: Scheme | None,
    server_fraction: float,
    test_fraction: float,
    seed: int,
    min_samples: int,
) -> None:
    for what, share in (("server_fraction", server_fraction), ("test_fraction", test_fraction)):
        if not isinstance(share, Real) or not 0 <= share < 1:
            raise DataError(f"{what}={share} must be in [0, 1).")
    for what, number, least in (("clients", clients, 1), ("seed", seed, 0), ("min_samples", min_samples, 0)):
        if number is None and what == "clients":
            continue
        if not isinstance(number, Integral) or isinstance(number, bool) or number < least:
            hint = ": at least one client" if what == "clients" else ""
            raise DataError(f"{what}={number!r}{hint}; a whole number, {least} or more.")
    if scheme is not None and (isinstance(scheme, type) or not hasattr(scheme, "assign")):
        hint = f" For that name {near_names(scheme, SCHEMES)}" if isinstance(scheme, str) else ""
        raise DataError(
            f"scheme={as_given(scheme)}: an instance of a partition scheme, such as hf.IID() or hf.Dirichlet(0.1, labels).{hint}"
        )


def _whole_table(samples: Any) -> dict[Sample, GivenArray]:
    """The data set, checked as a client's table is, and not copied: its parts will be."""
    if not isinstance(samples, Mapping):
        raise DataError(f"Federation.split takes a mapping {{hf.Sample: array}}, not {type(samples).__name__}.")
    whole = in_one_order({sample: sample_value(sample, value, "the data set") for sample, value in samples.items()})
    check_table(whole, whole, "the data set")
    for sample, value in whole.items():
        if not isinstance(value, GivenArray):
            what = "rows that are elsewhere are" if isinstance(value, Elsewhere) else "a distribution is"
            raise DataError(f"Federation.split splits arrays; {what} given to each hf.Client, as is {sample.name()!r}.")
    if not whole:
        raise DataError("Federation.split needs at least one sample with its array.")
    return whole


def _in_row_order(scheme: Scheme, whole: Mapping[Sample, GivenArray]) -> Scheme:
    """The scheme with its labels, or groups, in the order of the table's rows where both have an index."""
    field = next((name for name in ("labels", "groups") if hasattr(scheme, name)), None)
    if field is None or not is_dataclass(scheme):
        return scheme
    given = getattr(scheme, field)
    own, indexed = row_labels(given), {s.name(): value.labels[0] for s, value in whole.items()}
    name, rows = next(((n, of) for n, of in indexed.items() if of is not None), next(iter(indexed.items())))
    order = common_order(own, rows)
    require_same_rows({name: rows, f"{field} of {type(scheme).__name__}": own if order is None else rows}, "the split")
    return scheme if order is None else replace(scheme, **{field: given.iloc[order]})


def _cut(order: np.ndarray, fraction: float, what: str) -> list[np.ndarray]:
    """The first share of the row numbers, and the rest. Raises ``DataError`` for a share of which there is no row."""
    count = round(fraction * len(order))
    if fraction > 0 and not count:
        raise DataError(f"{what}={fraction:g} of {len(order)} rows is none: a larger share, or 0.")
    return np.split(order, [count])
