"""Independent components of a set: members whose row spaces are orthogonal do not know of each other.

If S_i = {y : A_i y in C_i} and A_i A_j' = 0 for all i != j, the projection on the intersection is the projections one after
the other. Disjoint blocks of variables are the usual case; rotated boxes and a matrix's symmetry beside its cone are others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from jaxtyping import Int
from scipy.sparse.csgraph import connected_components

from hierfl.compiler.sets.members import Band, CompiledMembership, EntryBounds, Opaque, Origin, Side

Member = Band | CompiledMembership | Opaque


@dataclass(frozen=True, eq=False)
class Component:
    """Coupled members and the bounds on their entries; ``entries`` (sorted) are all that take part."""

    entries: Int[np.ndarray, " n"]
    members: tuple[Member, ...]
    bounds: tuple[EntryBounds, ...]

    @classmethod
    def joined(cls, parts: Sequence[Component]) -> Component:
        """All of them as one."""
        entries = np.unique(np.concatenate([part.entries for part in parts]))
        return cls(
            entries, tuple(m for part in parts for m in part.members), tuple(b for part in parts for b in part.bounds)
        )

    @property
    def bands(self) -> tuple[Band, ...]:
        """The affine members."""
        return tuple(member for member in self.members if isinstance(member, Band))

    @property
    def memberships(self) -> tuple[CompiledMembership, ...]:
        """The members with a family of their own."""
        return tuple(member for member in self.members if isinstance(member, CompiledMembership))

    @property
    def origins(self) -> list[Origin]:
        """The constraints that take part."""
        behind_members = (origin for member in self.members for origin in member.origins)
        return [*(bound.origin for bound in self.bounds), *behind_members]

    @property
    def lone_band(self) -> Band | None:
        """The band, if it is the only member."""
        return self.members[0] if len(self.members) == 1 and isinstance(self.members[0], Band) else None

    @property
    def lone_membership(self) -> CompiledMembership | None:
        """The membership, if it is the only member."""
        return self.members[0] if len(self.members) == 1 and isinstance(self.members[0], CompiledMembership) else None


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
    counts = [member.pattern.shape[0] for member in members]
    owner = np.repeat(np.arange(len(members)), counts)
    moving = np.repeat([not member.constant for member in members], counts)
    matrix = sp.csr_array(sp.vstack([member.pattern for member in members], format="csr"))
    lengths = np.sqrt(matrix.multiply(matrix).sum(axis=1))
    unit = sp.csr_array(sp.diags_array(1.0 / np.where(lengths > 0, lengths, 1.0)) @ matrix)
    products = sp.coo_array(unit @ unit.T)
    related = np.abs(products.data) > 1e-12
    pairs = [(owner[products.coords[0][related]], owner[products.coords[1][related]])]
    if moving.any():  # orthogonality at one environment says nothing about another: overlap counts
        pattern = abs(unit)
        overlap = sp.coo_array(pattern[moving] @ pattern.T)
        pairs.append((owner[np.flatnonzero(moving)[overlap.coords[0]]], owner[overlap.coords[1]]))
    inside = sp.coo_array(matrix[:, bounded]) if bounded.size else None
    touched = (
        (owner[inside.coords[0]], inside.coords[1]) if inside is not None else (np.zeros(0, int), np.zeros(0, int))
    )
    return tuple(np.concatenate(side) for side in zip(*pairs)), touched


def bands(sides: Sequence[Side]) -> list[Band]:
    """Parallel sides together; parallel means proportional with one factor at both draws of the parameters."""
    alike: dict[tuple[bytes, ...], list[tuple[Side, float]]] = {}
    for side in sides:
        source, (row,) = side.row.source, side.row.index
        first, second = (_coefficients(draw, int(row)) for draw in source.coefficients.draws)
        matrix = source.coefficients.matrix
        key = (
            matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]].tobytes(),
            *map(_rounded, (first / first[0], second / second[0], second[0] / first[0])),
        )
        alike.setdefault(key, []).append((side, float(first[0])))
    return [
        Band(tuple(Side(s.origin, s.row, size / same[0][1], s.equality) for s, size in same)) for same in alike.values()
    ]


def _coefficients(matrix: sp.csr_array, row: int) -> np.ndarray:
    """The nonzero coefficients of a row, in the order of the entries."""
    part = slice(matrix.indptr[row], matrix.indptr[row + 1])
    return matrix.data[part][np.argsort(matrix.indices[part], kind="stable")]


def _rounded(values: np.ndarray) -> bytes:
    """Twelve significant binary-rounded digits, to be compared."""
    mantissa, exponent = np.frexp(np.atleast_1d(values))
    return (np.round(mantissa, 11) + 0.0).tobytes() + exponent.tobytes()
