"""SCIP on a single-level program: spatial branch and bound, complementarity as special ordered sets of type 1.

It runs in a thread of its own, so that Ctrl-C and limits are heard here; what it has found, and the bound, are told by it at every node.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from hierfl.errors import DivergedError, needing
from hierfl.inspect.proved.polynomials import Polynomial
from hierfl.inspect.proved.single_level import SingleLevel
from hierfl.jaxtools.interruption import heeded, over, reason
from hierfl.progress import RunProgress

FEASIBILITY = 1e-9  # of rows, bounds and definitions: absolute, or relative where numbers are larger than 1
LISTEN = 0.05  # seconds between two looks at whether it is to end
ROUGH, SHORT, MARGIN = 1e-2, 0.2, 1e-6  # of a bound: the gap, seconds, and what is added to it
PARTS = 100  # of the digits of the gap, as the bar counts them
LOW, LOWEST = 1e6, 1e9  # of 1 + |f| at the start: few least values are so low, and none is called that
HIGHEST = 1e7  # a multiplier or slack from which none is called bounded
BOUNDED, NO_POINT, UNBOUNDED, LIMIT, FAILED = "gap reached", "no point", "unbounded", "time limit reached", "SCIP failed"
OTHER_UNITS = {"lp/scaling": 2, "numerics/feastol": 1e-8, "numerics/dualfeastol": 1e-8}
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
        """Whether SCIP gave up."""
        return self.ended.startswith(FAILED)


class _Told:
    """What the solver says while it goes on."""

    value, bound, nodes = math.inf, -math.inf, 0

    def gap(self) -> float:
        """Relative to 1 and to the value."""
        return (self.value - self.bound) / max(1.0, abs(self.value)) if math.isfinite(self.value - self.bound) else math.inf


def searched(program: SingleLevel, start: np.ndarray | None, gap: float, until: float, show: bool, sign: float = 1.0) -> Search:
    """The least value of a program, from known values of all unknowns (None: from nowhere).

    Without complementarity a program may be unbounded that is not with it, of which SCIP then says anything. So where the box does not bound the value
    the larger one of that and of a floor is searched for; where that is met, of one that nobody would call bounded, which the usual tolerance tells
    where linear programs with such numbers are not solved to ours. Where they are not solved anywhere they are tried in other units; of what is found
    then, that there is no point is not believed.

    Raises
    ------
    MissingPackageError
        Without the package pyscipopt.
    """

    def search(floor: float | None, **settings: float) -> Search:
        return _searched(program, start, gap, until, show, sign, floor, settings)

    size = 1.0 + (0.0 if start is None else abs(program.objective.at(start)))
    floor = None if _is_bounded(program) else -LOW * size
    found = search(floor)
    if found.failed:
        again = search(floor, **OTHER_UNITS)
        found = found if again.failed or again.ended == NO_POINT else again
    met = found.ended == UNBOUNDED if floor is None else found.value <= (1.0 - gap) * floor
    if found.failed or not met:
        return found
    found = search(-LOWEST * size)
    least = search(-LOWEST * size, **USUAL).value if found.failed else found.value
    return found._replace(ended=UNBOUNDED) if least <= -(1.0 - gap) * LOWEST * size else found


def _is_bounded(program: SingleLevel) -> bool:
    """Whether bounds of the unknowns alone bound the objective below."""
    ends, terms = np.stack([program.unknowns.low, program.unknowns.high]), program.objective.terms.items()
    return all(np.isfinite(ends[int(value < 0), places[0]] if len(places) == 1 else ends[:, list(places)]).all() for places, value in terms if places)


def _searched(
    program: SingleLevel,
    start: np.ndarray | None,
    gap: float,
    until: float,
    show: bool,
    sign: float,
    floor: float | None,
    settings: Mapping[str, float],
) -> Search:
    """The same for the largest of the value and a floor, if there is one, with some of SCIP's settings."""
    try:
        with _without_notes():
            model, variables = _written(program, floor)
    except Exception as error:
        if type(error) is not Exception:  # which pyscipopt raises for coefficients from 1e20 on, infinite to SCIP
            raise
        return Search(None, math.inf, -math.inf, f"{FAILED}: {error}", 0)
    for name, value in settings.items():
        model.setParam(name, value)
    told = _Told()
    _listened_to(model, told)
    model.setParam("limits/gap", gap)
    model.setParam("limits/absgap", gap)
    if start is not None:
        solution = model.createSol()
        for variable, value in zip(variables, start):
            model.setSolVal(solution, variable, float(value))
        if len(variables) > len(start):
            model.setSolVal(solution, variables[-1], max(program.objective.at(start), -math.inf if floor is None else floor))
        model.addSol(solution)
    if (failure := _run(model, told, until, show, sign, gap)) is not None:
        return Search(None, math.inf, -math.inf if floor is not None or abs(told.bound) >= model.infinity() else told.bound, f"{FAILED}: {failure}", told.nodes)
    status, best = model.getStatus(), model.getBestSol() if model.getNSols() else None
    if status in ("unbounded", "inforunbd"):
        return Search(None, -math.inf, -math.inf, UNBOUNDED, model.getNNodes())
    if status == "infeasible":
        return Search(None, math.inf, math.inf, NO_POINT, model.getNNodes())
    ended = {"optimal": BOUNDED, "gaplimit": BOUNDED, "timelimit": LIMIT}.get(status, reason() or status)
    bound = model.getDualbound()
    bound = bound if abs(bound) < model.infinity() and (floor is None or bound > (1.0 - gap) * floor) else -math.inf
    if best is None:
        return Search(None, math.inf, bound, ended, model.getNNodes())
    values = np.array([model.getSolVal(best, v) for v in variables[: len(program.unknowns.low)]])
    return Search(values, program.objective.at(values), bound, ended, model.getNNodes())


