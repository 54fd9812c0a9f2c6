"""All solutions of a convex program: whether there are several, how far they reach, and a choice among them.

With one solution (u*, z) the set is  { u feasible : P (u - u*) = 0, row i tight wherever z_i > 0 }  (Mangasarian, 1988): over rows a
polyhedron. Over other cones the slacks are in the face that z leaves, those of K that are orthogonal to z: a second-order cone with a
multiplier inside leaves the slack 0, one on the boundary leaves it a ray; a semidefinite one leaves matrices on the null space of the
multiplier (Bonnans and Shapiro, 2000, section 3.3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.linalg import svd
from scipy.optimize import linprog

from hierfl.compiler.programs.cones import NONNEGATIVE, OF_THREE, ZERO, Cone, blocks, rays_left, rows_of
from hierfl.compiler.programs.convex_program import ConvexProgram, ProgramSolution
from hierfl.compiler.programs.critical_cone import critical_part
from hierfl.compiler.programs.saddle import FULL, Saddle
from hierfl.compiler.programs.small_and_sparse import (
    Entries,
    Matrix,
    as_array,
    diagonal,
    entries_at,
    hstack,
    is_dense,
    largest,
    row_norms,
    stacked,
    vstack,
    zeros,
)
from hierfl.compiler.programs.solve_program import solve_program

SMALL = 2e-14  # of a row's size, and of the forces, up to which a slack, and a multiplier, count as zero
NEAR, LEAST, MOST = 1e3, 1e-12, 1e-7  # the same over curved cones: times the error of the conditions, within these; solvers come no nearer
SMALL_Y, DEFINITE = 300, 1e-7  # scalars of y whose curvature is looked at, and how much of the largest one is some
MOVES = 1e-7  # of a vector, from which y moves along it
FAR = 1e-4  # the same over curved cones, where a point is blurred by the root of rounding
RANK, INDEPENDENT = 1e-6, 1e-12  # of the largest singular value, from which one counts; from which it is one of rows that depend on each other
FAINT = 1e-9  # of rows' sizes, up to which the volume that they span is none
VERTICES = 20_000  # combinations of rows that are looked through for a worst vertex

FAINT_PULL = 1e-9  # of the largest multiplier, and of the forces, below which a cone's counts as none
ON_BOUNDARY = 1e-7  # of a multiplier, up to which it is on the boundary of its cone

Vector = Float[np.ndarray, " width"]
Map = Matrix  # of rows


class SolutionFace(NamedTuple):
    """The face of K that has the slacks e of all solutions: ``tight`` e = 0, ``loose`` e >= 0, and each of ``curved``'s maps of e in its cone."""

    tight: Map
    loose: Map
    curved: tuple[tuple[Cone, Map], ...]


