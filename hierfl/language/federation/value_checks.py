"""Checks of the numbers that parties hold: arrays, the attributes declared for them, and distributions."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
from scipy import stats

from hierfl.errors import DataError
from hierfl.language.federation.mapped_rows import MappedRows
from hierfl.language.sample import Sample

_BLOCK = 1_000_000


def is_frozen_distribution(value: Any) -> bool:
    """Whether a value is a frozen ``scipy.stats`` distribution."""
    return hasattr(value, "rvs") and not isinstance(value, np.ndarray)


def described(key: Any) -> str:
    """The text that names a wrong key of a mapping: its kind and name where it has one."""
    if isinstance(key, (cp.Variable, cp.Parameter)):
        kind = "cp.Variable" if isinstance(key, cp.Variable) else type(key).__name__
        return f"{kind} {key.name()!r}"
    return repr(key)


def check_array(array: np.ndarray | MappedRows, what: str) -> None:
    """Check that the entries are real and finite; they are read in blocks, so that memory-mapped arrays stay on disk.

    Raises ``DataError``, saying how many entries are not finite, and in which row first.
    """
    if array.dtype.kind not in "fiub":
        raise DataError(f"{what} has dtype {array.dtype}; expected real numbers.")
    if array.dtype.kind != "f":
        return
    if array.ndim == 0:
        if not np.isfinite(array):
            raise DataError(f"{what} is {float(np.asarray(array))}; expected a finite number.")
        return
    rows = _rows_at_once(array)
    blocks = ((start, array[start : start + rows]) for start in range(0, len(array), rows))
    broken = [
        start + np.flatnonzero(~np.isfinite(block).reshape(len(block), -1).all(axis=1)) for start, block in blocks
    ]
    broken_rows = np.concatenate(broken) if broken else np.zeros(0, int)
    if broken_rows.size:
        raise DataError(
            f"{what} contains NaN or infinity in {broken_rows.size} of {len(array)} rows, first in row {int(broken_rows[0])}."
        )


def check_attributes(leaf: cp.Parameter, array: np.ndarray | MappedRows, what: str) -> None:
    """Check the values, block by block, against the leaf's declared attributes (sign, bounds, symmetry, definiteness).

    Raises ``DataError``, naming the attribute.
    """
    declared = {name: value for name, value in leaf.attributes.items() if value is not None and value is not False}
    rows = _rows_at_once(array)
    for start in range(0, len(array) if declared else 0, rows):
        broken = _broken_attribute(declared, np.asarray(array[start : start + rows]))
        if broken is not None:
            raise DataError(f"{what} is declared {broken}, but its values are not.")


def _broken_attribute(declared: dict[str, Any], array: np.ndarray) -> str | None:
    """The first of the attributes that these values do not have, or None."""
    if "nonneg" in declared and (array < 0).any():
        return "nonneg"
    if "pos" in declared and (array <= 0).any():
        return "pos"
    if "nonpos" in declared and (array > 0).any():
        return "nonpos"
    if "neg" in declared and (array >= 0).any():
        return "neg"
    if "bounds" in declared and ((array < declared["bounds"][0]).any() or (array > declared["bounds"][1]).any()):
        return "bounds"
    if declared.keys() & {"symmetric", "PSD", "NSD"} and not np.allclose(array, np.swapaxes(array, -1, -2)):
        return "symmetric"
    if "PSD" in declared and np.linalg.eigvalsh(array.astype(float)).min() < -1e-9:
        return "PSD"
    if "NSD" in declared and np.linalg.eigvalsh(array.astype(float)).max() > 1e-9:
        return "NSD"
    if "integer" in declared and not np.array_equal(array, np.round(array)):
        return "integer"
    if "boolean" in declared and not np.isin(array, (0, 1)).all():
        return "boolean"
    return None


def _rows_at_once(array: np.ndarray | MappedRows) -> int:
    return max(1, _BLOCK // max(1, array[0:1].size))


def check_distribution(sample: Sample, law: Any, who: str) -> None:
    """Check for a univariate frozen law that broadcasts to the sample's shape, or a multivariate normal of that size.

    Raises ``DataError``, naming the sample and what is supported.
    """
    what = f"sample {sample.name()!r} of {who}"
    if isinstance(law, (stats.rv_continuous, stats.rv_discrete)):
        raise DataError(
            f"{what}: {law.name} is a family of distributions; freeze it with its parameters, such as stats.norm(0, 1)."
        )
    if hasattr(law, "ppf"):
        with np.errstate(all="ignore"):  # SciPy divides by zero for the kurtosis of a law of one value
            _check_univariate(sample, law, what)
    elif isinstance(law, type(stats.multivariate_normal(np.zeros(2)))):
        if np.shape(law.mean) != sample.shape:
            raise DataError(
                f"{what}: the multivariate normal has dimension {np.shape(law.mean)}; expected {sample.shape}."
            )
    else:
        raise DataError(
            f"{what}: {type(law).__name__} has no inverse CDF. Supported are univariate frozen scipy.stats distributions (array loc "
            f"and scale broadcast) and multivariate_normal."
        )


def _check_univariate(sample: Sample, law: Any, what: str) -> None:
    _check_support(sample, law, what)
    if not np.isfinite(law.mean()).all():
        raise DataError(f"{what}: {law.dist.name} has no finite mean, so its E does not exist.")
    try:
        median = np.asarray(law.ppf(np.full((1, *sample.shape), 0.5)), dtype=float)
    except ValueError as error:
        raise DataError(
            f"{what}: the distribution does not broadcast to the sample's shape {sample.shape}: {error}."
        ) from error
    if median.shape != (1, *sample.shape):
        raise DataError(f"{what}: the distribution has shape {median.shape[1:]}; expected {sample.shape}.")
    if not np.isfinite(median).all():
        raise DataError(f"{what}: the distribution's median is not finite; are its parameters valid?")


def _check_support(sample: Sample, law: Any, what: str) -> None:
    low, high = (np.asarray(edge, dtype=float) for edge in law.support())
    declared = sample.attributes
    if (declared.get("nonneg") or declared.get("pos")) and (low < 0).any():
        raise DataError(f"{what} is declared nonneg, but its distribution reaches below 0.")
    if (declared.get("nonpos") or declared.get("neg")) and (high > 0).any():
        raise DataError(f"{what} is declared nonpos, but its distribution reaches above 0.")
