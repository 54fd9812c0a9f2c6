"""SCIP on a single-level program: spatial branch and bound, complementarity as special ordered sets of type 1.

It runs in a process of its own (``scip_process.py``), kept for the next question: its crash is an answer, and it is killed where it does not hear limits or Ctrl-C.
"""

from __future__ import annotations

import atexit
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from multiprocessing import Pipe
from multiprocessing.spawn import get_executable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hierfl.errors import DivergedError, MissingPackageError
from hierfl.inspect.proved.polynomials import Polynomial
from hierfl.inspect.proved.single_level import SingleLevel
from hierfl.jaxtools.interruption import INTERRUPTED, heeded, over, reason
from hierfl.progress import RunProgress

FEASIBILITY = 1e-9  # of rows, bounds and definitions: absolute, or relative where numbers are larger than 1
LISTEN, GRACE = 0.05, 1.0  # seconds between two looks at whether it is to end, and in which it ends by itself when its time is up
ROUGH, SHORT, MARGIN = 1e-2, 0.2, 1e-6  # of a bound: the gap, seconds, and what is added to it
PARTS = 100  # of the digits of the gap, as the bar counts them
LOW, TIMES, LOWEST = 1e4, 10.0, 1e9  # few least values are so low, less so many |f| at the start; none, of 1 + |f| there, is called so low
ROUNDS, FURTHEST = 5, 20  # in which units are found, and the powers of two up to which they go
HIGHEST = 1e7  # a multiplier or slack from which none is called bounded
BOUNDED, NO_POINT, UNBOUNDED, LIMIT, FAILED = "gap reached", "no point", "unbounded", "time limit reached", "SCIP failed"
OTHER_UNITS = {"lp/scaling": 2, "numerics/feastol": 1e-8, "numerics/dualfeastol": 1e-8}
OTHERS: tuple[dict[str, float], ...] = (  # settings to try where linear programs are not solved
    {},
    {"lp/scaling": 0},
    {"randomization/permutevars": True, "randomization/permutationseed": 1},
    {"randomization/permutevars": True, "randomization/permutationseed": 2},
)
WAITING, INFINITE = "waiting", 1e20  # SCIP's own
USUAL = {"numerics/feastol": 1e-6, "numerics/dualfeastol": 1e-7}


class Search(NamedTuple):
    """What a search came to: values of all unknowns (None without a point), SCIP's value there, a bound, and why it ended."""

    values: np.ndarray | None
    value: float
    bound: float
    ended: str
    nodes: int

    @property
    def failed(self) -> bool:
        return self.ended.startswith(FAILED)


class Process:
    """A process for SCIP, asked one thing after another."""

    script = Path(__file__).with_name("scip_process.py")

    def __init__(self) -> None:
        self._channel, theirs = Pipe()
        with theirs:
            command = [get_executable(), "-I", "-S", str(self.script), str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
            )  # its linear programs are told on standard error past all settings; Ctrl-C is heard here
        self._channel.send(sys.path)
        self.ready, self.at_rest = False, True

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def await_ready(self) -> None:
        """Wait until it has loaded SCIP, or has come to an end."""
        if not self.ready:
            self._channel.poll(None)

    def answers(self, request: Mapping[str, Any], until: float) -> Iterator[tuple[Any, ...]]:
        """What it says, ``WAITING`` meanwhile; the last is ``ended``, ``failed``, ``crashed`` or, where it has been cut short, ``limit``."""
        due, self.at_rest = until + GRACE, False
        with suppress(BrokenPipeError):  # of a process that has ended, as is heard next
            self._channel.send(request)
        while True:
            if over():
                due = min(due, time.perf_counter() + (0.0 if reason() == INTERRUPTED else GRACE))
            if time.perf_counter() >= due:
                yield "limit", reason() or LIMIT
                return
            if not self._channel.poll(LISTEN):
                yield (WAITING,)
                continue
            try:
                said = self._channel.recv()
            except (EOFError, ConnectionResetError):
                yield "crashed", f"its process ended abnormally ({self._end()})"
                return
            if said[0] == "ready":
                self.ready = True
                continue
            if said[0] == "fault":
                raise RuntimeError(f"in SCIP's process: {said[1]}")
            self.at_rest = self.ready and said[0] in ("ended", "failed")
            yield said
            if said[0] in ("ended", "failed"):
                return

    def _end(self) -> str:
        code = self._process.wait()
        return signal.Signals(-code).name if code < 0 else f"exit status {code}"

    def close(self) -> None:
        """End it, whatever it is at."""
        self._channel.close()
        self._process.kill()
        self._process.wait()


