"""How the solution moves that is chosen of several: the choice is a program with conditions of its own, so it has derivatives as well:

    minimise F(y, t) over (u, t, z_J)   subject to   P u + q = A_J' z_J,  A_J u + b_J = 0,  the other rows of the level, those of F.

F is the upper objective, or the length of y where nobody chooses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hierfl.compiler.parametric.level_form import LevelForm, Thetas
from hierfl.compiler.programs.all_solutions import AllSolutions
from hierfl.compiler.programs.cones import rows_of
from hierfl.compiler.programs.convex_program import ConvexProgram, ProgramSolution
from hierfl.compiler.programs.response import Adjoint, ProgramResponse
from hierfl.compiler.programs.small_and_sparse import beside, diagonal, largest, nothing, placed, stacked
from hierfl.compiler.programs.solve_program import polished

SHORT = 1e-5  # of the level's size, a weight of y's length beside its forces: with more, what these barely decide is lost to rounding
FAINT = 1e-9  # of the forces, from which a row has a multiplier


@dataclass(frozen=True, eq=False)
class ChosenResponse:
    """Of one of ``several`` solutions of ``form``, whose theta has ``count`` parts, by a cost ``chosen_by`` or by the length of y, of weight ``short``."""

    form: LevelForm
    chosen_by: LevelForm | None
    several: AllSolutions
    count: int
    short: float

    @classmethod
    def of(cls, form: LevelForm, chosen_by: LevelForm | None, several: AllSolutions, count: int) -> ChosenResponse:
        """With a weight that suits the level."""
        short = SHORT * (largest(several.program.p) or largest(several.program.a) or 1.0)
        return cls(form, chosen_by, several, count, short)

    def pull(
        self, chosen: ProgramSolution, thetas: Thetas, of_upper: Thetas, seed: np.ndarray, tangents: list[Thetas]
    ) -> Thetas | None:
        """The gradient of seed'y in theta and in theta of the upper objective; None where there is none."""
        both = [*thetas, *of_upper]
        program = self.conditions(both)
        guess = self._guess(program, chosen)
        if guess is None:
            return None
        response = ProgramResponse(self.conditions, both, program, guess, has_edges=False)  # rows may get multipliers
        pair = response.adjoint(seed, tangents, True)
        return None if pair is None else self._shared(pair, guess, thetas, of_upper)

    def conditions(self, both: Thetas) -> ConvexProgram:
        """The program of (u, t, z_J) in the head of this file."""
        strong, level = self.several.strong, self.form.program(both[: self.count])
        cost = self.chosen_by.program(both[self.count :]) if self.chosen_by is not None else None
        width, held, extra = level.width, int(strong.sum()), 0 if cost is None else cost.width - cost.size
        total = width + extra + held
        rows = level.a
        if cost is None:
            p = diagonal(np.where(np.arange(total) < level.size, self.short, 0.0), level.p)
            wide = ConvexProgram.of(p, np.zeros(total), nothing(0, total, rows), np.zeros(0), [])
        else:
            wide = widened(cost, width, total)
        force = beside([level.p, nothing(width, extra, rows), -rows[strong].T])
        others = [beside([rows[some], nothing(int(some.sum()), extra + held, rows)]) for some in (strong, ~strong)]
        a = stacked([force, *others, wide.a])
        b = np.concatenate([level.q, level.b[strong], level.b[~strong], wide.b])
        return replace(wide, a=a, b=b, cones=rows_of(width + held, len(level.b) - held, wide.cones), size=level.size)

    def _guess(self, program: ConvexProgram, chosen: ProgramSolution) -> ProgramSolution | None:
        """What is chosen as a solution of those conditions, with multipliers."""
        several, level, strong = self.several, self.several.program, self.several.strong
        width, held = level.width, int(strong.sum())
        pinned = several.pinned[0].shape[0]
        z = np.zeros(len(program.b))
        if level.is_map:  # what is chosen has its own multipliers
            found = polished(program, np.concatenate([chosen.u, chosen.z[strong]]), z)
            own = found.u[len(chosen.u) :] * level.sizes[strong]
            kept = own[level.loose[strong]] > FAINT * level.force_size(chosen.u, chosen.z)
            return found if found.solved and kept.all() else None
        own = chosen.z * (self.short if self.chosen_by is None else 1.0)
        loose = len(level.b) - held
        z[width + held : width + held + loose] = own[pinned : pinned + loose]
        z[width + held + loose :] = own[pinned + loose :]
        u = np.concatenate([chosen.u, several.answer.z[strong]])
        found = polished(program, u, z)
        return found if found.solved else None

    def _shared(self, pair: Adjoint, guess: ProgramSolution, thetas: Thetas, of_upper: Thetas) -> Thetas:
        """What a pair of those conditions says, in theta of the level and of the cost.

        Its b multiplies the level's conditions; its a moves u and z_J, in which these are linear, beside multipliers in z.
        """
        strong, chosen_by = self.several.strong, self.chosen_by
        width, ends = self.several.program.width, self.several.program.width + len(strong)
        cost = None if chosen_by is None else chosen_by.program(of_upper)
        first = width if cost is None else width + cost.width - cost.size

        def of_rows(part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            out = np.zeros(len(strong))
            out[np.append(np.flatnonzero(strong), np.flatnonzero(~strong))] = part[width:ends]
            return part[:width], out

        def multipliers(part: np.ndarray) -> np.ndarray:
            out = np.zeros(len(strong))
            out[strong] = part[first:]
            return out

        u, a = guess.u, pair.a
        of_z, still = of_rows(-pair.z), np.zeros(len(u))
        said = [
            self.form.pull(thetas, Adjoint(*seeds, multipliers(at)), at[:width])
            for seeds, at in ((of_rows(pair.b), u), (of_z, a), (of_z, still))
        ]
        found = [one + other - less for one, other, less in zip(*said)]
        if chosen_by is None or cost is None:
            return [*found, *map(np.zeros_like, of_upper)]
        place = places(cost, width)
        return [*found, *chosen_by.pull(of_upper, Adjoint(a[place], pair.b[ends:], pair.z[ends:]), u[place])]


def widened(cost: ConvexProgram, width: int, total: int) -> ConvexProgram:
    """A cost of y as one of a longer u, of ``total`` entries, where its own bounds come after ``width`` others."""
    place = places(cost, width)
    p, q = placed(cost.p, place, place, (total, total)), np.zeros(total)
    q[place] = cost.q
    a = placed(cost.a, np.arange(len(cost.b)), place, (len(cost.b), total))
    smooth = None if cost.smooth is None else cost.smooth.placed(place, total)
    return ConvexProgram(p, q, a, cost.b, cost.cones, cost.size, p, smooth)


def places(cost: ConvexProgram, width: int) -> np.ndarray:
    """Where a cost's (y, bounds) are beside u."""
    return np.concatenate([np.arange(cost.size), width + np.arange(cost.width - cost.size)])
