"""All solutions of a convex quadratic program, or of a monotone complementarity problem, over rows: whether there are several, and a choice among them.

With one solution (u*, z) the set is  { u feasible : H (u - u*) = 0, row i tight wherever z_i > 0 }  (Mangasarian, 1988): a polyhedron.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float

from hierfl.compiler.host.cone_program import ACTIVE, ConeProgram
from hierfl.compiler.host.cone_solution import SOLVED, ConeSolution
from hierfl.compiler.host.standard_form import NONNEGATIVE, ZERO, Cone

RANK = 1e-10  # relative, below which a singular value counts as zero
SMALL = 1e-12  # relative, below which a multiplier counts as zero
MOVES = 1e-7  # of a direction of length 1, from which y moves along it

Vector = Float[np.ndarray, " width"]


@dataclass(frozen=True, eq=False)
class SolutionSet:
    """The solutions of ``program``, of which ``answer`` is one; the first ``size`` entries of u are y."""

    program: ConeProgram
    answer: ConeSolution
    size: int

    @cached_property
    def is_monotone(self) -> bool:
        """Whether H is, up to rounding, positive semidefinite, without which other solutions may be anywhere."""
        h = 0.5 * (self.program.h + self.program.h.T)
        return bool(np.linalg.eigvalsh(h).min(initial=0.0) >= -RANK * np.abs(h).max(initial=0.0))

    @cached_property
    def is_one(self) -> bool:
        """Whether all solutions have the same y."""
        h = self.program.h[: self.size, : self.size]
        stiff = np.sqrt(np.maximum(np.diagonal(h), 0.0))
        if (stiff > 0).all():
            scaled = h / stiff / stiff[:, None]
            if np.linalg.eigvalsh(0.5 * (scaled + scaled.T)).min() > RANK:
                return True
        return not self.program.polyhedral or not self._moves

    @property
    def _moves(self) -> bool:
        """Whether y can move along a direction that keeps optimal: none where the equations leave none, else a generic look."""
        if not np.abs(self.directions[: self.size]).max(initial=0.0) > MOVES:
            return False
        generic = np.cos(np.arange(1, self.size + 1) ** 2)
        return any(self._reach(sign * generic) > MOVES for sign in (1.0, -1.0))

    def _reach(self, along: Float[np.ndarray, " size"]) -> float:
        """How far y moves along a vector, in steps of at most 1 that keep rows that hold."""
        basis, weak = self.directions, self._weak
        count = basis.shape[1]
        rows = self.program.a[weak] / self.program.sizes[weak, None] @ basis
        box = np.vstack([np.eye(count), -np.eye(count)])
        model = ConeProgram(
            np.zeros((count, count)),
            -along @ basis[: self.size],
            np.vstack([rows, box]),
            np.concatenate([np.zeros(len(rows)), np.ones(2 * count)]),
            [Cone(NONNEGATIVE, len(rows) + 2 * count)],
        )
        answer = model.solve()
        return float(along @ basis[: self.size] @ answer.u) if answer.status == SOLVED else 0.0

    @cached_property
    def directions(self) -> Float[np.ndarray, "width k"]:
        """A basis of the directions that neither H nor the rows that have to hold see."""
        rows = self.program.a[self.strong] / self.program.sizes[self.strong, None]
        h = self.program.h / (np.abs(self.program.h).max(initial=0.0) or 1.0)
        matrix = np.vstack([h, rows])
        _, values, right = np.linalg.svd(matrix)
        rank = int(np.sum(values > RANK * max(1.0, values.max(initial=0.0))))
        return right[rank:].T

    @cached_property
    def strong(self) -> Bool[np.ndarray, " rows"]:
        """The rows that every solution holds with equality."""
        scaled = np.abs(self.answer.z) * self.program.sizes
        return self._equal | (scaled > SMALL * max(float(scaled.max(initial=0.0)), 1e-300))

    @property
    def _equal(self) -> Bool[np.ndarray, " rows"]:
        return np.arange(len(self.answer.z)) < self.program.equations

    @property
    def _weak(self) -> Bool[np.ndarray, " rows"]:
        """The rows that hold here and that other solutions may leave."""
        program, u = self.program, self.answer.u
        size = np.abs(program.a) @ np.abs(u) + np.abs(program.b) + program.sizes
        return ((program.a @ u + program.b) <= ACTIVE * size) & ~self.strong

    def restricted(self, h: Float[np.ndarray, "width width"], g: Vector) -> ConeProgram:
        """Minimise another quadratic over the solutions."""
        program, u = self.program, self.answer.u
        _, values, right = np.linalg.svd(program.h)
        kept = right[: int(np.sum(values > RANK * max(values.max(initial=0.0), 1e-300)))]
        tight, loose = program.a[self.strong], program.a[~self.strong]
        a = np.vstack([kept, tight, loose])
        b = np.concatenate([-kept @ u, program.b[self.strong], program.b[~self.strong]])
        return ConeProgram(h, g, a, b, [Cone(ZERO, len(kept) + len(tight)), Cone(NONNEGATIVE, len(loose))])

    def least_norm(self) -> ConeSolution:
        """The solution with the shortest y; z is that of the program itself."""
        h = np.zeros_like(self.program.h)
        h[: self.size, : self.size] = np.eye(self.size)
        nearest = self.restricted(h, np.zeros(len(h))).solve()
        return self.chosen(nearest)

    def chosen(self, other: ConeSolution) -> ConeSolution:
        """Another point of the set as the answer, with the multipliers of the program itself."""
        if other.status != SOLVED:
            return other
        return ConeSolution(other.u, self.answer.z, self.program.error(other.u, self.answer.z), SOLVED)

    def tells_apart(self, gradients: list[Vector]) -> bool:
        """Whether a cost with these gradients at solutions differs between solutions, to first order."""
        basis = self.directions[: self.size]
        return any(
            np.abs(gradient @ basis).max(initial=0.0) > MOVES * float(np.linalg.norm(gradient))
            for gradient in gradients
        )


def at_their_limits(program: ConeProgram, u: Vector, size: int) -> Vector | None:
    """u with those bounds of convex terms that have no cost as low as the rows allow; None where there are none.

    A term whose weight is zero has a bound that may be anywhere above it. Where the weight moves, the bound is at the term.
    """
    costless = ~program.h.any(axis=0) & (program.g == 0) & (np.arange(len(u)) >= size)
    if not costless.any() or not program.polyhedral:
        return None
    count = int(costless.sum())
    left = program.a[:, ~costless] @ u[~costless] + program.b
    flat, ones = np.zeros((count, count)), np.ones(count)
    lowest = ConeProgram(flat, ones, program.a[:, costless], left, program.cones).solve()
    if lowest.status != SOLVED:
        return None
    out = u.copy()
    out[costless] = lowest.u
    return out