@dataclass(frozen=True, eq=False)
class AllSolutions:
    """The solutions of ``program``, of which ``answer`` is one."""

    program: ConvexProgram
    answer: ProgramSolution

    @property
    def nothing(self) -> float:
        """Of sizes of rows and of forces, up to which slacks and multipliers count as zero."""
        error = self.answer.error
        return max(SMALL, 4.0 * error) if self.program.polyhedral else float(np.clip(NEAR * error, LEAST, MOST))

    @cached_property
    def strong(self) -> Bool[np.ndarray, " rows"]:
        """The rows of equations and inequalities that every solution holds with equality."""
        program = self.program
        scaled = np.abs(self.answer.z) * program.sizes
        most = max(float(scaled.max(initial=0.0)), program.force_size(self.answer.u, np.zeros_like(self.answer.z)))
        # interior points leave traces of multipliers where rows are slack
        return program.equal | (program.loose & (scaled > np.maximum(self.nothing, self._apart) * most))

    @cached_property
    def weak(self) -> Bool[np.ndarray, " rows"]:
        """The inequalities that hold with equality here, and that other solutions may leave."""
        return self.program.loose & (self._apart <= self.nothing) & ~self.strong

    @cached_property
    def _apart(self) -> Float[np.ndarray, " rows"]:
        return self.program.slack(self.answer.u) / self.program.row_sizes(self.answer.u)

    @property
    def pinned(self) -> tuple[Matrix, np.ndarray]:
        """(rows, right sides) of the equations that hold for all solutions."""
        return self._equations[:2]

    @cached_property
    def _equations(self) -> tuple[Matrix, np.ndarray, bool]:
        """These, and whether they are orthogonal: where full rows are more than scalars of u, as many as count stand for them."""
        program, u = self.program, self.answer.u
        curved = program.flat_along(u)
        if program.polyhedral:
            rows = [curved, program.a[self.strong]]
            right = [curved @ u, -program.b[self.strong]]
        else:
            tight = self.face.tight @ program.a
            rows, right = [curved, tight], [curved @ u, tight @ u]
        together = vstack(rows)
        sizes = row_norms(together)
        kept = sizes > 1e-14 * max(1.0, float(sizes.max(initial=0.0)))
        together, count = together[kept], int(kept.sum())
        if count <= program.width or not (is_dense(together) or together.nnz >= FULL * count * program.width):
            return together, np.concatenate(right)[kept], False
        _, values, ways = svd(np.linalg.qr(as_array(together) / sizes[kept][:, None], mode="r"), lapack_driver="gesvd")
        fewer = (values[:, None] * ways)[values > INDEPENDENT * values[0]]
        return fewer, fewer @ u, True

    def unpinned(self, way: Vector) -> Vector:
        """The part of a direction along which the equations that hold for all solutions go on holding."""
        (rows, _, orthogonal), width = self._equations, self.program.width
        if orthogonal:
            sizes = row_norms(rows)
            held = (rows / sizes[:, None])[sizes > RANK * sizes[0]]
            return way - held.T @ (held @ way)
        return Saddle(diagonal(np.ones(width), rows), rows).solve(way, np.zeros(rows.shape[0]))[0]

    @cached_property
    def face(self) -> SolutionFace:
        """Where the slacks of all solutions are, over curved cones."""
        z, strong, dense = self.answer.z, self.strong, is_dense(self.program.a)
        tight: list[tuple[int, Entries]] = []
        loose: list[tuple[int, Entries]] = []
        curved: list[tuple[Cone, Map]] = []
        most = max(float(np.abs(z).max(initial=0.0)), self.program.force_size(self.answer.u, np.zeros_like(z)))

        def part(to: list[tuple[int, Entries]], own: np.ndarray, rows: slice) -> None:
            to.append((len(own), entries_at(own, 0, rows.start)))

        for cone, rows in blocks(self.program.cones):
            if cone.kind in (ZERO, NONNEGATIVE):
                for to, some in ((tight, strong[rows]), (loose, ~strong[rows])):
                    columns = rows.start + np.flatnonzero(some)
                    to.append((len(columns), (np.arange(len(columns)), columns, np.ones(len(columns)))))
            elif np.linalg.norm(z[rows]) <= FAINT_PULL * most:
                curved.append((cone, stacked([(cone.size, entries_at(np.eye(cone.size), 0, rows.start))], len(z), dense)))
            elif cone.kind in OF_THREE:
                rays = np.reshape(rays_left(cone.share, z[rows]), (-1, 3))
                part(loose, np.linalg.pinv(rays.T), rows)
                part(tight, np.linalg.svd(rays)[2][len(rays) :], rows)
            else:
                found, _, _ = critical_part(cone, np.zeros(cone.size), z[rows] / np.linalg.norm(z[rows]), ON_BOUNDARY)
                for kind, own in found:
                    if kind.kind in (ZERO, NONNEGATIVE):
                        part(tight if kind.kind == ZERO else loose, own, rows)
                    else:
                        curved.append((kind, stacked([(kind.size, entries_at(own, 0, rows.start))], len(z), dense)))
        return SolutionFace(stacked(tight, len(z), dense), stacked(loose, len(z), dense), tuple(curved))

    @cached_property
    def is_one(self) -> bool | None:
        """Whether all solutions have the same y; None where that is not seen."""
        size = self.program.size
        if self._is_definite:
            return True
        along = self.unpinned(self._generic)
        if float(np.abs(along[:size]).max(initial=0.0)) <= MOVES * float(np.abs(self._generic).max()):
            return True
        ends = self.ends
        if len(ends) < 2:
            return None
        apart = max(float(np.abs(end.u[:size] - self.answer.u[:size]).max()) for end in ends)
        return bool(apart <= (MOVES if self.program.polyhedral else FAR) * self.unit)

    @property
    def _generic(self) -> Vector:
        """A direction of y that is no special one."""
        size = self.program.size
        return np.concatenate([np.cos(np.arange(1, size + 1) ** 2), np.zeros(self.program.width - size)])

    @property
    def _is_definite(self) -> bool:
        """Whether y has a curvature of its own in all directions."""
        p, size = self.program.p, self.program.size
        if size > SMALL_Y or largest(p[:size, size:]) > 0:
            return False
        own = as_array(p[:size, :size])
        try:
            np.linalg.cholesky(own - DEFINITE * np.abs(own).max(initial=0.0) * np.eye(size))
        except np.linalg.LinAlgError:
            return False
        return True

    @cached_property
    def unit(self) -> float:
        return 1.0 + float(np.abs(self.answer.u[: self.program.size]).max(initial=0.0))

    def tells(self, way: Vector) -> bool:
        """Whether way'u is the same for all solutions, as far as is seen."""
        size = float(np.abs(way).max())
        if self._is_definite or float(np.abs(self.unpinned(way)).max(initial=0.0)) <= MOVES * size:
            return True
        return all(abs(float(way @ (end.u - self.answer.u))) <= MOVES * size * self.unit for end in self._ends_along(way))

    @cached_property
    def ends(self) -> list[ProgramSolution]:
        """The farthest solutions along a generic direction, either way, within a box about y."""
        return self._ends_along(self._generic)

    def _ends_along(self, way: Vector) -> list[ProgramSolution]:
        size, width = self.program.size, self.program.width
        entries = diagonal(np.ones(width), self.program.a)[:size]
        box = vstack([entries, -entries])
        y = self.answer.u[:size]
        ahead = np.concatenate([self.unit - y, self.unit + y])
        empty = zeros(width, width, self.program.p)
        found = [solve_program(self.restricted(empty, cost, box, ahead)) for cost in (-way, way)]
        return [end for end in found if end.solved]

    def restricted(
        self, p: Matrix, q: np.ndarray, more: Matrix = None, ahead: np.ndarray | None = None, cones: tuple[Cone, ...] = ()
    ) -> ConvexProgram:
        """Another convex quadratic over the solutions (entries of p and q beyond u are new), with ``more`` (u, new) + ``ahead`` in ``cones``.

        Without ``cones`` these are inequalities.
        """
        program, width = self.program, len(q)
        rows, right = self.pinned
        free = ~self.strong if program.polyhedral else None
        if free is not None:
            loose, offset, curved = program.a[free], program.b[free], []
        else:
            loose, offset = self.face.loose @ program.a, self.face.loose @ program.b
            curved = [(cone, own @ program.a, own @ program.b) for cone, own in self.face.curved]
        parts = [_widened(part, width) for part in (rows, loose, *(own for _, own, _ in curved))]
        offsets = [-right, offset, *(b for _, _, b in curved)]
        kinds = rows_of(rows.shape[0], loose.shape[0], [cone for cone, _, _ in curved])
        if more is not None and ahead is not None:
            parts.append(_widened(more, width))
            offsets.append(ahead)
            kinds += cones or rows_of(0, len(ahead))
        return ConvexProgram(p, q, vstack(parts), np.concatenate(offsets), kinds, program.size, p)

    def least_norm(self) -> ProgramSolution:
        program = self.program
        eye = np.concatenate([np.ones(program.size), np.zeros(program.width - program.size)])
        return solve_program(self.restricted(diagonal(eye, program.p), np.zeros(program.width)))

    def vertices(self) -> Iterator[Vector]:
        """The vertices of the set, over rows.

        Raises ``ValueError`` if they are too many to look through, or the set has none, or goes on without end; says so.
        """
        program = self.program
        if not program.polyhedral:
            raise ValueError("it is no polyhedron")
        basis, free = self._basis, ~self.strong
        g = (program.a[free] @ basis) / program.sizes[free, None]
        h = program.slack(self.answer.u)[free] / program.sizes[free]
        seen = np.linalg.norm(g, axis=1) > 1e-12
        g, h, count = g[seen], h[seen], basis.shape[1]
        if comb(len(g), count) > VERTICES:
            raise ValueError(f"it has up to {comb(len(g), count):,} vertices, and at most {VERTICES:,} are looked through")
        if self._goes_on(g):
            raise ValueError("it goes on without end")
        for chosen in combinations(range(len(g)), count):
            matrix = g[list(chosen)]
            if abs(np.linalg.det(matrix)) < 1e-12:
                continue
            step = np.linalg.solve(matrix, -h[list(chosen)])
            if (g @ step + h >= -1e-9 * (1.0 + np.abs(h).max())).all():
                yield self.answer.u + basis @ step

    @property
    def _basis(self) -> Float[np.ndarray, "width k"]:
        """Directions along which the set has an inside, over rows."""
        _, values, right = np.linalg.svd(as_array(self.pinned[0]), full_matrices=True)
        return np.asarray(right[int((values > 1e-10 * max(1.0, float(values.max(initial=0.0)))).sum()) :].T)

    @property
    def is_vertex_of(self) -> Bool[np.ndarray, " rows"] | None:
        """The rows that alone make the answer a vertex; None where it is none, or more meet there."""
        across = as_array(self.program.a[self.weak] @ self._basis) / self.program.sizes[self.weak, None]
        square = across.shape[0] == across.shape[1]
        return self.strong | self.weak if square and abs(np.linalg.det(across)) > FAINT else None

    @staticmethod
    def _goes_on(g: np.ndarray) -> bool:
        """Whether there is a direction along which no row ends: there is none where the rows span all and add up to 0 with some weights > 0 (Stiemke, 1915)."""
        if not g.size:
            return g.shape[1] > 0
        adds_up = linprog(np.zeros(len(g)), A_eq=g.T, b_eq=np.zeros(g.shape[1]), bounds=(1.0, None), method="highs").status == 0
        return not adds_up or int(np.linalg.matrix_rank(g)) < g.shape[1]


