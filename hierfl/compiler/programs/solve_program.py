"""From a program to a solution that meets its conditions to rounding: a solver, then Newton's method on what holds, then judgement.

Smooth programs are solved by their quadratic models, one after another, each over the same rows and cones, with a search along the line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import scipy.sparse as sp
from jaxtyping import Bool
from scipy.sparse.linalg import splu

from hierfl.compiler.programs.backends import OF_ALL, asked, backends_for
from hierfl.compiler.programs.cones import (
    NONNEGATIVE,
    SEMIDEFINITE,
    Cone,
    dual_slope,
    middles,
    project_dual,
    rows_of,
    triangle,
)
from hierfl.compiler.programs.convex_program import (
    EMPTY,
    FAILED,
    SOLVED,
    UNBOUNDED,
    ConvexProgram,
    ProgramSolution,
)
from hierfl.compiler.programs.saddle import Saddle, Saddles
from hierfl.compiler.programs.small_and_sparse import (
    Matrix,
    as_array,
    diagonal,
    gram,
    hstack,
    is_dense,
    solved_or_shortest,
    vstack,
    zeros,
)
from hierfl.compiler.programs.smooth_atoms import SmoothTerm
from hierfl.compiler.programs.variational_inequality import solve_map

EXACT = 1e-14  # the error of a pair that is not polished any further
STEPS = 12  # of Newton's method on what holds, at most
MODELS = 100  # quadratic models, at most
FLOOR = 1e-3  # of the largest curvature, that models have at first along forms that have less
ROUGHEST, FAR, FLAT = 1e-13, 1e3, 1e-6  # an error, a size and a curvature from which an infimum may not be attained
ROUGH = 1e-6  # the error of a model's solution that is good enough for a step
MOVING = 1e-5  # of the size of u, up to which a step may be the last but for polishing
STANDS = 1e-11  # of the size of u, that a whole step of Newton's method may still move it where it stands
MISSED = 1e-6  # of the largest bound, by which rows miss each other where no u meets them all
FAINT, TIGHT = 1e-6, 1e-3  # of the forces, up to which a multiplier may be none; and where others do not fit
ALONG, LOST_OF_LENGTH = 1e-9, 1e-2  # of the length of a far u, which rows do not see, and that rounding may move
FEW_BITS = 1e3  # how much more than rounding a step has to change a cost by for it to be asked
PATIENCE = 2  # steps of Newton's method that may lead away while it finds out what holds
CLOSER = 3  # looks at a rough answer from nearer, at most
FEW = 4  # steps of Newton's method from a solution nearby
TIED, CLEAR = 1e-13, 1e-11  # by how much multipliers exceed slacks, in units of their own, where rows do not hold, and where they do
HIDDEN = 1e-13  # of what adds up in curvature, that it has to be
LITTLE = 1e-6  # a curvature, so that a program has one solution
GAIN, OF_STEEP = 1e-4, 0.1  # of what a model promises, that a step has to keep; where a step may lead across a corner and back
BEYOND_ROUNDING = 100.0  # times what rounding may leave
LOST = 1e3  # times what a solution may miss the conditions by, that it may miss them by in units other than those it was told in
LARGE = 1e3  # a size of data, in whose units a program over cones that was not solved is looked at again
DENSE_NEWTON = 700  # unknowns over curved cones, up to which a step is the shortest


def solve_program(program: ConvexProgram, known: Saddles | None = None) -> ProgramSolution:
    """The solution, or the reason why there is none.

    What is ``known`` of programs that differ in their parameters makes it quicker, and no other.
    """
    units = program.units
    if (units == 1.0).all():
        return on_bounds(program, _in_these_units(program, known))
    answer = _in_these_units(program.in_units(units), known)
    answer = replace(answer, u=answer.u * units)
    if answer.status != EMPTY and not (answer.solved and program.error(answer.u, answer.z) <= LOST * program.good):
        plain = _in_these_units(program, known)  # beside an entry with next to no curvature its units hide what all others miss
        if plain.solved:
            answer = plain
        elif answer.solved:
            answer = replace(answer, status=FAILED)
    return on_bounds(program, answer)


def innermost(program: ConvexProgram, y: np.ndarray) -> ProgramSolution:
    """A point as far inside of all cones as their rows are long, or nearly (t, at the end of its u), and then near to y."""
    width, little = program.width, np.where(np.arange(program.width) < program.size, LITTLE, 0.0)
    inner, kept = middles(program.cones, program.sizes)[:, None], np.eye(1, width + 1, width)
    a = vstack([hstack([as_array(program.a), -inner]), -kept])
    q = np.append(np.zeros(width), -1.0)
    q[: program.size] = -LITTLE * y
    p, b, cones = np.diag(np.append(little, 0.0)), np.append(program.b, 1.0), [*program.cones, Cone(NONNEGATIVE, 1)]
    return solve_program(ConvexProgram.of(p, q, a, b, cones, program.size))


def on_bounds(program: ConvexProgram, answer: ProgramSolution) -> ProgramSolution:
    """The solution with what is at a bound at it to the last bit: else a function that is flat there seems to have a slope."""
    rows, columns, values = program.bounds
    if not answer.solved or not len(rows):
        return answer
    held = (answer.z[rows] > 0) | program.equal[rows]
    rows, columns, values = rows[held], columns[held], values[held]
    exact = -program.b[rows] / values
    near = np.abs(answer.u[columns] - exact) <= EXACT * (1.0 + float(np.abs(answer.u).max(initial=0.0)))
    u = answer.u.copy()
    u[columns[near]] = exact[near]
    return replace(answer, u=u)


def _in_these_units(program: ConvexProgram, known: Saddles | None) -> ProgramSolution:
    if known is not None and program.polyhedral and not (program.linear or program.smooth or program.is_map):
        answer = _by_rows(program, known)
        return replace(answer, status=FAILED) if answer.solved and _drifts(program, answer) else answer
    answer = _quadratic(program, None, known=None if program.is_map else known) if program.smooth is None else _smooth(program, known or Saddles())
    if answer.status == FAILED and program.size_of_data > LARGE and not (program.polyhedral or program.smooth):
        size = program.size_of_data  # cones are alike at every size, backends are not
        small = solve_program(replace(program, q=program.q / size, b=program.b / size))
        answer = program.judged(size * small.u, size * small.z, small.work) if small.solved else answer
    return replace(answer, status=FAILED) if answer.solved and _drifts(program, answer) else answer


def _drifts(program: ConvexProgram, answer: ProgramSolution) -> bool:
    """Whether a far y is on the way to infinity: without curvature where interior points stop, or with one that rounding hides beside the slope."""
    u, y = answer.u, answer.u[: program.size]
    if np.abs(y).max(initial=0.0) <= FAR * (1.0 + float(np.abs(program.b / program.sizes).max(initial=0.0))):
        return False
    if not program.polyhedral or program.smooth is not None:
        generic = np.concatenate([y, np.zeros(program.width - program.size)])
        flat = generic @ (program.p @ generic) <= FLAT * float(np.abs(program.slope(u) @ u) + 1e-300)
        falls = -float(program.force(u, answer.z) @ u)  # on the way from 0 through u: at a solution it is nothing but rounding
        goes_on = falls > BEYOND_ROUNDING * np.finfo(float).eps * float(program.force_sizes(u, answer.z) @ np.abs(u))
        return (answer.error > ROUGHEST and bool(flat or goes_on)) or (program.smooth is not None and _is_lost_along(program, answer))
    falls, most = float((program.a.T @ answer.z - program.q) @ u), float(np.abs(u) @ (abs(program.p) @ np.abs(u)))
    return most > 0.0 and falls > 0.0 and (falls <= HIDDEN * most or abs(float(u @ program.force(u, answer.z))) > 0.1 * falls)


def _is_lost_along(program: ConvexProgram, answer: ProgramSolution) -> bool:
    """Whether rounding of forces moves u along itself by much of its length: no row with a price says how far it is, nor does curvature."""
    u, priced = answer.u, program.a[np.abs(answer.z) > 0.0]
    if np.abs(np.asarray(priced @ u)).max(initial=0.0) > ALONG * np.abs(u).max():
        return False
    bent = float(u @ np.asarray(program.curvature(u) @ u))
    return bool(bent <= np.finfo(float).eps / LOST_OF_LENGTH * program.force_size(u, answer.z) * float(np.abs(u).sum()))


def _quadratic(
    program: ConvexProgram, near: ProgramSolution | None, good: float = 0.0, known: Saddles | None = None
) -> ProgramSolution:
    """The solution of a program without smooth functions, with an error of ``good`` at most, or of rounding; ``known`` are systems over rows."""
    good = max(good, program.good)
    held = program.linear or program.is_held or (not program.polyhedral and len(program.b) > 500)
    if near is not None:  # a multiplier that is more beside what balances than interior points leave
        most = float((near.z * program.sizes)[program.loose].max(initial=0.0))
        held = held or most > FAINT * program.force_size(near.u, near.z)
    nothing_held = np.zeros(program.width), np.zeros(len(program.b)), program.equal
    free = None if held else _at_rows(program, *nothing_held, known)  # the solution if inequalities do not hold with equality
    if free is not None and free.error <= EXACT * 100:
        return free
    best, reason = free if free is not None and free.solved else None, FAILED
    if near is not None:
        moved = polished(program, near.u, near.z, steps=FEW)
        if moved.error <= EXACT * 100:
            return moved
        best = moved if best is None or moved.error < best.error else best
    if program.is_map:
        return solve_map(program, lambda other: _quadratic(other, None), polished)
    for backend in backends_for(program):
        found = asked(backend, program)
        if found.status != SOLVED:
            reason = found.status
            if reason != FAILED:
                break
            continue
        answer = polished(program, found.u, found.z, found.work, known=known)
        if best is None or answer.error < best.error:
            best = answer
        if best.error <= good:
            return replace(best, status=SOLVED)
    if best is not None and program.polyhedral:
        for faint in (FAINT, TIGHT):  # next to a degenerate vertex rows with small multipliers cannot all hold
            among = None if best.solved else _on_face(program, best, faint)
            best = best if among is None else min(best, among, key=lambda one: one.error)
    elif best is not None and not best.solved and not program.polyhedral:
        best = _looked_at_nearer(program, best)
    if reason == FAILED and program.polyhedral and _is_empty(program):
        reason = EMPTY
    return program.none(reason) if best is None or (not best.solved and reason != FAILED) else best


def _on_face(program: ConvexProgram, answer: ProgramSolution, faint: float) -> ProgramSolution | None:
    """The best of what is left open by rows with multipliers, not ``faint`` ones, and by curvature, for the forces that these leave: a linear program.

    Where these forces are faint, next to a tie, interior points stop before they have come to its vertex.
    """
    u, z = answer.u, answer.z
    strong = program.equal | (program.loose & (z * program.sizes > faint * program.force_size(u, z)))
    left = program.force(u, np.where(strong, z, 0.0))
    size = float(np.abs(left).max(initial=0.0))
    if not size or program.linear:
        return None
    curved = program.flat_along(u)
    pinned = vstack([curved, program.a[strong]])
    a = vstack([pinned, program.a[~strong]])
    b = np.concatenate([-np.asarray(pinned @ u), program.b[~strong]])
    cones = rows_of(pinned.shape[0], int((~strong).sum()))
    vertex = _quadratic(ConvexProgram.flat(left / size, a, b, cones, program.size), None)
    if not vertex.solved:
        return None
    multipliers, first = np.where(strong, z, 0.0), curved.shape[0]
    multipliers[strong] += size * vertex.z[first : pinned.shape[0]]
    multipliers[~strong] = size * vertex.z[pinned.shape[0] :]
    return polished(program, vertex.u, multipliers)


def _looked_at_nearer(program: ConvexProgram, answer: ProgramSolution) -> ProgramSolution:
    """The answer made better by the same program around it, in units of what is left: a cone far smaller than its rows is seen so."""
    for _ in range(CLOSER):
        nearer = program.around(answer.u, answer.error)
        found = OF_ALL.solve(nearer)
        if found.status != SOLVED:
            break
        better = polished(program, answer.u + answer.error * found.u, found.z, answer.work + found.work)
        if not better.error < 0.5 * answer.error:
            break
        answer = better
    return answer


def _is_empty(program: ConvexProgram) -> bool:
    """Whether the rows miss each other, in units in which their bounds are about 1: by least squares."""
    unit = float(np.abs(program.b).max(initial=0.0))
    if unit == 0.0:
        return False
    count, width = len(program.b), program.width
    a = hstack([program.a, diagonal(program.sizes, program.a)])
    p = diagonal(np.concatenate([np.full(width, 1e-12), np.ones(count)]), program.p)
    nearest = ConvexProgram(p, np.zeros(width + count), a, program.b / unit, program.cones, width, p)
    found = OF_ALL.solve(nearest)
    return found.status == SOLVED and float(np.abs(found.u[width:]).max(initial=0.0)) > MISSED


# --- smooth programs -------------------------------------------------------------------------------------------------


def _smooth(program: ConvexProgram, known: Saddles) -> ProgramSolution:
    """Newton's method: quadratic models, whose curvature has a floor that goes, and steps along which the objective falls."""
    assert program.smooth is not None
    start = inside(program, known)
    if isinstance(start, int):
        return program.none(start)
    u, floor, away, moved, stood = start, FLOOR, 0, np.inf, False
    last: ProgramSolution | None = None
    best = program.none(FAILED)
    feasible = any(True for _ in program.smooth.barriers)
    for count in range(MODELS):
        finer = ROUGH if last is None else min(ROUGH, 0.01 * program.error(u, last.z))  # a model that calls u its solution is a standstill
        step = _quadratic(program.model(u, _curvature(program, u, floor)), last, finer)
        if not step.solved and not step.error <= ROUGH:
            if step.status == UNBOUNDED and floor < 1.0 and away < 3:  # the model is too flat, or the program is
                floor, away = max(1.0, 1e3 * floor), away + 1
                continue
            return program.none(step.status)
        if not feasible and not program.cost(step.u) <= program.cost(u) + abs(float(program.slope(u) @ (step.u - u))):  # much too far
            rows = program.a, program.b, program.cones, program.size
            near = _quadratic(ConvexProgram.of(diagonal(np.ones(program.width), program.p), -u, *rows), None, ROUGH)
            if near.solved:
                u, feasible = near.u, True
                continue
        way = step.u - u
        length = _step_length(program, u, way, step.z) if feasible else 1.0
        feasible = True
        u, last, floor = u + length * way, step, 0.1 * floor
        moved = float(np.abs(length * way).max(initial=0.0)) / (1.0 + float(np.abs(u).max(initial=0.0)))
        if moved <= MOVING or length == 0.0:
            answer = polished(program, u, step.z, count)
            settled = answer.error > 0.1 * best.error  # another model makes it no better
            best = min(best, answer, key=lambda one: one.error)
            if best.error <= EXACT * 100 or (settled and best.solved):
                return best
            if length == 0.0 or (moved == 0.0 and stood):
                break
            stood = moved == 0.0
            stands = moved <= STANDS and length == 1.0 and step.error <= program.good
            if stands and not program.smooth.steep:  # where curvature vanishes at the solution, forces do not balance: they vanish
                return replace(best, error=moved, status=SOLVED)
        if float(np.abs(u).max(initial=0.0)) > 1e15:
            return program.none(UNBOUNDED)
    z = last.z if last is not None else np.zeros(len(program.b))
    answer = min(best, polished(program, u, z, MODELS), key=lambda one: one.error)
    if not answer.solved:
        without = polished(program, program.smooth.without_traces(u), z, MODELS)
        without = program.judged(program.smooth.without_traces(without.u), without.z, MODELS)
        answer = min(answer, without, key=lambda one: one.error)
    return replace(answer, status=FAILED) if moved > MOVING else answer  # on its way to an infimum that nobody attains


