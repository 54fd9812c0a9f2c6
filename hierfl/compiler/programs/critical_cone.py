"""The directions along which slacks may move that stay in their cones and are orthogonal to their multipliers.

At the apex of all cones these are the slacks themselves that are orthogonal to the multipliers: those of all solutions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from hierfl.compiler.programs.cones import (
    KINDS,
    NONNEGATIVE,
    OF_THREE,
    SECOND_ORDER,
    SEMIDEFINITE,
    ZERO,
    Cone,
    blocks,
    nearest_of_three,
    triangle,
)
from hierfl.compiler.programs.convex_program import ConvexProgram

NOTHING = 1e-7  # of a block's size, and of the forces, below which e and z count as zero: where both are, solvers come no nearer
TURNS = 1e-2  # by which the derivative of a projection differs where there is none

Rows = Float[np.ndarray, " rows"]
SomeRows = Float[np.ndarray, "some rows"]


@dataclass(frozen=True, eq=False)
class CriticalCone:
    """The directions along which a solution may move where cones hold without a multiplier, as rows and smaller cones.

    For z in the normals of K at e (Bonnans and Shapiro, 2000; Bonnans and Ramirez, 2005) a direction d of e is critical where it is tangent
    to K and z'd = 0; and where both e and z are on the boundary of a cone that is round, d'W d / 2 is what its bend costs. Blocks where e
    and z are away from each other's boundary ask for equations alone. The others, where the projection z = P(z - e) has no derivative, ask for

    * d >= 0, of a row; d in the cone itself, where it holds at its apex without a multiplier;
    * d on the ray that is opposite of z, where that is on the boundary at the apex; d on the inner side, at the boundary without a multiplier;
    * of a matrix, the part between the eigenvectors for which neither E nor Z has an eigenvalue to be semidefinite.

    So ``select`` d is in the product of ``cones``, with d' ``bend`` d / 2 as a cost; ``vague`` where the projection has no derivative.
    Of exponential and power cones at their boundary it is not ``known``.
    """

    select: SomeRows
    cones: tuple[Cone, ...]
    bend: Float[np.ndarray, "rows rows"]
    vague: bool
    known: bool

    @classmethod
    def of(
        cls, program: ConvexProgram, u: Float[np.ndarray, " width"], z: Rows, nothing: float = NOTHING
    ) -> CriticalCone:
        """That of a program at its solution, where e and z below ``nothing`` are zero."""
        height = len(z)
        bend, parts, vague, known = np.zeros((height, height)), [], False, True
        reach, force, e = program.row_sizes(u), program.force_size(u, z), program.slack(u)
        for cone, place in blocks(program.cones):
            alone = cone.kind in (ZERO, NONNEGATIVE)
            size, unit = reach[place], program.sizes[place] / force
            if not alone:
                size, unit = size.max(), unit.max()
            if cone.kind in OF_THREE:
                here, pulled = e[place] / size, z[place] * unit
                vague |= _turns(cone, pulled - here, nothing)
                known &= not pulled.any()
                continue
            found, bent, open_ = critical_part(cone, e[place] / size, z[place] * unit, nothing)
            vague |= open_
            if not alone:
                bend[place, place] = bent / (size * unit)
            for kind, some in found:
                wide = np.zeros((len(some), height))
                wide[:, place] = some
                parts.append((kind, wide))
        parts.sort(key=lambda part: KINDS.index(part[0].kind))
        select = np.concatenate([np.zeros((0, height)), *(some for _, some in parts)])
        return cls(select, tuple(kind for kind, _ in parts), bend, vague, known)


Found = list[tuple[Cone, SomeRows]]


def critical_part(cone: Cone, e: Rows, z: Rows, nothing: float) -> tuple[Found, np.ndarray, bool]:
    """Of one cone that is none of three rows: (``select`` with its cones, ``bend``, whether it is ``vague``)."""
    alone = cone.kind in (ZERO, NONNEGATIVE)
    return (_rows if alone else _second_order if cone.kind == SECOND_ORDER else _semidefinite)(cone, e, z, nothing)


def _turns(cone: Cone, v: Rows, nothing: float) -> bool:
    """Whether the derivative of the projection is another one on either side of v."""
    sides = [[nearest_of_three(cone, -v + sign * way)[1] for sign in (1, -1)] for way in nothing * np.eye(3)]
    return any(float(np.abs(one - other).max()) > TURNS for one, other in sides)


def _equations(rows: SomeRows) -> Found:
    return [(Cone(ZERO, len(rows)), rows)] if len(rows) else []


def _rows(cone: Cone, e: Rows, z: Rows, nothing: float) -> tuple[Found, np.ndarray, bool]:
    """Rows that stay, and those that may leave."""
    stays = np.full(cone.size, cone.kind == ZERO) | (z > nothing)
    may = ~stays & (e <= nothing)
    one = np.eye(cone.size)
    leaves = [(Cone(NONNEGATIVE, int(may.sum())), one[may])] if may.any() else []
    return _equations(one[stays]) + leaves, np.zeros(()), bool(may.any())


def _second_order(cone: Cone, e: Rows, z: Rows, nothing: float) -> tuple[Found, np.ndarray, bool]:
    """The apex, the boundary or the inside, with a multiplier or without."""
    one, flat = np.eye(cone.size), np.zeros(())
    length = np.linalg.norm
    at_apex, pulled = length(e) <= nothing, length(z) > nothing
    if at_apex and not pulled:
        return [(cone, one)], flat, True
    if at_apex and z[0] - length(z[1:]) > nothing:
        return _equations(one), flat, False
    if at_apex:
        ray = np.concatenate([[length(z[1:])], -z[1:]])
        ray = ray / length(ray)
        across = np.linalg.svd(ray[None])[2][1:]
        return [*_equations(across), (Cone(NONNEGATIVE, 1), ray[None])], flat, True
    if e[0] - length(e[1:]) > nothing:
        return [], flat, False
    normal = np.concatenate([[1.0], -e[1:] / length(e[1:])])[None]
    if not pulled:
        return [(Cone(NONNEGATIVE, 1), normal)], flat, True
    bend = np.zeros((cone.size, cone.size))
    bend[1:, 1:] = z[0] / length(e[1:]) * (np.eye(cone.size - 1) - np.outer(normal[0, 1:], normal[0, 1:]))
    return _equations(normal), bend, False


def _semidefinite(cone: Cone, e: Rows, z: Rows, nothing: float) -> tuple[Found, np.ndarray, bool]:
    """By common eigenvectors: those of which z has an eigenvalue, those of which e has, and those between."""
    order, basis = cone.order, triangle(cone.order)
    matrix, pull = ((basis.T @ v).reshape(order, order) for v in (e, z))
    _, vectors = np.linalg.eigh(matrix - pull)
    of_e, of_z = (np.einsum("ji,jk,ki->i", vectors, one, vectors) for one in (matrix, pull))
    strong = (of_z > nothing) & (of_z > of_e)
    inside = (of_e > nothing) & ~strong
    between = np.flatnonzero(~strong & ~inside)
    entries = np.einsum("ai,bj->ijab", vectors, vectors).reshape(order, order, -1) @ basis.T  # d, seen by them
    held = [
        entries[i, j] for i in np.flatnonzero(strong) for j in range(order) if not (inside[j] or (strong[j] and j > i))
    ]
    found = _equations(np.array(held).reshape(len(held), cone.size))
    if len(between):
        small = triangle(len(between))
        rows = small @ entries[np.ix_(between, between)].reshape(len(between) ** 2, -1)
        one = Cone(NONNEGATIVE, 1) if len(between) == 1 else Cone(SEMIDEFINITE, len(small), len(between))
        found.append((one, rows))
    bend = np.zeros((cone.size, cone.size))
    for i in np.flatnonzero(strong):
        for j in np.flatnonzero(inside):
            bend += 2.0 * of_z[i] / of_e[j] * np.outer(entries[i, j], entries[i, j])
    return found, bend, bool(len(between))
