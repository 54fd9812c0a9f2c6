"""What the commands of ``hierfl`` do; what one of them needs alone, such as figures, is loaded when it runs."""

from __future__ import annotations

import argparse
import math
import platform
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import fields, replace
from datetime import datetime
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hierfl.command.loading import load_point, load_problem, load_rows, load_solver, load_solver_class, solver_at
from hierfl.errors import DataError, HierflError, SettingError
from hierfl.near_names import near_names
from hierfl.version import VERSION

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hierfl.language.declaration import Declaration
    from hierfl.language.federation.client import Client
    from hierfl.runtime.privacy.ledger import LedgerContent, LedgerRun
    from hierfl.runtime.sites.owner.site_rules import SiteRules
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
    rules, own = rules_of(chosen)
    declaration = load_problem(chosen.problem).declaration
    held = held_by(declaration, chosen.data)
    name = chosen.name or "+".join(str(client.name or place) for place, client in held.items())
    memories = None if chosen.keep is None else MemoryFolder(chosen.keep)
    if chosen.ledger is not None:  # which is to be closed
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with nullcontext() if chosen.ledger is None else PrivacyLedger(chosen.ledger, chosen.ledger_key) as ledger:
        _answer(Site(name, declaration, held, rules, memories=memories, ledger=ledger, read_solver=partial(load_solver, own=own)), chosen)


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
    solver = None if chosen.solver is None else solver_at(chosen.solver)
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


# --- sites: what one would send, has sent, and may still send ----------------------------------------------------------

RULES = ("algorithms", "min_samples", "max_rounds", "max_messages", "min_noise", "min_sum", "shared_seeds")  # that are flags, too


def rules_of(chosen: argparse.Namespace) -> tuple[SiteRules, dict[str, Any]]:
    """The rules of the command line, or of the file that it names, and the solvers of the owner's own that they list by their places.

    Raises ``SettingError`` for both, or none such.
    """
    from hierfl import solvers
    from hierfl.runtime.sites.owner.site_rules import SiteRules, read_rules

    given = {name: getattr(chosen, name) for name in RULES if getattr(chosen, name) is not None}
    if chosen.rules is not None and given:
        name = next(iter(given))
        said = f"--{name.replace('_', '-')} beside --rules {chosen.rules}: rules stand in one place"
        raise SettingError(f"{said}: write {name} = ... there, and leave the flag out.")
    if "algorithms" in given:
        given["algorithms"] = tuple(name.strip() for name in given["algorithms"].split(","))
    rules = SiteRules(**given) if chosen.rules is None else read_rules(chosen.rules)
    own = {place: load_solver_class(place) for place in rules.algorithms or () if ":" in place}
    names = None if rules.algorithms is None else tuple(own[name].__name__ if name in own else name for name in rules.algorithms)
    for name in set(rules.algorithms or ()) - own.keys():
        if name not in solvers.__all__:
            raise SettingError(f"algorithms {name!r}: {near_names(name, solvers.__all__)}; one of your own is written with its place, my_solver.py:{name}")
    return replace(rules, algorithms=names), {made.__name__: made for made in own.values()}


def held_by(declaration: Declaration, place: str) -> dict[int, Client]:
    """The clients whose data the function at a place loads. Raises ``DataError`` where it fails, without its words."""
    from hierfl.runtime.sites.owner.site_data import held_of
    from hierfl.runtime.sites.owner.site_log import told_without_words

    try:
        return held_of(declaration, load_rows(place))
    except HierflError:
        raise
    except Exception as error:  # the owner's own code may raise anything, with rows in its words
        raise DataError(f"--data {place}: {told_without_words(error)}. Call it in Python to see its words.") from None


# --- what would leave ---------------------------------------------------------------------------------------------------


def site_check(chosen: argparse.Namespace) -> None:
    """Rehearse a run, and print what it would come to."""
    from hierfl.runtime.privacy.ledger import LedgerContent, read_ledger
    from hierfl.runtime.sites.parcels import declaration_mark, declared_text

    (rules, _), declaration = rules_of(chosen), load_problem(chosen.problem).declaration
    ledger = LedgerContent()
    if chosen.ledger is not None and chosen.ledger.exists():
        ledger = read_ledger(chosen.ledger, chosen.ledger_key)
    packages = ", ".join(f"{name} {version(name)}" for name in ("jax", "numpy", "cvxpy"))
    print(f"hierfl {VERSION}, Python {platform.python_version()}, {packages}")
    print(f"problem {declaration_mark(declaration)}\n{declared_text(declaration)}")
    held = held_by(declaration, chosen.data)
    print("\n".join(_schema(declaration, held)))
    own = [(one.name, getattr(rules, one.name)) for one in fields(rules) if getattr(rules, one.name) != one.default]
    print(f"rules: {', '.join(f'{name} = {value}' for name, value in own) or 'none'}")
    if chosen.solver is None:
        reasons = [_unfit(declaration, held), rules.against_rows(declaration, held), rules.against_more(ledger.rounds, ledger.messages)]
        print(_verdict("the data", reasons) + "\na run is rehearsed with --solver, as in --solver 'FedAvg(step_size=0.05)'")
        return
    print("\n".join(_rehearsal(chosen, rules, ledger, declaration, held)))


