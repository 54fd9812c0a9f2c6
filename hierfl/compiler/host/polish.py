"""Newton's method on the optimality conditions of a program over cones, from an answer that is rough, or of another solver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from scipy.linalg.lapack import dgecon, dgetrf, dgetrs

from hierfl.compiler.host.cones import blocks, dual_slope, project_dual
from hierfl.compiler.host.rows.followers import followers
from hierfl.compiler.host.standard_form import NONNEGATIVE, ZERO

if TYPE_CHECKING:
    from hierfl.compiler.host.cone_program import ConeProgram

STEPS, ROUNDING = 12, 1e-15
GOOD = 1e-9  # the error from which cones with faint multipliers are let go
SINGULAR = 1e-12  # the reciprocal condition number of systems that count as singular
FAINT = 1e-5  # of the largest multiplier, below which a cone's may be none

Vector = Float[np.ndarray, " width"]
Rows = Float[np.ndarray, " rows"]


@dataclass(frozen=True, eq=False)
class Polish:
    """Steps of Newton's method for one program."""

    program: ConeProgram

    def best(self, u: Vector, z: Rows, patience: int = 2) -> tuple[Vector, Rows]:
        """The best of some steps of Newton's method on the conditions; it ends where they help no more, often."""
        program = self.program
        best, error = (u, z), program.error(u, z)
        last, risen = best, 0
        for _ in range(STEPS):
            if error <= ROUNDING or risen > patience:
                break
            try:
                last = self._newton(*last)
            except np.linalg.LinAlgError:
                break
            new = program.error(*last)
            if new < error:
                best, error, risen = last, new, 0
            else:
                risen += 1
        return best

    def without_faint(self, pair: tuple[Vector, Rows]) -> tuple[Vector, Rows]:
        """The answer with the cones let go whose multipliers are faint: at a kink a cone may hold without any, which Newton's method misses."""
        program = self.program
        u, z = pair
        if program.polyhedral or program.error(u, z) <= GOOD:
            return pair
        kept = np.repeat(
            [_size(z[r]) > FAINT * _size(z) for _, r in blocks(program.cones)], [c.size for c in program.cones]
        )
        other = u, np.where(kept, z, 0.0)
        for _ in range(3):
            other = self._newton(*other, kept)
        return min(pair, other, key=lambda one: program.error(*one))

    def _newton(self, u: Vector, z: Rows, kept: np.ndarray | None = None) -> tuple[Vector, Rows]:
        """One step on H u + g - A' z = 0, z - P(z - t (A u + b)) = 0, with t in z's units; z is 0 on rows that are not kept."""
        program = self.program
        if program.polyhedral:
            return self._on_active_rows(u, z)
        unit = self._weights(u, z)
        e = unit * (program.a @ u + program.b)
        slope, goal = dual_slope(program.cones, z - e), project_dual(program.cones, z - e)
        if kept is not None:
            slope, goal = slope * kept[:, None], goal * kept
        system = np.block([[program.h, -program.a.T], [slope @ (unit[:, None] * program.a), np.eye(len(z)) - slope]])
        right = -np.concatenate([program.h @ u + program.g - program.a.T @ z, z - goal])
        step = _solved(system, right)
        return u + step[: len(u)], z + step[len(u) :]

    def _weights(self, u: Vector, z: Rows) -> Rows:
        """What a row's slack is multiplied by to be weighed against its multiplier."""
        program = self.program
        weights = program.force_at(u, z) / (
            program.sizes * (np.abs(program.a) @ np.abs(u) + np.abs(program.b) + program.sizes)
        )
        e = program.a @ u + program.b
        for cone, place in blocks(program.cones):
            if cone.kind not in (ZERO, NONNEGATIVE) and (pulls := _size(z[place])) > 0:
                weights[place] = np.clip(pulls / max(_size(e[place]), 1e-300), 1e-6, 1e6)
            elif cone.kind not in (ZERO, NONNEGATIVE):
                weights[place] = weights[place].min()
        return weights

    def _on_active_rows(self, u: Vector, z: Rows) -> tuple[Vector, Rows]:
        """The solution on the rows that hold: whose multiplier outweighs what is left of the row, as primal-dual methods choose them."""
        program = self.program
        size = np.abs(program.a) @ np.abs(u) + np.abs(program.b) + program.sizes
        left = (program.a @ u + program.b) / size
        held = program.equal | (z * program.sizes / program.force_at(u, z) > np.where(left < -ROUNDING, left, 0.0))
        rows = program.a[held] / program.sizes[held, None]
        scaled = z[held] * program.sizes[held]
        force = -(program.h @ u + program.g - rows.T @ scaled)
        longest = 1e3 * (1 + np.abs(u).max(initial=0.0) + np.abs(scaled).max(initial=0.0))
        du, dz = _apart(program.h, rows, force, -(rows @ u + program.b[held] / program.sizes[held]), longest)
        new = np.zeros_like(z)
        new[held] = (scaled + dz) / program.sizes[held]
        return u + du, new