def bound_pairs(program: SingleLevel, until: float) -> None:
    """Bound slacks and multipliers, each by branch and bound on its own owner's conditions over X, as far as time goes: complementarity is then more
    than a choice to the relaxation. A bound holds for every answer, whatever multipliers it has.
    """
    unknowns, decisions = program.unknowns, set(program.upper) | {one.place for one in program.unknowns.definitions}
    for follower in program.followers:
        alone = program.alone(decisions | {int(k) for k in (*follower.u, *follower.z, *follower.slack)})
        model, variables = _written(alone, None)
        for place in map(int, (*follower.slack, *follower.z[follower.slack >= 0])):
            if place < 0 or unknowns.high[place] < np.inf:
                continue
            if over() or time.perf_counter() >= until:
                return
            try:
                model.chgVarUb(variables[place], HIGHEST)
                most = _most(model, variables[place])
                model.chgVarUb(variables[place], None)
            except Exception as error:
                if type(error) is not Exception:  # which pyscipopt raises where linear programs are not solved: this one stays without a bound
                    raise
                model, variables = _written(alone, None)
                continue
            if most < 0.9 * HIGHEST:
                unknowns.high[place] = max(most, 0.0) * (1.0 + MARGIN) + MARGIN


def _most(model: Any, variable: Any) -> float:
    """A bound of a variable, as near as it is found in a moment; infinite where there is none."""
    model.setParam("limits/gap", ROUGH)
    model.setParam("limits/time", SHORT)
    model.setObjective(variable + 0.0, "maximize")
    with _without_notes():
        model.optimize()
    most = model.getDualbound() if model.getStatus() not in ("unbounded", "inforunbd", "infeasible") else math.inf
    model.freeTransform()
    return float(most)


def _scip() -> Any:
    with needing("certificate='global' needs the solver SCIP: pip install 'hierfl[global]'."):
        import pyscipopt
    return pyscipopt


def _written(program: SingleLevel, floor: float | None) -> tuple[Any, list[Any]]:
    """The program as SCIP's model, and its variables; the last one is the objective where that is not linear, or has a floor."""
    scip, unknowns = _scip(), program.unknowns
    from pyscipopt.scip import Expr, ExprCons, Term

    model = scip.Model()
    model.hideOutput()
    model.setParam("numerics/feastol", FEASIBILITY)
    model.setParam("numerics/dualfeastol", FEASIBILITY)
    model.setParam("misc/catchctrlc", False)
    model.setParam("display/verblevel", 0)
    variables = [
        model.addVar(lb=None if low == -np.inf else low, ub=None if high == np.inf else high, vtype="I" if whole else "C")
        for low, high, whole in zip(unknowns.low, unknowns.high, unknowns.whole)
    ]

    def expression(polynomial: Polynomial) -> Any:
        terms = {Term(*(variables[place] for place in places)): float(value) for places, value in polynomial.terms.items()}
        return Expr({Term(): 0.0, **terms})

    def require(left: Any, least: float | None, most: float | None) -> None:
        model.addCons(ExprCons(left, least, most))

    for definition in unknowns.definitions:
        require(variables[definition.place] - _applied(scip, definition.kind, expression(definition.argument), definition.exponent), 0.0, 0.0)
    for equation in program.all_equations:
        require(expression(equation), 0.0, 0.0)
    for inequality in program.inequalities:
        require(expression(inequality), 0.0, None)
    for first, second in program.pairs:
        model.addConsSOS1([variables[first], variables[second]])
    if program.objective.degree <= 1 and floor is None:
        model.setObjective(expression(program.objective))
        return model, variables
    variables.append(model.addVar(lb=floor, ub=None))
    require(variables[-1] - expression(program.objective), 0.0, None)
    model.setObjective(variables[-1] + 0.0)
    return model, variables


