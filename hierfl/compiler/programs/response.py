"""How the solution of a program moves with theta: one factorisation of the conditions at what holds.

With the rows J that hold, [P A_J'; A_J 0] (du, -dz) = -(r, s), where r and s are what the conditions move by at a fixed solution; the
adjoint of a seed solves the same system. Rows that hold without a multiplier make y(theta) directional only: then the derivative along
a direction is a quadratic program over the critical cone, and there is a gradient if those along generic directions, there and back,
are what the adjoint says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from hierfl.compiler.programs.all_solutions import AllSolutions, unpriced
from hierfl.compiler.programs.cones import ZERO, Cone, rows_of
from hierfl.compiler.programs.convex_program import EMPTY, UNBOUNDED, ConvexProgram, ProgramSolution, merged
from hierfl.compiler.programs.critical_cone import CriticalCone
from hierfl.compiler.programs.saddle import Saddle, Saddles
from hierfl.compiler.programs.small_and_sparse import Matrix, diagonal, largest
from hierfl.compiler.programs.solve_program import innermost, solve_program

UNMOVED = 1e-4  # of how far u would go without rows: what it moves by less than 1e-9 of that is none
TIGHT_ALONG = 1e-9  # of a row's change, up to which it goes on holding
CONSISTENT = 1e-7  # of a right side, that may be left of a system that has a solution
ROUNDING = 1e-10  # of u, that it may seem to move by
FURTHER, ROUGHLY = 1e-4, 1e-2  # a step along a direction, and how near a slope is there, relative
ALIKE = 1e-6  # of two derivatives that are the same
STEP = 1e-3  # of theta's size, in differences of what is a polynomial of degree 3 at most: two of them make it exact
CANCELLED = 1e6  # how much larger than the slope forces are, from which that is lost in them
OPEN = 1e-7  # of a vector, and of the forces, from which it moves a cone's slack, and a cone has a multiplier

Thetas = list[Any]  # what programs are built from
Build = Callable[[Thetas], ConvexProgram]
Push = Callable[[Thetas, Thetas, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


class Adjoint(NamedTuple):
    """(a, b) and the multipliers z, such that the gradient of seed'u is, at fixed u and z, that of

    -a'(P u + q + s'(u) - A'z) - b'(A u + b).
    """

    a: np.ndarray
    b: np.ndarray
    z: np.ndarray


class Branch(NamedTuple):
    """How u moves while the same rows hold, and how far back and ahead they do."""

    rate: np.ndarray
    behind: float
    ahead: float


class _Look(NamedTuple):
    """By which multipliers u moves along a direction of theta, how the conditions move there at fixed u and these, and u's derivative."""

    by: ProgramResponse
    way: Thetas
    pushed: tuple[np.ndarray, np.ndarray]
    along: ConvexProgram
    moved: ProgramSolution

    def is_one_for(self, seed: np.ndarray) -> bool:
        """Whether seed'u has this derivative alone, where several solutions meet in u; of a map that is not asked."""
        return self.along.is_map or AllSolutions(self.along, self.moved).tells(seed)