def _apart(h: np.ndarray, rows: np.ndarray, force: Vector, missing: Rows, longest: float) -> tuple[Vector, Rows]:
    """(du, dz) with H du - R'dz = force, R du = missing, once entries that follow others are left out."""
    entries, chosen = followers(h, rows, np.ones(len(rows), bool))
    if not len(entries):
        return _step(h, rows, force, missing, longest)
    dz, du, pivots = np.zeros(len(rows)), np.zeros(len(h)), rows[chosen, entries]
    dz[chosen] = -force[entries] / pivots
    rest, others = np.setdiff1d(np.arange(len(h)), entries), np.setdiff1d(np.arange(len(rows)), chosen)
    inside, across = h[np.ix_(rest, rest)], rows[np.ix_(others, rest)]
    du[rest], dz[others] = _step(inside, across, (force + rows.T @ dz)[rest], missing[others], longest)
    du[entries] = (missing - rows @ du)[chosen] / pivots
    return du, dz


def _step(h: np.ndarray, rows: np.ndarray, force: Vector, missing: Rows, longest: float) -> tuple[Vector, Rows]:
    """(du, dz) with H du - R'dz = force, R du = missing; the shortest where there are several, or would be without rounding."""
    count, width = rows.shape
    system = np.block([[h, -rows.T], [rows, np.zeros((count, count))]])
    right = np.concatenate([force, missing])
    try:
        step = np.linalg.solve(system, right)
        if not np.isfinite(step).all() or np.abs(step).max(initial=0.0) > longest:
            raise np.linalg.LinAlgError
    except np.linalg.LinAlgError:
        step = _shortest(system, right, 1e-13)
    return step[:width], step[width:]


def _solved(system: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The solution, that of least norm where the system is singular: a singular value decomposition takes fifty times as long."""
    finite = np.isfinite(system).all()
    columns = np.abs(system).max(axis=0)
    scaled = system / np.where(columns > 0, columns, 1.0)
    factors, pivots, failed = dgetrf(scaled) if finite else (system, None, True)
    if not failed and dgecon(factors, np.abs(scaled).sum(axis=0).max())[0] > SINGULAR:
        return dgetrs(factors, pivots, right)[0] / columns
    return _shortest(system, right, 1e-14)


def _shortest(system: np.ndarray, right: np.ndarray, rcond: float) -> np.ndarray:
    """The solution of least norm; NaN where an entry is infinite or none, of which LAPACK complains to the terminal."""
    if not (np.isfinite(system).all() and np.isfinite(right).all()):
        return np.full(system.shape[1], np.nan)
    return np.linalg.lstsq(system, right, rcond=rcond)[0]


def _size(v: np.ndarray) -> float:
    return float(np.linalg.norm(v))
