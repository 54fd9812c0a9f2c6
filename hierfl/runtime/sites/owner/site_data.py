"""A site's own data as the clients of a declaration, by their names, and with the columns that it says; and a rehearsal of a run on them.

A rehearsal is a run as it would be, of which nothing is sent: what would leave, over how many rows, and how long a round takes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from hierfl.compiler.compiled_problem import compile_problem
from hierfl.errors import DataError, SiteError
from hierfl.jaxtools.precision import computing
from hierfl.language.declaration import Declaration
from hierfl.language.federation.client import Client
from hierfl.language.federation.federated_data import Federation
from hierfl.language.federation.given_arrays import has_names
from hierfl.language.sample import ClientParameter, Sample
from hierfl.near_names import near_names
from hierfl.runtime.privacy.gaussian_noise import GaussianNoise
from hierfl.runtime.sites.letters import by_name, items_of, packed
from hierfl.runtime.sites.owner.site_rules import SiteRules
from hierfl.runtime.sites.parcels import Answered, Asked, Item, Start, starting
from hierfl.runtime.sites.site import Site


def held_of(declaration: Declaration, loaded: Any) -> dict[int, Client]:
    """The site's clients by their index, from ``{client: {sample or constant: values}}``.

    Samples and constants go by their names, or as they were declared; or values are a :class:`hierfl.Client`, as ``Client.from_frame`` makes one of a table by the declaration's schema. A client is called by its name in the declaration, or by its index where it has none.

    Raises ``DataError`` for names that the declaration does not have, with the nearest; for columns of tables that are
    others; also as :class:`hierfl.Client`.
    """
    federation = declaration.federation
    if federation is None:
        due = "hf.Federation([hf.Client({...: hf.Elsewhere(rows)}, name=...)])"
        raise DataError(f"the problem has no federation: declare {due}.")
    if not isinstance(loaded, Mapping) or not loaded or not all(isinstance(own, (Mapping, Client)) for own in loaded.values()):
        such = "such as {'north': {'u': array, 'rho': 0.3}}, or {client: hf.Client}"
        raise DataError(f"a site's data are {{client: {{sample or constant: values}}}}, {such}.")
    names: dict[Any, int] = {client.name or place: place for place, client in enumerate(federation.clients)}
    held = {}
    for name, own in loaded.items():
        if name not in names:
            near = near_names(str(name), map(str, names))
            raise DataError(f"client {name!r} of this site's data: {near}")
        declared, label = federation.clients[names[name]], f"client {name!r} in this site's data"
        if isinstance(own, Client):
            for schema, known in zip(own.schemas, declared.schemas):
                schema.require_same_moments(known, "the declaration", label)
            own = {leaf: own.given(leaf) for leaf in (*own.samples, *own.parameters)}
        client = _client(declared, name, own)
        _require_columns_to_compare(federation, client, label)
        held[names[name]] = client.with_columns(federation.columns, label)
    return held


def _require_columns_to_compare(federation: Federation, client: Client, label: str) -> None:
    """Refuse names that the declaration cannot say the order of: those of another site may stand in another one."""
    for leaf, labels in client.labels.items():
        if leaf not in federation.columns and any(map(has_names, labels[1 if isinstance(leaf, Sample) else 0 :])):
            said = f"{leaf.name()!r} of {label} has columns with names, and the declaration has none to compare them with"
            raise DataError(f"{said}: declare hf.Elsewhere(rows, columns=[...]) for a sample, or load .to_numpy().")


def _client(declared: Client, name: Any, own: Mapping[Any, Any]) -> Client:
    """A client with the values in place of what was declared of it."""
    samples = {sample.name(): sample for sample in declared.samples}
    constants = {constant.name(): constant for constant in declared.parameters}
    known = [*samples, *constants]
    own = {leaf.name() if isinstance(leaf, Sample | ClientParameter) else leaf: values for leaf, values in own.items()}
    for leaf in own:
        if leaf not in known:
            raise DataError(f"{leaf!r} of client {name!r} in this site's data: {near_names(str(leaf), known)}")
    if missing := [leaf for leaf in known if leaf not in own]:
        raise DataError(f"this site's data of client {name!r} lack {', '.join(missing)}.")
    rows = [{s: own[s.name()] for s in table} for table in declared.tables] or {s: own[known_as] for known_as, s in samples.items()}
    return Client(rows, {constant: own[known_as] for known_as, constant in constants.items()}, declared.name)


class Leaving(NamedTuple):
    """An array that a step sends, so often in a round (``inf`` where data say), over so many rows of a client (None for all)."""

    step: str
    array: Item
    often: float
    rows: int | None


class Rehearsed(NamedTuple):
    """The ``start`` of a run, what would leave, the numbers in a client's message, the fewest rows of a client that a step draws (None for all),
    and the seconds of a round here.
    """

    start: Start
    leaving: list[Leaving]
    numbers: int
    fewest: int | None
    seconds: float


def rehearsed(declaration: Declaration, held: Mapping[int, Client], solver: Any, rounds: int, noise: GaussianNoise | None) -> Rehearsed:
    """Every step of a run, asked twice, at x = 0: the first compiles. Raises ``SiteError`` if the run cannot begin."""
    with computing(double=True):
        problem = compile_problem(declaration)
        algorithm = solver.bind(problem, rounds)
        order = None if noise is None else noise.order(problem, algorithm, rounds, 0)
        start = starting(problem, algorithm, rounds, np.zeros(problem.upper.size), noise=order, shared_seeds=True)
    site = Site("here", declaration, held, SiteRules(shared_seeds=True), compiled=problem)
    begun = site.respond(start)
    if (run := site.run()) is None:
        raise SiteError(f"the run cannot begin here: {getattr(begun, 'reason', begun)}")
    clients, seed = np.array(list(held)), np.zeros(2, np.uint32)
    for turn in range(2):
        leaving, seconds, place = list[Leaving](), 0.0, 0
        for (kind, step), ((broadcast, each), *_) in run.protocol.shapes.items():
            sent = jax.tree.map(lambda one: np.zeros(one.shape, one.dtype), broadcast)
            own = jax.tree.map(lambda one: np.zeros((len(clients), *one.shape[1:]), one.dtype), each)
            began = time.perf_counter()
            reply = site.respond(Asked(turn, turn, place, None, kind, step, clients, seed, sent, own))
            if not isinstance(reply, Answered):  # without noise of a run that has some
                continue
            packed(reply)
            often, rows = run.protocol.often[kind, step], run.fewest_rows((kind, step))
            seconds, place = seconds + (time.perf_counter() - began) * (1.0 if np.isinf(often) else often), place + 1
            leaving += [Leaving(step, item, often, rows) for item in items_of(by_name(payload=reply.payload, monitor=reply.monitor))]
    return Rehearsed(start._replace(shared_seeds=False), leaving, run.protocol.numbers, run.fewest_rows(), seconds)