@dataclass(frozen=True, eq=False)
class ProgramResponse:
    """Of the solution of ``build(thetas)``."""

    build: Build
    thetas: Thetas
    program: ConvexProgram
    answer: ProgramSolution
    push: Push | None = None  # how the conditions move along a direction of theta; else by differences of what is built
    has_edges: bool = True  # where nothing is feasible is outside of the domain, and no other piece
    known: Saddles = field(default_factory=Saddles)  # systems of its P and A

    @cached_property
    def solutions(self) -> AllSolutions:
        return AllSolutions(self.program, self.answer)

    def adjoint(self, seed: np.ndarray, tangents: Sequence[Thetas], leaps: bool = False) -> Adjoint | None:
        """The adjoint of seed'u, of its first entries where the seed is shorter; None where there is none.

        ``tangents`` are directions of theta in which it has to be one; ``leaps`` says that u may jump, which a seed of zero does not see.
        """
        seed = self._whole(seed)
        if not seed.any():
            zero = np.zeros(self.program.width), np.zeros(len(self.program.b))
            followed = (self.has_edges and not leaps) or self._goes_on(tangents)
            return Adjoint(*zero, self.answer.z) if followed else None
        if not self.program.polyhedral and self._is_beyond_cones:
            return None
        if not self.program.polyhedral and self._critical.vague and self._inside is not None:
            return self._inside.adjoint(seed, tangents)
        ways = [[sign * part for part in tangent] for tangent in tangents for sign in (1.0, -1.0)]
        if not self._critical.vague:
            pair = self._at(seed)
            if pair is not None and self._is_followed_all_along(ways[::2]):
                return pair
            if not self.program.polyhedral:
                return pair if pair is not None and all(self._is_slope(pair, seed, way) for way in ways) else None
            if self._are_independent:
                return None
        looks = [look for way in ways if (look := self._look(way)) is not None] if self._critical.known else []
        if not looks or not all(look.moved.solved for look in looks):
            return None
        for look in looks:
            by = look.by
            pair = by._of_piece(look, seed)
            if pair is not None and all(by._agrees(pair, seed, one.pushed if one.by is by else by.moved(one.way), one.moved) for one in looks):
                return pair if self._is_sure(pair, seed, looks, ways) else None
        return None

    def rate(self, tangent: Thetas) -> np.ndarray | None:
        """By what u moves ahead along a direction, rows that just hold or not; None where that is not told, or leads out of the domain."""
        look = self._look(tangent) if self.program.polyhedral else None
        return look.moved.u if look is not None and look.moved.solved else None

    def branch(self, tangent: Thetas) -> Branch | None:
        """How the solution moves along a direction while the same rows hold; None where it is at the end of that, or of cones.

        Where P and A stay and q and b move evenly, it moves so up to the very place where a slack or a multiplier comes to zero.
        """
        program, held = self.program, self.solutions.strong
        if not program.polyhedral or self.solutions.weak.any() or not self._conditions.is_regular:
            return None
        force, slack = self.moved(tangent)
        u, multipliers, _ = self._conditions.solve(-force, -slack[held])
        z = np.zeros(len(program.b))
        z[held] = -multipliers
        priced = held & program.loose
        left = np.concatenate([program.slack(self.answer.u)[program.loose & ~held], self.answer.z[priced]])
        rate = np.concatenate([(np.asarray(program.a @ u) + slack)[program.loose & ~held], z[priced]])
        with np.errstate(all="ignore"):
            time = np.abs(left / rate)
        return Branch(u, float(time[rate > 0].min(initial=np.inf)), float(time[rate < 0].min(initial=np.inf)))

    def of_vertex(self, seed: np.ndarray, tangents: Sequence[Thetas]) -> Adjoint | None:
        """The adjoint of seed'u at a vertex of the solution set; None where more rows meet there, or the set does not stay."""
        if not all(self._is_followed(self.moved(tangent)) for tangent in tangents):
            return None
        held = self.solutions.is_vertex_of
        return None if held is None else self._at_rows(held, self._whole(seed))

    def of_basis(self, seed: np.ndarray, tangents: Sequence[Thetas], held: np.ndarray) -> Adjoint | None:
        """The adjoint of seed'u where these rows hold; None where they determine nothing, or where others that just hold do not go on to."""
        saddle, weak = self._saddle(held), self.solutions.weak
        if not saddle.comes_back:
            return None
        for tangent in tangents:
            force, slack = self.moved(tangent)
            u, multipliers, _ = saddle.solve(-force, -slack[held])
            gained = np.asarray(self.program.a @ u) + slack  # by rows, and by multipliers of those that are held
            gained[held] = multipliers
            size = float(np.abs(u).max(initial=0.0) + np.abs(slack).max(initial=0.0) + np.abs(multipliers).max(initial=0.0))
            if float(np.abs(gained[weak]).max(initial=0.0)) > ALIKE * size:
                return None
        return self._at_rows(held, self._whole(seed))

    def _whole(self, seed: np.ndarray) -> np.ndarray:
        """A seed of the first entries of u as one of all."""
        return np.concatenate([seed, np.zeros(self.program.width - len(seed))])

    def _look(self, way: Thetas) -> _Look | None:
        """The derivative along a direction, by the multipliers that count there; None where it leads out of the domain."""
        by, pushed, rows = self, self.moved(way), self.program.polyhedral
        along, moved = self._along(*pushed) if not rows or self._are_independent else (None, None)
        if rows and (moved is None or not moved.solved):
            found = self._multipliers_along(pushed[1])
            if self.has_edges and found.status == EMPTY:
                return None
            by = self._with(found) or self
            if by is not self or moved is None:
                pushed = by.moved(way)
                along, moved = by._along(*pushed)
        assert along is not None and moved is not None
        leads_out = self.has_edges and moved.status == UNBOUNDED and unpriced(self.program).any()  # a weight that is zero falls below
        return None if leads_out else _Look(by, way, pushed, along, moved)

    @cached_property
    def _are_independent(self) -> bool:
        """Whether the rows that hold are, so that there are no other multipliers."""
        held = self.solutions.strong
        numbers = np.cos(np.arange(1, int(held.sum()) + 1) ** 2)
        rows = self.program.a[held]
        _, multipliers, left = Saddle(diagonal(np.ones(self.program.width), rows), rows).solve(rows.T @ numbers, np.zeros(len(numbers)))
        return bool(left <= CONSISTENT and np.abs(multipliers - numbers).max(initial=0.0) <= ALIKE)

    def _multipliers_along(self, slack: np.ndarray) -> ProgramSolution:
        """Those multipliers that make the least of what slacks move by (Gauvin and Janin, 1988), of the linear program whose dual that is:
        empty where no u meets the rows along the direction.
        """
        order, cones = self._tight
        rows = self.program.a[order]
        return solve_program(ConvexProgram.flat(np.asarray(rows.T @ self.answer.z[order]), rows, slack[order], cones, self.program.size))

    def _with(self, found: ProgramSolution) -> ProgramResponse | None:
        """The same by such multipliers, where they are some of the program."""
        if not found.solved:
            return None
        multipliers = np.zeros_like(self.answer.z)
        multipliers[self._tight[0]] = found.z
        return replace(self, answer=replace(self.answer, z=multipliers)) if self.program.judged(self.answer.u, multipliers).solved else None

    @cached_property
    def _tight(self) -> tuple[np.ndarray, list[Cone]]:
        """(the rows that hold here, equations first; what they are)."""
        held = self.solutions.strong | self.solutions.weak
        equal, loose = np.flatnonzero(held & self.program.equal), np.flatnonzero(held & self.program.loose)
        return np.append(equal, loose), rows_of(len(equal), len(loose))

    # --- what holds ----------------------------------------------------------------------------------------------

    @cached_property
    def _curvature(self) -> Matrix:
        return self.program.curvature(self.answer.u)

    @cached_property
    def _critical(self) -> CriticalCone:
        known = self.solutions
        return CriticalCone.of(self.program, self.answer.u, self.answer.z, known.strong, known.weak, known.nothing)

    @cached_property
    def _bent(self) -> tuple[Matrix, Matrix]:
        """(by what the bends of cones pull at u where slacks move, the curvature with them)."""
        bent = self.program.a.T @ self._critical.bend
        return bent, self._curvature if self.program.polyhedral else self._curvature + bent @ self.program.a

    def _saddle(self, held: np.ndarray) -> Saddle:
        """The system of the conditions where these rows hold, and no cone does."""
        return self.known.at(self._curvature, self.program.a, held, not self.program.is_map)

    @cached_property
    def _conditions(self) -> Saddle:
        """The system of the conditions at what holds."""
        if self.program.polyhedral:
            return self._saddle(self.solutions.strong)
        return Saddle(self._bent[1], self._critical.held @ self.program.a, not self.program.is_map)

    def _at(self, seed: np.ndarray) -> Adjoint | None:
        """The adjoint at what holds; None where that leaves the seed open."""
        a, multipliers, left = self._conditions.turned.solve(seed, np.zeros(self._conditions.count))
        return None if left > CONSISTENT else Adjoint(a, self._of_rows(a, multipliers), self.answer.z)

    def _of_rows(self, a: np.ndarray, multipliers: np.ndarray) -> np.ndarray:
        """The part of rows, from that of u and the multipliers of what holds."""
        critical = self._critical
        return np.asarray(critical.held.T @ multipliers + critical.bend @ (self.program.a @ a))

    def _at_rows(self, held: np.ndarray, seed: np.ndarray) -> Adjoint | None:
        """The adjoint where these rows hold; None where they leave the seed undetermined."""
        a, multipliers, left = self._saddle(held).turned.solve(seed, np.zeros(int(held.sum())))
        if left > CONSISTENT:
            return None
        b = np.zeros(len(self.program.b))
        b[held] = multipliers
        return Adjoint(a, b, self.answer.z)

    def piece(self, seed: np.ndarray) -> Adjoint:
        """The adjoint of one of the pieces that meet here, that of what holds with a multiplier; NaN where it has none."""
        nowhere = np.full(self.program.width, np.nan), np.full(len(self.program.b), np.nan)
        return self._at(seed) or Adjoint(*nowhere, self.answer.z)

    def moved(self, tangent: Thetas) -> tuple[np.ndarray, np.ndarray]:
        """How the conditions move along a direction of theta, at fixed u and z: (of P u + q - A'z, of A u + b)."""
        if self.push is not None:
            force, slack = self.push(self.thetas, tangent, self.answer.u, self.answer.z)
            return np.where(self.program.free, 0.0, force), slack
        u, z = self.answer.u, self.answer.z
        size = max((float(np.abs(part).max(initial=0.0)) for part in tangent), default=0.0)
        scale = max((float(np.abs(part).max(initial=0.0)) for part in self.thetas), default=0.0)
        if size == 0.0:
            return np.zeros(self.program.width), np.zeros(len(self.program.b))
        step = STEP * max(scale, 1e-3) / size

        def at(times: float) -> tuple[np.ndarray, np.ndarray]:
            program = self.build([part + times * step * way for part, way in zip(self.thetas, tangent)])
            return program.force(u, z), program.slack(u)

        (f1, s1), (b1, t1), (f2, s2), (b2, t2) = at(1.0), at(-1.0), at(2.0), at(-2.0)
        return (8 * (f1 - b1) - (f2 - b2)) / (12 * step), (8 * (s1 - t1) - (s2 - t2)) / (12 * step)

    def _goes_on(self, tangents: Sequence[Thetas]) -> bool:
        """Whether there is a solution, near this one, in these directions and back; over cones whether all of it has a derivative."""
        if self.program.polyhedral:
            return all(self._stays(self.moved(tangent)) for tangent in tangents)
        return self.adjoint(np.cos(np.arange(1, self.program.size + 1) ** 2), tangents) is not None

    def _stays(self, moved: tuple[np.ndarray, np.ndarray]) -> bool:
        """Whether u has a derivative along a direction, there and back."""
        if not self.solutions.weak.any():
            return self._is_followed(moved)
        return all(self._along(sign * moved[0], sign * moved[1])[1].solved for sign in (1.0, -1.0))

    def _is_followed(self, moved: tuple[np.ndarray, np.ndarray]) -> bool:
        """Whether what holds can go on holding along a direction."""
        force, slack = moved
        right, below = -(force + self._bent[0] @ slack), -np.asarray(self._critical.held @ slack)
        left = self._conditions.solve(right, below)[2]
        size = max(float(np.abs(right).max(initial=0.0)), float(np.abs(below).max(initial=0.0)))
        noise = 1e-9 * self.program.force_size(self.answer.u, self.answer.z)
        return bool(left <= CONSISTENT or left * size <= noise)

    def _is_followed_all_along(self, ways: Sequence[Thetas]) -> bool:
        """The same of directions, where the conditions leave nothing else open but bounds that hold nothing, and multipliers of rows that depend on each other."""
        program = self.program
        if self._bends_are_open:
            return False
        if self._conditions.is_regular:
            return True
        if not program.polyhedral:
            u, multipliers = self._conditions.left_open
            curved = self._of_rows(u, multipliers)[~(program.equal | program.loose)]
            if max(np.abs(u[: program.size]).max(initial=0.0), np.abs(curved).max(initial=0.0)) > ALIKE:
                return False
        return all(self._is_followed(self.moved(way)) for way in ways)

    def _agrees(self, pair: Adjoint, seed: np.ndarray, way: tuple[np.ndarray, np.ndarray], moved: ProgramSolution) -> bool:
        """Whether the derivative along a direction is what the adjoint says."""
        (a, b, _), (force, slack) = pair, way
        said = -float(a @ force + b @ slack)
        size = float(np.abs(a) @ np.abs(force) + np.abs(b) @ np.abs(slack) + np.abs(seed) @ np.abs(moved.u))
        rounding = ROUNDING * float(np.abs(seed).max()) * (1.0 + float(np.abs(self.answer.u).max(initial=0.0)))
        return abs(float(seed @ moved.u) - said) <= ALIKE * size + rounding

    def _along(self, force: np.ndarray, slack: np.ndarray) -> tuple[ConvexProgram, ProgramSolution]:
        """The program over the critical cone for the derivative of u along a direction, and its solution."""
        program, critical, (bent, curvature) = self.program, self._critical, self._bent
        rows, offset = critical.select @ program.a, np.asarray(critical.select @ slack)
        curved = program.flat_along(self.answer.u) if program.polyhedral else curvature
        cones = merged(list(critical.cones))
        along = ConvexProgram(curvature, force + bent @ slack, rows, offset, cones, program.size, curved, is_map=program.is_map)
        return along, solve_program(along)

    def _of_piece(self, look: _Look, seed: np.ndarray) -> Adjoint | None:
        """The adjoint of the piece of the critical cone that a direction leads into."""
        along, u, critical = look.along, look.moved.u, self._critical
        inner = ProgramResponse(lambda thetas: along, [], along, look.moved)
        stiff = largest(along.p)
        least = UNMOVED * float(np.abs(along.q).max(initial=0.0)) / stiff if stiff > 0 else 0.0
        sizes = abs(along.a) @ np.abs(u) + np.abs(along.b) + along.sizes * least
        tight = along.equal | (np.abs(along.slack(u)) <= TIGHT_ALONG * sizes)
        found = inner._at_rows(tight, seed) if along.polyhedral else inner._at(seed)
        if found is None:
            return None
        b = np.asarray(critical.select.T @ found.b + critical.bend @ (self.program.a @ found.a))
        return Adjoint(found.a, b, self.answer.z)

    def _is_sure(self, pair: Adjoint, seed: np.ndarray, looks: Sequence[_Look], ways: Sequence[Thetas]) -> bool:
        """Whether what the derivatives along directions say is all that there is."""
        if self.program.polyhedral:
            return all(look.is_one_for(seed) for look in looks)
        return (self._has_inside and not self._bends_are_open) or all(self._is_slope(pair, seed, way) for way in ways)

    # --- cones ---------------------------------------------------------------------------------------------------

    @cached_property
    def _is_beyond_cones(self) -> bool:
        """Whether cones tell nothing: beside terms whose weight is zero, or where multipliers are without bound."""
        program, u, z = self.program, self.answer.u, self.answer.z
        return bool(unpriced(program).any()) or program.force_size(u, z) > CANCELLED * program.force_size(u, np.zeros_like(z))

    @cached_property
    def _inside(self) -> ProgramResponse | None:
        """The same from bounds as far inside of their cones as other solutions of one y have them; None where cones hold without a multiplier there too."""
        program, answer = self.program, self.answer
        if program.width == program.size:  # there are no bounds
            return None
        y, flat = answer.u[: program.size], diagonal(np.zeros(program.width), program.p)
        own = diagonal(np.ones(program.width), program.a)[: program.size]
        among = self.solutions.restricted(flat, np.zeros(program.width), own, -y, (Cone(ZERO, program.size),))
        found = innermost(among, y)
        if not found.solved or not found.u[-1] > OPEN:
            return None
        moved = program.judged(np.concatenate([y, found.u[program.size : program.width]]), answer.z)
        inner = replace(self, answer=moved)
        return inner if moved.solved and not inner._critical.vague else None

    @cached_property
    def _has_inside(self) -> bool:
        """Whether some u is inside of all cones, as linear models of these ask for (Robinson's condition)."""
        program = self.program
        found = innermost(replace(program, b=program.slack(self.answer.u)), np.zeros(program.size))
        return bool(found.solved and found.u[-1] > OPEN)

    @cached_property
    def _bends_are_open(self) -> bool:
        """Whether bounds that may be elsewhere decide how a cone bends that has a multiplier."""
        program, z = self.program, self.answer.z
        if program.polyhedral or program.width == program.size:  # there are no bounds
            return False
        generic = np.where(np.arange(program.width) < program.size, 0.0, np.cos(np.arange(program.width) ** 2))
        change = np.asarray(program.a @ self.solutions.unpinned(generic)) / program.sizes
        pull, force = np.abs(z * program.sizes), program.force_size(self.answer.u, z)
        pulled = (rows for _, rows in program.curved_cones if pull[rows].max() > OPEN * force)
        return any(float(np.abs(change[rows]).max()) > OPEN for rows in pulled)

    def _is_slope(self, pair: Adjoint, seed: np.ndarray, way: Thetas) -> bool:
        """Whether seed'u moves along a direction as the adjoint says: by the solution a little further."""
        force, slack = self.moved(way)
        said, u = -float(pair.a @ force + pair.b @ slack), self.answer.u
        size = max((float(np.abs(part).max(initial=0.0)) for part in way), default=0.0)
        if size == 0.0:
            return True
        step = FURTHER * max(1.0, float(np.abs(u).max(initial=0.0))) / size
        there = solve_program(self.build([part + step * move for part, move in zip(self.thetas, way)]))
        if not there.solved:
            return False
        moves = (there.u - u) / step
        least = float(np.linalg.norm(seed)) * max(float(np.linalg.norm(moves[seed != 0])), size)
        return abs(float(seed @ moves) - said) <= ROUGHLY * least