def _step_length(program: ConvexProgram, u: np.ndarray, way: np.ndarray, z: np.ndarray) -> float:
    """How much of a step keeps some of what it promises; 0 where rounding leaves nothing.

    Beside an infinite curvature forces tell more than a cost does, of which such a step changes the last bits.
    """
    assert program.smooth is not None
    here, slope = program.cost(u), float(program.slope(u) @ way)
    length, steep = program.smooth.reach(u, way), program.smooth.steep
    noise, gain = 1e-15 * (1.0 + abs(here)), OF_STEEP if steep else GAIN
    by_force = steep and abs(slope) <= FEW_BITS * noise
    error = program.error(u, z) if by_force else np.inf
    for _ in range(60):
        there = u + length * way
        if by_force:
            if program.error(there, z) <= (1.0 - OF_STEEP * length) * error:
                return length
        elif program.cost(there) <= here + gain * length * min(slope, 0.0) + noise:
            return length
        length *= 0.5
    return 0.0


def _curvature(program: ConvexProgram, u: np.ndarray, floor: float) -> Matrix:
    """Second derivatives, with a floor along the forms of smooth functions."""
    assert program.smooth is not None
    curvature = program.curvature(u, floor)
    moderate = (float(np.abs(term.curvature(u)).max(initial=0.0)) for term in program.smooth.terms if not term.atom.steep)
    most = max(moderate, default=0.0)
    if floor < 1e-12:
        return curvature
    for term in program.smooth.terms:
        if term.block == 1:
            own = np.abs(term.curvature(u)[:, 0, 0])
            lacking = np.where(term.weight != 0, np.maximum(floor * (most or 1.0) - own, 0.0), 0.0)
            curvature = curvature + gram(term.form, lacking)
    return curvature


