"""Solvers of convex programs: ``solve(program) -> ProgramSolution``, as rough as it comes; ``Backend`` says what is asked.

HiGHS (Huangfu and Hall, 2018): linear programs, with a basis, so that vertices are exact; by its simplex method, or interior points where they are large.
DAQP's dual active sets (Arnstrom, Bemporad and Axehill, 2022): dense strictly convex quadratic programs over rows, to rounding.
Clarabel's interior points (Goulart and Chen, 2024): sparse quadratic programs, and cones.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

import clarabel
import daqp
import numpy as np
import scipy.sparse as sp

from hierfl.compiler.programs.cones import EXPONENTIAL, NONNEGATIVE, SECOND_ORDER, ZERO, Cone
from hierfl.compiler.programs.convex_program import EMPTY, FAILED, SOLVED, UNBOUNDED, ConvexProgram, ProgramSolution
from hierfl.compiler.programs.small_and_sparse import as_array, count_in_rows, is_dense, largest_in_rows, rows_scaled
from hierfl.jaxtools.interruption import heed, heeded_unless_within, over, unbroken


class Backend(ABC):
    """A solver: what it says is polished and judged by the conditions, so that it need not be exact.

    A new one is a class here, or anywhere, and an entry of ``BACKENDS``. Rows are ``A u + b`` in ``cones``, in any order: ``program.equal`` and
    ``program.loose`` say which are equations and inequalities, ``program.polyhedral`` that there are no others. z >= 0 at inequalities,
    and P u + q = A' z at a solution. Programs with smooth functions and mappings (``is_map``) are brought to quadratic ones first.
    """

    name: ClassVar[str]
    is_proof: ClassVar[bool] = False  # whether it is believed that there is no solution, without a z or u that shows it

    @abstractmethod
    def applies(self, program: ConvexProgram) -> bool:
        """Whether it can solve this program, and is quick at it."""

    @abstractmethod
    def solve(self, program: ConvexProgram) -> ProgramSolution:
        """A pair to polish, or the reason why there is none: ``EMPTY`` with a z that proves it, ``UNBOUNDED`` with such a u, which are checked, or
        ``FAILED`` (``program.none(FAILED)``). What it raises is raised.
        """


SIMPLEX = 50_000  # numbers in the rows of a linear program, from which interior points and a crossover to a vertex take a fifth of its time


class Highs(Backend):
    """For linear programs: large ones of more rows of several entries than columns, as those of regressions, by their duals, in a tenth of the time.

    Rows and costs are brought to about 1: HiGHS drops small numbers, and its tolerances are absolute.
    """

    name: ClassVar[str] = "HiGHS"
    is_proof: ClassVar[bool] = True  # its basis

    def applies(self, program: ConvexProgram) -> bool:
        return program.linear

    def solve(self, program: ConvexProgram) -> ProgramSolution:
        highspy = _highspy()
        unit, units = _power_of_two(np.abs(program.q).max(initial=0.0)), _power_of_two(largest_in_rows(abs(program.a)))
        a = sp.csc_matrix(rows_scaled(program.a, 1.0 / units))
        program = replace(program, q=program.q / unit, b=program.b / units)
        dual = a.nnz > SIMPLEX and np.count_nonzero(count_in_rows(program.a) > 1) >= program.width
        most, q, b = highspy.kHighsInf, program.q, program.b
        if dual:  # min b'z over A'z = q, z >= 0 where rows are inequalities; its rows' multipliers are -u
            model = _lp(b, np.where(program.equal, -most, 0.0), sp.csc_matrix(a.T), q, q)
        else:  # min q'u over A u + b >= 0, or = 0
            model = _lp(q, np.full(len(q), -most), a, -b, np.where(program.equal, -b, most))
        with _highs() as solver:
            solver.setOptionValue("solver", "simplex" if dual or a.nnz <= SIMPLEX else "ipm")
            solver.passModel(model)
            solver.setOptionValue("threads", 1)
            if solver.run() == highspy.HighsStatus.kError:  # who ran HiGHS in this process before, as CVXPY does, may have it keep more threads
                solver.setOptionValue("threads", 0)
                solver.run()
            status, statuses, solution = solver.getModelStatus(), highspy.HighsModelStatus, solver.getSolution()
            u, z, work = np.array(solution.col_value), np.array(solution.row_dual), int(solver.getInfo().simplex_iteration_count)
        if status == (statuses.kUnbounded if dual else statuses.kInfeasible):
            return program.none(EMPTY)
        if status != statuses.kOptimal:
            return program.none(FAILED)  # another solver has a direction to show
        u, z = (-z, u) if dual else (u, z)
        return ProgramSolution(u, unit / units * z, np.inf, SOLVED, work)


def _power_of_two(sizes: np.ndarray) -> np.ndarray:
    """By which numbers are divided without rounding; 1 for 0."""
    return np.exp2(np.round(np.log2(np.where(sizes > 0, sizes, 1.0))))


@cache
def _highspy() -> Any:
    """The package, after its first solver: that one greets on the process's own output, whatever it is told."""
    import highspy

    output = os.dup(1)
    silence = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(silence, 1)
        highspy.Highs()
    finally:
        os.dup2(output, 1)
        os.close(output)
        os.close(silence)
    return highspy