_AT_REST: list[Process] = []
os.register_at_fork(after_in_child=_AT_REST.clear)  # they are the other process's


@atexit.register
def _close_all() -> None:
    while _AT_REST:
        _AT_REST.pop().close()


@contextmanager
def _process() -> Iterator[Process]:
    """One that was kept, or a new one; kept if it is at rest at the end."""
    process = _AT_REST.pop() if _AT_REST else Process()
    if not process.lives:
        process.close()
        process = Process()
    try:
        yield process
    finally:
        if process.at_rest:
            _AT_REST.append(process)
        else:
            process.close()


@contextmanager
def launched() -> Iterator[None]:
    """Have SCIP loaded, while what is within is done; raises ``MissingPackageError`` without the package pyscipopt."""
    if find_spec("pyscipopt") is None:
        raise MissingPackageError("certificate='global' needs the solver SCIP: pip install 'hierfl[global]'.")
    with _process() as process:
        yield
        process.await_ready()


def _written(program: SingleLevel, units: np.ndarray, opened: float = 0.0, least: float | None = 0.0) -> dict[str, Any]:
    """The program in plain numbers, unknowns in these units and rows times a number, of ``least`` or more, that makes about 1 their largest, or as they are
    (None); ``opened`` is what may be missing in them.
    """
    unknowns = program.unknowns

    def plain(one: Polynomial) -> dict[tuple[int, ...], float]:
        return {tuple(map(int, places)): float(value * np.prod(units[list(places)])) for places, value in one.terms.items()}

    def row(one: Polynomial) -> dict[tuple[int, ...], float]:
        terms = plain(one)
        most = max(map(abs, terms.values()), default=0.0)
        factor = max(2.0 ** -round(math.log2(most)), least) if most > 0 and least is not None else 1.0
        return {places: factor * value for places, value in terms.items()}

    return {
        "low": list(map(float, unknowns.low / units)),
        "high": list(map(float, unknowns.high / units)),
        "whole": list(map(bool, unknowns.whole)),
        "definitions": [(one.place, one.kind, plain(one.argument), float(one.exponent)) for one in unknowns.definitions],
        "equations": list(map(row, program.all_equations)),
        "inequalities": [*map(row, program.inequalities), *map(row, program.implied)],
        "pairs": program.pairs,
        "objective": plain(program.objective),
        "tolerance": FEASIBILITY,
        "opened": opened,
    }


def _units(program: SingleLevel) -> np.ndarray:
    """Powers of two in which unknowns, rows and their constants have numbers of about 1 in the geometric mean, as SCIP's tolerance is absolute. Whole numbers
    and what is defined keep theirs.
    """
    rows = [*program.all_equations, *program.inequalities]
    count = len(program.unknowns.low)
    fixed = np.append(program.unknowns.whole, False)
    fixed[[one.place for one in program.unknowns.definitions]] = True
    entries = [(k, places[0] if places else count, abs(value)) for k, one in enumerate(rows) for places, value in one.terms.items() if len(places) <= 1 and value]
    if not entries:
        return np.ones(count)
    row, column, size = map(np.array, zip(*entries))
    logs, of_columns = np.log2(size), np.zeros(count + 1)
    for _ in range(ROUNDS):
        of_rows = -np.bincount(row, logs + of_columns[column], len(rows)) / np.maximum(np.bincount(row, minlength=len(rows)), 1)
        of_columns = -np.bincount(column, logs + of_rows[row], count + 1) / np.maximum(np.bincount(column, minlength=count + 1), 1)
        of_columns[fixed] = of_columns[count]
    return np.exp2(np.clip(np.round(of_columns[:count] - of_columns[count]), -FURTHEST, FURTHEST))


