"""Independent components of a set: members whose row spaces are orthogonal do not know of each other.

If S_i = {y : A_i y in C_i} and A_i A_j' = 0 for all i != j, the projection on the intersection is the projections one after
the other. Disjoint blocks of variables are the usual case; rotated boxes and a matrix's symmetry beside its cone are others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Int
from scipy.sparse.csgraph import connected_components

from hierfl.compiler.programs.small_and_sparse import row_norms
from hierfl.compiler.sets.members import (
    Band,
    Coefficients,
    CompiledMembership,
    EntryBounds,
    Opaque,
    Origin,
    Side,
)

Member = Band | CompiledMembership | Opaque
T = TypeVar("T", Band, CompiledMembership)


@dataclass(frozen=True, eq=False)
class Component:
    """Coupled members and the bounds on their entries; ``entries`` (sorted) are all that take part."""

    entries: Int[np.ndarray, " n"]
    members: tuple[Member, ...]
    bounds: tuple[EntryBounds, ...]

    @classmethod
    def joined(cls, parts: Sequence[Component]) -> Component:
        entries = np.unique(np.concatenate([part.entries for part in parts]))
        return cls(
            entries, tuple(m for part in parts for m in part.members), tuple(b for part in parts for b in part.bounds)
        )

    @property
    def bands(self) -> tuple[Band, ...]:
        return tuple(member for member in self.members if isinstance(member, Band))

    @property
    def origins(self) -> list[Origin]:
        behind_members = (origin for member in self.members for origin in member.origins)
        return [*(bound.origin for bound in self.bounds), *behind_members]

    def lone(self, kind: type[T]) -> T | None:
        """The only member, if it is of this kind."""
        return self.members[0] if len(self.members) == 1 and isinstance(self.members[0], kind) else None


def components(members: Sequence[Member], bounds: Sequence[EntryBounds]) -> list[Component]:
    """The connected components of the coupling graph; those of bounds alone are one component, a box."""
    bounded = np.unique(np.concatenate([b.columns for b in bounds])) if bounds else np.zeros(0, int)
    if not members:
        return [Component(bounded, (), tuple(bounds))] if bounded.size else []
    coupled, touched = _couplings(members, bounded)
    size = len(members) + len(bounded)
    left = np.concatenate([coupled[0], touched[0]])
    right = np.concatenate([coupled[1], len(members) + touched[1]])
    graph = sp.coo_array((np.ones(len(left)), (left, right)), shape=(size, size))
    _, labels = connected_components(graph, directed=False)
    groups: dict[int, list[Member]] = {}
    for label, member in zip(labels, members):
        groups.setdefault(int(label), []).append(member)
    parts = []
    entry_labels = labels[len(members) :]
    order = np.argsort(entry_labels, kind="stable")
    for label, together in groups.items():
        low, high = np.searchsorted(entry_labels[order], [label, label + 1])
        own = bounded[order[low:high]]
        entries = np.unique(np.concatenate([*(m.support for m in together), own]))
        parts.append(Component(entries, tuple(together), _bounds_on(bounds, own)))
    alone = bounded[~np.isin(entry_labels, list(groups))]
    if alone.size:
        parts.insert(0, Component(alone, (), _bounds_on(bounds, alone)))
    return parts


def _bounds_on(bounds: Sequence[EntryBounds], entries: Int[np.ndarray, " n"]) -> tuple[EntryBounds, ...]:
    return tuple(own for own in (b.on(entries) for b in bounds) if own is not None) if entries.size else ()


def _couplings(
    members: Sequence[Member], bounded: Int[np.ndarray, " bounded"]
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Pairs (member, member) whose rows are not orthogonal, and pairs (member, place of a bounded entry)."""
    rows = [member.normal.entries if isinstance(member, Band) else _of_rows(member.pattern) for member in members]
    heights = [len(counts) for _, _, counts in rows]
    owner = np.repeat(np.arange(len(members)), heights)
    moving = np.repeat([not member.constant for member in members], heights)
    columns, numbers, counts = (np.concatenate(parts) for parts in zip(*rows))
    width = members[0].normal.source.width if isinstance(members[0], Band) else members[0].pattern.shape[1]
    matrix = sp.csr_array((numbers, columns, np.append(0, np.cumsum(counts))), (len(counts), width))
    sizes = row_norms(matrix)
    unit = sp.csr_array(sp.diags_array(1.0 / np.where(sizes > 0, sizes, 1.0)) @ matrix)
    products = sp.coo_array(unit @ unit.T)
    related = np.abs(products.data) > 1e-12
    pairs = [(owner[products.coords[0][related]], owner[products.coords[1][related]])]
    if moving.any():  # orthogonality at one environment says nothing about another: overlap counts
        pattern = abs(unit)
        overlap = sp.coo_array(pattern[moving] @ pattern.T)
        pairs.append((owner[np.flatnonzero(moving)[overlap.coords[0]]], owner[overlap.coords[1]]))
    inside = sp.coo_array(matrix[:, bounded])
    return tuple(np.concatenate(side) for side in zip(*pairs)), (owner[inside.coords[0]], inside.coords[1])


def bands(sides: Sequence[Side]) -> list[Band]:
    """Parallel sides together; parallel means proportional with one factor at both draws of the parameters."""
    known: dict[int, tuple[list[tuple[bytes, ...]], Float[np.ndarray, " rows"]]] = {}
    alike: dict[tuple[bytes, ...], list[tuple[Side, float]]] = {}
    for side in sides:
        source, (row,) = side.row.source, side.row.index
        if id(source) not in known:
            known[id(source)] = _directions(source.coefficients)
        keys, sizes = known[id(source)]
        alike.setdefault(keys[row], []).append((side, float(sizes[row])))
    return [
        Band(tuple(Side(s.origin, s.row, size / same[0][1], s.equality) for s, size in same)) for same in alike.values()
    ]


def _directions(coefficients: Coefficients) -> tuple[list[tuple[bytes, ...]], Float[np.ndarray, " rows"]]:
    """(what is equal for parallel rows, the first coefficient at the first draw) of all rows at once: there may be ten thousand of them."""
    parts, heads = [(coefficients.matrix.indptr, coefficients.matrix.indices)], []
    for draw in coefficients.draws:
        draw = draw.copy()
        draw.sort_indices()
        heads.append(np.append(draw.data, 1.0)[draw.indptr[:-1]])
        parts.append((draw.indptr, _rounded(draw.data / np.repeat(heads[-1], np.diff(draw.indptr)))))
    ratios = _rounded(heads[1] / heads[0])
    pieces = [[part[start:end].tobytes() for start, end in pairwise(begins)] for begins, part in parts]
    return list(zip(*pieces, [ratio.tobytes() for ratio in ratios])), heads[0]


def _rounded(values: np.ndarray) -> np.ndarray:
    """Twelve significant binary-rounded digits, and exponents, of each."""
    mantissa, exponent = np.frexp(values)
    return np.stack([np.round(mantissa, 11) + 0.0, exponent], axis=-1)


def _of_rows(matrix: sp.csr_array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(columns, numbers, how many each row has)."""
    return matrix.indices, matrix.data, np.diff(matrix.indptr)