_FREE: list[Any] = []  # that nobody uses: a new one takes twice as long as small programs do, and none may end with a thread of XLA's, which is none of Python's by then


@contextmanager
def _highs() -> Iterator[Any]:
    """A solver for one program."""
    solver = _FREE.pop() if _FREE else _new_highs()
    try:
        yield solver
    finally:
        solver.clearModel()
        _FREE.append(solver)


def _new_highs() -> Any:
    solver = _highspy().Highs()
    solver.silent()
    solver.setOptionValue("primal_feasibility_tolerance", 1e-10)
    solver.setOptionValue("dual_feasibility_tolerance", 1e-10)
    solver.setOptionValue("small_matrix_value", 1e-12)
    return solver


def _lp(cost: np.ndarray, least: np.ndarray, a: sp.csc_matrix, low: np.ndarray, high: np.ndarray) -> Any:
    highspy = _highspy()
    model = highspy.HighsLp()
    model.num_row_, model.num_col_ = a.shape
    model.col_cost_, model.col_lower_, model.col_upper_ = cost, least, np.full(len(cost), highspy.kHighsInf)
    model.row_lower_, model.row_upper_ = low, high
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_, model.a_matrix_.index_, model.a_matrix_.value_ = a.indptr, a.indices, a.data
    return model


LARGEST = 1_000  # scalars of u: 0.04 s for 500 dense rows
FILLED = 0.1  # of A's entries, from which many of them are dense
FEW = 100  # scalars up to which everything is
STRICT = 1e-10  # of the largest curvature, that the smallest has to be
INFINITE = 1e30  # what DAQP takes for no bound
FIRMER, OF_ONE = 1e-6, 1e-8  # the curvature that flat programs get, whose numbers are about 1, and those that are flat in one entry


class Daqp(Backend):
    """For programs over rows that are dense, and strictly convex but for one entry, such as the bound of linear pieces: that gets a little curvature, of which
    whoever asks polishes the answer free, on the rows that hold.
    """

    name: ClassVar[str] = "DAQP"

    def applies(self, program: ConvexProgram) -> bool:
        width, rows = program.width, len(program.b)
        if not program.polyhedral or width > LARGEST or rows > 4 * LARGEST or program.linear:
            return False
        if width > FEW and not is_dense(program.a) and program.a.nnz < FILLED * width * rows:
            return False
        p, curved = as_array(program.p), self._curved(program)
        if len(curved) < width - 1:
            return False
        try:
            np.linalg.cholesky(p[np.ix_(curved, curved)] - STRICT * np.abs(p).max() * np.eye(len(curved)))
        except np.linalg.LinAlgError:
            return False
        return True

    @staticmethod
    def _curved(program: ConvexProgram) -> np.ndarray:
        return np.flatnonzero(as_array(program.p).any(axis=1))

    def solve(self, program: ConvexProgram) -> ProgramSolution:
        p, a = as_array(program.p)[None], as_array(program.a)[None]
        flat = OF_ONE if len(self._curved(program)) < program.width else 0.0
        u, z, work = daqp_pairs(p, program.q[None], a, program.b[None], program.equal, flat)
        if not np.isfinite(u).all():  # another solver tells why
            return program.none(FAILED)
        return ProgramSolution(u[0], z[0], np.inf, SOLVED, int(work[0]))


