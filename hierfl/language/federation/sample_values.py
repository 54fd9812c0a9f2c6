"""The data that a party holds: values for its samples, checked one by one and together as the rows of a table, and client parameters.

As it is pickled, rows on disk stay there and are found again by their file. ``Federation.split(parameters={p: ...})`` takes one value
for all, one value per client, or a callable of the client's index. Shapes decide between the first two; where they cannot, the user is
asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import cvxpy as cp
import numpy as np
from scipy import stats

from hierfl.errors import DataError
from hierfl.language.federation.given_arrays import (
    GivenArray,
    MappedRows,
    common_order,
    given_array,
    place_in_file,
    require_numbered_in_order,
    require_same_rows,
    require_unmasked,
    require_whole,
)
from hierfl.language.sample import ClientParameter, Sample
from hierfl.near_names import suggests_names

TILE = 64  # rows that stand in for all
SEED = 20_011


@suggests_names
@dataclass(frozen=True)
class Elsewhere:
    """Says that a client's rows of a sample, or its value of a client parameter, are held where the client is, and not here.

    ``hf.Client({u: hf.Elsewhere(120)}, {rho: hf.Elsewhere()}, name="north")``: the number of rows is all that is known here. The weights
    take it, ``check()`` tells what needs no data, and runs reach the rows by messages (``hf.runtime``).

    Parameters
    ----------
    rows
        The number of rows of a sample, at least 1; None for the value of a client parameter.
    columns
        The names of the columns of a sample that is a vector, in the order in which its entries are meant. Where tables are loaded
        there, their columns are put into this order; tables with names are refused where none are declared.

    Raises
    ------
    DataError
        If ``rows`` is no such number, or a column is named twice.

    Examples
    --------
    >>> a = hf.Sample(2, name="a")
    >>> there = hf.Client({a: hf.Elsewhere(120)}, name="north")
    """

    rows: int | None = None
    columns: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        if self.columns is not None:
            if isinstance(self.columns, str) or len({*self.columns}) < len(self.columns):
                raise DataError(f"Elsewhere(columns={self.columns!r}): a list of names, each once.")
            object.__setattr__(self, "columns", tuple(self.columns))
        if self.rows is None:
            return
        if isinstance(self.rows, bool) or not isinstance(self.rows, (int, np.integer)) or self.rows < 1:
            raise DataError(f"Elsewhere({self.rows!r}): the number of rows that the client holds, at least 1.")

    def __len__(self) -> int:
        return 0 if self.rows is None else int(self.rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        """No numbers are made of it, by NumPy or anybody. Raises ``DataError`` always."""
        said = f"{self!r} was asked for its numbers, which are held where the client is and not here"
        raise DataError(f"{said}: only a run by messages reaches them, problem.solve(solver, runtime=...).")


def stand_ins(leaf: cp.Parameter, count: int) -> np.ndarray:
    """Invented values ``(count, *leaf.shape)`` with the leaf's attributes, the same in every process.

    Programs are chosen by looking at them; no value that is reported, and no message, is made of them.
    """
    said, drawn = leaf.attributes, np.random.default_rng(SEED).standard_normal((count, *leaf.shape))
    below, above = said.get("nonpos") or said.get("neg"), said.get("nonneg") or said.get("pos")
    values = np.abs(drawn) if below or above else drawn
    if said.get("PSD") or said.get("NSD"):  # definite ones, as matrices generally are
        values = values @ np.swapaxes(values, -2, -1)
    elif said.get("symmetric") or said.get("hermitian"):
        values = 0.5 * (values + np.swapaxes(values, -2, -1))
    if said.get("diag") or said.get("sparsity"):
        pattern = np.zeros(leaf.shape, bool)
        pattern[leaf.sparse_idx if said.get("sparsity") else np.diag_indices(leaf.shape[0])] = True
        values = np.where(pattern, values, 0.0)
    values = -values if below or said.get("NSD") else values
    if (bounds := said.get("bounds")) is not None:
        values = np.clip(values, *(np.broadcast_to(np.asarray(edge, float), leaf.shape) for edge in bounds))
    if said.get("boolean"):
        return np.round(np.clip(values, 0.0, 1.0))
    return np.round(values) if said.get("integer") else values


_BLOCK = 1_000_000
LARGEST = 1e150  # of a number, beyond which its square is none


def is_frozen_distribution(value: Any) -> bool:
    """Whether a value is a frozen ``scipy.stats`` distribution."""
    return hasattr(value, "rvs") and not isinstance(value, np.ndarray)


def described(key: Any) -> str:
    """The text that names a wrong key of a mapping: its kind and name where it has one."""
    if isinstance(key, (cp.Variable, cp.Parameter)):
        kind = "cp.Variable" if isinstance(key, cp.Variable) else type(key).__name__
        return f"{kind} {key.name()!r}"
    return repr(key)


def _check_array(array: np.ndarray | MappedRows, what: str) -> None:
    """Entries are finite, read in blocks, so that mapped arrays stay on disk. Raises ``DataError``, with the first row."""
    if array.dtype.kind != "f":
        return
    if array.ndim == 0:
        if not abs(array) <= LARGEST:
            raise DataError(f"{what} is {float(np.asarray(array))}; expected a finite number, whose square is one too.")
        return
    rows, most = _rows_at_once(array), min(LARGEST, float(np.finfo(array.dtype).max))
    blocks = ((start, array[start : start + rows]) for start in range(0, len(array), rows))
    within = ((start, np.abs(block) <= most) for start, block in blocks)
    broken = [start + np.flatnonzero(~good.reshape(len(good), -1).all(axis=1)) for start, good in within]
    broken_rows = np.concatenate(broken) if broken else np.zeros(0, int)
    if broken_rows.size:
        first = int(broken_rows[0])
        entries = np.asarray(array[first])
        place = np.argwhere(~(np.abs(entries) <= most))[0]
        entry = f", entry {', '.join(map(str, place))}" if place.size else ""
        found = "NaN or infinity" if not np.isfinite(entries).all() else f"numbers beyond {LARGEST:.0e}, whose squares are infinite,"
        raise DataError(f"{what} contains {found} in {broken_rows.size} of {len(array)} rows, first in row {first}{entry}.")


def _check_attributes(leaf: cp.Parameter, array: np.ndarray | MappedRows, what: str) -> None:
    """Check values, block by block, against the leaf's declared attributes. Raises ``DataError``, naming the attribute."""
    rows = _rows_at_once(array)
    for start in range(0, len(array) if _declared(leaf) else 0, rows):
        broken = _broken_attribute(leaf, np.asarray(array[start : start + rows]))
        if broken is not None:
            raise DataError(f"{what} is declared {broken}, but its values are not.")