def _unfit(declaration: Declaration, held: Mapping[int, Client]) -> str | None:
    """What is wrong with the data, as a run would say it."""
    from hierfl.compiler.compiled_problem import compile_problem

    try:
        compile_problem(declaration).population_of(held)
    except DataError as error:
        return str(error)
    return None


def _schema(declaration: Declaration, held: Mapping[int, Client]) -> Iterator[str]:
    declared = declaration.federation.clients if declaration.federation else ()
    for place, client in held.items():
        tables = []
        for sample in client.samples:
            count, known = client.num_samples(sample), declared[place].num_samples(sample)
            columns = f" of {', '.join(map(str, sample.shape))} columns" if sample.shape else ""
            unlike = "" if count == known else f", where the problem says {known}"
            tables.append(f"{sample.name()}: a distribution" if count is None else f"{sample.name()}: {count:,} rows{columns}{unlike}")
        constants = [f"{constant.name()}: a constant of shape {constant.shape}" for constant in client.parameters]
        yield f"{client.called(place)}: {'; '.join([*tables, *constants])}"


def _verdict(what: str, reasons: list[str | None]) -> str:
    against = [reason for reason in reasons if reason is not None]
    return f"{what}: allowed" if not against else "\n".join(f"{what}: refused: {reason}" for reason in against)


def _rehearsal(
    chosen: argparse.Namespace, rules: SiteRules, ledger: LedgerContent, declaration: Declaration, held: Mapping[int, Client]
) -> Iterator[str]:
    from hierfl.runtime.privacy.gaussian_noise import GaussianNoise, Spent, composed
    from hierfl.runtime.privacy.ledger import LedgerRun
    from hierfl.runtime.privacy.pairwise_masks import MaskOrder, PairwiseMasks
    from hierfl.runtime.sites.owner.site_data import rehearsed
    from hierfl.runtime.step_search import STILL, TRIAL, wants_step

    solver = solver_at(chosen.solver)
    noise = None if chosen.noise is None else GaussianNoise(chosen.noise[0], chosen.noise[1], rules.delta)
    masks = None if chosen.masks is None else PairwiseMasks(chosen.masks)
    trials = wants_step(solver)  # messages are those of any step
    found = rehearsed(declaration, held, replace(solver, step_size=STILL) if trials else solver, chosen.rounds, noise)
    start = found.start._replace(masks=None if masks is None else MaskOrder(masks.least, masks.bits, "rehearsed"))
    told = None if start.noise is None else start.noise._asdict() | {"numbers": found.numbers}
    run = LedgerRun("rehearsed", "", start.mark, "", start.algorithm, start.rounds, told)
    reasons = [rules.against_now(datetime.now()), rules.against(start, declaration, held), rules.against_batches(found.fewest)]
    reasons += [rules.against_more(ledger.rounds, ledger.messages), rules.against_spending(ledger, run, None)]
    if rules.epsilon is not None and chosen.ledger is None:
        reasons.append("a budget of epsilon is kept by a ledger: start the site with --ledger FILE")
    yield _verdict(f"{chosen.solver}, {chosen.rounds} rounds", reasons)
    if trials:
        yield f"step_size='auto' is found by trial runs before, of {TRIAL} rounds each, mostly a dozen: what follows is sent in these too, and they are counted; a step spares them"
    if rules.servers is not None:
        yield f"asked by {' or '.join(rules.servers)} alone"
    counts = [client.num_samples(sample) for client in held.values() for sample in client.samples]
    everything = min((count for count in counts if count is not None), default=0)
    yield "what would leave in a round, or for f at the end, of all clients here together:"
    for step, array, often, rows in found.leaving:
        times = "as often as data say" if math.isinf(often) else "once" if often == 1 else f"{often:g} times"
        yield (
            f"  {step}: {array.name} {array.shape} {array.dtype}, {array.bytes:,} bytes, {times}, over "
            f"{f'all rows of a client, {everything:,}' if rows is None else f'{rows:,} rows of a client'} at least"
        )
    if masks is not None:
        yield f"  under masks as one weighted sum of these, hidden among those of {masks.least} sites or more"
    yield f"a round takes {found.seconds:.3g} s here, {chosen.rounds} rounds {found.seconds * chosen.rounds:.3g} s"
    if noise is not None:
        epsilon, accountant = composed([Spent(noise.multiplier, run.most, found.numbers)], rules.delta)
        yield f"{run.most} messages of a client with noise of {noise.multiplier:g} clips: epsilon = {epsilon:.4g} at delta = {rules.delta:g} ({accountant})"
    yield from _left(rules, ledger, None if noise is None else run)


