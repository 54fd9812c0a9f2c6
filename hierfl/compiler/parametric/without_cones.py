"""A level without the curved cones that hold nothing where its solution is: near it the others are the whole of it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import numpy as np
from jaxtyping import Bool, Float

from hierfl.compiler.parametric.level_form import LevelForm, Thetas
from hierfl.compiler.programs.cones import blocks, distance, middles
from hierfl.compiler.programs.convex_program import ConvexProgram
from hierfl.compiler.programs.response import Slopes

INSIDE = 1e-6  # of a cone's size, that its slack is away from the boundary


@dataclass(frozen=True, eq=False)
class WithoutCones(LevelForm):
    """The level on some of its rows."""

    kept: Bool[np.ndarray, " rows"] = field(kw_only=True)

    @classmethod
    def at(cls, form: LevelForm, program: ConvexProgram, u: Float[np.ndarray, " width"]) -> WithoutCones | None:
        """That of a solution u; None where a curved cone is at its boundary."""
        kept = np.ones(len(program.b), bool)
        slack, sizes = program.slack(u), program.row_sizes(u)
        for cone, place in program.curved_cones:
            inner = INSIDE * float(sizes[place].max()) * middles([cone], np.ones(cone.size))
            if distance([cone], slack[place] - inner) > 0:
                return None
            kept[place] = False
        return cls(**{each.name: getattr(form, each.name) for each in fields(form)}, kept=kept)

    def program(self, thetas: Thetas) -> ConvexProgram:
        whole = super().program(thetas)
        cones = [cone for cone, place in blocks(whole.cones) if self.kept[place].all()]
        return replace(whole, a=whole.a[self.kept], b=whole.b[self.kept], cones=cones)

    def push(self, thetas: Thetas, tangent: Thetas, u: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        force, slack = super().push(thetas, tangent, u, self._spread(z))
        return force, slack[self.kept]

    def pull(self, thetas: Thetas, slopes: Slopes) -> Thetas:
        rows = [(self._spread(left), right) for left, right in slopes.rows]
        offset = None if slopes.offset is None else self._spread(slopes.offset)
        return super().pull(thetas, Slopes(slopes.forces, slopes.bends, rows, offset))

    def _spread(self, of_kept: np.ndarray) -> np.ndarray:
        out = np.zeros(len(self.kept))
        out[self.kept] = of_kept
        return out