def daqp_pairs(
    p: np.ndarray,
    q: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    equal: np.ndarray,
    firmer: float = 0.0,
    is_map: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(u, z, iterations) of dense programs, P (k or 1, width, width), q (k, width), A (k or 1, rows, width), b (k, rows); NaN where none is found.

    ``firmer`` is a little curvature that is added, without which DAQP cannot treat what is flat: the rows that hold are mostly the same.
    With ``is_map`` P need not be symmetric.
    """
    count = len(q)
    sizes = np.sqrt(np.einsum("kij,kij->ki", a, a))
    sizes = np.where(sizes > 0, sizes, 1.0)
    bounds = -b / sizes
    unit = np.maximum(1.0, np.abs(bounds).max(axis=1, initial=0.0))
    stiff, pull = np.abs(p).max(axis=(1, 2), initial=0.0), np.abs(q).max(axis=1, initial=0.0)
    together = len(p) == len(a) == 1 < count and len(equal) > 0 and not is_map
    bent = stiff * unit if together else np.maximum(stiff * unit, pull)  # with which P / stiff stays one matrix
    weight = np.where(bent > 0, bent, np.where(pull > 0, pull, 1.0))
    scale = (unit / weight)[:1] if together else unit / weight
    scaled = np.ascontiguousarray(p * scale[:, None, None] + (firmer * np.eye(q.shape[1]) if firmer else 0.0))
    rows = np.ascontiguousarray(a / sizes[..., None])
    low, costs = np.ascontiguousarray(bounds / unit[:, None]), np.ascontiguousarray(q / weight[:, None])
    u, lam, work = np.full(q.shape, np.nan), np.full(b.shape, np.nan), np.zeros(count, int)
    high, sense = np.where(equal, low, INFINITE), np.where(equal, 5, 0).astype(np.int32)
    model, ready = daqp.Model(), False
    model.settings = {"primal_tol": 1e-12}
    for k in range(count):
        given = costs[k], high[k], low[k], sense
        if together:  # matrices are decomposed once; senses anew: else it would begin where the one before ended
            flag = model.update(None, given[0], None, *given[1:]) if ready else model.setup(scaled[0], given[0], rows[0], *given[1:])[0]
            ready = flag >= 0
            if not ready:
                continue
            found, _, flag, info = model.solve()
        else:
            matrices = scaled[0 if len(scaled) == 1 else k], rows[0 if len(rows) == 1 else k]
            found, _, flag, info = daqp.solve(matrices[0], given[0], matrices[1], *given[1:], is_avi=is_map, primal_tol=1e-12)
        if flag > 0:  # what is returned else may be whatever was in memory
            u[k], lam[k], work[k] = found, info["lam"], info["iterations"]
    return u * unit[:, None], -lam * weight[:, None] / sizes, work


LARGE = 10_000  # rows from which one program is worth all cores


class Clarabel(Backend):
    """For every program."""

    name: ClassVar[str] = "Clarabel"

    def applies(self, program: ConvexProgram) -> bool:
        return True

    def solve(self, program: ConvexProgram) -> ProgramSolution:
        cones = [_of_clarabel(cone) for cone in program.cones]
        upper, rows = sp.csc_matrix(sp.triu(program.p)), -sp.csc_matrix(program.a)
        try:
            solver = clarabel.DefaultSolver(upper, program.q, rows, program.b, cones, _settings(len(program.b)))
            solver.set_termination_callback(lambda _: over())
            with heeded_unless_within(), unbroken():  # what is raised in a callback is lost
                result = solver.solve()
                heed()
        except BaseException as panic:  # Clarabel's own, of eigenvalues that it does not find, is no Exception
            if type(panic).__name__ != "PanicException":
                raise
            return program.none(FAILED)
        status, u, z = str(result.status), np.array(result.x), np.array(result.z)
        finite = np.isfinite(u).all() and np.isfinite(z).all()
        ends = EMPTY if "PrimalInfeasible" in status else UNBOUNDED if "DualInfeasible" in status else SOLVED if finite else FAILED
        return ProgramSolution(u, z, np.inf, ends, int(result.iterations))


def _settings(rows: int) -> clarabel.DefaultSettings:
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.presolve_enable = False
    settings.max_threads = 1 if rows <= LARGE else 0  # all
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-12
    settings.tol_ktratio = 1e-8
    return settings


def _of_clarabel(cone: Cone) -> object:
    if cone.kind == ZERO:
        return clarabel.ZeroConeT(cone.size)
    if cone.kind == NONNEGATIVE:
        return clarabel.NonnegativeConeT(cone.size)
    if cone.kind == EXPONENTIAL:
        return clarabel.ExponentialConeT()
    if cone.share is not None:
        return clarabel.PowerConeT(cone.share)
    return clarabel.SecondOrderConeT(cone.size) if cone.kind == SECOND_ORDER else clarabel.PSDTriangleConeT(cone.order)


OF_ALL = Clarabel()  # asked for rough points of any program
BACKENDS: tuple[Backend, ...] = (Highs(), Daqp(), OF_ALL)  # in the order in which they are asked


def backends_for(program: ConvexProgram) -> list[Backend]:
    """Those that can solve a program, the most suitable first. Raises ``TypeError`` where there is none, or ``BACKENDS`` holds what is none."""
    listed = BACKENDS if isinstance(BACKENDS, (tuple, list)) else (BACKENDS,)
    for entry in listed:
        if not isinstance(entry, Backend):
            what = f"the class {entry.__name__}" if isinstance(entry, type) else repr(entry)
            raise TypeError(f"backends.BACKENDS holds {what}: {BESIDE_OTHERS}.")
    found = [backend for backend in listed if backend.applies(program)]
    if not found:
        kind = "a linear program" if program.linear else "a quadratic program over rows" if program.polyhedral else "a program over curved cones"
        raise TypeError(f"backends.BACKENDS has none for {kind}: {BESIDE_OTHERS}.")
    return found


BESIDE_OTHERS = "it is a tuple of instances of subclasses of Backend, yours beside the others: backends.BACKENDS = (Mine(), *backends.BACKENDS)"


def asked(backend: Backend, program: ConvexProgram) -> ProgramSolution:
    """What a solver says of a program; ``FAILED`` where it denies a solution without a proof. One from elsewhere is given a copy.

    Raises ``TypeError`` for what is no pair of this program.
    """
    if type(backend).__module__ != __name__:
        program = replace(program, **{name: getattr(program, name).copy() for name in ("p", "q", "a", "b")})
    found: Any = backend.solve(program)
    given: Any = type(found).__name__
    if isinstance(found, ProgramSolution):
        u, z = np.asarray(found.u), np.asarray(found.z)
        given = (u.shape, z.shape, found.status) if {u.dtype.kind, z.dtype.kind} <= set("fiu") else f"entries of types {u.dtype} and {z.dtype}"
    if given not in [((program.width,), program.b.shape, status) for status in (SOLVED, EMPTY, UNBOUNDED, FAILED)] or found.status is True:
        raise TypeError(
            f"{type(backend).__name__}.solve gives {given}: it gives ProgramSolution(u, z, error, status) with u {program.q.shape}, z {program.b.shape} "
            f"and one of SOLVED, EMPTY, UNBOUNDED, FAILED, which are 0, 1, 2, 3."
        )
    proofs = {EMPTY: (found.z, program.shows_empty), UNBOUNDED: (found.u, program.shows_unbounded)}
    if backend.is_proof or found.status not in proofs:
        return found
    shown, proves = proofs[found.status]
    return found if np.isfinite(shown).all() and proves(shown) else program.none(FAILED)
