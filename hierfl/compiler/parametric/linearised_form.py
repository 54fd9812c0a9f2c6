"""Equilibria of smooth maps that are not affine: affine ones over the same rows and cones, one after another (Josephy, 1979).

F is asked for in the compiled program, which has x and the data; what is here has the numbers F(y) and F'(y) at one y after another. The
model at v is F(v) + F'(v) (y - v) + weight (y - c). With a weight that goes to 0 with the error of the conditions this is Newton's method.
Where a step of it leads no nearer the weight grows, until y is a proximal step from c to within half its length: then c moves by what
the pair says of F, which leads to a solution of every monotone map that has one (Solodov and Svaiter, 1999).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jax import Array

from hierfl.compiler.parametric.level_form import LevelForm, Thetas
from hierfl.compiler.programs.convex_program import EMPTY, FAILED, GOOD, SOLVED, ConvexProgram, ProgramSolution
from hierfl.compiler.programs.response import Adjoint
from hierfl.compiler.programs.saddle import Saddles
from hierfl.compiler.programs.small_and_sparse import is_dense, largest, on_one_thread, placed
from hierfl.compiler.programs.solve_program import innermost, on_bounds, polished, solve_program
from hierfl.jaxtools.host_callback import numbers_on_host

ON_ITS_WAY = -1  # a status
MODELS = 100  # at most
HALF = 0.5  # of an error, and of a step's length
LIGHT, HEAVY = 1e-10, 1e-3  # weights of Newton's steps, of the largest slope
FEW = 3  # steps of Newton's method on what holds, from the last pair
HEAVIER, HEAVIEST = 10.0, 1e12  # by how much a weight grows, and the largest, of the largest slope
EXACT, DIGITS = 1e-12, 1e2  # errors that are made no smaller: in double precision, and in last bits
STANDS = 1e-6  # of the size of u, up to which a step may be the last: where F falls off no y is a solution


class Slope(NamedTuple):
    """F and its Jacobian at a y."""

    force: Any
    jacobian: Any

    @property
    def is_finite(self) -> bool:
        return bool(np.isfinite(self.force).all() and np.isfinite(self.jacobian).all())


@dataclass(frozen=True, eq=False)
class Journey:
    """The pair (u, z) ``ahead``, where F is asked for next, and the one ``here`` that models are made at; ``centre`` is c.

    ``weight`` is that of the model that led ahead, ``floor`` the least that the next one has; ``least`` is the smallest error so far,
    ``error`` that of ``here``; ``took`` says that the pair ahead is ``here`` now.
    """

    ahead: np.ndarray
    here: np.ndarray
    centre: np.ndarray
    weight: float = 0.0
    floor: float = 0.0
    least: float = np.inf
    error: float = np.inf
    count: float = 0.0
    status: float = ON_ITS_WAY
    took: float = 0.0

    @staticmethod
    def length(width: int, height: int, size: int) -> int:
        return 2 * (width + height) + size + len(fields(Journey)) - 3

    @classmethod
    def of(cls, vector: np.ndarray, pair: int, size: int) -> Journey:
        ahead, here, centre, numbers = np.split(vector, [pair, 2 * pair, 2 * pair + size])
        return cls(ahead, here, centre, *map(float, numbers))

    @property
    def vector(self) -> np.ndarray:
        return np.concatenate([np.atleast_1d(getattr(self, field.name)) for field in fields(self)])


@dataclass(frozen=True, eq=False)
class LinearisedForm(LevelForm):
    """Rows and cones, and a map that is taken linear: theta ends with y, F(y) and F'(y)."""

    asks_for_map: ClassVar[bool] = True

    def program(self, thetas: Thetas) -> ConvexProgram:
        *own, y, force, jacobian = thetas
        return _model(self._rows(own), np.asarray(y, float), Slope(force, jacobian))

    def solution(self, thetas: Thetas, program: ConvexProgram, known: Saddles) -> ProgramSolution:
        """The pair of a y that is nearly a solution: its multipliers are those of the nearest point to a step along -F."""
        y, force, jacobian = (np.asarray(part, float) for part in thetas[-3:])
        if not all(np.isfinite(part).all() for part in thetas[-3:]):
            return program.none(FAILED)
        found = solve_program(_nearest(self._rows(thetas[:-3]), y, np.abs(jacobian).max(initial=0.0) or 1.0, force))
        return on_bounds(program, polished(program, found.u, found.z)) if found.solved else found

    def push(self, thetas: Thetas, tangent: Thetas, u: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        force, slack = super().push(thetas[:-3], tangent[:-3], u, z)
        force[: self.size] += tangent[-2]
        return force, slack

    def pull(self, thetas: Thetas, pair: Adjoint, u: np.ndarray) -> Thetas:
        *own, y, _, jacobian = thetas
        return [*super().pull(own, pair, u), np.zeros_like(y), -pair.a[: self.size], np.zeros_like(jacobian)]

    def _rows(self, own: Thetas) -> ConvexProgram:
        return super().program(own)

    # --- in the compiled program -----------------------------------------------------------------------------------

    @staticmethod
    def at(mapping: Callable[[Array], Array], y: Array) -> Thetas:
        """The end of theta at y, where F alone moves with x; traceable."""
        y = jax.lax.stop_gradient(y)
        jacobian, force = jax.jacfwd(lambda v: (mapping(v),) * 2, has_aux=True)(y)
        return [y, force, jax.lax.stop_gradient(jacobian)]

    def found(self, own: Thetas, mapping: Callable[[Array], Array], start: Array) -> Thetas:
        """The end of theta at a solution, NaN where none is found; traceable."""
        size, pair, dtype = self.size, self.base.width + self.base.height, start.dtype
        good, exact = (max(least, DIGITS * float(jnp.finfo(dtype).eps)) for least in (GOOD, EXACT))
        length = Journey.length(self.base.width, self.base.height, size)

        def on_host(vector: np.ndarray, now: Slope, before: Slope, own: Thetas) -> np.ndarray:
            return self.onward(own, Journey.of(vector, pair, size), now, before, good, exact).vector

        def trip(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            vector, old_force, old = state
            _, force, jacobian = self.at(mapping, vector[:size])
            vector = numbers_on_host(on_host, (length,), dtype, vector, Slope(force, jacobian), Slope(old_force, old), own)
            took = vector[-1] > 0
            return vector, jnp.where(took, force, old_force), jnp.where(took, jacobian, old)

        u = np.zeros(length - size)
        first = jnp.concatenate([start, jnp.asarray(Journey(u[size:pair], u[:pair], u[:size]).vector, dtype)])
        none = jnp.zeros((size, size), dtype)
        vector, force, jacobian = jax.lax.while_loop(lambda state: state[0][-2] == ON_ITS_WAY, trip, (first, none[0], none))
        y = jnp.where(vector[-2] == FAILED, jnp.nan, vector[pair : pair + size])
        return [y, force, jacobian]

    # --- on the host -----------------------------------------------------------------------------------------------

    @on_one_thread
    def onward(self, own: Thetas, journey: Journey, now: Slope, before: Slope, good: float, exact: float) -> Journey:
        """The journey a trip later: ``now`` is F at the pair ahead, ``before`` at the one here."""
        if journey.status != ON_ITS_WAY:
            return replace(journey, took=0.0)
        rows, size = self._rows(own), self.size
        journey = replace(journey, count=journey.count + 1, took=0.0)
        u, z = np.split(journey.ahead, [rows.width])
        y = u[:size]
        if journey.count == 1:
            return _begun(journey, solve_program(_nearest(rows, y)), rows.width)
        if journey.error == np.inf and not now.is_finite:  # F has an end there
            if journey.count > 2:
                return replace(journey, status=FAILED)
            return _begun(journey, innermost(rows, y), rows.width)
        error = _model(rows, y, now).error(u, z) if now.is_finite else np.inf
        left = now.force - (rows.a.T @ z)[:size] + journey.weight * (y - journey.centre)
        nearer = error <= HALF * journey.least
        if nearer:
            journey = replace(journey, centre=y, least=error)
        elif now.is_finite and np.linalg.norm(left) <= HALF * journey.weight * np.linalg.norm(y - journey.centre):
            journey = replace(journey, centre=y - left / journey.weight)
        else:
            return self._ahead(rows, replace(journey, floor=journey.weight * HEAVIER), before, good)
        journey = replace(journey, here=journey.ahead, floor=journey.weight / HEAVIER, error=error, took=1.0)
        return self._ahead(rows, journey, now, good if error <= exact or not nearer else 0.0)

    def _ahead(self, rows: ConvexProgram, journey: Journey, slope: Slope, good: float) -> Journey:
        """With the next pair ahead; at its end, where that is here and the error is no more than ``good``."""
        u, z = np.split(journey.here, [rows.width])
        model = _model(rows, u[: self.size], slope)
        scale = largest(model.p) or 1.0
        weight = max(scale * float(np.clip(journey.error, LIGHT, HEAVY)), journey.floor)
        while weight <= HEAVIEST * scale and journey.count <= MODELS:
            step = model.drawn_to(journey.centre, weight)
            found = on_bounds(step, polished(step, u, z, steps=FEW)) if z.any() else step.none(FAILED)
            found = found if found.error <= EXACT else solve_program(step)
            if found.solved:
                stays = float(np.abs(found.u - u).max()) <= STANDS * (1.0 + float(np.abs(u).max()))
                status = SOLVED if stays and journey.error <= good else ON_ITS_WAY
                return replace(journey, ahead=np.concatenate([found.u, found.z]), weight=weight, status=status)
            weight *= HEAVIER
        return replace(journey, status=FAILED)


def _model(rows: ConvexProgram, y: np.ndarray, slope: Slope) -> ConvexProgram:
    """The affine equilibrium that it is like at y."""
    size, place = len(y), np.arange(len(y))
    force, jacobian = np.asarray(slope.force, float), np.asarray(slope.jacobian, float)
    p = placed(jacobian if is_dense(rows.a) else sp.csr_array(jacobian), place, place, (rows.width, rows.width))
    q = np.concatenate([force - jacobian @ y, np.zeros(rows.width - size)])
    return replace(rows, p=p, q=q, curved=p, may_cost=np.arange(rows.width) < size, is_map=True)


def _nearest(rows: ConvexProgram, y: np.ndarray, weight: float = 1.0, force: np.ndarray | float = 0.0) -> ConvexProgram:
    """The program for the nearest point of Y to y - force / weight."""
    slope = Slope(force * np.ones(len(y)), np.zeros((len(y), len(y))))
    return replace(_model(rows, y, slope).drawn_to(y, weight), is_map=False)


def _begun(journey: Journey, start: ProgramSolution, width: int) -> Journey:
    """The journey at its start, a point of Y."""
    if not start.solved:
        return replace(journey, status=EMPTY if start.status == EMPTY else FAILED)
    return replace(journey, ahead=np.append(start.u[:width], np.zeros(len(journey.ahead) - width)))
