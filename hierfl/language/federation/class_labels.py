"""The class or group of every row of a data set, as partition schemes are given it."""

from __future__ import annotations

from typing import Any

import numpy as np

from hierfl.errors import DataError
from hierfl.language.federation.given_arrays import require_unmasked


def class_labels(labels: Any, rows: int, owner: str) -> np.ndarray:
    """One label per row, from labels ``(N,)`` or one-hot rows ``(N, classes)``.

    Raises
    ------
    DataError
        If there is not one label for each row, a label is missing (NaN) or masked, labels cannot be compared with each other, or a
        matrix is not one-hot.
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