_HOLDS: dict[str, Callable[[np.ndarray, Any], Any]] = {
    "nonneg": lambda array, _: (array >= 0).all(),
    "pos": lambda array, _: (array > 0).all(),
    "nonpos": lambda array, _: (array <= 0).all(),
    "neg": lambda array, _: (array < 0).all(),
    "bounds": lambda array, ends: ((array >= ends[0]) & (array <= ends[1])).all(),
    "symmetric": lambda array, _: np.allclose(array, np.swapaxes(array, -1, -2)),
    "PSD": lambda array, _: _is_semidefinite(array),
    "NSD": lambda array, _: _is_semidefinite(-array),
    "diag": lambda array, _: not array[..., ~np.eye(array.shape[-1], dtype=bool)].any(),
    "sparsity": lambda array, places: np.count_nonzero(array) <= np.count_nonzero(array[(..., *places)]),
    "integer": lambda array, _: np.array_equal(array, np.round(array)),
    "boolean": lambda array, _: np.isin(array, (0, 1)).all(),
}


def _is_semidefinite(array: np.ndarray) -> bool:
    """Whether no eigenvalue is below 0 by more than rounding of the largest."""
    values = np.linalg.eigvalsh(array.astype(float))
    return bool((values[..., 0] >= -1e-9 * np.abs(values).max(axis=-1)).all())


def _declared(leaf: cp.Parameter) -> dict[str, Any]:
    return {name: value for name, value in leaf.attributes.items() if value is not None and value is not False}


def _broken_attribute(leaf: cp.Parameter, array: np.ndarray) -> str | None:
    """The first of the declared attributes that these values do not have, or None."""
    declared = _declared(leaf)
    implied = {"symmetric"} if declared.keys() & {"PSD", "NSD"} else set()
    return next((name for name, holds in _HOLDS.items() if name in declared.keys() | implied and not holds(array, declared.get(name))), None)


