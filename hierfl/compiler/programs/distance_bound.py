"""How far an answer can be from the solution, as a theorem about what holds at it rather than a guess from its residual.

Near an answer (u, z) there is a point u + v at which what holds there holds exactly: v is bounded by what is missing, over the
smallest singular value of the rows that hold (with what is bent in them, Kantorovich's theorem for underdetermined systems). Multipliers
in the normals of K there are exactly complementary, so that all that is left is a force r = G(u + v) - A' z; and for a G with
modulus mu,  mu |u + v - u*|^2 <= r'(u + v - u*)  says the rest:  |u - u*| <= |v| + |r| / mu.

Where u has entries beside y (bounds of convex terms) r has to vanish there, which multipliers that are positive can be moved for; the
modulus is then that of a minimum over those entries, and the force counts twice. All rounding of the evaluation is part of the bound.
Rows that depend on each other, up to rounding, are taken to hold together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from scipy.linalg import svd

from hierfl.compiler.programs.cones import NONNEGATIVE, SECOND_ORDER, ZERO, Cone, blocks, project_dual, triangle
from hierfl.compiler.programs.convex_program import ConvexProgram
from hierfl.compiler.programs.small_and_sparse import as_array

DEPENDENT = 1e-13  # of the largest singular value: rows are given to rounding, and so is what they depend on
FIRM = 1e-6  # of the largest multiplier, from which one can be moved to balance what is beside y
FAINT = 1e-12  # of what balances: a cone's multiplier that is left to the force, as none
NARROW = 0.25  # what Kantorovich's theorem asks for
LARGEST = 1_500  # entries of u, beyond which a bound takes seconds and is left unknown
LOOKS = 4  # each with what the last one's v may reach
NEAR = 1e-14  # of how far y would go without what holds: cones' apexes as near as that are better held than what is bent around them

Vector = Float[np.ndarray, " width"]
Rows = Float[np.ndarray, " rows"]


def distance_bound(
    program: ConvexProgram, u: Vector, z: Rows, modulus: float, costs: Sequence[float] | np.ndarray = ()
) -> float:
    """A bound on ||y - y*||, y the first entries of u; infinite where none is proved, and for large programs, whose A and b are exact.

    The ``modulus`` is that of strong monotonicity in y; of a convex cost, of its minimum over the entries of u beside y. ``costs`` are sizes of the cost
    whose gradient is in g: squares leave rounding of 2 |A| |r| in it, with |r| the root of the cost, however much of that cancels in g.
    """
    if not (modulus > 0 and len(u) <= LARGEST and np.isfinite(u).all() and np.isfinite(z).all()):
        return np.inf
    h = as_array(program.curvature(u))
    model = replace(program, p=h, q=program.slope(u) - h @ u, a=as_array(program.a), smooth=None)
    near = NEAR * program.force_size(u, z) / modulus
    stiff = np.abs(h).sum(axis=1).max(initial=0.0)
    formed = _rounding(len(u)) * float(np.sqrt(2.0 * stiff * np.asarray(costs, float)).sum())
    return min(_bound(model, u, z, modulus, program.size, reach, formed) for reach in (0.0, near))


def _bound(program: ConvexProgram, u: Vector, z: Rows, modulus: float, size: int, reach: float, formed: float) -> float:
    """The bound where what is within reach of u holds, and whatever else u might meet on the way; ``formed`` is rounding within g."""
    for _ in range(LOOKS):
        parts = list(_parts(program, u, z, reach))
        held = _Held.all_of([part for part, _ in parts], len(u))
        moved = held.distance()
        if not np.isfinite(moved):
            break
        if all(moved <= margin for _, margin in parts):
            force = _force_left(program, u, held, moved, size, formed)
            return moved + (1.0 if size == len(u) else 2.0) * force / modulus
        reach = 4.0 * moved
    return np.inf


@dataclass(frozen=True)
class _Held:
    """Functions of u that vanish where a block of rows holds: their derivatives, values, rounding of these, and multipliers.

    ``slack`` is how far multipliers may move, ``bend`` bounds second derivatives, ``turn`` how much the normals found are away from
    those where it holds, in A's units; both one number for a block.
    """

    rows: Float[np.ndarray, "k width"]
    values: Float[np.ndarray, " k"]
    noise: Float[np.ndarray, " k"]
    pulls: Float[np.ndarray, " k"]
    slack: Float[np.ndarray, " k"]
    bend: Float[np.ndarray, " k"]
    turn: Float[np.ndarray, " k"]

    @classmethod
    def of(
        cls,
        rows: np.ndarray,
        values: np.ndarray,
        noise: np.ndarray,
        pulls: np.ndarray,
        slack: np.ndarray,
        bend: float = 0.0,
        turn: float = 0.0,
    ) -> _Held:
        """One block's; its bend and its turn stand with its first function."""
        first = np.arange(len(values)) == 0
        return cls(rows, values, noise, pulls, slack, np.where(first, bend, 0.0), np.where(first, turn, 0.0))

    @classmethod
    def none(cls, a: np.ndarray) -> _Held:
        """A block of rows a of which nothing holds."""
        return cls.of(a[:0], *np.zeros((4, 0)))

    @classmethod
    def all_of(cls, parts: list[_Held], width: int) -> _Held:
        parts = [part for part in parts if len(part.values)] or [cls.none(np.zeros((0, width)))]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__dataclass_fields__))

    def distance(self) -> float:
        """How far the nearest point at most is where all of them vanish; infinite where that is not proved."""
        if not len(self.values):
            return 0.0
        left, sizes, right = np.linalg.svd(self.rows, full_matrices=False)
        kept = sizes > DEPENDENT * len(sizes) * sizes.max(initial=0.0)
        if not kept.any():
            return np.inf
        along, smallest = left[:, kept].T @ self.values, float(sizes[kept].min())
        lost, noise = _length(self.values - left[:, kept] @ along), _length(self.noise)
        if lost > noise:
            return np.inf
        step = _length(right[kept].T @ (along / sizes[kept])) + noise / smallest
        bend = _length(self.bend)
        if bend * step > NARROW * smallest:
            return np.inf
        return step if bend == 0.0 else 2.0 * step


