"""SCIP in a process of its own, run as a script by ``scip.py``: a crash of it, or a limit that it does not hear, takes nothing with it.

It loads neither hierfl nor JAX. What it is asked are plain numbers: unknowns with bounds, sums of products as {places: coefficient}, pairs of which one is 0.
What it says are tuples: ``ready``; ``told`` (value, bound, nodes, the best values if they are new) while it goes on; ``most`` (place, bound); and once
``ended`` or ``failed``. At the end of what it reads it ends.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

OFTEN = 0.05  # seconds between two words on the bound
SAME = 0.01  # of the tolerance, in which numbers are the same: where that is the tolerance itself, as by default, presolving takes points it allows for none
Terms = dict[tuple[int, ...], float]


def served(channel: Connection) -> None:
    """Answer one request after another."""
    sys.path[:] = channel.recv()
    from pyscipopt.scip import Model  # noqa: F401

    channel.send(("ready",))
    while True:
        request = channel.recv()
        threading.Thread(target=_answered, args=(channel, request), daemon=True).start()  # this thread hears when nobody listens any more


def _answered(channel: Connection, request: Mapping[str, Any]) -> None:
    try:
        answer = (_bounds if "places" in request else _searched)(channel.send, **request)
    except Exception as error:
        plain = type(error) is Exception  # as pyscipopt raises for all that SCIP gives up on; anything else is a fault of ours
        answer = ("failed", str(error)) if plain else ("fault", traceback.format_exc())
    channel.send(answer)


def _searched(
    say: Callable[[Any], None],
    program: Mapping[str, Any],
    floor: float | None,
    start: list[float] | None,
    settings: Mapping[str, float],
    objective: float,
    plain: bool,
) -> tuple[Any, ...]:
    """The least value of a program, or of the larger one of it and a floor; ``objective`` is that at the start, ``plain`` is without heuristics and cuts."""
    from pyscipopt import SCIP_PARAMSETTING

    model, variables = written(program, floor)
    if plain:
        model.setHeuristics(SCIP_PARAMSETTING.OFF)
        model.setSeparating(SCIP_PARAMSETTING.OFF)
    for name, value in settings.items():
        model.setParam(name, value)
    size = len(program["low"])
    _listened_to(model, variables[:size], say)
    if start is not None:
        solution = model.createSol()
        for variable, value in zip(variables, start):
            model.setSolVal(solution, variable, value)
        if len(variables) > size:
            model.setSolVal(solution, variables[-1], objective if floor is None else max(objective, floor))
        model.addSol(solution)
    model.optimizeNogil()
    best = model.getBestSol() if model.getNSols() else None
    values = None if best is None else [model.getSolVal(best, variable) for variable in variables[:size]]
    return "ended", model.getStatus(), values, model.getDualbound(), model.getNNodes()


def _bounds(say: Callable[[Any], None], program: Mapping[str, Any], places: list[int], highest: float, settings: Mapping[str, float]) -> tuple[Any, ...]:
    """A bound of each of some unknowns, one after another, as near as the settings ask; none where it is not solved."""
    model, variables = written(program, None)
    for place in places:
        try:
            for name, value in settings.items():
                model.setParam(name, value)
            model.chgVarUb(variables[place], highest)
            model.setObjective(variables[place] + 0.0, "maximize")
            model.optimizeNogil()
            most = model.getDualbound() if model.getStatus() not in ("unbounded", "inforunbd", "infeasible") else highest
            model.freeTransform()
            model.chgVarUb(variables[place], None)
        except Exception as error:
            if type(error) is not Exception:
                raise
            most = highest  # pyscipopt's, where linear programs are not solved: this one stays without a bound
            model, variables = written(program, None)
        say(("most", place, most))
    return "ended", "bounds", None, 0.0, 0


def written(program: Mapping[str, Any], floor: float | None) -> tuple[Any, list[Any]]:
    """The program as SCIP's model, and its variables; the last one is the objective where that is not linear, or has a floor."""
    import pyscipopt as scip
    from pyscipopt.scip import Expr, ExprCons, Term

    model, slack = scip.Model(), program["opened"]
    model.setParam("numerics/feastol", program["tolerance"])
    model.setParam("numerics/dualfeastol", program["tolerance"])
    model.setParam("numerics/epsilon", SAME * program["tolerance"])
    model.setParam("misc/usesymmetry", 0)  # by those of owners alike SCIP 10 cuts off better points, beside SOS1 and a start (also its issue 162)
    model.setParam("constraints/SOS1/maxprerounds", 0)  # by unknowns that presolving has put in place of others SCIP 10 cuts off better points, where rows are open
    model.setParam("misc/catchctrlc", False)
    model.setParam("display/verblevel", 0)
    variables = [
        model.addVar(lb=None if low == -float("inf") else low, ub=None if high == float("inf") else high, vtype="I" if whole else "C")
        for low, high, whole in zip(program["low"], program["high"], program["whole"])
    ]

    def expression(terms: Terms) -> Any:
        return Expr({Term(): 0.0, **{Term(*(variables[place] for place in places)): value for places, value in terms.items()}})

    def require(left: Any, least: float | None, most: float | None) -> None:
        model.addCons(ExprCons(left, least, most))

    for place, kind, terms, exponent in program["definitions"]:
        require(variables[place] - _applied(scip, kind, expression(terms), exponent), -slack, slack)
    for terms in program["equations"]:
        require(expression(terms), -slack, slack)
    for terms in program["inequalities"]:
        require(expression(terms), -slack, None)
    for first, second in program["pairs"]:
        model.addConsSOS1([variables[first], variables[second]])
    terms = program["objective"]
    if max(map(len, terms), default=0) <= 1 and floor is None:
        model.setObjective(expression(terms))
        return model, variables
    variables.append(model.addVar(lb=floor, ub=None))
    require(variables[-1] - expression(terms), 0.0, None)
    model.setObjective(variables[-1] + 0.0)
    return model, variables


def _applied(scip: Any, kind: str, argument: Any, exponent: float) -> Any:
    if kind == "power":
        return argument**exponent
    if kind == "x log x":
        return argument * scip.log(argument)
    return {"itself": lambda v: v, "exp": scip.exp, "log": scip.log, "abs": abs, "sin": scip.sin, "cos": scip.cos}[kind](argument)


def _listened_to(model: Any, variables: list[Any], say: Callable[[Any], None]) -> None:
    """Have the model tell what it has found."""
    import pyscipopt as scip

    base: Any = scip.Eventhdlr
    kinds = (scip.SCIP_EVENTTYPE.BESTSOLFOUND, scip.SCIP_EVENTTYPE.NODESOLVED)

    class Listener(base):
        last = 0.0

        def eventinit(self) -> None:
            for kind in kinds:
                self.model.catchEvent(kind, self)

        def eventexit(self) -> None:
            for kind in kinds:
                self.model.dropEvent(kind, self)

        def eventexec(self, event: Any) -> None:
            found, now = event.getType() == kinds[0], time.monotonic()
            if found or now >= self.last + OFTEN:
                self.last, best = now, self.model.getBestSol() if found else None
                values = None if best is None else [self.model.getSolVal(best, variable) for variable in variables]
                say(("told", self.model.getPrimalbound(), self.model.getDualbound(), self.model.getNNodes(), values))

    model.includeEventhdlr(Listener(), "hierfl", "tells the value and the bound")


if __name__ == "__main__":
    try:
        served(Connection(int(sys.argv[1])))
    except (EOFError, OSError):
        os._exit(0)  # whatever SCIP is at