def inside(program: ConvexProgram, known: Saddles) -> np.ndarray | int:
    """A point of the domain: where every argument of a barrier is as large as it can be, up to 1; or why there is none."""
    assert program.smooth is not None
    ends = [part for term in program.smooth.barriers for part in _ends(term)]
    if not ends:
        return np.zeros(program.width)
    domain = [program.a, program.b, *(part for end in ends for part in end[:3])]
    u, status = known.inside(domain, lambda: _deepest(program, ends))
    return (u if np.isfinite(program.cost(u)) else FAILED) if status == SOLVED else status


def _deepest(program: ConvexProgram, ends: list[tuple[Matrix, np.ndarray, Matrix, list[Cone]]]) -> tuple[np.ndarray, int]:
    """(that point, whether it was found)."""
    width, count = program.width, sum(middles.shape[1] for _, _, middles, _ in ends)
    form, shift = vstack([rows for rows, _, _, _ in ends]), np.concatenate([shift for _, shift, _, _ in ends])
    room = hstack([form, -sp.csr_array(sp.block_diag([middles for _, _, middles, _ in ends]))])
    rows = hstack([program.a, zeros(len(program.b), count, program.a)])
    most = hstack([zeros(count, width, form), -diagonal(np.ones(count), form)])
    a = vstack([rows, room, most])
    b = np.concatenate([program.b, shift, np.ones(count)])
    q = np.concatenate([np.zeros(width), -np.ones(count)])
    p = diagonal(np.full(width + count, 1e-6), program.p)  # a little of everything, so that there is one such point
    cones = [*program.cones, *(cone for *_, own in ends for cone in own), Cone(NONNEGATIVE, count)]
    deepest = ConvexProgram(p, q, a, b, cones, program.size, p)
    found = OF_ALL.solve(deepest)  # anywhere inside will do
    if found.status != SOLVED or not np.isfinite(program.cost(found.u[:width])):
        found = _quadratic(deepest, None)
    return found.u[:width], found.status