def value_at(cost: ConvexProgram, y: np.ndarray) -> float:
    """A cost at y: its bounds as low as they go."""
    size, width = cost.size, cost.width
    rows = diagonal(np.ones(width), cost.a)[:size]
    cones = [*cost.cones, Cone(ZERO, size)]
    fixed = replace(cost, a=vstack([cost.a, rows]), b=np.concatenate([cost.b, -y]), cones=cones)
    found = solve_program(fixed)
    return cost.cost(found.u) if found.solved else np.nan


def settled(program: ConvexProgram, answer: ProgramSolution) -> ProgramSolution:
    """The solution over rows with the bounds of terms whose weight is zero at these terms, as they are where the weight moves.

    Such a bound may be anywhere above its term, and so may those of constraints alone that it is made of.
    """
    idle, lowered = _idle(program), unpriced(program)
    if not (lowered.any() and program.polyhedral):
        return answer
    rest = answer.u.copy()
    rest[idle] = 0.0
    low = ConvexProgram.flat(lowered[idle] * 1.0, program.a[:, idle], program.slack(rest), program.cones)
    found = solve_program(low)
    if not found.solved:
        return answer
    rest[idle] = found.u
    moved = program.judged(rest, answer.z)
    return moved if moved.solved else answer


def _idle(program: ConvexProgram) -> np.ndarray:
    """Which entries of u are bounds without a cost."""
    idle = (np.abs(program.q) == 0.0) & (np.arange(program.width) >= program.size)
    bent = program.curved if program.smooth is None else vstack([program.curved, program.smooth.forms])
    return idle & (row_norms(bent.T) == 0) if bent.shape[0] else idle


def unpriced(program: ConvexProgram) -> np.ndarray:
    """Which entries of u are bounds of terms whose weight is zero here."""
    idle = _idle(program)
    return idle if program.may_cost is None else idle & program.may_cost


def _widened(rows: Matrix, width: int) -> Matrix:
    """Rows with further columns of zeros."""
    more = width - rows.shape[1]
    return hstack([rows, zeros(rows.shape[0], more, rows)]) if more else rows
