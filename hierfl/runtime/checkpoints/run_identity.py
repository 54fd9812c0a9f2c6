"""Which run a checkpoint belongs to: what decides its rounds to the last bit, part by part, so that what differs can be named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any

import jax
import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.content_marks import Leaves, content_mark
from hierfl.language.declaration import Declaration
from hierfl.language.federation.client import Client
from hierfl.language.federation.given_arrays import MappedRows
from hierfl.language.printing.card import call_text
from hierfl.language.printing.text import expression_text
from hierfl.run_settings import RunSettings
from hierfl.version import VERSION

LOOKED_AT = 256  # rows of a file that is not read as a whole
LISTED = 1000  # clients of which each has a mark
LONG = 120  # characters of a text that is shown


@dataclass(frozen=True)
class Part:
    """One of the things that a run depends on: what it is called, how it is shown, its mark, and those of the clients one by one.

    ``key`` tells it from the others, where CVXPY may have given the name.
    """

    name: str
    shown: str
    mark: str
    each: list[str] | None = None
    key: str = ""


Identity = dict[str, Part]


def identity_of(compiled: CompiledProblem, solver: Any, settings: RunSettings) -> Identity:
    """The parts that are known before anything is bound or tried."""
    several = "" if settings.restarts is None else ", each from a start of its own"
    parts = [
        _told("the version of hierfl", VERSION),
        _told("the version of jax", jax.__version__),
        *_problem(compiled.declaration),
        _told("the solver", call_text(solver), _plain(solver)),
        _told("the seeds", f"{list(settings.all_seeds)}{several}"),
        _told("rounds", settings.rounds),
        _told("evaluate_every", settings.evaluate_every),
        _told("queries", settings.queries),
        _told("the runtime", _runtime_text(settings.runtime)),
        _told("the names of the metrics", sorted(settings.metrics or {})),
    ]
    return _by_key(parts)


def bound_identity(tables: Any, starts: np.ndarray) -> Identity:
    """The parts that are known when the solver is bound: what its schedules come to, and where the runs begin."""
    schedules = content_mark([np.asarray(leaf) for leaf in jax.tree.leaves(tables)])
    parts = [
        Part("the schedules of the solver", "other numbers", schedules),
        _told("the start", np.array2string(starts, threshold=8), starts),
    ]
    return _by_key(parts)


def stored_identity(identity: Identity) -> dict[str, Any]:
    """The identity as JSON has it."""
    return {key: asdict(part) for key, part in identity.items()}


def differences(stored: Mapping[str, Any], present: Identity) -> Iterator[str]:
    """What of these parts was another in the checkpoint, in words."""
    for key, part in present.items():
        before = stored.get(key)
        if before is None:
            yield f"{part.name} (there was none)"
        elif before["mark"] != part.mark:
            yield f"{part.name}{_whose(before['each'], part.each)}{_shown(before['shown'], part.shown)}"


def _by_key(parts: Sequence[Part]) -> Identity:
    return {part.key or part.name: part for part in parts}


def _whose(before: Sequence[str] | None, now: Sequence[str] | None) -> str:
    if before is None or now is None or len(before) != len(now):
        return ""
    changed = [str(place) for place, (old, new) in enumerate(zip(before, now)) if old != new]
    return f" of client{'s' if len(changed) > 1 else ''} {', '.join(changed[:8])}{', ...' if len(changed) > 8 else ''}"


def _shown(before: str, now: str) -> str:
    return "" if before == now else f" ({before} in the checkpoint, {now} now)"


def _told(name: str, value: Any, content: Any = None, key: str = "") -> Part:
    text = str(value)
    return Part(name, _cut(text), content_mark(text if content is None else content), key=key)


def _cut(text: str) -> str:
    return text if len(text) <= LONG else text[:LONG] + " ..."


def _problem(declaration: Declaration) -> Iterator[Part]:
    objective, level, federation, roles = (
        declaration.objective,
        declaration.lower_level,
        declaration.federation,
        declaration.roles,
    )
    leaves: Leaves = {}

    def mathematics(name: str, parts: Sequence[Any], *beside: Any) -> Part:
        shown = ", ".join(expression_text(part) for part in parts) or "none"
        return Part(name, _cut(shown), content_mark([list(parts), *beside], leaves))

    for name, term in (("the server's term", objective.server), ("the clients' term", objective.clients)):
        yield mathematics(name, [] if term is None else [term], objective.sense)
    if level is not None:
        beside = [list(level.variables), list(level.expressions), level.scope, level.selection, type(level).__name__]
        yield mathematics("the lower level", level.declared, *beside)
        yield mathematics("the constraints on y", level.constraints)
    yield mathematics("the constraints on x", declaration.constraints)
    if declaration.coupled:
        yield mathematics("the upper constraints on y", [one.constraint for one in declaration.coupled])
    yield mathematics("the variables", [], list(roles.upper), list(roles.lower))
    for place, parameter in enumerate(roles.parameters):
        name, content = f"the value of {parameter.name()}", np.asarray(parameter.value, float)
        yield _told(name, parameter.value, content, f"parameter {place}")
    yield _told("the number of clients", 1 if federation is None else federation.num_clients)
    weights = declaration.client_weights
    yield _told("the clients' weights", np.array2string(weights, threshold=8), weights)
    if federation is None:
        return
    yield _told("the points of distributions", federation.points)
    for place, sample in enumerate(sample for table in roles.client_tables for sample in table):
        marks = [_sample_mark(client, sample) for client in federation.clients]
        yield _held(f"the data of {sample.name()}", marks, f"sample {place}")
    for place, own in enumerate(roles.client_parameters):
        marks = [content_mark(client.parameters[own]) for client in federation.clients]
        yield _held(f"the values of {own.name()}", marks, f"client parameter {place}")
    for place, sample in enumerate(sample for table in roles.server_tables for sample in table):
        assert federation.server is not None  # required when the problem was declared
        yield _held(f"the server's data of {sample.name()}", [_sample_mark(federation.server, sample)], f"own {place}")


def _held(name: str, marks: list[str], key: str) -> Part:
    several = 1 < len(marks) <= LISTED
    return Part(name, "", content_mark(marks), marks if several else None, key)


def _sample_mark(client: Client, sample: Any) -> str:
    """Of rows on disk some are read; distributions are told by their numbers."""
    held = client.samples[sample]
    if isinstance(held, np.memmap | MappedRows):
        rows = np.unique(np.linspace(0, len(held) - 1, min(LOOKED_AT, len(held))).astype(int))
        return content_mark([held.shape, held.dtype.str, np.asarray(held[rows])])
    return content_mark(held)


def _plain(solver: Any) -> Any:
    """Settings by value; of functions, such as schedules, only that they are: their numbers are compared as tables."""
    if is_dataclass(solver) and not isinstance(solver, type):
        return [type(solver).__qualname__, *(_plain(getattr(solver, field.name)) for field in fields(solver))]
    return "function" if callable(solver) else solver


def _runtime_text(runtime: Any) -> str:
    """A runtime by its plain settings; connections and processes, and how long they are waited for, are no part of a run."""
    if runtime is None:
        from hierfl.runtime.in_process.execution import InProcess

        runtime = InProcess()
    beside = getattr(runtime, "no_part_of_a_run", ())
    plain = [f for f in fields(runtime) if f.repr and f.name not in beside] if is_dataclass(runtime) else []
    given = [(f.name, getattr(runtime, f.name)) for f in plain]
    settings = ", ".join(
        f"{name}={value!r}" for name, value in given if isinstance(value, (str, int, float, type(None)))
    )
    return f"{type(runtime).__name__}({settings})"
