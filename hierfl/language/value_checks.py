"""Checks of the numbers that parties hold."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

from hierfl.errors import DataError

_BLOCK = 1_000_000


def is_frozen_distribution(value: Any) -> bool:
    """Whether a value is a frozen ``scipy.stats`` distribution."""
    return hasattr(value, "rvs") and not isinstance(value, np.ndarray)


def check_array(array: np.ndarray, what: str) -> None:
    """Numeric, real and finite; read in blocks, so that memory-mapped arrays stay on disk.

    Raises
    ------
    DataError
        Saying how many entries are not finite, and in which row first.
    """
    if array.dtype.kind not in "fiub":
        raise DataError(f"{what} has dtype {array.dtype}; expected real numbers.")
    if array.dtype.kind != "f":
        return
    if array.ndim == 0:
        if not np.isfinite(array):
            raise DataError(f"{what} is {float(array)}; expected a finite number.")
        return
    rows = _rows_at_once(array)
    bad = [
        start
        + np.flatnonzero(
            ~np.isfinite(array[start : start + rows]).reshape(len(array[start : start + rows]), -1).all(axis=1)
        )
        for start in range(0, len(array), rows)
    ]
    found = np.concatenate(bad) if bad else np.zeros(0, int)
    if found.size:
        raise DataError(
            f"{what} contains NaN or infinity in {found.size} of {len(array)} rows, first in row {int(found[0])}."
        )


def check_attributes(leaf: Any, array: np.ndarray, what: str) -> None:
    """The values respect the leaf's declared attributes (sign, bounds, symmetry, definiteness); read in blocks.

    Raises
    ------
    DataError
        Naming the attribute.
    """
    on = {name: value for name, value in leaf.attributes.items() if value is not None and value is not False}
    rows = _rows_at_once(array)
    for start in range(0, len(array) if on else 0, rows):
        broken = _broken(on, np.asarray(array[start : start + rows]))
        if broken is not None:
            raise DataError(f"{what} is declared {broken}, but its values are not.")


def _broken(on: dict[str, Any], array: np.ndarray) -> str | None:
    """The first of the attributes that these values do not have."""
    if "nonneg" in on and (array < 0).any():
        return "nonneg"
    if "pos" in on and (array <= 0).any():
        return "pos"
    if "nonpos" in on and (array > 0).any():
        return "nonpos"
    if "neg" in on and (array >= 0).any():
        return "neg"
    if "bounds" in on and ((array < on["bounds"][0]).any() or (array > on["bounds"][1]).any()):
        return "bounds"
    if on.keys() & {"symmetric", "PSD", "NSD"} and not np.allclose(array, np.swapaxes(array, -1, -2)):
        return "symmetric"
    if "PSD" in on and np.linalg.eigvalsh(array.astype(float)).min() < -1e-9:
        return "PSD"
    if "NSD" in on and np.linalg.eigvalsh(array.astype(float)).max() > 1e-9:
        return "NSD"
    if "integer" in on and not np.array_equal(array, np.round(array)):
        return "integer"
    if "boolean" in on and not np.isin(array, (0, 1)).all():
        return "boolean"
    return None


def _rows_at_once(array: np.ndarray) -> int:
    return max(1, _BLOCK // max(1, array[0:1].size))


def check_distribution(sample: Any, law: Any, who: str) -> None:
    """A univariate frozen law that broadcasts to the sample's shape, or a multivariate normal of that size.

    Raises
    ------
    DataError
        Naming the sample and what is supported.
    """
    what = f"sample {sample.name()!r} of {who}"
    if isinstance(law, (stats.rv_continuous, stats.rv_discrete)):
        raise DataError(
            f"{what}: {law.name} is a family of distributions; freeze it with its parameters, such as stats.norm(0, 1)."
        )
    if hasattr(law, "ppf"):
        _check_support(sample, law, what)
        if not np.isfinite(law.mean()).all():
            raise DataError(f"{what}: {law.dist.name} has no finite mean, so its E does not exist.")
        try:
            point = np.asarray(law.ppf(np.full((1, *sample.shape), 0.5)), dtype=float)
        except ValueError as error:
            raise DataError(
                f"{what}: the distribution does not broadcast to the sample's shape {sample.shape}: {error}."
            ) from error
        if point.shape != (1, *sample.shape):
            raise DataError(f"{what}: the distribution has shape {point.shape[1:]}; expected {sample.shape}.")
        if not np.isfinite(point).all():
            raise DataError(f"{what}: the distribution's median is not finite; are its parameters valid?")
        return
    if isinstance(law, type(stats.multivariate_normal(np.zeros(2)))):
        if np.shape(law.mean) != sample.shape:
            raise DataError(
                f"{what}: the multivariate normal has dimension {np.shape(law.mean)}; expected {sample.shape}."
            )
        return
    raise DataError(
        f"{what}: {type(law).__name__} has no inverse CDF. Supported are univariate frozen scipy.stats distributions (array loc "
        f"and scale broadcast) and multivariate_normal."
    )


def _check_support(sample: Any, law: Any, what: str) -> None:
    low, high = (np.asarray(edge, dtype=float) for edge in law.support())
    on = sample.attributes
    if (on.get("nonneg") or on.get("pos")) and (low < 0).any():
        raise DataError(f"{what} is declared nonneg, but its distribution reaches below 0.")
    if (on.get("nonpos") or on.get("neg")) and (high > 0).any():
        raise DataError(f"{what} is declared nonpos, but its distribution reaches above 0.")
