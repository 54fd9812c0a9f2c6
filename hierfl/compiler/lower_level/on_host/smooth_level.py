"""A lower level on the host that is smooth and not quadratic: solved by Newton's method, at one place or at neighbours together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import cvxpy as cp
import numpy as np

from hierfl.compiler.host.cone_program import ConeProgram
from hierfl.compiler.host.cone_solution import FAILED, SOLVED, ConeSolution
from hierfl.compiler.host.cones import middles
from hierfl.compiler.host.families.newton_family import NewtonFamily
from hierfl.compiler.host.smooth.infinite_slopes import around, balancing
from hierfl.compiler.host.smooth.newton import NewtonMethod
from hierfl.compiler.host.standard_form import StandardForm
from hierfl.compiler.lower_level.on_host.averaged_form import AveragedForm
from hierfl.compiler.lower_level.on_host.place import Place, Places
from hierfl.compiler.lower_level.on_host.place_programs import PlacePrograms
from hierfl.compiler.lower_level.on_host.traced_model import TracedModel

FEW = 3  # neighbours, from which on they are worth solving together
PATIENCE, WORTH = (
    3,
    0.02,
)  # answers that lead to less than a share of the others, after which each is looked for by itself

ROUGH = 1e-4  # the error of the nearest point over cones from which Newton's method starts as well
START = 1e-15  # what is nothing of a start, beside 1 and its largest entry: on the way from it to 0 it would be large
LEFT, UNFELT = (
    1e-6,
    1e-6,
)  # of the forces on y, what an answer may leave of them; and forces beside which all is rounding
DOWN = 1e-3  # what takes upper bounds down to what they bound, beside squares of distances
FAR = (10.0, 1e2, 1e3, -10.0, -1e2, -1e3)  # where the objective is defined, but for constraints, is not known

Solved = tuple[ConeProgram, ConeSolution]  # the quadratic model at the solution, and the solution


@dataclass(frozen=True, eq=False)
class SmoothLevel:
    """The cost's smooth part as a force, and the standard form of all else."""

    traced: TracedModel
    programs: PlacePrograms

    @property
    def form(self) -> StandardForm | AveragedForm:
        """What of the lower level is rows and cones."""
        return self.traced.form

    def solve_each(self, asked: Places, starts: np.ndarray) -> list[Solved]:
        """The solutions at many places: where one is solved, Newton's method goes on to the others."""
        answers: dict[int, Solved] = {}
        left, in_vain = list(range(len(asked))), 0
        while left:
            first, *left = left
            answers[first] = self.solve(asked[first], starts[first])
            near = answers[first][1]
            if near.status == SOLVED and len(left) >= FEW and in_vain < PATIENCE:
                reached = self._from(near, asked.among(left))
                answers |= {left[k]: solved for k, solved in reached.items()}
                in_vain = 0 if len(reached) > WORTH * len(left) else in_vain + 1
                left = [k for k in left if k not in answers]
        return [answers[k] for k in range(len(asked))]

    def _from(self, near: ConeSolution, asked: Places) -> dict[int, Solved]:
        """The solutions, by place in the sequence, that full steps of Newton's method lead to from that of a neighbour."""
        reach = self.traced.reach
        curved, linear, a, b = self.programs.at_each("cone models", self.traced.cone_model, asked)

        def whole(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            value, slope = self.programs.at_each("forces", self.traced.force, asked, u[:, :reach])
            h, g = np.array(curved), (curved @ u[..., None])[..., 0] + linear
            h[:, :reach, :reach] += slope
            g[:, :reach] += value
            return g, h

        family = NewtonFamily(whole, a, b, self.form.cones, *self._told)
        answers = family.solve(near)
        u = np.stack([near.u if answer is None else answer.u for answer in answers])
        force, slope = whole(u)
        g = force - (slope @ u[..., None])[..., 0]
        return {
            k: (ConeProgram(slope[k], g[k], a[k], b[k], self.form.cones), answer)
            for k, answer in enumerate(answers)
            if answer is not None
        }

    def solve(self, place: Place, start: np.ndarray | None) -> Solved:
        """The solution at a place, from the feasible point that is nearest to a start, or from others."""
        curved, linear, a, b = self.programs.of("cone model", self.traced.cone_model, place)(*place.parts)
        force = self.programs.of("force", self.traced.force, place, np.zeros(self.traced.reach))
        reach = self.traced.reach

        def whole(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            value, slope = force(*place.parts, u[:reach])
            h = np.array(curved)
            h[:reach, :reach] += slope
            g = curved @ u + linear
            g[:reach] += value
            return g, h

        answer = ConeSolution(np.full(self.form.width, np.nan), np.full(len(b), np.nan), np.inf, FAILED)
        for first in self._starts(start, a, b):
            if first.status != SOLVED and not (first.status == FAILED and first.error <= ROUGH):
                return self._empty_model(a, b), first
            tried = NewtonMethod(whole, a, b, self.form.cones, *self._told).solve(self._begun(first.u))
            if tried.status == SOLVED and self.form.raised and self._is_pulled(whole(tried.u)[0], a.T, tried.z):
                tried = replace(tried, status=FAILED)
            if tried.status == SOLVED or not np.isfinite(answer.u).all():  # a failure tells most where F is finite
                answer = tried
            if answer.status == SOLVED:
                break
        if answer.status != SOLVED:
            return self._empty_model(a, b), answer
        force_there, slope_there = whole(answer.u)
        if self.traced.roots and len(b):
            forces = [force_there, *(whole(v)[0] for v in around(answer.u))]
            answer = replace(answer, z=balancing(a, b, self.form.cones, answer.u, forces, answer.z))
        return ConeProgram(slope_there, force_there - slope_there @ answer.u, a, b, self.form.cones), answer

    @property
    def _told(self) -> tuple[int, bool, bool, int]:
        """What Newton's method is told of u: the size of y, whether there are ends and roots, how many bounds there are."""
        return self.form.size, self.traced.interior, self.traced.roots, self.form.raised

    def _is_pulled(self, force: np.ndarray, rows: np.ndarray, z: np.ndarray) -> bool:
        """Whether a force is left on y: beside forces of 1e28 on bounds, from where a start was, a linear model loses it."""
        left, felt = force - rows @ z, np.abs(force) + np.abs(rows) @ np.abs(z)
        size = self.form.size
        return bool(np.abs(left[:size]).max() > LEFT * max(felt[:size].max(), UNFELT))

    def _begun(self, u: np.ndarray) -> np.ndarray:
        """A start without rounding, where there are bounds."""
        return np.where(np.abs(u) > START * (1.0 + np.abs(u).max()), u, 0.0) if self.form.raised else u

    def _empty_model(self, a: np.ndarray, b: np.ndarray) -> ConeProgram:
        width = self.form.width
        return ConeProgram(np.eye(width), np.zeros(width), a, b, self.form.cones, self.form.bounds)

    def _starts(self, start: np.ndarray | None, a: np.ndarray, b: np.ndarray) -> Any:
        """Feasible points: the nearest to where one starts, then others, of which one may be where F is finite."""
        size, width = self.form.size, self.form.width
        weights = np.diag(np.concatenate([np.ones(size), np.full(width - size, 1e-6)]))
        wanted = [np.zeros(size) if start is None else start, np.ones(size), np.full(size, 0.1), -np.ones(size)]
        if any(_is_square(variable) for variable in self.form.decision):
            wanted.append(np.concatenate([np.ravel(_one(variable)) for variable in self.form.decision])[:size])
        down = np.zeros(width)
        down[size : size + self.form.raised] = DOWN
        for point in wanted:
            g = down - weights @ np.concatenate([point, np.zeros(width - size)])
            yield ConeProgram(weights, g, a, b, self.form.cones, self.form.bounds).solve()
        if len(b) > self.form.equations:
            yield self._inside(a, b)
        for far in FAR:
            g = down - weights @ np.concatenate([np.full(size, far), np.zeros(width - size)])
            yield ConeProgram(weights, g, a, b, self.form.cones, self.form.bounds).solve()

    def _inside(self, a: np.ndarray, b: np.ndarray) -> ConeSolution:
        """A point inside all cones, by as much as 1 in rows' own lengths, where there is one."""
        width = a.shape[1]
        rows = np.hstack([a, -middles(self.form.cones, np.linalg.norm(a, axis=1))[:, None]])
        weights = np.diag(np.append(np.full(width, 1e-6), 1.0))
        found = ConeProgram(weights, np.append(np.zeros(width), -1.0), rows, b, self.form.cones).solve()
        return replace(found, u=found.u[:width])


def _is_square(variable: cp.Variable) -> bool:
    return len(variable.shape) == 2 and variable.shape[0] == variable.shape[1] > 1


def _one(variable: cp.Variable) -> np.ndarray:
    """The identity for a square matrix, whose determinant may have to be positive; ones for others."""
    return np.eye(variable.shape[0]) if _is_square(variable) else np.ones(variable.shape)
