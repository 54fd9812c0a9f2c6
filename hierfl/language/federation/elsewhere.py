"""``Elsewhere``: what stands in a declaration for data that are not in this process, and what looks are taken at meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import cvxpy as cp
import numpy as np

from hierfl.errors import DataError
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
        """No numbers are made of it, by NumPy or anybody.

        Raises ``DataError`` always.
        """
        raise DataError(
            f"{self!r} was asked for its numbers, which are held where the client is and not here: only a run on a runtime whose processes "
            f"hold them, problem.solve(solver, runtime=...), reaches them, by messages."
        )


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
