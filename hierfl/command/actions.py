"""What the commands of ``hierfl`` do; what one of them needs alone, such as figures, is loaded when it runs."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hierfl.command.loading import load_point, load_problem, load_solver
from hierfl.command.site_tables import held_by, ledger_show, rules_of, site_check, site_log
from hierfl.errors import SettingError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hierfl.runtime.sites.site import Site


def serve_site(chosen: argparse.Namespace) -> None:
    """Load the problem and the data, join the cluster or listen at the socket, and answer until it ends."""
    from hierfl.runtime.privacy.ledger import PrivacyLedger
    from hierfl.runtime.sites.memory_folder import MemoryFolder
    from hierfl.runtime.sites.owner.site_log import start_log
    from hierfl.runtime.sites.site import Site

    dask, flower = ("tls_ca", "tls_cert", "tls_key", "host", "port", "insecure"), ("parent_pid",)
    for name in flower if chosen.socket is None else dask:
        if getattr(chosen, name) not in (None, False):
            place = "--scheduler, on Dask" if chosen.socket is None else "--socket, on Flower"
            raise SettingError(f"--{name.replace('_', '-')} says nothing with {place}: leave it out.")
    start_log(chosen.log)
    rules = rules_of(chosen)
    declaration = load_problem(chosen.problem).declaration
    held = held_by(declaration, chosen.data)
    name = chosen.name or "+".join(str(client.name or place) for place, client in held.items())
    memories = None if chosen.keep is None else MemoryFolder(chosen.keep)
    if chosen.ledger is not None:  # which is to be closed
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with nullcontext() if chosen.ledger is None else PrivacyLedger(chosen.ledger, chosen.ledger_key) as ledger:
        _answer(Site(name, declaration, held, rules, memories=memories, ledger=ledger, read_solver=load_solver), chosen)


def _answer(site: Site, chosen: argparse.Namespace) -> None:
    """Answer whoever asks by the way that was chosen, until it ends."""
    if chosen.socket is not None:
        from hierfl.runtime.on_flower.socket_door import serve_socket

        serve_socket(site.answer, chosen.socket, chosen.parent_pid)
        return
    from hierfl.runtime.on_dask.site_process import TLSFiles, run_site

    files = TLSFiles(chosen.tls_ca, chosen.tls_cert, chosen.tls_key)
    run_site(site, chosen.scheduler, files, chosen.host, chosen.port, chosen.insecure)


def _scheduler(chosen: argparse.Namespace) -> None:
    from hierfl.runtime.on_dask.site_process import TLSFiles, run_scheduler
    from hierfl.runtime.sites.owner.site_log import start_log

    start_log(None)
    files = TLSFiles(chosen.tls_ca, chosen.tls_cert, chosen.tls_key)
    run_scheduler(files, chosen.host, chosen.port, chosen.insecure)


def _show(chosen: argparse.Namespace) -> None:
    problem = load_problem(chosen.problem)
    if chosen.mark:
        from hierfl.runtime.sites.parcels import declaration_mark

        print(declaration_mark(problem.declaration))
        return
    print(problem.latex() if chosen.latex else problem)


def _check(chosen: argparse.Namespace) -> None:
    report = load_problem(chosen.problem).check(smoothing=chosen.smoothing, epsilon=chosen.accuracy)
    print(report.details if chosen.details else report)


def _inspect(chosen: argparse.Namespace) -> None:
    from hierfl.inspect.argument_checks import writable_picture
    from hierfl.result import Result

    for path in (chosen.slice, chosen.surface):
        if path is not None:
            writable_picture(path)
    if chosen.result is not None and chosen.center is not None:
        raise SettingError("--center and --result: give one of the two.")
    problem = load_problem(chosen.problem)
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
    from hierfl.inspect.argument_checks import writable, writable_picture
    from hierfl.runs import Runs

    for path, require in ((chosen.save, writable), (chosen.plot, writable_picture)):
        if path is not None:
            require(path)
    if chosen.report is not None:
        writable(chosen.report, chosen.overwrite)
    solver = None if chosen.solver is None else load_solver(chosen.solver)
    problem = load_problem(chosen.problem)
    told = {name: getattr(chosen, name) for name in ("rounds", "seed", "seeds", "restarts")}
    x0 = None if chosen.x0 is None else load_point(chosen.x0)
    result = problem.solve(solver, x0=x0, progress=not chosen.quiet, **told)
    best = result.best if isinstance(result, Runs) else result
    print(result)
    print(f"x = {_text(best.x)}")
    if chosen.save is not None:
        best.save(chosen.save)
        print(f"saved {chosen.save}")
    if chosen.plot is not None:
        _save(result.plot(), chosen.plot)
    if chosen.report is not None:
        print(f"wrote {result.report(chosen.report, progress=not chosen.quiet, overwrite=chosen.overwrite)}")


def _report(chosen: argparse.Namespace) -> None:
    from hierfl.inspect.argument_checks import writable
    from hierfl.result import Result

    path = chosen.out or chosen.result.with_suffix(".html")
    writable(path, chosen.overwrite)
    result = Result.load(chosen.result, problem=load_problem(chosen.problem))
    print(f"wrote {result.report(path, check=chosen.check, progress=not chosen.quiet, overwrite=chosen.overwrite)}")


def _models(chosen: argparse.Namespace) -> None:
    """Ready declarations, with the first line of what their modules say."""
    import inspect as signatures

    from hierfl import models
    from hierfl.problem import Problem

    made = {name: getattr(models, name) for name in models.__all__}
    for name, function in made.items():
        if not (signatures.isfunction(function) or issubclass(function, Problem)):
            continue
        needs = ", ".join(p.name for p in signatures.signature(function).parameters.values() if p.default is p.empty)
        told = (sys.modules[function.__module__].__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")
        print(f"hierfl.models:{name}{f' (needs {needs})' if needs else ''}\n    {told}")
    print("\nOne that needs data is called in a file of your own: problem = hierfl.models.relu_network(data).")


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=150, bbox_inches="tight")
    print(f"saved {path}")


def _text(x: Any) -> str:
    import numpy as np

    if isinstance(x, dict):
        return ", ".join(f"{variable.name()}: {_text(part)}" for variable, part in x.items())
    return np.array2string(np.asarray(x), precision=6, threshold=20)


ACTIONS: dict[str, Callable[[argparse.Namespace], None]] = {
    "demo": lambda chosen: import_module("hierfl.command.demo").demo(chosen),
    "docs": lambda chosen: print(import_module("hierfl.command.troubleshooting").entry(chosen.topic)),
    "show": _show,
    "check": _check,
    "explain": lambda chosen: print(load_problem(chosen.problem).explain()),
    "inspect": _inspect,
    "solve": _solve,
    "report": _report,
    "models": _models,
    "scheduler": _scheduler,
    "site": serve_site,
    "site check": site_check,
    "site log": site_log,
    "ledger": ledger_show,
    "flower": lambda chosen: print(import_module("hierfl.command.flower_app").write_app(chosen.problem, chosen.folder)),
}
