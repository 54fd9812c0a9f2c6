"""Independent blocks of a set: entries that constraints couple go together, and each block gets its projection."""

from __future__ import annotations

from collections.abc import Sequence

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from hierfl.compiler.block_kinds import (
    AffineBlock,
    BallBlock,
    Block,
    BoxBlock,
    ConditionBlock,
    DisjointRowsBlock,
    SimplexBlock,
)
from hierfl.compiler.pieces import Piece, Rows, merged
from hierfl.compiler.recognise import AffineRows, NormBound


def make_blocks(
    pieces: Sequence[Piece], size: int, twins: Sequence[cp.Variable], parameters: Sequence[cp.Parameter]
) -> list[Block]:
    """Split into independent blocks and choose a projection for each."""
    bounds: list[Rows] = []
    coupling: list[tuple[np.ndarray, Rows | Piece]] = []
    for piece in pieces:
        if isinstance(piece.found, AffineRows):
            single, several = _split_rows(piece)
            bounds += [single] if single is not None else []
            coupling += several
        else:
            coupling.append((piece.support, piece))
    blocks: list[Block] = []
    blocks += [ConditionBlock(rows) for rows in map(_empty_rows, pieces) if rows is not None]
    coupled, groups = _components(coupling, size)
    free_bounds = _bounded_entries(bounds, ~coupled)
    if free_bounds.size:
        blocks.append(BoxBlock(free_bounds, tuple(bounds)))
    lone: list[tuple[np.ndarray, Rows]] = []
    simplices: list[tuple[np.ndarray, Rows]] = []
    hard: list[np.ndarray] = []
    for entries, members in groups:
        own_bounds = [rows for rows in bounds if np.isin(rows.columns, entries).any()]
        if len(members) == 1 and isinstance(members[0], Rows):
            row = members[0]
            if not own_bounds:
                lone.append((entries, row))
                continue
            if row.equality and _is_uniform(row) and _is_orthant(own_bounds, entries):
                simplices.append((entries, row))
                continue
        block = None if own_bounds else _closed_form(entries, members)
        if block is None:
            hard.append(entries)
        else:
            blocks.append(block)
    blocks += SimplexBlock.of(simplices)
    blocks += _single_row_blocks(lone, equality=False)
    blocks += _single_row_blocks(lone, equality=True)
    if hard:
        from hierfl.compiler.cvxpy_set import CvxpyBlock

        entries = np.sort(np.concatenate(hard))
        involved = [p for p in pieces if np.isin(p.support, entries).any()]
        blocks.append(CvxpyBlock.of(entries, involved, twins, parameters))
    return blocks


def _split_rows(piece: Piece) -> tuple[Rows | None, list[tuple[np.ndarray, Rows | Piece]]]:
    assert piece.coefficients is not None and isinstance(piece.found, AffineRows)
    matrix, equality = piece.coefficients.matrix, piece.found.equality
    counts = np.diff(matrix.indptr)
    single = np.flatnonzero(counts == 1)
    several: list[tuple[np.ndarray, Rows | Piece]] = []
    for row in np.flatnonzero(counts > 1):
        columns = matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]]
        several.append((np.sort(columns), Rows(piece, np.array([row]), equality)))
    return (Rows(piece, single, equality) if single.size else None), several


def _empty_rows(piece: Piece) -> Rows | None:
    """Rows whose coefficients all vanish: conditions on the environment alone; those that always hold are left out."""
    if piece.coefficients is None or not isinstance(piece.found, AffineRows):
        return None
    empty = np.flatnonzero(np.diff(piece.coefficients.matrix.indptr) == 0)
    rows = Rows(piece, empty, piece.found.equality)
    if empty.size and not piece.found.expression.parameters():
        b = np.asarray(rows.b({}))
        empty = empty[(b != 0) if rows.equality else (b > 0)]
    return Rows(piece, empty, rows.equality) if empty.size else None


def _components(
    coupling: Sequence[tuple[np.ndarray, Rows | Piece]], size: int
) -> tuple[np.ndarray, list[tuple[np.ndarray, list[Rows | Piece]]]]:
    """(mask of coupled entries, [(entries, members)]) of the connected components."""
    coupled = np.zeros(size, bool)
    if not coupling:
        return coupled, []
    rows = np.concatenate([np.full(len(support), k) for k, (support, _) in enumerate(coupling)])
    columns = np.concatenate([support for support, _ in coupling])
    coupled[columns] = True
    total = len(coupling) + size
    graph = sp.coo_array((np.ones(len(rows)), (rows, len(coupling) + columns)), shape=(total, total))
    _, labels = connected_components(graph, directed=False)
    groups: dict[int, list[Rows | Piece]] = {}
    for k, (_, member) in enumerate(coupling):
        groups.setdefault(int(labels[k]), []).append(member)
    entry_labels = labels[len(coupling) :]
    order = np.argsort(entry_labels, kind="stable")
    starts = np.searchsorted(entry_labels[order], list(groups))
    stops = np.searchsorted(entry_labels[order], list(groups), side="right")
    return coupled, [(np.sort(order[a:b]), members) for a, b, members in zip(starts, stops, groups.values())]


def _bounded_entries(bounds: Sequence[Rows], allowed: np.ndarray) -> np.ndarray:
    if not bounds:
        return np.zeros(0, int)
    entries = np.unique(np.concatenate([rows.columns for rows in bounds]))
    return entries[allowed[entries]]


def _closed_form(entries: np.ndarray, members: Sequence[Rows | Piece]) -> Block | None:
    """A ball or an affine set, for entries without bounds."""
    if len(members) == 1 and isinstance(members[0], Piece):
        return BallBlock.of(members[0], entries) if isinstance(members[0].found, NormBound) else None
    rows = [member for member in members if isinstance(member, Rows)]
    return AffineBlock.of(entries, rows) if len(rows) == len(members) and all(r.equality for r in rows) else None


def _is_uniform(rows: Rows) -> bool:
    data = rows.pattern.data
    return rows.constant and bool(np.ptp(data) <= 1e-14 * np.abs(data).max())


def _is_orthant(bounds: Sequence[Rows], entries: np.ndarray) -> bool:
    """Exactly y_j >= 0 for every entry."""
    seen: set[int] = set()
    for rows in bounds:
        inside = np.isin(rows.columns, entries)
        fixed = (
            not any(leaf for leaf in rows.piece.found.expression.parameters())
            if isinstance(rows.piece.found, AffineRows)
            else False
        )
        if rows.equality or not rows.constant or not fixed or (rows.pattern.data[inside] >= 0).any():
            return False
        if np.abs(np.asarray(rows.b({}))[inside]).max(initial=0.0) > 0:
            return False
        seen.update(rows.columns[inside].tolist())
    return seen == {int(entry) for entry in entries}


def _single_row_blocks(found: Sequence[tuple[np.ndarray, Rows]], equality: bool) -> list[Block]:
    """Blocks of one row each, in one block since their supports are disjoint."""
    mine = [(entries, rows) for entries, rows in found if rows.equality == equality]
    if not mine:
        return []
    return [DisjointRowsBlock(np.sort(np.concatenate([e for e, _ in mine])), merged(r for _, r in mine), equality)]
