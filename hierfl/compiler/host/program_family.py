"""Quadratic programs over cones of one form, solved together: where one is solved, Newton's method goes on to its neighbours.

The steps are those of :class:`ConeProgram`, stacked: over rows a primal-dual active-set method (Hintermüller, Ito and Kunisch, 2003),
which needs a few steps from one set of rows to the next. An answer is taken where it satisfies the conditions to rounding and is the
only one beyond doubt; every other program is solved by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.linalg import qr

from hierfl.compiler.host.cone_program import EXACT, TINY, ConeProgram
from hierfl.compiler.host.cone_solution import ONE, SOLVED, ConeSolution
from hierfl.compiler.host.cones import blocks
from hierfl.compiler.host.reached_limits import ReachedLimits
from hierfl.compiler.host.standard_form import SECOND_ORDER, SEMIDEFINITE, Cone

STEPS = 8
FEW = 16  # programs over rows, from which on they are worth solving together: DAQP takes a fraction of a millisecond for each
PATIENCE, WORTH = (
    3,
    0.02,
)  # answers that lead to less than a share of the others, after which each is looked for by itself
STRICT = 1e-9  # relative: how far a multiplier or a slack is from zero, where the rows that hold are beyond doubt
CONDITION = 1e8  # of a linear system whose answer is the only one beyond doubt
LARGE = 1e6  # of an adjoint, relative to its seed, from which rows may depend on each other
INDEPENDENT = 1e-10  # of a row of length 1, what other rows leave of it
REGULAR = 1e-10  # of the least eigenvalue of H in y, scaled, from which it is positive definite
UNITS = 1e-6, 1e6  # between which a cone's slack is weighed against its multiplier

Stack = Float[np.ndarray, "k *shape"]


@dataclass(frozen=True, eq=False)
class ProgramFamily:
    """Programs as stacks: H (k, width, width), g (k, width), A (k, rows, width), b (k, rows); the first ``size`` entries of u are y."""

    h: Float[np.ndarray, "k width width"]
    g: Float[np.ndarray, "k width"]
    a: Float[np.ndarray, "k rows width"]
    b: Float[np.ndarray, "k rows"]
    cones: Sequence[Cone]
    bounds: int
    size: int

    @classmethod
    def of(cls, stacks: Iterable[np.ndarray], cones: Sequence[Cone], bounds: int, size: int) -> ProgramFamily:
        """The programs of (H, g, A, b)."""
        h, g, a, b = stacks
        return cls(h, g, a, b, cones, bounds, size)

    def __getitem__(self, k: int) -> ConeProgram:
        return ConeProgram(self.h[k], self.g[k], self.a[k], self.b[k], self.cones, self.bounds)

    def among(self, chosen: Int[np.ndarray, " chosen"]) -> ProgramFamily:
        """Some of the programs."""
        parts = (array[chosen] for array in (self.h, self.g, self.a, self.b))
        return ProgramFamily.of(parts, self.cones, self.bounds, self.size)

    def solve(self) -> list[ConeSolution]:
        """All solutions, in order; each with the status that its program has by itself."""
        limits = self[0].limits
        if limits is not None and self._all_have(limits):
            arrays = limits.inner(self.h, self.g, self.a, self.b)
            inner = ProgramFamily.of(arrays, limits.inner_cones(self.cones), 0, self.size)
            return [limits.outer(self.a[k], self.b[k], answer) for k, answer in enumerate(inner.solve())]
        return self._one_after_another(self._together and limits is None)

    def _all_have(self, limits: ReachedLimits) -> bool:
        """Whether the first program's limits are those of all."""
        columns, rows = list(limits.columns), list(limits.rows)
        free = not self.h[:, columns].any() and not self.g[:, columns].any()
        below = (self.a[:, rows, columns] < 0).all()
        return free and bool(below and ((self.a != 0) == (self.a[0] != 0)).all())

    def _one_after_another(self, together: bool) -> list[ConeSolution]:
        answers: dict[int, ConeSolution] = {}
        fewest = FEW if self[0].polyhedral else 1
        left, last, in_vain = np.arange(len(self.h)), None, 0
        while len(left):
            k, left = int(left[0]), left[1:]
            answers[k] = self[k].solve(last)
            last = answers[k] if answers[k].status == SOLVED else None
            if together and last is not None and len(left) >= fewest and in_vain < PATIENCE:
                taken, u, z, error = self.among(left)._from(last)
                for place in np.flatnonzero(taken):
                    answers[int(left[place])] = ConeSolution(u[place], z[place], float(error[place]), SOLVED, ONE)
                in_vain = 0 if taken.sum() > WORTH * len(left) else in_vain + 1
                left = left[~taken]
        return [answers[k] for k in range(len(self.h))]

    @property
    def _together(self) -> bool:
        """Whether the steps are stacked: cones whose projections are, and units that all entries of u share."""
        first = self[0]
        return not any(cone.kind == SEMIDEFINITE for cone in self.cones) and not (first.units != 1.0).any()

    # --- Newton's method, stacked --------------------------------------------------------------------------------------

    def _from(self, near: ConeSolution) -> tuple[Bool[np.ndarray, " k"], Stack, Stack, Stack]:
        """(which answers are the only ones beyond doubt, u, z, their errors), from the answer of one more."""
        u, z = np.tile(near.u, (len(self.g), 1)), np.tile(near.z, (len(self.g), 1))
        best_u, best_z, best = u.copy(), z.copy(), self._errors(u, z)
        going = np.flatnonzero(best > EXACT)
        for _ in range(STEPS):
            if not len(going):
                break
            family = self.among(going)
            u[going], z[going] = family._stepped(u[going], z[going])
            error = family._errors(u[going], z[going])
            better = going[error < best[going]]
            best[going] = np.minimum(error, best[going])
            best_u[better], best_z[better] = u[better], z[better]
            going = going[(error > EXACT) & np.isfinite(error)]
        taken = best <= EXACT
        taken[taken] = self.among(np.flatnonzero(taken))._is_one(best_u[taken], best_z[taken])
        return taken, best_u, best_z, best

    def _stepped(self, u: Stack, z: Stack) -> tuple[Stack, Stack]:
        """One step on H u + g - A' z = 0, z - P(z - t (A u + b)) = 0, with t in z's units."""
        unit = self._units(u, z)
        e = unit * (_times(self.a, u) + self.b)
        goal, slope = self._projected(z - e), self._slope(z - e)
        goal[:, self._repeated] = z[:, self._repeated]
        count, width, rows = len(self.g), self.g.shape[1], self.b.shape[1]
        system = np.zeros((count, width + rows, width + rows))
        system[:, :width, :width], system[:, :width, width:] = self.h, -_turned(self.a)
        system[:, width:, :width], system[:, width:, width:] = slope @ (unit[..., None] * self.a), np.eye(rows) - slope
        right = -np.concatenate([_times(self.h, u) + self.g - _times(_turned(self.a), z), z - goal], axis=1)
        finite = np.isfinite(system).all(axis=(1, 2)) & np.isfinite(right).all(axis=1)
        system, right = (
            np.where(finite[:, None, None], system, np.eye(width + rows)),
            np.where(finite[:, None], right, 0.0),
        )
        try:
            step = np.linalg.solve(system, right[..., None])[..., 0]
        except np.linalg.LinAlgError:  # it does not say which of them
            singular = np.linalg.slogdet(system)[0] == 0
            step = np.empty_like(right)
            step[~singular] = np.linalg.solve(system[~singular], right[~singular][..., None])[..., 0]
            step[singular] = np.nan  # a least-norm step, by all singular values, leads nowhere sooner than a solver
        return u + step[:, :width], z + step[:, width:]

    def _units(self, u: Stack, z: Stack) -> Stack:
        """What a row's slack is multiplied by to be weighed against its multiplier."""
        unit = self._force(u, z)[:, None] / (self._sizes * self._row_scale(u))
        e = _times(self.a, u) + self.b
        for cone, place in blocks(self.cones):
            if cone.kind == SECOND_ORDER:
                slack, pulls = (np.linalg.norm(part[:, place], axis=1) for part in (e, z))
                own = np.clip(pulls / np.maximum(slack, 1e-300), *UNITS)
                unit[:, place] = np.where(pulls > 0, own, unit[:, place].min(axis=1))[:, None]
        return unit

    def _projected(self, v: Stack) -> Stack:
        """The nearest points of K*."""
        goal = np.where(self._equal, v, np.maximum(v, 0.0))
        for cone, place in blocks(self.cones):
            if cone.kind == SECOND_ORDER:
                goal[:, place] = _second_order(v[:, place])
        return goal

    def _slope(self, v: Stack) -> Stack:
        """The derivative of that; of several one."""
        slope = np.eye(v.shape[1]) * ((self._equal & ~self._repeated) | (~self._equal & (v > 0)))[:, None, :]
        for cone, place in blocks(self.cones):
            if cone.kind == SECOND_ORDER:
                slope[:, place, place] = _second_order_slope(v[:, place])
        return slope

    # --- the conditions, as ConeProgram.error has them -----------------------------------------------------------------

    def _errors(self, u: Stack, z: Stack) -> Float[np.ndarray, " k"]:
        """The largest relative error of each program's three conditions."""
        force = self._force(u, z)
        balance = _times(self.h, u) + self.g - _times(_turned(self.a), z)
        e = (_times(self.a, u) + self.b) / self._whole(self._row_scale(u))
        dual = z * self._whole(self._sizes) / force[:, None]
        inside = np.linalg.norm(self._projected(-e), axis=1)
        fit = np.abs(dual - self._projected(dual - e)).max(axis=1, initial=0.0)
        worst = np.maximum(np.abs(balance).max(axis=1) / force, np.maximum(inside, fit))
        return np.where(np.isfinite(worst), worst, np.inf)

    def _force(self, u: Stack, z: Stack) -> Float[np.ndarray, " k"]:
        size = _times(np.abs(self.h), np.abs(u)) + np.abs(self.g) + _times(np.abs(_turned(self.a)), np.abs(z))
        force = np.maximum(size.max(axis=1), TINY * np.abs(self.h).max(axis=(1, 2)))
        return np.where(force > 0, force, 1.0)

    def _row_scale(self, u: Stack) -> Stack:
        return _times(np.abs(self.a), np.abs(u)) + np.abs(self.b) + self._sizes

    def _whole(self, rows: Stack) -> Stack:
        """The size of each row; one size for all rows of a cone that is not a product of rows."""
        out = np.array(rows)
        for cone, place in blocks(self.cones):
            if cone.kind == SECOND_ORDER:
                out[:, place] = rows[:, place].max(axis=1, keepdims=True)
        return out

    @cached_property
    def _sizes(self) -> Stack:
        sizes = np.linalg.norm(self.a, axis=2)
        return np.where(sizes > 0, sizes, 1.0)

    @cached_property
    def _equal(self) -> Bool[np.ndarray, " rows"]:
        return np.arange(self.b.shape[1]) < self[0].equations

    # --- derivatives -----------------------------------------------------------------------------------------------------

    def adjoints(self, u: Stack, z: Stack, seeds: Stack) -> tuple[Bool[np.ndarray, " k"], Stack, Stack]:
        """(where the derivative is beyond doubt, v, w) at answers: seed'u moves by -(v, w) times what moves the conditions.

        By the conditions' own derivative, where every row and cone that holds has a multiplier and they are independent.
        """
        unit = self._units(u, z)
        e = unit * (_times(self.a, u) + self.b)
        slope, strict = self._slope(z - e), self._strict(u, z)
        limits = self[0].limits
        reached = list(limits.rows) if limits is not None else []
        slope[:, reached, reached] = 1.0
        count, width, rows = len(self.g), self.g.shape[1], self.b.shape[1]
        turned = np.zeros((count, width + rows, width + rows))
        turned[:, :width, :width] = _turned(self.h)
        turned[:, :width, width:] = _turned(slope @ (unit[..., None] * self.a))
        turned[:, width:, :width], turned[:, width:, width:] = -self.a, np.eye(rows) - _turned(slope)
        right = np.concatenate([seeds, np.zeros((count, rows))], axis=1)
        try:
            answer = np.linalg.solve(turned, right[..., None])[..., 0]
        except np.linalg.LinAlgError:
            return np.zeros(count, bool), np.zeros_like(u), np.zeros_like(z)
        v, w = answer[:, :width], unit * _times(_turned(slope), answer[:, width:])
        size = np.linalg.norm(seeds, axis=1)
        stiff = np.abs(self.h).max(axis=(1, 2)) * np.abs(v).max(axis=1)
        pulled = np.abs(self._sizes * w).max(axis=1, initial=0.0)
        missed = np.linalg.norm(_times(turned, answer) - right, axis=1)
        with np.errstate(invalid="ignore"):
            sure = strict & (np.maximum(stiff, pulled) <= LARGE * size) & (missed <= EXACT * LARGE * size)
        return sure, v, w

    def _strict(self, u: Stack, z: Stack) -> Bool[np.ndarray, " k"]:
        """Where every row is beyond doubt slack or held by a multiplier, and so is every cone."""
        slack = (_times(self.a, u) + self.b) / self._row_scale(u)
        multiplier = z * self._sizes / self._force(u, z)[:, None]
        strict = self._equal | ((multiplier > STRICT) != (slack > STRICT))
        for cone, place in blocks(self.cones):
            if cone.kind == SECOND_ORDER:
                v = (z - self._units(u, z) * (_times(self.a, u) + self.b))[:, place]
                size, whole = np.linalg.norm(v[:, 1:], axis=1), np.linalg.norm(v, axis=1)
                strict[:, place] = (np.minimum(np.abs(v[:, 0] - size), np.abs(v[:, 0] + size)) > STRICT * whole)[
                    :, None
                ]
        limits = self[0].limits
        strict[:, [] if limits is None else list(limits.rows)] = True
        return np.asarray(strict.all(axis=1))

    @cached_property
    def _repeated(self) -> Bool[np.ndarray, " rows"]:
        """The equations that follow from the others, as one of a network's does: they hold by themselves."""
        rows = np.flatnonzero(self._equal)
        out = np.zeros(self.b.shape[1], bool)
        if len(rows):
            matrix = self.a[0, rows] / self._sizes[0, rows, None]
            _, triangle, order = qr(matrix.T, mode="economic", pivoting=True)
            rank = int(np.sum(np.abs(np.diagonal(triangle)) > INDEPENDENT))
            out[rows[order[rank:]]] = True
        return out

    # --- the only answers ----------------------------------------------------------------------------------------------

    def _is_one(self, u: Stack, z: Stack) -> Bool[np.ndarray, " k"]:
        """Where y is the only answer: H is positive definite in y, or the rows that hold are beyond doubt and determine u."""
        one = self._regular
        if one.all() or not self[0].polyhedral:
            return one
        slack = (_times(self.a, u) + self.b) / self._row_scale(u)
        multiplier = z * self._sizes / self._force(u, z)[:, None]
        held = self._equal | (multiplier > STRICT)
        strict = (held | (slack > STRICT)).all(axis=1)
        rows = np.where(held[..., None], self.a / self._sizes[..., None], 0.0)
        off = np.eye(held.shape[1]) * ~held[:, None, :]
        system = np.concatenate(
            [np.concatenate([self.h, -_turned(rows)], axis=2), np.concatenate([rows, off], axis=2)], axis=1
        )
        return one | (strict & (np.linalg.cond(system) < CONDITION))

    @cached_property
    def _regular(self) -> Bool[np.ndarray, " k"]:
        h = self.h[:, : self.size, : self.size]
        stiff = np.sqrt(np.maximum(np.diagonal(h, axis1=1, axis2=2), 0.0))
        curved = (stiff > 0).all(axis=1)
        stiff = np.where(stiff > 0, stiff, 1.0)
        scaled = h / stiff[:, None, :] / stiff[:, :, None]
        return np.asarray(curved & (np.linalg.eigvalsh(0.5 * (scaled + _turned(scaled)))[:, 0] > REGULAR))


