"""What the commands of ``hierfl`` do; what one of them needs alone, such as figures, is loaded when it runs."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hierfl.errors import SettingError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hierfl.problem import Problem


def _show(chosen: argparse.Namespace) -> None:
    problem = _problem(chosen)
    print(problem.latex() if chosen.latex else problem)


def _check(chosen: argparse.Namespace) -> None:
    print(_problem(chosen).check(smoothing=chosen.smoothing, epsilon=chosen.accuracy))


def _explain(chosen: argparse.Namespace) -> None:
    print(_problem(chosen).explain())


def _inspect(chosen: argparse.Namespace) -> None:
    from hierfl.command.loading import load_point
    from hierfl.inspect.argument_checks import writable_picture
    from hierfl.result import Result

    for path in (chosen.slice, chosen.surface):
        if path is not None:
            writable_picture(path)
    if chosen.result is not None and chosen.center is not None:
        raise SettingError("--center and --result: give one of the two.")
    problem = _problem(chosen)
    if chosen.result is not None:
        center: Any = Result.load(chosen.result, problem=problem)
    else:
        center = None if chosen.center is None else load_point(chosen.center)
    direction = None if chosen.direction is None else load_point(chosen.direction)
    common: dict[str, Any] = {"radius": chosen.radius, "seed": chosen.seed, "progress": not chosen.quiet}
    common |= {} if chosen.points is None else {"points": chosen.points}
    section = problem.implicit.slice(center, direction, smoothing=chosen.smoothing, **common)
    print(section)
    if chosen.slice is not None:
        _save(section.plot(), chosen.slice)
    if chosen.surface is not None:
        surface = problem.implicit.surface(center, **common)
        print(f"\n{surface}")
        _save(surface.plot(), chosen.surface)


def _solve(chosen: argparse.Namespace) -> None:
    from hierfl.command.loading import load_point, load_solver
    from hierfl.inspect.argument_checks import writable, writable_picture
    from hierfl.runs import Runs

    for path, require in ((chosen.save, writable), (chosen.plot, writable_picture), (chosen.report, writable)):
        if path is not None:
            require(path)
    solver = None if chosen.solver is None else load_solver(chosen.solver)
    problem = _problem(chosen)
    result = problem.solve(
        solver,
        rounds=chosen.rounds,
        seed=chosen.seed,
        seeds=chosen.seeds,
        restarts=chosen.restarts,
        x0=None if chosen.x0 is None else load_point(chosen.x0),
        progress=not chosen.quiet,
    )
    best = result.best if isinstance(result, Runs) else result
    print(result)
    print(f"x = {_text(best.x)}")
    if chosen.save is not None:
        best.save(chosen.save)
        print(f"saved {chosen.save}")
    if chosen.plot is not None:
        _save(result.plot(), chosen.plot)
    if chosen.report is not None:
        print(f"wrote {result.report(chosen.report, progress=not chosen.quiet)}")


def _report(chosen: argparse.Namespace) -> None:
    from hierfl.inspect.argument_checks import writable
    from hierfl.result import Result

    path = chosen.out or chosen.result.with_suffix(".html")
    writable(path)
    result = Result.load(chosen.result, problem=_problem(chosen))
    print(f"wrote {result.report(path, check=chosen.check, progress=not chosen.quiet)}")


def _models(chosen: argparse.Namespace) -> None:
    """Ready declarations, with the first line of what their modules say."""
    import inspect as signatures
    import sys

    from hierfl import models

    made = {name: getattr(models, name) for name in models.__all__}
    for name, function in made.items():
        if not signatures.isfunction(function):
            continue
        needs = [p.name for p in signatures.signature(function).parameters.values() if p.default is p.empty]
        told = (sys.modules[function.__module__].__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")
        print(f"hierfl.models:{name}{f' (needs {chr(44).join(needs)})' if needs else ''}\n    {told}")
    print("\nOne that needs data is called in a file of your own: problem = hierfl.models.relu_network(data).")


def _problem(chosen: argparse.Namespace) -> Problem:
    from hierfl.command.loading import load_problem

    return load_problem(chosen.problem)


def _demo(chosen: argparse.Namespace) -> None:
    from hierfl.command.demo import demo

    demo(chosen)


def _reproduce(chosen: argparse.Namespace) -> None:
    from hierfl.command.reproducing import reproduce

    reproduce(chosen)


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=150, bbox_inches="tight")
    print(f"saved {path}")


def _text(x: Any) -> str:
    import numpy as np

    if isinstance(x, dict):
        return ", ".join(f"{variable.name()}: {_text(part)}" for variable, part in x.items())
    return np.array2string(np.asarray(x), precision=6, threshold=20)


def _site(chosen: argparse.Namespace) -> None:
    from hierfl.command.serving import serve_site

    serve_site(chosen)


def _flower(chosen: argparse.Namespace) -> None:
    from hierfl.command.flower_app import write_app

    print(write_app(chosen.problem, chosen.folder))


ACTIONS: dict[str, Callable[[argparse.Namespace], None]] = {
    "demo": _demo,
    "show": _show,
    "check": _check,
    "explain": _explain,
    "inspect": _inspect,
    "solve": _solve,
    "report": _report,
    "models": _models,
    "reproduce": _reproduce,
    "site": _site,
    "flower": _flower,
}