def _rows_at_once(array: np.ndarray | MappedRows) -> int:
    return max(1, _BLOCK // max(1, array[0:1].size))


def _check_distribution(sample: Sample, law: Any, who: str) -> None:
    """A univariate frozen law of the sample's shape, or a multivariate normal of its size. Raises ``DataError``."""
    what = f"sample {sample.name()!r} of {who}"
    if isinstance(law, (stats.rv_continuous, stats.rv_discrete)):
        raise DataError(
            f"{what}: {law.name} is a family of distributions; freeze it with its parameters, such as stats.norm(0, 1)."
        )
    if hasattr(law, "ppf"):
        with np.errstate(all="ignore"):  # SciPy divides by zero for the kurtosis of a law of one value
            low, high = _check_univariate(sample, law, what)
        inner = law.ppf(np.random.default_rng(0).random((2, *sample.shape)))
    elif isinstance(law, type(stats.multivariate_normal(np.zeros(2)))):
        if np.shape(law.mean) != sample.shape:
            raise DataError(f"{what}: the multivariate normal is of dimension {np.shape(law.mean)}, not {sample.shape}.")
        low, high, inner = -LARGEST, LARGEST, law.rvs(2, 0).reshape(2, *sample.shape)
    else:
        known = "univariate frozen scipy.stats distributions (array loc and scale broadcast) and multivariate_normal"
        raise DataError(f"{what}: {type(law).__name__} has no inverse CDF. Supported are {known}.")
    ends = np.clip(np.stack([np.broadcast_to(end, sample.shape) for end in (low, high)]), -LARGEST, LARGEST)
    broken = _broken_attribute(sample, np.concatenate([ends, inner]))
    if broken is not None:
        raise DataError(f"{what} is declared {broken}, but values of its distribution are not.")


def _check_univariate(sample: Sample, law: Any, what: str) -> tuple[Any, Any]:
    """Between which values a law lies that has a mean and the sample's shape; an end without probability is left out."""
    try:
        median = np.asarray(law.ppf(np.full((1, *sample.shape), 0.5)), dtype=float)
    except ValueError as error:
        raise DataError(f"{what}: the distribution does not broadcast to the shape {sample.shape}: {error}.") from error
    if median.shape != (1, *sample.shape):
        raise DataError(f"{what}: the distribution has shape {median.shape[1:]}; expected {sample.shape}.")
    if not np.isfinite(median).all():
        raise DataError(f"{what}: the distribution's median is not finite; are its parameters valid?")
    if not np.isfinite(law.mean()).all():
        raise DataError(f"{what}: {law.dist.name} has no finite mean, so its E does not exist.")
    low, high = law.support()
    return (np.nextafter(low, high), np.nextafter(high, low)) if isinstance(law.dist, stats.rv_continuous) else (low, high)


def sample_value(sample: Sample, value: Any, who: str) -> Any:
    """One party's data for a sample, checked: a ``GivenArray`` (a mapped one stays mapped) or a frozen distribution.

    Raises ``DataError`` if the key is no ``Sample``, or the data have the wrong shape, no rows, entries that are masked
    or no finite real numbers, or values against the declared attributes; and for an unsupported distribution.
    """
    if not isinstance(sample, Sample):
        raise DataError(f"{who}: {described(sample)} is not a hf.Sample; samples= takes {{hf.Sample: array}}.")
    if is_frozen_distribution(value):
        _check_distribution(sample, value, who)
        return value
    what = f"sample {sample.name()!r} of {who}"
    if isinstance(value, Elsewhere):
        if value.rows is None:
            raise DataError(f"{what}: say how many rows are held there, hf.Elsewhere(120).")
        if value.columns is not None and (len(value.columns),) != sample.shape:
            names = len(value.columns)
            raise DataError(f"{what} has shape {sample.shape} and {names} columns: give one name for each entry.")
        return value
    given = given_array(value, what, " or a frozen scipy.stats distribution, such as stats.norm(0, 1)")
    array = given.array
    if array.ndim == 0 or array.shape[1:] != sample.shape:
        wanted = ", ".join(["N", *map(str, sample.shape)]) if sample.shape else "N,"
        raise DataError(
            f"{what} has shape {array.shape}; expected ({wanted}) with samples along the first axis."
            f"{_shape_hint(sample, array)}"
        )
    if len(array) == 0:
        raise DataError(f"{what} has no rows: every party that holds a sample needs at least one.")
    if type(array) is not np.ndarray:
        require_whole([array], sample.name())
    _check_array(array, what)
    _check_attributes(sample, array, what)
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
    """The samples of one table are paired rows, or all distributions. Raises ``DataError``, naming the table's."""
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


class OnDisk(NamedTuple):
    """A memory-mapped array by its file, and which of its rows, None for all."""

    file: str
    offset: int
    dtype: str
    shape: tuple[int, ...]
    rows: np.ndarray | None

    def mapped(self) -> np.memmap | MappedRows:
        array = np.memmap(self.file, np.dtype(self.dtype), "r", self.offset, self.shape)
        return array if self.rows is None else MappedRows(array, self.rows)


def pickled(held: Mapping[Any, Any]) -> dict[Any, Any]:
    """What is pickled in place of a mapping."""
    return {leaf: _by_file(value) for leaf, value in held.items()}


def unpickled(stored: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """The mapping again, with arrays in memory that nobody changes."""
    held = {leaf: value.mapped() if isinstance(value, OnDisk) else value for leaf, value in stored.items()}
    for value in held.values():
        if type(value) is np.ndarray:
            value.flags.writeable = False
    return MappingProxyType(held)


def _by_file(value: Any) -> Any:
    """A memory-mapped array in one piece, whose file has its rows, by that file; of others the rows themselves."""
    if isinstance(value, MappedRows):
        array = _by_file(value.array)
        return array._replace(rows=value.rows) if isinstance(array, OnDisk) else np.asarray(value)
    if not isinstance(value, np.memmap):
        return value
    file, begin, _ = place_in_file(value)
    if file is None or value.mode == "c" or not value.flags.c_contiguous:  # what is written into a copy on write is in memory alone
        return np.array(value)
    return OnDisk(str(file), begin, value.dtype.str, value.shape, None)


def parameter_value(parameter: ClientParameter, value: Any, who: str) -> GivenArray | Elsewhere:
    """One client's value of a parameter: a copy in double precision, of the parameter's shape; or that it is elsewhere.

    Raises ``DataError`` if the key is not a ClientParameter, or the value has another shape, is not finite or breaks an
    attribute.
    """
    if not isinstance(parameter, ClientParameter):
        raise DataError(
            f"{who}: {described(parameter)} is not a hf.ClientParameter; parameters= takes {{hf.ClientParameter: value}}."
        )
    what = f"client parameter {parameter.name()!r} of {who}"
    if isinstance(value, Elsewhere):
        if value.rows is not None:
            raise DataError(f"{what} has no rows: write hf.Elsewhere() for a value that is held there.")
        return value
    given = given_array(value, what)
    array = given.array
    if array.shape != parameter.shape:
        raise DataError(f"{what} has shape {array.shape}; expected {parameter.shape}. It is declared by hf.ClientParameter({array.shape}) if that is meant.")
    _check_array(array, what)
    _check_attributes(parameter, array[None], what)
    return GivenArray(np.asarray(array, float), given.labels, given.own or array.dtype != float)


def parameters_by_client(
    parameters: Mapping[ClientParameter, Any], clients: int
) -> list[dict[ClientParameter, GivenArray | Elsewhere]]:
    """The parameters of each client. Raises ``DataError`` for a value that is neither for all nor for each, or both."""
    if not isinstance(parameters, Mapping):
        raise DataError(f"parameters= takes a mapping {{hf.ClientParameter: value}}, not {type(parameters).__name__}.")
    per_client: list[dict[ClientParameter, GivenArray | Elsewhere]] = [{} for _ in range(clients)]
    for parameter, given in parameters.items():
        if not isinstance(parameter, ClientParameter):
            raise DataError(f"{described(parameter)} is not a hf.ClientParameter, the only key that parameters= takes.")
        for index, value in enumerate(_values(parameter, given, clients)):
            per_client[index][parameter] = parameter_value(parameter, value, f"client {index}")
    return per_client


def _values(parameter: ClientParameter, given: Any, clients: int) -> list[Any]:
    """One value per client, from one value for all, one per client, or a callable."""
    if isinstance(given, Elsewhere):
        return [given] * clients
    if callable(given):
        return [given(index) for index in range(clients)]
    name = f"client parameter {parameter.name()!r}"
    require_unmasked(given, name)
    try:
        shape = np.shape(given)
    except ValueError as error:
        raise DataError(f"{name}: the values differ in shape; each client's has shape {parameter.shape}.") from error
    if shape == (clients, *parameter.shape):
        if not hasattr(given, "to_numpy"):
            return list(given)
        require_numbered_in_order(given, name)
        rows = given_array(given, name)
        return [GivenArray(row, rows.labels[1:]) for row in rows.array]
    if shape != parameter.shape:
        raise DataError(
            f"{name}: got shape {shape}; give one value of shape {parameter.shape}, a list of {clients} such values, or a "
            f"callable of the client's index."
        )
    if clients > 1 and shape == (clients,):
        raise DataError(
            f"{name}: {clients} numbers for {clients} clients are ambiguous, since one value has shape {shape} too. Write "
            f"`lambda i: value` or [value] * {clients} to share it; declare the parameter as a scalar for one number each."
        )
    return [given] * clients
