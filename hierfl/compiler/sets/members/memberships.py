"""Memberships ``A y + b in C`` with their numbers compiled, and constraints without a closed form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from jaxtyping import Array, Int

from hierfl.compiler.sets.families import Family
from hierfl.compiler.sets.members.affine_map import AffineMap, CompiledRows, Values
from hierfl.compiler.sets.members.origin import Origin


@dataclass(frozen=True, eq=False)
class CompiledMembership:
    """``A y + b in C_r`` for one group of rows; ``radius(values)`` (G,) bounds all groups of its constraint; None for a cone."""

    origin: Origin
    family: Family
    rows: CompiledRows
    radius: Callable[[Values], Array] | None
    group: int
    squared: bool

    @cached_property
    def support(self) -> Int[np.ndarray, " n"]:
        """Entries of y that take part, sorted."""
        return np.unique(self.rows.pattern.indices)

    @property
    def pattern(self) -> sp.csr_array:
        """The rows' coefficients."""
        return self.rows.pattern

    @property
    def constant(self) -> bool:
        """Whether they are the same everywhere."""
        return self.rows.constant

    @property
    def source(self) -> AffineMap:
        """The affine map, shared by the groups of one constraint."""
        return self.rows.source

    @property
    def origins(self) -> list[Origin]:
        """The one constraint that it comes from."""
        return [self.origin]


@dataclass(frozen=True, eq=False)
class Opaque:
    """A constraint without a closed form, on these entries of y."""

    origin: Origin
    reason: str
    pattern: sp.csr_array
    constant: bool = False

    @classmethod
    def on(cls, origin: Origin, reason: str, support: Int[np.ndarray, " n"], size: int) -> Opaque:
        """The member; its pattern is a row per entry."""
        ones, rows = np.ones(len(support)), np.arange(len(support))
        return cls(origin, reason, sp.csr_array((ones, (rows, support)), shape=(len(support), size)))

    @property
    def support(self) -> Int[np.ndarray, " n"]:
        """Entries of y that the constraint mentions."""
        return self.pattern.indices

    @property
    def origins(self) -> list[Origin]:
        """The one constraint that it comes from."""
        return [self.origin]
