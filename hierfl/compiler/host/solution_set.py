"""All solutions of a convex quadratic program, or of a monotone complementarity problem: whether there are several, and a choice among them.

With one solution (u*, z) the set is  { u feasible : H (u - u*) = 0, row i tight wherever z_i > 0 }  (Mangasarian, 1988): a polyhedron.
Over other cones the slacks are in the face that z leaves. Where H is monotone and not symmetric, H + H' takes its place, and multipliers
may move with u on rows that hold (Cottle, Pang and Stone, 1992, theorem 3.1.7; products z_i (A u + b)_i vanish across solutions).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float

from hierfl.compiler.host.cone_program import ACTIVE, ConeProgram
from hierfl.compiler.host.cone_solution import FAILED, SOLVED, ConeSolution
from hierfl.compiler.host.singular_values import decomposed
from hierfl.compiler.host.solution_face import SolutionFace
from hierfl.compiler.host.standard_form import NONNEGATIVE, ZERO, Cone

RANK = 1e-10  # relative, below which a singular value counts as zero
SMALL = 1e-12  # relative, below which a multiplier counts as zero
MOVES = 1e-7  # of a direction of length 1, from which y moves along it
CHOSEN = 1e-6  # the error of a choice over cones that is good enough: how good a solution it is, is another question
FAR = 1e-4  # of the size of y, from which y moves over cones: a single point of a curved set is blurred by the root of rounding

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
    def is_one(self) -> bool | None:
        """Whether all solutions have the same y; None where that is not seen."""
        h = self.program.h[: self.size, : self.size]
        stiff = np.sqrt(np.maximum(np.diagonal(h), 0.0))
        if (stiff > 0).all():
            scaled = h / stiff / stiff[:, None]
            if np.linalg.eigvalsh(0.5 * (scaled + scaled.T)).min() > RANK:
                return True
        if not np.abs(self.directions[: self.size]).max(initial=0.0) > MOVES:
            return True
        return not self._moves if self._by_directions else self._is_one_by_reach

    @cached_property
    def _by_directions(self) -> bool:
        """Whether directions that keep optimal tell all."""
        return self.program.polyhedral and self.program.symmetric

    @property
    def _far(self) -> float:
        return MOVES if self.program.polyhedral else FAR

    @property
    def _is_one_by_reach(self) -> bool | None:
        """Whether the farthest solutions along a generic direction, both ways, are where y is."""
        generic = np.cos(np.arange(1, self.size + 1) ** 2)
        reached = [self._distance(sign * generic) for sign in (1.0, -1.0)]
        if any(reach is not None and reach > self._far for reach in reached):
            return False
        return True if all(reach is not None and reach <= MOVES for reach in reached) else None

    def _distance(self, along: Float[np.ndarray, " size"]) -> float | None:
        """How far y moves along a vector between solutions near by, relative to its size; None where that was not found."""
        width, y = self.program.h.shape[0], self.answer.u[: self.size]
        unit = 1.0 + float(np.abs(y).max(initial=0.0))
        g = np.zeros(width)
        g[: self.size] = -along
        entries = np.eye(width)[: self.size]
        program = self.restricted(
            np.zeros((width, width)), g, np.vstack([entries, -entries]), np.append(unit - y, unit + y)
        )
        farthest = program.solve()
        if farthest.status != SOLVED:
            return None
        return float(along @ (farthest.u[: self.size] - y)) / (unit * float(np.linalg.norm(along)))

    @property
    def _moves(self) -> bool:
        """Whether y can move along a direction that keeps optimal: a generic look."""
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
        rows, h = self._tight, self._flatness
        h = h / (np.abs(h).max(initial=0.0) or 1.0)
        matrix = np.vstack([h, rows])
        _, values, right = decomposed(matrix)
        rank = int(np.sum(values > RANK * max(1.0, values.max(initial=0.0))))
        return right[rank:].T

    @property
    def _flatness(self) -> Float[np.ndarray, "width width"]:
        """The matrix that has to vanish on differences of solutions."""
        h = self.program.h
        return h if self.program.symmetric else h + h.T

    @cached_property
    def face(self) -> SolutionFace:
        """Where the slacks of all solutions are."""
        return SolutionFace.of(self.program.cones, self.answer.z, self.strong, self._noise)

    @property
    def _tight(self) -> Float[np.ndarray, "k width"]:
        """The rows that every solution holds with equality, of length 1."""
        if self.program.polyhedral:
            return np.asarray(self.program.a[self.strong] / self.program.sizes[self.strong, None])
        rows = self.face.tight @ self.program.a
        sizes = np.linalg.norm(rows, axis=1)
        return np.asarray(rows[sizes > 0] / sizes[sizes > 0, None])

    @cached_property
    def strong(self) -> Bool[np.ndarray, " rows"]:
        """The rows that every solution holds with equality."""
        scaled = np.abs(self.answer.z) * self.program.sizes
        least = SMALL * max(float(scaled.max(initial=0.0)), self._noise, 1e-300)
        return self._equal | (scaled > max(least, self.program.rounding_at(self.answer.u)))

    @property
    def _noise(self) -> float:
        """The size of forces beside which interior points leave multipliers that are none; of rows they are right to rounding."""
        program = self.program
        return 0.0 if program.polyhedral else program.force_at(self.answer.u, np.zeros_like(self.answer.z))

    @property
    def _equal(self) -> Bool[np.ndarray, " rows"]:
        return np.arange(len(self.answer.z)) < self.program.equations

    @property
    def _weak(self) -> Bool[np.ndarray, " rows"]:
        """The rows that hold here and that other solutions may leave."""
        program, u = self.program, self.answer.u
        size = np.abs(program.a) @ np.abs(u) + np.abs(program.b) + program.sizes
        return ((program.a @ u + program.b) <= ACTIVE * size) & ~self.strong

    def restricted(
        self,
        h: Float[np.ndarray, "width width"],
        g: Vector,
        more: Float[np.ndarray, "m width"] | None = None,
        ahead: Float[np.ndarray, " m"] | None = None,
    ) -> ConeProgram:
        """Minimise another quadratic over the solutions, and over ``more`` u + ``ahead`` >= 0."""
        program, u, face = self.program, self.answer.u, self.face
        more = np.zeros((0, len(u))) if more is None else more
        ahead = np.zeros(len(more)) if ahead is None else ahead
        _, values, right = decomposed(self._flatness)
        kept = right[: int(np.sum(values > RANK * max(values.max(initial=0.0), 1e-300)))]
        tight, loose = face.tight @ program.a, face.loose @ program.a
        pinned = face.tight @ program.b if program.polyhedral else -tight @ u  # interior points leave a little
        curved = [(cone, rows @ program.a, rows @ program.b) for cone, rows in face.curved]
        a = np.vstack([kept, tight, loose, more, *(rows for _, rows, _ in curved)])
        b = np.concatenate([-kept @ u, pinned, face.loose @ program.b, ahead, *(offset for _, _, offset in curved)])
        cones = [Cone(ZERO, len(kept) + len(tight)), Cone(NONNEGATIVE, len(loose) + len(more))]
        among = ConeProgram(h, g, a, b, [*cones, *(cone for cone, _, _ in curved)])
        return among if program.symmetric else self._with_multipliers(among)

    def _with_multipliers(self, among: ConeProgram) -> ConeProgram:
        """The same over (u, changes of multipliers on rows that hold): H u + g = A' z for these, z >= 0."""
        program, u, z = self.program, self.answer.u, self.answer.z
        held = np.flatnonzero(self.strong | self._weak)
        signed, width, count = ~self._equal[held], len(u), len(held)
        h = np.zeros((width + count, width + count))
        h[:width, :width] = among.h
        rows = np.hstack([among.a, np.zeros((len(among.a), count))])
        forces = np.hstack([program.h, -program.a[held].T])
        changes = np.hstack([np.zeros((count, width)), np.eye(count)])[signed]
        a = np.vstack([forces, rows, changes])
        b = np.concatenate([-program.h @ u, among.b, z[held][signed]])
        cones = [Cone(ZERO, width + among.equations), Cone(NONNEGATIVE, len(b) - width - among.equations)]
        return ConeProgram(h, np.concatenate([among.g, np.zeros(count)]), a, b, cones)

    def least_norm(self) -> ConeSolution:
        """The solution with the shortest y; z is that of the program itself."""
        h = np.zeros_like(self.program.h)
        h[: self.size, : self.size] = np.eye(self.size)
        nearest = self.restricted(h, np.zeros(len(h))).solve()
        return self.chosen(nearest)

    def chosen(self, other: ConeSolution) -> ConeSolution:
        """Another point of the set as the answer, with the multipliers of the program itself."""
        if other.status != SOLVED and not (other.status == FAILED and other.error <= CHOSEN):
            return other
        u, z = other.u[: len(self.answer.u)], self.answer.z.copy()
        z[self.strong | self._weak] += other.u[len(u) :] if len(other.u) > len(u) else 0.0
        return ConeSolution(u, z, self.program.error(u, z), SOLVED)

    def tells_apart(self, gradients: list[Vector]) -> bool:
        """Whether a cost with these gradients at solutions differs between solutions, to first order."""
        return any(self._tells_apart(gradient) for gradient in gradients if gradient.any())

    def _tells_apart(self, gradient: Vector) -> bool:
        seen = float(np.abs(gradient @ self.directions[: self.size]).max(initial=0.0))
        if not seen > MOVES * float(np.linalg.norm(gradient)) or self._by_directions:
            return seen > MOVES * float(np.linalg.norm(gradient))
        return any((self._distance(way * gradient) or 0.0) > self._far for way in (1.0, -1.0))


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
