"""Lower levels that may have several solutions, of which the worst for f is meant (``selection="pessimistic"``).

Where only right-hand sides of linear rows move with x, and costs in what curvature tells of y, the solutions are a polyhedron that moves as those do: f is
continuous, and the worst solution v for an f that is linear in it is told by optimality conditions of its own. Elsewhere f may jump, and have no least value.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hierfl.compiler.lower_level.exact_lower import ExactLower
from hierfl.compiler.programs.cones import NONNEGATIVE, ZERO, rows_of
from hierfl.compiler.programs.smooth_atoms import SQUARE
from hierfl.errors import IncompatibleSolverError
from hierfl.inspect.proved.conditions import Level, place_of, refuse
from hierfl.inspect.proved.polynomials import Entries, Polynomial, Unknowns

TOLD = 1e-12  # of its size: how near a moving cost is to what curvature tells


def told_worst(stage: ExactLower) -> bool:
    """Whether of several solutions the worst for f is meant."""
    level, method = stage.oracles.declaration.lower_level, stage.method
    return level is not None and method is not None and level.selection == "pessimistic" and not method.structure.strict


def _refuse(what: str) -> IncompatibleSolverError:
    return refuse(
        f"{what}, for the worst of several lower solutions that selection='pessimistic' asks for. Make the lower level strictly convex, or leave the "
        "selection out: the best one is meant then."
    )


class TiedLevel(NamedTuple):
    """An owner's level with its u, which begins with so many entries of y, and all its places, of multipliers and slacks too."""

    level: Level
    u: Entries
    size: int
    places: set[int]

    def worst(self, objective: Polynomial, of_all: set[int], unknowns: Unknowns) -> Level:
        """The program over all solutions v, of which u is one, for the largest objective; ``of_all`` are the places of all owners.

        A v solves a convex level if it satisfies the rows, P v is P u, and the rest of the cost is no larger (Mangasarian, A simple characterization of solution
        sets of convex programs, 1988).

        Raises ``IncompatibleSolverError`` where the worst one is told by no such program.
        """
        level, curved = self.level, self._curved()
        if any(cone.kind not in (ZERO, NONNEGATIVE) for cone in level.cones) or any(isinstance(value, Polynomial) for _, _, value in level.matrix):
            raise _refuse("linear rows below, in which x moves right-hand sides alone")
        height, equal = sum(cone.size for cone in level.cones), [row for row in curved if row.any()]
        found = Level([*level.cones, *rows_of(len(equal), 1)], matrix=list(level.matrix), offset=list(level.offset))
        for k, row in enumerate([*equal, -self._plain_costs(np.reshape(equal, (-1, len(self.u))))]):
            found.matrix += [(height + k, int(j), float(row[j])) for j in np.flatnonzero(row)]
            found.offset.append((height + k, Polynomial.sum_of((-float(row[j]), self.u[j]) for j in np.flatnonzero(row))))
        found.linear = [(j, -1.0 * slope) for j, slope in self._slopes(objective, of_all, unknowns).items()]
        return found

    def _curved(self) -> np.ndarray:
        """Rows by which u is told wherever the level's objective is curved."""
        width, smooth = len(self.u), self.level.smooth
        forms = [form for one in smooth for form in one.forms]
        rows = np.zeros((width + len(forms), width))
        entries = [*self.level.quadratic, *((width + k, j, value) for k, form in enumerate(forms) for j, value in form)]
        if any(one.atom is not SQUARE or isinstance(one.weight, Polynomial) for one in smooth) or any(isinstance(value, Polynomial) for _, _, value in entries):
            raise _refuse("an objective below that is at most quadratic, with a curvature that x does not move")
        for i, j, value in entries:
            rows[i, j] += value
        return rows

    def _plain_costs(self, equal: np.ndarray) -> np.ndarray:
        """The linear part of the objective, less what is the same for all solutions."""
        costs: dict[tuple[int, ...], np.ndarray] = {(): np.zeros(len(self.u))}
        for j, value in self.level.linear:
            for places, number in Polynomial.of(value).terms.items():
                costs.setdefault(places, np.zeros(len(self.u)))[j] += number
        plain = costs.pop(())
        for cost in costs.values():
            told = equal.T @ np.linalg.lstsq(equal.T, cost, rcond=None)[0]
            if np.abs(cost - told).max() > TOLD * np.abs(cost).max():
                raise _refuse("linear costs below that x does not move, since f may jump where they change their order, and have no least value")
        return plain

    def _slopes(self, objective: Polynomial, of_all: set[int], unknowns: Unknowns) -> dict[int, Polynomial]:
        """What the objective has of each entry of y that is in it."""
        entries = {place_of(one): k for k, one in enumerate(self.u[: self.size])}
        parts: dict[int, dict[tuple[int, ...], float]] = {}
        behind, bent = {place for places in objective.terms for place in places}, False
        for one in reversed(unknowns.definitions):  # what they mention was there before
            if one.place in behind:
                mentioned = {place for places in one.argument.terms for place in places}
                behind |= mentioned
                bent = bent or bool(mentioned & of_all)
        for places, value in objective.terms.items():
            own = [place for place in places if place in self.places]
            bent = bent or not set(own) <= set(entries) or (bool(own) and sum(place in of_all for place in places) > 1)
            if own and not bent:
                parts.setdefault(entries[own[0]], {})[tuple(place for place in places if place != own[0])] = value
        if bent:
            raise _refuse("f linear in the y of each owner, without prices")
        return {j: Polynomial(part) for j, part in parts.items()}