def _ends(term: SmoothTerm) -> Iterator[tuple[Matrix, np.ndarray, Matrix, list[Cone]]]:
    """(rows, shifts, columns of what is in the middle, cones) that say where the arguments of a barrier are inside."""
    counted = np.repeat(term.weight != 0, term.block)
    form, shift, order = term.form[counted], term.shift[counted], int(np.sqrt(term.block))
    if not term.atom.of_matrices:
        if len(shift):
            yield form, shift, sp.eye_array(len(shift), format="csr"), [Cone(NONNEGATIVE, len(shift))]
        return
    upper = triangle(order)
    cone = Cone(SEMIDEFINITE, len(upper), order) if order > 1 else Cone(NONNEGATIVE, 1)
    for k in range(len(shift) // term.block):
        some = slice(k * term.block, (k + 1) * term.block)
        own = upper @ (form[some] if is_dense(form) else form[some].toarray())
        yield own if is_dense(form) else sp.csr_array(own), upper @ shift[some], (upper @ np.ravel(np.eye(order)))[:, None], [cone]


# --- what holds ------------------------------------------------------------------------------------------------------


def _by_rows(program: ConvexProgram, known: Saddles) -> ProgramSolution:
    """The solution over rows, by those that held nearby if they still tell it, and then to the last bit what it is without them."""

    def at(held: np.ndarray) -> ProgramSolution | None:
        """The only pair at these rows, if there is one."""
        start = np.zeros(program.width), np.zeros(len(program.b))
        return _at_rows(program, *start, held, known) if known.at(program.p, program.a, held).is_regular else None

    def told_by(held: np.ndarray | None) -> ProgramSolution | None:
        """The pair that these rows lead to, if it is the only one and no row may be taken for held or not."""
        for _ in range(FEW):
            if held is None or (pair := at(held)) is None:
                return None
            dual, slack = _pulls(program, pair.u, pair.z)
            loose, apart = program.loose & program.seen, dual - slack
            last, held = held, program.equal | (loose & (apart > CLEAR))
            if (held == last).all():
                clear = pair.error <= EXACT * 100 and not (loose & (apart > TIED) & ~held).any()
                known.held = held if clear else known.held
                return pair if clear else None
        return None

    pair = told_by(known.held if known.held is not None and known.held.shape == program.b.shape else None)
    if pair is not None:
        return pair
    answer = _quadratic(program, None, known=known)
    pair = told_by(_held(program, answer.u, answer.z)) if answer.solved else None
    return answer if pair is None else pair


def _at_rows(
    program: ConvexProgram, u: np.ndarray, z: np.ndarray, held: Bool[np.ndarray, " rows"], known: Saddles | None
) -> ProgramSolution:
    """The pair at which these rows hold with equality, and no others have multipliers; by steps from (u, z).

    Systems of rows are those that are ``known``, where such are kept.
    """
    if known is None:
        saddle = Saddle(program.curvature(u), program.a[held], not program.is_map)
    else:
        saddle = known.at(program.p, program.a, held)
    z = np.where(held, z, 0.0)
    for _ in range(2):
        noise = EXACT * np.append(np.full(program.width, program.force_size(u, z)), program.row_sizes(u)[held])
        step, change, _ = saddle.solve(-program.force(u, z), -program.slack(u)[held], noise)
        u = u + step
        z = z.copy()
        z[held] -= change
    return program.judged(u, z, 1)


def polished(
    program: ConvexProgram, u: np.ndarray, z: np.ndarray, work: int = 0, steps: int = STEPS, known: Saddles | None = None
) -> ProgramSolution:
    """What some steps of a semismooth Newton method on the conditions make of a pair; the best of them."""
    best = program.judged(u, z, work)
    answer, seen, worse = best, set[bytes](), 0
    for _ in range(steps):
        if best.error <= EXACT:
            break
        if program.polyhedral:
            held = _held(program, answer.u, answer.z)
            if held.tobytes() in seen and (
                program.smooth is None or (answer.error > 0.5 * best.error > 0 and answer is not best)
            ):
                break
            seen.add(held.tobytes())
            answer = _at_rows(program, answer.u, answer.z, held, known)
        else:
            answer = _newton_step(program, answer.u, answer.z)
        if not np.isfinite(answer.error):
            break
        if answer.error < best.error:
            answer = best = replace(answer, work=work)
        elif answer.error > 10 * best.error and not (program.polyhedral and program.smooth is None):
            worse += 1
            if worse > PATIENCE:
                break
    return best


def _held(program: ConvexProgram, u: np.ndarray, z: np.ndarray) -> Bool[np.ndarray, " rows"]:
    """Equations, and inequalities whose multiplier is larger than their slack, both in units of their own."""
    dual, slack = _pulls(program, u, z)
    return program.equal | (program.loose & program.seen & (dual > slack))


def _pulls(program: ConvexProgram, u: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(multipliers, slacks), both in units of their own."""
    return z * program.sizes / program.force_size(u, z), program.slack(u) / program.row_sizes(u)


def _newton_step(program: ConvexProgram, u: np.ndarray, z: np.ndarray) -> ProgramSolution:
    """A step on P u + q = A' z and z = Proj(z - (A u + b)), whose derivative is known."""
    scale = program.force_size(u, z) / max(float(program.row_sizes(u).max(initial=0.0)), 1e-300)
    e = scale * program.slack(u)
    miss = z - project_dual(program.cones, z - e)
    right = -np.concatenate([program.force(u, z), miss])
    width, total = program.width, program.width + len(z)
    curvature = program.curvature(u)
    dense = is_dense(program.a) or total <= DENSE_NEWTON
    slope = dual_slope(program.cones, z - e, dense)
    if dense:
        a = as_array(program.a)
        system = np.block([[as_array(curvature), -a.T], [scale * (slope @ a), np.eye(len(z)) - slope]])
        if not np.isfinite(system).all() or not np.isfinite(right).all():  # outside of where a smooth term has a curvature
            return program.judged(u, z, 1)
        units = np.ones(total)  # in which no curvature is so large that what is beside it counts as none
        units[:width] /= np.sqrt(np.maximum(system.diagonal()[:width], 1.0))
        step = units * solved_or_shortest(units[:, None] * system * units, units * right, 1e-13)[0]
    else:
        system = sp.csc_array(
            sp.bmat([[curvature, -program.a.T], [scale * (slope @ program.a), sp.eye_array(len(z)) - slope]])
        )
        firm = sp.csc_matrix(system + 1e-10 * sp.eye_array(total))
        factor, step = splu(firm), np.zeros(total)
        for _ in range(5):
            step = step + factor.solve(right - system @ step)
    return program.judged(u + step[:width], z + step[width:], 1)
