"""Newton's method for neighbours at once: the steps of :class:`NewtonMethod`, their linear models solved as a family of programs.

Each begins at the answer of one of them. What a line search would have to cut short, or what is not the only answer, is left to
be solved by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from hierfl.compiler.host.cone_solution import ONE, SOLVED, ConeSolution
from hierfl.compiler.host.families.program_family import ProgramFamily
from hierfl.compiler.host.families.stacks import times, turned
from hierfl.compiler.host.smooth.infinite_slopes import are_multipliers, around, balanced
from hierfl.compiler.host.smooth.newton import CLOSE, NEAR, SETTLED, SHORT, STEADY, relative_step
from hierfl.compiler.host.standard_form import ZERO, Cone

TINY = 1e-300  # what stands for no force
STEPS = 30

Stack = Float[np.ndarray, "k *shape"]
Forces = Callable[[Stack], tuple[Stack, Stack]]


@dataclass(frozen=True, eq=False)
class NewtonFamily:
    """Maps G over A u + b in K, as stacks; ``force`` gives (G (k, width), its derivatives (k, width, width)) at u (k, width)."""

    force: Forces
    a: Float[np.ndarray, "k rows width"]
    b: Float[np.ndarray, "k rows"]
    cones: Sequence[Cone]
    size: int
    interior: bool = False
    roots: bool = False
    raised: int = 0

    def solve(self, near: ConeSolution) -> list[ConeSolution | None]:
        """The solutions, in order, from that of one more; None where it takes more than full steps, or there may be others."""
        count = len(self.b)
        u, z = np.tile(near.u, (count, 1)), np.tile(near.z, (count, 1))
        answers: list[ConeSolution | None] = [None] * count
        last = np.full(count, np.inf)
        force, slope = self.force(u)
        felt = np.abs(force).max(axis=1)
        going = np.flatnonzero(_finite(force))
        for _ in range(STEPS if len(going) else 0):
            models = self._models(going, u, force, slope)
            modelled, ahead, z[going] = models.solve_from(u[going], z[going])
            step = ahead - u[going]
            moved = _largest(step[:, : self.size])
            steep = np.abs(slope[going]).max(axis=(1, 2), initial=0.0)
            size, rounding = relative_step(moved, _largest(u[going, : self.size]), _largest(force[going]), steep)
            bounds = slice(self.size, self.size + self.raised)
            rising = _largest(times(slope[going][:, :, bounds], step[:, bounds])) / np.maximum(felt[going], TINY)
            size, rounding = np.maximum(size, rising), rounding & (rising <= SETTLED)
            settled = modelled & (rounding | (size <= SETTLED) | ((size <= CLOSE) & (size > STEADY * last[going])))
            if self.roots and settled.any():
                ends = [self._force_of(going, u, there) for there in (ahead, *around(ahead))]
                settled &= balanced(felt[going], times(turned(self.a[going]), z[going]), *ends)
                settled &= [are_multipliers(self.cones, z[k], float(felt[k])) for k in going]
            ended = settled & models.is_one(ahead, z[going])
            for k in np.flatnonzero(ended):
                at = going[k]
                whole = np.concatenate([u[at, : self.size], ahead[k, self.size :]])
                answers[at] = ConeSolution(whole, z[at], float(size[k]), SOLVED, ONE)
            left = modelled & ~settled
            going, step, size = going[left], step[left], size[left]
            if not len(going):
                break
            share = self._shares(going, u[going], step)
            before = np.abs(np.sum(force[going] * step, axis=1))
            u[going] += share[:, None] * step
            force, slope = self.force(u)
            felt = np.maximum(felt, np.abs(force).max(axis=1))
            along = np.sum(force[going] * step, axis=1)
            short = (size <= NEAR) & (size < 0.5 * last[going]) & (share == 1.0)
            good = _finite(force[going]) & ((along <= 0.5 * before) | short)
            last[going] = np.where((share == 1.0) | (size <= CLOSE), size, np.inf)
            going = going[good]
            if not len(going):
                break
        return answers

    def _force_of(self, going: np.ndarray, u: Stack, there: Stack) -> Stack:
        """The maps of some elsewhere."""
        all_there = u.copy()
        all_there[going] = there
        return self.force(all_there)[0][going]

    def _models(self, going: np.ndarray, u: Stack, force: Stack, slope: Stack) -> ProgramFamily:
        """The linear models of some."""
        h = slope[going]
        g = force[going] - (h @ u[going, :, None])[..., 0]
        return ProgramFamily.of((h, g, self.a[going], self.b[going]), self.cones, 0, self.size)

    def _shares(self, going: np.ndarray, u: Stack, step: Stack) -> Float[np.ndarray, " k"]:
        """1, or just less than to the boundary that a step would reach."""
        if not self.interior:
            return np.ones(len(going))
        here = (self.a[going] @ u[..., None])[..., 0] + self.b[going]
        ahead = here + (self.a[going] @ step[..., None])[..., 0]
        rows = np.arange(here.shape[1]) >= sum(cone.size for cone in self.cones if cone.kind == ZERO)
        return np.where((rows & (here > 0) & (ahead <= 1e-3 * here)).any(axis=1), SHORT, 1.0)


def _finite(stack: Stack) -> Bool[np.ndarray, " k"]:
    return np.asarray(np.isfinite(stack).all(axis=1))


def _largest(stack: Stack) -> Float[np.ndarray, " k"]:
    return np.asarray(np.abs(stack).max(axis=1, initial=0.0))