def _force_left(program: ConvexProgram, u: Vector, held: _Held, moved: float, size: int, formed: float) -> float:
    """The length of the force on y at a point no further than ``moved``, once firm multipliers balance what they can; or infinite."""
    terms = np.abs(program.p) @ np.abs(u) + np.abs(program.q) + np.abs(held.rows).T @ np.abs(held.pulls)
    noise = _rounding(len(u) + len(held.pulls)) * terms + 2.0 * np.linalg.norm(program.p, axis=1) * moved
    noise[:size] += formed / np.sqrt(size)
    bent = float(np.sum(np.where((held.bend > 0) | (held.turn > 0), _length(held.pulls), 0.0) * (held.bend * moved + held.turn)))
    force = program.p @ u + program.q - held.rows.T @ held.pulls
    firm = held.slack > FIRM * np.abs(held.pulls).max(initial=0.0)
    rows, slack = held.rows[firm], float(held.slack[firm].min(initial=np.inf))
    if size == len(u):
        return min(_length(force) + _length(noise), _across(rows, force, noise, slack)) + bent
    on_y = _length(force[:size]) + _length(noise[:size]) + bent
    bends = np.abs(held.rows[:, size:]).max(axis=0, initial=0.0) > 0
    beside = np.abs(force[size:]) + noise[size:] + np.where(bends, bent, 0.0)
    felt = rows[:, size:].any(axis=0)
    if (beside[~felt] > 0).any():
        return np.inf
    smallest = _smallest(rows[:, size:][:, felt].T)
    shift = _length(beside) / smallest if smallest > 0 else np.inf
    return on_y + _norm(rows[:, :size]) * shift if shift <= slack else np.inf


def _across(rows: np.ndarray, force: Vector, noise: Vector, slack: float) -> float:
    """The force across the rows that are firm: what is along them their multipliers balance, if these can move as far."""
    if not len(rows):
        return np.inf
    _, sizes, right = svd(rows, lapack_driver="gesvd")  # the quicker one gives up on some rows that are alike
    rank = int(np.sum(sizes > DEPENDENT * len(sizes) * sizes.max()))
    if (_length(force) + _length(noise)) > slack * float(sizes[rank - 1]):
        return np.inf
    free = right[rank:]
    return _length(free @ force) + _length(np.abs(free) @ noise)


def _smallest(rows: np.ndarray) -> float:
    """The smallest singular value, infinite without rows; 0 where they depend on each other."""
    if not len(rows):
        return np.inf
    sizes = np.linalg.svd(rows, compute_uv=False)
    return float(sizes[-1]) if len(sizes) == len(rows) and sizes[-1] > DEPENDENT * len(sizes) * sizes[0] else 0.0


def _norm(matrix: np.ndarray) -> float:
    return float(np.linalg.norm(matrix, 2)) if matrix.size else 0.0


def _parts(program: ConvexProgram, u: Vector, z: Rows, reach: float) -> Iterator[tuple[_Held, float]]:
    """(what holds of each block of rows, how far u may go until another part of it does); parts within reach hold."""
    force = program.force_size(u, z)
    for cone, place in blocks(program.cones):
        unit = (
            program.sizes[place] if cone.kind in (ZERO, NONNEGATIVE) else np.full(cone.size, program.sizes[place].max())
        )
        a, b = program.a[place] / unit[:, None], program.b[place] / unit
        e, pulls = a @ u + b, z[place] * unit
        noise = _rounding(len(u)) * (np.abs(a) @ np.abs(u) + np.abs(b))
        if cone.kind in (ZERO, NONNEGATIVE):  # a row without coefficients holds, or there is no answer
            felt = a.any(axis=1)
            a, e, noise, pulls = a[felt], e[felt], noise[felt], pulls[felt]
        if cone.kind == ZERO:
            yield _Held.of(a, e, noise, pulls, np.full(len(e), np.inf)), np.inf
        elif cone.kind == NONNEGATIVE:
            yield _rows_that_hold(a, e, noise, pulls, force, reach)
        elif cone.kind == SECOND_ORDER:
            yield _second_order(a, e, noise, pulls if _length(pulls) > FAINT * force else 0.0 * pulls, reach)
        elif cone.order:
            yield _semidefinite(cone, a, e, noise, pulls if _length(pulls) > FAINT * force else 0.0 * pulls, reach)
        else:
            yield _Held.none(a), -np.inf  # nothing is proved of cones of three rows


