"""What programs over cones of one form are, whatever their g and b: H and A, of each or of all, and what follows from them.

What follows is found when it is first asked for: programs whose H and A are those of earlier ones take their shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.linalg import qr

from hierfl.compiler.host.cone_program import ConeProgram
from hierfl.compiler.host.cones import blocks, second_order_projections, second_order_slopes
from hierfl.compiler.host.families.stacks import Stack, turned
from hierfl.compiler.host.standard_form import SECOND_ORDER, Cone

INDEPENDENT = 1e-10  # of a row of length 1, what other rows leave of it
REGULAR = 1e-10  # of the least eigenvalue of H in y, scaled, from which it is positive definite


@dataclass(frozen=True, eq=False)
class ProgramShape:
    """H (k, width, width) and A (k, rows, width), k = 1 where all programs have the same; the first ``size`` entries of u are y."""

    h: Float[np.ndarray, "k width width"]
    a: Float[np.ndarray, "k rows width"]
    cones: Sequence[Cone]
    bounds: int
    size: int

    @classmethod
    def of(cls, h: Stack, a: Stack, cones: Sequence[Cone], bounds: int, size: int) -> ProgramShape:
        """The shape of programs with these H and A, one for each."""
        if (h == h[:1]).all() and (a == a[:1]).all():
            h, a = h[:1], a[:1]
        return cls(h, a, cones, bounds, size)

    def is_of(self, h: Stack, a: Stack) -> bool:
        """Whether programs with these H and A, one for each, all have the one of this shape."""
        return bool(self.shared and (h == self.h).all() and (a == self.a).all())

    @property
    def shared(self) -> bool:
        """Whether H and A are the same in all programs."""
        return len(self.h) == 1

    def among(self, chosen: Int[np.ndarray, " chosen"]) -> ProgramShape:
        """The shape of some of the programs."""
        if self.shared:
            return self
        return ProgramShape(self.h[chosen], self.a[chosen], self.cones, self.bounds, self.size)

    # --- of all programs -------------------------------------------------------------------------------------------

    @cached_property
    def first(self) -> ConeProgram:
        """The first program, without g and b."""
        width, rows = self.h.shape[1], self.a.shape[1]
        return ConeProgram(self.h[0], np.zeros(width), self.a[0], np.zeros(rows), self.cones, self.bounds)

    @property
    def polyhedral(self) -> bool:
        """Whether there are only equations and inequalities."""
        return self.first.polyhedral

    @property
    def symmetric(self) -> bool:
        """Whether they are minimisations."""
        return self.first.symmetric

    @cached_property
    def linear(self) -> bool:
        """Whether H is zero."""
        return not self.h.any()

    @cached_property
    def has_units(self) -> bool:
        """Whether entries of u are so differently stiff that each is solved in units of its own."""
        return bool((self.first.units != 1.0).any())

    @cached_property
    def by_rows_alone(self) -> bool:
        """Whether programs that hold the same rows have one linear system."""
        return self.shared and self.polyhedral

    @cached_property
    def equal(self) -> Bool[np.ndarray, " rows"]:
        """Which rows are equations."""
        return np.arange(self.a.shape[1]) < self.first.equations

    @cached_property
    def repeated(self) -> Bool[np.ndarray, " rows"]:
        """The equations that follow from the others, as one of a network's does: they hold by themselves."""
        rows = np.flatnonzero(self.equal)
        out = np.zeros(self.a.shape[1], bool)
        if len(rows):
            matrix = self.a[0, rows] / self.sizes[0, rows, None]
            _, triangle, order = qr(matrix.T, mode="economic", pivoting=True)
            rank = int(np.sum(np.abs(np.diagonal(triangle)) > INDEPENDENT))
            out[rows[order[rank:]]] = True
        return out

    # --- of each, or of the one --------------------------------------------------------------------------------------

    @cached_property
    def sizes(self) -> Float[np.ndarray, "k rows"]:
        """The length of each row of A, 1 for a row of zeros."""
        sizes = np.linalg.norm(self.a, axis=2)
        return np.where(sizes > 0, sizes, 1.0)

    @cached_property
    def unit_rows(self) -> Stack:
        """A with rows of length 1."""
        return self.a / self.sizes[..., None]

    @cached_property
    def has_zero_rows(self) -> bool:
        """Whether there is a row without coefficients."""
        return not bool(self.a.any(axis=2).all())

    @cached_property
    def magnitudes(self) -> tuple[Stack, Stack, Stack]:
        """The absolute values of H, A and A'."""
        rows = np.abs(self.a)
        return np.abs(self.h), rows, turned(rows)

    @cached_property
    def stiffness(self) -> Float[np.ndarray, " k"]:
        """The largest entry of H."""
        return np.asarray(self.magnitudes[0].max(axis=(1, 2), initial=0.0))

    @cached_property
    def regular(self) -> Bool[np.ndarray, " k"]:
        """Where H is positive definite in y, beyond doubt."""
        h = self.h[:, : self.size, : self.size]
        stiff = np.sqrt(np.maximum(np.diagonal(h, axis1=1, axis2=2), 0.0))
        curved = (stiff > 0).all(axis=1)
        stiff = np.where(stiff > 0, stiff, 1.0)
        scaled = h / stiff[:, None, :] / stiff[:, :, None]
        return np.asarray(curved & (np.linalg.eigvalsh(0.5 * (scaled + turned(scaled)))[:, 0] > REGULAR))

    @cached_property
    def regular_in_all(self) -> bool:
        """Whether it is in all programs."""
        return bool(self.regular.all())

    def held_at(self, z: Stack) -> Bool[np.ndarray, "k rows"]:
        """The rows that hold by their multipliers, each equation once."""
        return np.where(self.equal, ~self.repeated, z > 0)

    def projected(self, v: Stack) -> Stack:
        """The nearest points of K*."""
        goal = np.where(self.equal, v, np.maximum(v, 0.0))
        for cone, place in blocks(self.cones):
            if cone.kind == SECOND_ORDER:
                goal[:, place] = second_order_projections(v[:, place])
        return goal

    def slope(self, v: Stack) -> Stack:
        """The derivative of that, with each equation once; of several one."""
        slope = np.eye(v.shape[1]) * self.held_at(v)[:, None, :]
        for cone, place in blocks(self.cones):
            if cone.kind == SECOND_ORDER:
                slope[:, place, place] = second_order_slopes(v[:, place])
        return slope

    def systems(self, held: Bool[np.ndarray, "k rows"]) -> Stack:
        """The linear systems of u and of the multipliers of the rows that hold, of length 1; those of the others are zero."""
        rows = np.where(held[..., None], self.unit_rows, 0.0)
        off = np.eye(held.shape[1]) * ~held[:, None, :]
        h = np.broadcast_to(self.h, (len(held), *self.h.shape[1:]))
        upper, lower = np.concatenate([h, -turned(rows)], axis=2), np.concatenate([rows, off], axis=2)
        return np.concatenate([upper, lower], axis=1)