def searched(
    program: SingleLevel,
    start: np.ndarray | None,
    gap: float,
    until: float,
    show: bool,
    sign: float = 1.0,
    opened: float = 0.0,
    plain: bool = False,
    presolved: bool = True,
) -> Search:
    """The least value of a program, from known values of all unknowns (None: from nowhere); rows may be violated by what is ``opened``. A ``plain`` search,
    without heuristics and cuts, is the quickest where it is short; one that is not ``presolved`` does not take for empty what leaves no room around a point.

    Without complementarity a program may be unbounded that is not with it, of which SCIP then says anything. So where the box does not bound the value
    the larger one of that and of a floor is searched for; where that is met, of one that nobody would call bounded, which the usual tolerance tells
    where linear programs with such numbers are not solved to ours. Where they are not solved anywhere they are tried in other units; of what is found
    then, that there is no point is not believed.
    """

    def search(asked: SingleLevel, floor: float | None, **settings: float) -> Search:
        return _searched(asked, start, gap, until, show, sign, floor, {**presolving, **settings}, opened, plain, float(program.is_linear))

    presolving: dict[str, float] = {} if presolved else {"presolving/maxrounds": 0}
    size = 1.0 + (0.0 if start is None else abs(program.objective.at(start)))
    floor = None if _is_bounded(program) else -LOW - TIMES * size
    found = search(program, floor)
    if found.failed:
        again = search(replace(program, implied=[]), floor, **OTHER_UNITS)
        found = found if again.failed or again.ended == NO_POINT else again
    met = found.ended == UNBOUNDED if floor is None else found.value <= (1.0 - gap) * floor
    if found.failed or not met:
        return found
    found = search(program, -LOWEST * size)
    least = search(program, -LOWEST * size, **USUAL).value if found.failed else found.value
    return found._replace(ended=UNBOUNDED) if least <= -(1.0 - gap) * LOWEST * size else found


def _is_bounded(program: SingleLevel) -> bool:
    """Whether bounds of the unknowns alone bound the objective below."""
    ends, terms = np.stack([program.unknowns.low, program.unknowns.high]), program.objective.terms.items()
    return all(np.isfinite(ends[int(value < 0), places[0]] if len(places) == 1 else ends[:, list(places)]).all() for places, value in terms if places)


def nothing_below(program: SingleLevel, value: float, gap: float, until: float, show: bool, sign: float) -> Search:
    """Another search, for any point whose value is better than that one by more than the gap, where every row may be violated by SCIP's tolerance.

    Its end is ``NO_POINT`` where there is none: such violations undo no bound then.
    """
    below = value - gap * max(1.0, abs(value))
    rows = [*program.inequalities, Polynomial.sum_of([(1.0, below), (-1.0, program.objective)])]
    wanted = replace(program, objective=Polynomial({}), inequalities=rows)

    def search(wanted: SingleLevel, in_units: bool, **settings: float) -> Search:
        return _searched(wanted, None, gap, until, show, sign, None, {"limits/solutions": 1, **settings}, FEASIBILITY, in_units=in_units)

    found, others = search(wanted, False), [(in_units, settings) for in_units in (True, False) for settings in OTHERS]  # in units more may be missing in some rows
    fewest = replace(wanted, implied=[])
    while found.failed and others:
        in_units, settings = others.pop(0)
        found = search(fewest, in_units, **settings)
    return found


