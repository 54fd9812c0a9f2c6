"""The optimality conditions of programs of one shape at points, as ``ConeProgram.error`` has them: their errors, and what holds beyond doubt."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float

from hierfl.compiler.host.cone_program import TINY
from hierfl.compiler.host.cone_solution import cancelled
from hierfl.compiler.host.cones import blocks
from hierfl.compiler.host.families.program_shape import ProgramShape
from hierfl.compiler.host.families.stacks import Stack, times, turned
from hierfl.compiler.host.standard_form import SECOND_ORDER

STRICT = 1e-9  # relative: how far a multiplier or a slack is from zero, where the rows that hold are beyond doubt
UNITS = 1e-6, 1e6  # between which a cone's slack is weighed against its multiplier


@dataclass(frozen=True, eq=False)
class Conditions:
    """H u + g = A' z, A u + b in K, z the projection of z - (A u + b) on K*, at (u, z) of each program."""

    shape: ProgramShape
    g: Float[np.ndarray, "k width"]
    b: Float[np.ndarray, "k rows"]
    u: Float[np.ndarray, "k width"]
    z: Float[np.ndarray, "k rows"]

    @cached_property
    def slack(self) -> Stack:
        """A u + b."""
        return times(self.shape.a, self.u) + self.b

    @cached_property
    def _own(self) -> Stack:
        """The sizes of what is added up in H u + g."""
        return times(self.shape.magnitudes[0], np.abs(self.u)) + np.abs(self.g)

    @cached_property
    def force(self) -> Float[np.ndarray, " k"]:
        """The size of what balances in H u + g = A' z."""
        return self._unit_of(self._own + times(self.shape.magnitudes[2], np.abs(self.z)))

    def _unit_of(self, sizes: Stack) -> Float[np.ndarray, " k"]:
        force = np.maximum(sizes.max(axis=1), TINY * self.shape.stiffness)
        return np.where(force > 0, force, 1.0)

    @cached_property
    def row_scale(self) -> Stack:
        """The size of what is added up in each row."""
        return times(self.shape.magnitudes[1], np.abs(self.u)) + np.abs(self.b) + self.shape.sizes

    @cached_property
    def relative_slack(self) -> Stack:
        """The slack of each row, relative to its size."""
        return np.asarray(self.slack / self.row_scale)

    @cached_property
    def relative_pull(self) -> Stack:
        """The multiplier of each row of length 1, relative to the force."""
        return np.asarray(self.z * self.shape.sizes / self.force[:, None])

    @cached_property
    def errors(self) -> Float[np.ndarray, " k"]:
        """The largest relative error of each program's three conditions."""
        shape = self.shape
        balance = times(shape.h, self.u) + self.g - times(turned(shape.a), self.z)
        if shape.polyhedral:
            e, dual = self.relative_slack, self.relative_pull
            outside, unfit = np.where(shape.equal, e, np.minimum(e, 0.0)), np.where(shape.equal, e, np.minimum(dual, e))
        else:
            e = self.slack / self._whole(self.row_scale)
            dual = self.z * self._whole(shape.sizes) / self.force[:, None]
            outside, unfit = shape.projected(-e), dual - shape.projected(dual - e)
        missed = np.maximum(np.sqrt(np.sum(outside * outside, axis=1)), np.abs(unfit).max(axis=1, initial=0.0))
        worst = np.maximum(np.abs(balance).max(axis=1) / self.force, missed)
        worst = np.maximum(worst, cancelled(self.force, self._unit_of(self._own)))
        return np.where(np.isfinite(worst), worst, np.inf)

    def _whole(self, rows: Stack) -> Stack:
        """The size of each row; one size for all rows of a cone that is not a product of rows."""
        out = np.array(rows)
        for cone, place in blocks(self.shape.cones):
            if cone.kind == SECOND_ORDER:
                out[:, place] = rows[:, place].max(axis=1, keepdims=True)
        return out

    @cached_property
    def units(self) -> Stack:
        """What a row's slack is multiplied by to be weighed against its multiplier."""
        unit = self.force[:, None] / (self.shape.sizes * self.row_scale)
        for cone, place in blocks(self.shape.cones):
            if cone.kind == SECOND_ORDER:
                slack, pulls = (np.linalg.norm(part[:, place], axis=1) for part in (self.slack, self.z))
                own = np.clip(pulls / np.maximum(slack, 1e-300), *UNITS)
                unit[:, place] = np.where(pulls > 0, own, unit[:, place].min(axis=1))[:, None]
        return np.asarray(unit)

    @cached_property
    def gap(self) -> Stack:
        """z - t (A u + b), with t in z's units: where it is in K*, z is."""
        return self.z - self.units * self.slack

    @cached_property
    def pulled(self) -> Bool[np.ndarray, "k rows"]:
        """Which rows have a multiplier beyond doubt, and which equations do not follow from others."""
        return np.where(self.shape.equal, ~self.shape.repeated, self.relative_pull > STRICT)

    def strict(self, level: float = STRICT) -> Bool[np.ndarray, "k rows"]:
        """Which rows are by so much slack or held by a multiplier; of a cone all or none."""
        strict = self.shape.equal | ((self.relative_pull > level) != (self.relative_slack > level))
        for cone, place in blocks(self.shape.cones):
            if cone.kind == SECOND_ORDER:
                v = self.gap[:, place]
                size, whole = np.linalg.norm(v[:, 1:], axis=1), np.linalg.norm(v, axis=1)
                beyond = np.minimum(np.abs(v[:, 0] - size), np.abs(v[:, 0] + size)) > level * whole
                strict[:, place] = beyond[:, None]
        return np.asarray(strict)
