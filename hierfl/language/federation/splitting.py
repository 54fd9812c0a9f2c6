"""One data set split among a test set, the server and the clients: the work of ``Federation.split``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from numbers import Integral, Real
from typing import Any

import numpy as np

from hierfl.errors import DataError
from hierfl.language.federation.client import Client
from hierfl.language.federation.elsewhere import Elsewhere
from hierfl.language.federation.given_arrays import GivenArray, common_order, require_same_rows, row_labels
from hierfl.language.federation.mapped_rows import rows_of
from hierfl.language.federation.partition_schemes import IID, SCHEMES, Scheme
from hierfl.language.federation.sample_values import check_table, in_one_order, parameters_by_client, sample_value
from hierfl.language.sample import ClientParameter, Sample
from hierfl.near_names import near_names


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
    test, training = _cut(rng.permutation(row_count), test_fraction)
    server, pool = _cut(training, server_fraction)
    parts = _in_row_order(scheme or IID(), whole).assign(pool, clients, rng, row_count)
    _check_sizes(parts, len(pool), min_samples)
    given = parameters_by_client({} if parameters is None else parameters, len(parts))

    def rows(chosen: np.ndarray) -> dict[Sample, GivenArray]:
        """Some rows, which nobody else holds; columns have the names that they had."""
        return {
            sample: GivenArray(rows_of(given.array, np.sort(chosen)), (None, *given.labels[1:]), own=True)
            for sample, given in whole.items()
        }

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
            f"scheme={scheme!r}: an instance of a partition scheme, such as hf.IID() or hf.Dirichlet(0.1, labels).{hint}"
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
            raise DataError(
                f"Federation.split splits arrays; {what} given to each hf.Client, as is sample {sample.name()!r}."
            )
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


def _cut(order: np.ndarray, fraction: float) -> list[np.ndarray]:
    """The first share of the row numbers, and the rest."""
    return np.split(order, [round(fraction * len(order))])


def _check_sizes(parts: list[np.ndarray], available: int, min_samples: int) -> None:
    for index, part in enumerate(parts):
        if len(part) < min_samples:
            raise DataError(
                f"client {index} gets {len(part)} of {available} samples, fewer than min_samples={min_samples}: lower "
                f"min_samples, use fewer clients, or a scheme that is less uneven."
            )