def _searched(
    program: SingleLevel,
    start: np.ndarray | None,
    gap: float,
    until: float,
    show: bool,
    sign: float,
    floor: float | None,
    settings: Mapping[str, float],
    opened: float = 0.0,
    plain: bool = False,
    least: float = 0.0,
    in_units: bool = True,
) -> Search:
    """The same for the largest of the value and a floor, if there is one, with some of SCIP's settings, and rows that may be violated by so much."""
    limits = {"limits/gap": gap, "limits/absgap": gap, "limits/time": min(max(until - time.perf_counter(), 0.0), 1e20)}
    units = _units(program) if in_units else np.ones(len(program.unknowns.low))
    request = {
        "program": _written(program, units, opened, least if in_units else None),
        "floor": floor,
        "start": None if start is None else [float(value) for value in start / units],
        "objective": 0.0 if start is None else float(program.objective.at(start)),
        "settings": {**limits, **settings},
        "plain": plain,
    }
    best, value, bound, nodes, ended = None, math.inf, -math.inf, 0, ""
    with _process() as process, heeded(), RunProgress(PARTS, "reference", show, "% of the gap's digits") as bar:
        for kind, *said in process.answers(request, until):
            if kind == "told":
                value, bound, nodes, found = said
                best = best if found is None else found
            elif kind == "ended":
                ended, best, bound, nodes = said
            elif kind == "crashed":
                return Search(None, math.inf, -math.inf, f"{FAILED}: {said[0]}", nodes)
            elif kind != WAITING:
                ended = f"{FAILED}: {said[0]}" if kind == "failed" else said[0]
            bar.update(_done(value, bound, gap), f"f {sign * value:.6g}, bound {sign * bound:.6g}, {nodes:,} nodes")
    if ended in ("unbounded", "inforunbd"):
        return Search(None, -math.inf, -math.inf, UNBOUNDED, nodes)
    if ended == "infeasible":
        return Search(None, math.inf, math.inf, NO_POINT, nodes)
    ended = {"optimal": BOUNDED, "gaplimit": BOUNDED, "timelimit": LIMIT}.get(ended, ended)
    if abs(bound) >= INFINITE or (floor is not None and bound <= (1.0 - gap) * floor):
        bound = -math.inf
    if best is None:
        return Search(None, math.inf, bound, ended, nodes)
    values = np.array(best) * units
    return Search(values, program.objective.at(values), bound, ended, nodes)


def bound_pairs(program: SingleLevel, until: float) -> None:
    """Bound slacks and multipliers, each by branch and bound on its own owner's conditions over X, as far as time goes: complementarity is then more
    than a choice to the relaxation. A bound holds for every answer, whatever multipliers it has.
    """
    unknowns, units = program.unknowns, _units(program)
    decisions = set(program.upper) | {one.place for one in unknowns.definitions} | {one.place for one in program.quotients}
    for follower in program.followers:
        alone = program.alone(decisions | set(follower.places))
        sides = ([second for _, second in follower.pairs], [first for first, _ in follower.pairs])
        places = [place for side in sides for place in side if unknowns.high[place] == np.inf]
        while places and not over() and time.perf_counter() < until:
            request = {"program": _written(alone, units), "places": places, "highest": HIGHEST, "settings": {"limits/gap": ROUGH, "limits/time": SHORT}}
            with _process() as process:
                for kind, *said in process.answers(request, until):
                    if kind == "most":
                        place, most = said
                        places = places[1:]
                        if most < 0.9 * HIGHEST:
                            unknowns.high[place] = (max(most, 0.0) * (1.0 + MARGIN) + MARGIN) * units[place]
            places = places[1:]  # of one at which the process has ended, if any are left


def _done(value: float, bound: float, wanted: float) -> int:
    """How many of the digits between a gap of 1 and the one that is wanted are there."""
    if not math.isfinite(value - bound):
        return 0
    now = (value - bound) / max(1.0, abs(value))
    return int(np.clip(PARTS * math.log(max(now, wanted)) / math.log(min(wanted, 0.5)), 0, PARTS))


def unbounded(value: float, box: bool) -> DivergedError:
    """The error for an f that falls without end, over a box or elsewhere."""
    why = "X is bounded: so at some x the answers, or their prices, go on without end. Bound y, or leave the rows out that hold twice" if box else "Bound X"
    return DivergedError(f"f seems unbounded {'below' if value < 0 else 'above'} on X: branch and bound found no least value. {why}.")
