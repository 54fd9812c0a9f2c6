"""Derivatives of y(x) of a lower level on the host, at one place or at many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from hierfl.compiler.host.cone_program import ConeProgram
from hierfl.compiler.host.cone_solution import SEVERAL, SOLVED, ConeSolution
from hierfl.compiler.host.sensitivity import Sensitivity
from hierfl.compiler.host.solution_set import SolutionSet, at_their_limits
from hierfl.compiler.host.standard_form import NONNEGATIVE, SEMIDEFINITE, ZERO, Cone
from hierfl.compiler.lower_level.on_host.place import Place, Places

if TYPE_CHECKING:
    from hierfl.compiler.lower_level.on_host.host_problem import HostProblem


@dataclass(frozen=True, eq=False)
class HostGradients:
    """Those of one problem, from the solutions that it keeps."""

    problem: HostProblem

    def pull(self, place: Place, seed: np.ndarray) -> Float[np.ndarray, " n"]:
        """The gradient in x of seed'y(x); NaN where it does not exist."""
        program, answer = self.problem.solved(place)
        if answer.status != SOLVED:
            return np.full(len(place.x), np.nan)
        if answer.unique == SEVERAL:
            return self._pull_of_selected(place, program, answer, seed)
        gradient = self._pull_at(place, program, answer.u, answer.z, seed)
        if np.isnan(gradient).any() and (u := at_their_limits(program, answer.u, self.problem.form.size)) is not None:
            return self._pull_at(place, program, u, answer.z, seed)
        return gradient

    def _pull_at(
        self, place: Place, program: ConeProgram, u: np.ndarray, z: np.ndarray, seed: np.ndarray
    ) -> Float[np.ndarray, " n"]:
        """The gradient by the rows that hold at a solution."""
        return self._sensitivity(place, program, u, z).gradient(self._whole(program, seed))

    def _whole(self, program: ConeProgram, seed: np.ndarray) -> np.ndarray:
        """A seed of y as one of u, in the program's units."""
        return np.asarray(program.units * np.concatenate([seed, np.zeros(self.problem.form.width - len(seed))]))

    def _sensitivity(self, place: Place, program: ConeProgram, u: np.ndarray, z: np.ndarray) -> Sensitivity:
        """How a solution moves with x."""
        width, height, size = self.problem.form.width, self.problem.form.height, len(place.x)
        n, m = np.zeros(width), np.zeros(height)
        push = self.problem.programs.of("push", self.problem.traced.push, place, n, m, np.zeros(size))
        pull = self.problem.programs.of("pull", self.problem.traced.pull, place, n, m, n, m)
        units = program.units

        def pushed(z: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            force, moved = push(*place.parts, u, z, r)
            return units * force, moved

        return Sensitivity(
            program.in_units(units), u / units, z, pushed, lambda z, v, w: pull(*place.parts, u, z, units * v, w), size
        )

    def pull_each(self, asked: Places, seeds: np.ndarray) -> list[Float[np.ndarray, " n"]]:
        """The gradients at many places for seeds (k, size): those beyond doubt together, each of the others by itself."""
        keys = [key + seed.tobytes() for key, seed in zip(asked.keys, seeds)]
        new = list({key: k for k, key in enumerate(keys)}.values())
        self.problem.solve_each(asked.among(new), np.zeros((len(new), self.problem.form.size)))
        gradients: dict[bytes, np.ndarray] = {}
        for first in range(0, len(new), self.problem.together):
            some = new[first : first + self.problem.together]
            pulled = self._pulled_together(asked.among(some), seeds[some])
            gradients |= {keys[some[k]]: gradient for k, gradient in pulled.items()}
        for k in new:
            if keys[k] not in gradients:
                gradients[keys[k]] = self._pulled_alone(asked[k], asked.keys[k], seeds[k])
        return [gradients[key] for key in keys]

    def _pulled_alone(self, place: Place, key: bytes, seed: np.ndarray) -> Float[np.ndarray, " n"]:
        """The gradient at one of many places: from the solution in their company only where none of its multipliers might be another."""
        program, answer = self.problem.known(key) or self.problem.solved(place)
        if answer.status == SOLVED and answer.unique != SEVERAL:
            sure = self._sensitivity(place, program, answer.u, answer.z).where_sure(self._whole(program, seed))
            if sure is not None and np.isfinite(sure).all():
                return sure
        return self.pull(place, seed)

    def _pulled_together(self, asked: Places, seeds_of_y: np.ndarray) -> dict[int, np.ndarray]:
        """The gradients, by number, of those whose derivative is beyond doubt."""
        solved = [self.problem.known(key) or self.problem.solved(asked[k]) for k, key in enumerate(asked.keys)]
        good = [k for k, (_, answer) in enumerate(solved) if answer.status == SOLVED and answer.unique != SEVERAL]
        if len(good) < 2 or any(cone.kind == SEMIDEFINITE for cone in self.problem.form.cones):
            return {}
        programs, answers = zip(*(solved[k] for k in good))
        if any((program.units != 1.0).any() for program in programs):
            return {}
        first = programs[0]
        unlike = [p for p in programs if p.h is not first.h or p.a is not first.a]
        own = programs if unlike else programs[:1]  # whose H and A are looked at: programs of a family may share them
        stacks = ([p.h for p in own], [p.g for p in programs], [p.a for p in own], [p.b for p in programs])
        family = self.problem.family(map(np.stack, stacks))
        u, z = np.stack([answer.u for answer in answers]), np.stack([answer.z for answer in answers])
        seeds = np.zeros_like(u)
        seeds[:, : self.problem.form.size] = seeds_of_y[good]
        sure, v, w = family.adjoints(u, z, seeds)
        taken = np.flatnonzero(sure)
        if not len(taken):
            return {}
        there = (u[taken], z[taken], v[taken], w[taken])
        places = asked.among([good[k] for k in taken])
        pulled = self.problem.programs.at_each("pulls", self.problem.traced.pull, places, *there)
        return {good[k]: -pulled[at] for at, k in enumerate(taken)}

    def _pull_of_selected(
        self, place: Place, program: ConeProgram, answer: ConeSolution, seed: np.ndarray
    ) -> Float[np.ndarray, " n"]:
        """The gradient where y is chosen among the solutions of a linear program; NaN elsewhere."""
        size, n = self.problem.form.size, len(place.x)
        if self.problem.selection is None or program.h.any() or not program.polyhedral:
            return np.full(n, np.nan)
        sign = 1.0 if self.problem.selection == "optimistic" else -1.0
        several = SolutionSet(program, answer, size)
        order = np.concatenate([np.flatnonzero(several.strong), np.flatnonzero(~several.strong)])
        count = int(several.strong.sum())
        cones = [Cone(ZERO, count), Cone(NONNEGATIVE, len(order) - count)]
        gradient, hessian = self.problem.upper_at(place, answer.u)
        h, g = np.zeros_like(program.h), np.zeros_like(program.g)
        h[:size, :size], g[:size] = sign * hessian, sign * gradient
        among = ConeProgram(h, g - h @ answer.u, program.a[order], program.b[order], cones)
        chosen = among.solve()
        if chosen.status != SOLVED:
            return np.full(n, np.nan)
        width, height = self.problem.form.width, self.problem.form.height
        zero, rows, signed = np.zeros(width), np.zeros(height), np.asarray(sign)
        push = self.problem.programs.of(
            "push selected", self.problem.traced.push_selected, place, zero, rows, np.zeros(n), signed
        )
        pull = self.problem.programs.of(
            "pull selected", self.problem.traced.pull_selected, place, zero, rows, zero, rows, signed
        )

        def full(part: np.ndarray) -> np.ndarray:
            out = np.zeros(height)
            out[order] = part
            return out

        def pushed(z: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            force, moved = push(*place.parts, chosen.u, full(z), r, signed)
            return force, moved[order]

        look = Sensitivity(
            among,
            chosen.u,
            chosen.z,
            pushed,
            lambda z, v, w: pull(*place.parts, chosen.u, full(z), v, full(w), signed),
            n,
        )
        return look.gradient(np.concatenate([seed, np.zeros(width - len(seed))]))
