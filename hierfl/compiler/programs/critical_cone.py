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
    nearest_of_three,
    seen_by,
    triangle,
)
from hierfl.compiler.programs.convex_program import ConvexProgram
from hierfl.compiler.programs.small_and_sparse import (
    SMALL,
    Entries,
    Matrix,
    entries_at,
    from_entries,
    is_dense,
    stacked,
    together,
)

TURNS = 1e-2  # by which the derivative of a projection differs where there is none
WHOLE = 1e-10  # by how much a projection's derivative may be less than 1 along what holds

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

    So ``select`` d is in the product of ``cones``, equations first, with d' ``bend`` d / 2 as a cost; ``vague`` where the projection has no
    derivative. Of an exponential or a power cone that is itself ``vague`` it is not ``known``.
    """

    select: Matrix
    cones: tuple[Cone, ...]
    bend: Matrix
    vague: bool
    known: bool

    @classmethod
    def of(cls, program: ConvexProgram, u: Float[np.ndarray, " width"], z: Rows, held: np.ndarray, open_: np.ndarray, nothing: float) -> CriticalCone:
        """That of a program at its solution, of which rows are ``held`` and others ``open_``; of cones e and z below ``nothing`` are zero."""
        height = len(z)
        dense = is_dense(program.a) and height**2 <= SMALL
        rows = (ZERO, np.flatnonzero(held)), (NONNEGATIVE, np.flatnonzero(open_))
        parts = [(Cone(kind, len(some)), (np.arange(len(some)), some, np.ones(len(some)))) for kind, some in rows]
        bends: list[Entries] = []
        vague, known = bool(open_.any()), True
        if program.curved_cones:
            reach, force, e = program.row_sizes(u), program.force_size(u, z), program.slack(u)
        for cone, place in program.curved_cones:
            size, unit = reach[place].max(), program.sizes[place].max() / force
            found, bent, between = critical_part(cone, e[place] / size, z[place] * unit, nothing)
            vague |= between
            known &= not (cone.kind in OF_THREE and between)
            parts += [(kind, entries_at(some, 0, place.start)) for kind, some in found]
            bends.append(entries_at(bent / (size * unit), place.start, place.start))
        parts = sorted((part for part in parts if part[0].size), key=lambda part: KINDS.index(part[0].kind))
        select = stacked([(kind.size, own) for kind, own in parts], height, dense)
        bend = from_entries(*together(bends), (height, height), dense)
        return cls(select, tuple(kind for kind, _ in parts), bend, vague, known)

    @property
    def held(self) -> Matrix:
        """The equations of ``select``."""
        return self.select[: sum(cone.size for cone in self.cones if cone.kind == ZERO)]


Found = list[tuple[Cone, SomeRows]]


def critical_part(cone: Cone, e: Rows, z: Rows, nothing: float) -> tuple[Found, np.ndarray, bool]:
    """Of one cone that is no plain rows: (``select`` with its cones, ``bend``, whether it is ``vague``)."""
    if cone.kind in OF_THREE:
        return _of_three(cone, z - e, nothing)
    return (_second_order if cone.kind == SECOND_ORDER else _semidefinite)(cone, e, z, nothing)


def _of_three(cone: Cone, v: Rows, nothing: float) -> tuple[Found, np.ndarray, bool]:
    """From the derivative D of the projection on the dual: dz = D (dz - d), so that d does not move along D's whole directions, and bends along others."""
    sides = [[nearest_of_three(cone, -v + sign * way)[1] for sign in (1, -1)] for way in nothing * np.eye(3)]
    vague = any(float(np.abs(one - other).max()) > TURNS for one, other in sides)
    slope = np.eye(3) - nearest_of_three(cone, -v)[1]
    shares, ways = np.linalg.eigh(0.5 * (slope + slope.T))
    whole = shares >= 1.0 - WHOLE
    some = np.where(whole, 0.0, np.maximum(shares, 0.0) / np.where(whole, 1.0, 1.0 - shares))
    return _equations(ways[:, whole].T), (ways * some) @ ways.T, vague


def _equations(rows: SomeRows) -> Found:
    return [(Cone(ZERO, len(rows)), rows)] if len(rows) else []


def _second_order(cone: Cone, e: Rows, z: Rows, nothing: float) -> tuple[Found, np.ndarray, bool]:
    """The apex, the boundary or the inside, with a multiplier or without."""
    one, flat = np.eye(cone.size), np.zeros((cone.size, cone.size))
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

    i, j = np.nonzero(strong[:, None] & ~inside & (~strong | (np.arange(order) <= np.arange(order)[:, None])))
    found = _equations(seen_by(vectors, i, j))
    if len(between):
        small = triangle(len(between))
        rows = small @ seen_by(vectors, np.repeat(between, len(between)), np.tile(between, len(between)))
        one = Cone(NONNEGATIVE, 1) if len(between) == 1 else Cone(SEMIDEFINITE, len(small), len(between))
        found.append((one, rows))
    i, j = np.nonzero(strong[:, None] & inside)
    across = seen_by(vectors, i, j)
    return found, 2.0 * across.T @ ((of_z[i] / of_e[j])[:, None] * across), bool(len(between))