def _rows_that_hold(
    a: np.ndarray, e: Rows, noise: Rows, pulls: Rows, force: float, reach: float
) -> tuple[_Held, float]:
    size = np.maximum(noise / np.finfo(float).eps, 1.0)
    held = (pulls / force > e / size) | (e - noise <= reach)
    taken = np.where(pulls > 0, pulls, 0.0)[held]
    margin = float(np.min((e - noise)[~held], initial=np.inf))
    return _Held.of(a[held], e[held], noise[held], taken, taken), margin


def _second_order(a: np.ndarray, e: Rows, noise: Rows, pulls: Rows, reach: float) -> tuple[_Held, float]:
    """The apex, where all rows vanish; the boundary, t = |w| with one normal; or nothing, inside."""
    long = float(np.linalg.norm(a, 2))
    rounding = 2.0 * _length(noise)
    left, pulled = float(e[0] - _length(e[1:])), _length(pulls)
    if left - rounding > np.sqrt(2.0) * long * reach and not pulled > 0:
        return _Held.none(a), (left - rounding) / (np.sqrt(2.0) * long or 1.0)
    if _length(e) <= max(rounding, 2.0 * long * reach) or _length(e[1:]) <= rounding:
        inside = max(float(pulls[0] - _length(pulls[1:])), 0.0)
        kept = pulls if inside > 0 else project_dual([Cone(SECOND_ORDER, len(pulls))], pulls)
        return _Held.of(a, e, noise, kept, np.full(len(e), 0.5 * inside)), np.inf
    radius = _length(e[1:])
    normal = np.concatenate([[1.0], -e[1:] / radius])
    pull = max(0.5 * float(normal @ pulls), 0.0)
    bend = 2.0 * long**2 / radius
    one = np.array([pull])
    return _Held.of((normal @ a)[None], np.array([left]), np.array([rounding]), one, one, bend, 0.0), np.inf


def _semidefinite(cone: Cone, a: np.ndarray, e: Rows, noise: Rows, pulls: Rows, reach: float) -> tuple[_Held, float]:
    """On the null space P of the matrix that holds, what it has there besides its rank, P'EP - P'EQ (Q'EQ)^-1 Q'EP, vanishes."""
    order, basis = cone.order, triangle(cone.order)
    matrix, pulled = ((basis.T @ v).reshape(order, order) for v in (e, pulls))
    long, rounding = float(np.linalg.norm(a, 2)), order * _length(noise)
    scales = max(_length(e), 1e-300), max(_length(pulls), 1e-300)
    values, vectors = np.linalg.eigh(matrix / scales[0] - pulled / scales[1])
    null = values <= (rounding + 2.0 * long * reach) / scales[0]
    p, q = vectors[:, null], vectors[:, ~null]
    inner = q.T @ matrix @ q
    least = float(np.linalg.eigvalsh(inner).min(initial=np.inf)) - rounding
    if not least > 0:
        return _Held.none(a), -np.inf  # not told what holds: nothing is proved
    if not p.shape[1]:
        return _Held.none(a), least / (long or 1.0)
    across = p.T @ matrix @ q
    rest = p.T @ matrix @ p - across @ np.linalg.solve(inner, across.T) if q.shape[1] else p.T @ matrix @ p
    small = triangle(p.shape[1])
    select = small @ np.kron(p, p).T @ basis.T
    values_p, vectors_p = np.linalg.eigh(p.T @ pulled @ p)
    kept = small @ np.ravel((vectors_p * np.maximum(values_p, 0.0)) @ vectors_p.T, order="F")
    count = len(kept)
    bend = 4.0 * long**2 / least if q.shape[1] else 0.0
    turn = 2.0 * long * (_length(np.ravel(across)) + rounding) / least if q.shape[1] else 0.0
    slack = np.full(count, max(float(values_p.min()), 0.0))
    errors = np.full(count, rounding / np.sqrt(count))
    margin = least / (2.0 * long or 1.0)
    return _Held.of(select @ a, small @ np.ravel(rest, order="F"), errors, kept, slack, bend, turn), margin


def _rounding(count: int) -> float:
    """What a sum of so many terms may lose of the sum of their sizes."""
    return (count + 4) * np.finfo(float).eps


def _length(v: np.ndarray) -> float:
    return float(np.linalg.norm(v))