def _left(rules: SiteRules, ledger: LedgerContent, beginning: LedgerRun | None = None) -> Iterator[str]:
    """What is left of an owner's limits."""
    for name, most, answered in (("rounds", rules.max_rounds, ledger.rounds), ("messages", rules.max_messages, ledger.messages)):
        left = "" if most is None else f", of {most:,} that are allowed {max(most - answered, 0):,} are left"
        yield f"{answered:,} {name} were answered{left}"
    if rules.epsilon is None and beginning is None and not ledger.runs:
        return
    budget = "" if rules.epsilon is None else f", of {rules.epsilon:g} that is allowed"
    yield f"epsilon of all runs, with what is planned = {ledger.epsilon(rules.delta):.4g} at delta = {rules.delta:g}{budget}"
    if beginning is not None:
        yield f"with this run it would be {ledger.epsilon(rules.delta, beginning):.4g}"


# --- what has left ------------------------------------------------------------------------------------------------------

LINE = re.compile(r"(\S+ \S+) \w+ (.*): run (\d+)(?: begins: (.*)|: sent (?:(.*?) (\(.*?\) \S+)|(\w+)), (\d+) bytes( in all)?)\n?")


def site_log(chosen: argparse.Namespace) -> None:
    """Print what has left by a site's log: numbers and sizes, by run and array."""
    runs: dict[tuple[str, str], tuple[str, Counter[str], Counter[str]]] = {}
    order = []
    try:
        with open(chosen.file, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                found = LINE.fullmatch(line)
                if found is None:
                    continue
                when, site, number, begins, name, form, kind, size, _ = found.groups()
                if begins is not None or (site, number) not in runs:
                    runs[site, number] = (f"{site}, run {number}: {begins or 'begun before this log'} ({when})", Counter(), Counter())
                    order.append(runs[site, number])
                if size is not None:
                    what = f"{name} {form}" if kind is None else kind
                    runs[site, number][1][what] += 1
                    runs[site, number][2][what] += int(size)
    except OSError as error:
        raise SettingError(f"{chosen.file}: it cannot be read ({error.strerror}).") from error
    for told, counts, sizes in order:
        print(told)
        for what, count in counts.items():
            print(f"  {what}: {count:,} times, {sizes[what]:,} bytes")
    if not order:
        print(f"{chosen.file} tells of no run")


def ledger_show(chosen: argparse.Namespace) -> None:
    """Print what a ledger says, once its chain was found to hold."""
    from hierfl.runtime.privacy.ledger import epsilon_together, read_ledger
    from hierfl.runtime.sites.owner.site_rules import SiteRules, read_rules

    rules = SiteRules() if chosen.rules is None else read_rules(chosen.rules)
    found = read_ledger(chosen.file, chosen.key)
    torn = ", but the last line was cut off: the site counts it in full when it starts" if found.torn else ""
    print(f"{chosen.file}: {found.entries:,} entries, the chain holds{torn}")
    for number, run in enumerate(found.runs, 1):
        told: dict[str, Any] = run.noise or {}
        mechanism = "no noise" if run.noise is None else f"noise of {told['multiplier']:g} clips{', shared' if told['shared'] else ''}"
        masks = "" if run.masks is None else f", masks of {run.masks} sites"
        print(f"run {number}, {run.time}, asked by {run.server!a}: {run.algorithm}, {mechanism}{masks}{'' if run.going else ', over'}")
        print(f"  problem {run.problem}, data {run.data}")
        print(f"  {run.rounds:,} of {run.planned:,} rounds, {run.messages:,} messages", end="")
        noised = "" if run.noise is None else f", {run.released:,} of {run.most:,} noised ones of a client"
        print(f"{noised}; epsilon = {epsilon_together([run], rules.delta):.4g}")
    print("\n".join(_left(rules, found)))


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
