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
    rng = np.random.default_rng(SEED)
    drawn = rng.standard_normal((count, *leaf.shape))
    bounds = leaf.attributes.get("bounds")
    if bounds is not None:
        low, high = (np.broadcast_to(np.asarray(edge, float), leaf.shape) for edge in bounds)
        return np.clip(drawn, low, high)
    if not any(value is not None and value is not False for value in leaf.attributes.values()):
        return drawn
    if leaf.attributes.get("nonneg") or leaf.attributes.get("pos"):
        return np.abs(drawn)
    if leaf.attributes.get("nonpos") or leaf.attributes.get("neg"):
        return -np.abs(drawn)
    return np.array([np.asarray(leaf.project(one), float) for one in drawn])