def _applied(scip: Any, kind: str, argument: Any, exponent: float) -> Any:
    if kind == "power":
        return argument**exponent
    if kind == "x log x":
        return argument * scip.log(argument)
    return {"itself": lambda v: v, "exp": scip.exp, "log": scip.log, "abs": abs, "sin": scip.sin, "cos": scip.cos}[kind](argument)


def _listened_to(model: Any, told: _Told) -> None:
    """Have the model tell what it has found."""
    scip = _scip()
    base: Any = scip.Eventhdlr
    kinds = (scip.SCIP_EVENTTYPE.BESTSOLFOUND, scip.SCIP_EVENTTYPE.NODESOLVED)

    class Listener(base):
        def eventinit(self) -> None:
            for kind in kinds:
                self.model.catchEvent(kind, self)

        def eventexit(self) -> None:
            for kind in kinds:
                self.model.dropEvent(kind, self)

        def eventexec(self, event: Any) -> None:
            told.value, told.bound, told.nodes = self.model.getPrimalbound(), self.model.getDualbound(), self.model.getNNodes()

    model.includeEventhdlr(Listener(), "hierfl", "tells the value and the bound")


def _run(model: Any, told: _Told, until: float, show: bool, sign: float, gap: float) -> Exception | None:
    """Solve, while this thread listens for Ctrl-C and shows how far it is; what went wrong in the solver."""
    model.setParam("limits/time", min(max(until - time.perf_counter(), 0.0), 1e20))
    failures: list[Exception] = []

    def solve() -> None:
        try:
            model.optimizeNogil()
        except Exception as error:  # pyscipopt raises nothing more special
            failures.append(error)

    thread = threading.Thread(target=solve, daemon=True, name="hierfl: branch and bound")
    with _without_notes(), heeded(), RunProgress(PARTS, "reference", show, "% of the gap's digits") as bar:
        thread.start()
        try:
            while thread.is_alive():
                thread.join(LISTEN)
                if over():
                    model.interruptSolve()
                bar.update(_done(told.gap(), gap), f"f {sign * told.value:.6g}, bound {sign * told.bound:.6g}, {told.nodes:,} nodes")
        finally:
            while thread.is_alive():
                model.interruptSolve()
                thread.join(LISTEN)
    return failures[0] if failures else None


@contextmanager
def _without_notes() -> Iterator[None]:
    """Without what the solver of linear programs writes to standard error past all settings; what Python writes there meanwhile is shown."""
    sys.stderr.flush()
    shown, nowhere, python = os.dup(2), os.open(os.devnull, os.O_WRONLY), sys.stderr
    try:
        moved = python.fileno() == 2
    except (OSError, ValueError):  # a notebook's, which is no file
        moved = False
    if moved:
        sys.stderr = os.fdopen(os.dup(shown), "w", buffering=1, encoding=python.encoding, errors="backslashreplace")
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(shown, 2)
        os.close(shown)
        os.close(nowhere)
        if moved:
            sys.stderr.close()
            sys.stderr = python


def _done(now: float, wanted: float) -> int:
    """How many of the digits between a gap of 1 and the one that is wanted are there."""
    if not math.isfinite(now) or wanted <= 0:
        return 0
    return int(np.clip(PARTS * math.log(max(now, wanted)) / math.log(min(wanted, 0.5)), 0, PARTS))


def unbounded(value: float) -> DivergedError:
    """The error for an f that falls without end."""
    return DivergedError(f"f seems unbounded {'below' if value < 0 else 'above'} on X: branch and bound found no least value. Bound X.")
