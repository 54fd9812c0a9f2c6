"""The data that a party holds for its samples: checked one by one, and together as the rows of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hierfl.errors import DataError
from hierfl.language.federation.elsewhere import Elsewhere
from hierfl.language.federation.given_arrays import GivenArray, common_order, given_array, require_same_rows
from hierfl.language.federation.mapped_rows import require_whole
from hierfl.language.federation.value_checks import (
    check_array,
    check_attributes,
    check_distribution,
    described,
    is_frozen_distribution,
)
from hierfl.language.sample import Sample


def sample_value(sample: Sample, value: Any, who: str) -> Any:
    """One party's data for a sample, checked: a ``GivenArray`` (a mapped one stays mapped) or a frozen distribution.

    Raises
    ------
    DataError
        If the key is no ``Sample``, or the data have the wrong shape, no rows, entries that are masked or no finite real numbers, or
        values against the declared attributes; and for an unsupported distribution.
    """
    if not isinstance(sample, Sample):
        raise DataError(f"{who}: {described(sample)} is not a hf.Sample; samples= takes {{hf.Sample: array}}.")
    if is_frozen_distribution(value):
        check_distribution(sample, value, who)
        return value
    what = f"sample {sample.name()!r} of {who}"
    if isinstance(value, Elsewhere):
        if value.rows is None:
            raise DataError(f"{what}: say how many rows are held there, hf.Elsewhere(120).")
        if value.columns is not None and (len(value.columns),) != sample.shape:
            raise DataError(
                f"{what} has shape {sample.shape} and {len(value.columns)} columns: give one name for each entry."
            )
        return value
    given = given_array(value, what, " or a frozen scipy.stats distribution, such as stats.norm(0, 1)")
    array = given.array
    if array.ndim == 0 or array.shape[1:] != sample.shape:
        raise DataError(
            f"{what} has shape {array.shape}; expected ({_rows_shape(sample)}) with samples along the first axis."
            f"{_shape_hint(sample, array)}"
        )
    if len(array) == 0:
        raise DataError(f"{what} has no rows: every party that holds a sample needs at least one.")
    if type(array) is not np.ndarray:
        require_whole([array], sample.name())
    check_array(array, what)
    check_attributes(sample, array, what)
    return given


def in_one_order(table: Mapping[Sample, Any]) -> dict[Sample, Any]:
    """The samples of a mapping, each with its rows in the order of the first that has the same index in another one."""
    ordered: dict[Sample, Any] = {}
    for sample, value in table.items():
        if isinstance(value, GivenArray):
            before = [other.labels[0] for other in ordered.values() if isinstance(other, GivenArray)]
            orders = (common_order(value.labels[0], labels) for labels in before)
            value = value.taken(next((order for order in orders if order is not None), None))
        ordered[sample] = value
    return ordered


def check_table(table: Mapping[Sample, Any], values: Mapping[Sample, Any], who: str) -> None:
    """Check that the samples of one table are paired rows: all arrays of one length, or all distributions.

    Raises
    ------
    DataError
        Naming the samples of the table.
    """
    kinds = {is_frozen_distribution(values[s]) for s in table}
    if len(kinds) > 1:
        raise DataError(
            f"{who}: a table mixes arrays and distributions ({', '.join(s.name() for s in table)}); give all as one or the other."
        )
    if kinds == {False}:
        lengths = {s.name(): len(array_of(values[s])) for s in table}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            raise DataError(f"{who}: the samples of one table differ in length ({listed}); they are paired rows.")
        require_same_rows({s.name(): values[s].labels[0] for s in table if isinstance(values[s], GivenArray)}, who)


def _shape_hint(sample: Sample, array: np.ndarray) -> str:
    """The sentence that says what to write instead, where the array's shape suggests it."""
    if sample.shape == (1,) and array.ndim == 1:
        return f" Write array[:, None], or declare hf.Sample(name={sample.name()!r}) without a shape."
    if sample.shape == () and array.shape[1:] == (1,):
        return f" Write array[:, 0], or declare hf.Sample(1, name={sample.name()!r})."
    if array.ndim == 0:
        return " This is a single number: write np.array([value]) for one sample." if sample.shape == () else ""
    if array.shape == sample.shape:
        return " This is one sample: write array[None]."
    if array.ndim > 2 and array.shape[:-1] == sample.shape:  # before .T, which would transpose square samples too
        return " Are the samples along the last axis? Write np.moveaxis(array, -1, 0)."
    if array.ndim > 1 and array.shape[::-1][1:] == sample.shape:
        return " Is it transposed? Write array.T."
    if array.ndim > 1 and int(np.prod(array.shape[1:])) == sample.size:
        return f" Write array.reshape({', '.join(['len(array)', *map(str, sample.shape)])})."
    return ""


def array_of(value: Any) -> Any:
    """The array itself, of what was given as one; a distribution, or what is elsewhere, as it is."""
    return value.array if isinstance(value, GivenArray) else value


def _rows_shape(sample: Sample) -> str:
    return ", ".join(["N", *map(str, sample.shape)]) if sample.shape else "N,"