def _second_order(v: Float[np.ndarray, "k m"]) -> Stack:
    """The nearest points of the second-order cone."""
    t, w = v[:, :1], v[:, 1:]
    size = np.linalg.norm(w, axis=1, keepdims=True)
    mean = 0.5 * (t + size)
    between = np.concatenate([mean, mean * w / np.where(size > 0, size, 1.0)], axis=1)
    return np.where(size <= t, v, np.where(size <= -t, 0.0, between))


def _second_order_slope(v: Float[np.ndarray, "k m"]) -> Stack:
    t, w = v[:, :1, None], v[:, 1:]
    size = np.linalg.norm(w, axis=1)[:, None, None]
    unit = w / np.where(size > 0, size, 1.0)[:, 0]
    outer = unit[:, :, None] * unit[:, None, :]
    between = np.full((len(v), v.shape[1], v.shape[1]), 0.5)
    between[:, 0, 1:], between[:, 1:, 0] = 0.5 * unit, 0.5 * unit
    between[:, 1:, 1:] = 0.5 * ((1.0 + t / np.where(size > 0, size, 1.0)) * (np.eye(w.shape[1]) - outer) + outer)
    return np.where(size <= t, np.eye(v.shape[1]), np.where(size <= -t, 0.0, between))


def _times(matrices: Stack, vectors: Stack) -> Stack:
    return np.asarray((matrices @ vectors[..., None])[..., 0])


def _turned(matrices: Stack) -> Stack:
    return matrices.swapaxes(1, 2)
