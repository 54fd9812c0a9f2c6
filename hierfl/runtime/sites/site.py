"""A site: the data of its clients, their memories, the algorithm's steps, compiled once and run by name; and what its owner allows.

What a turn does to memories is settled by the next message: the server keeps a turn, or drops it, or keeps it but for clients whose
messages it refused. A client whose message did not count is then as if it had been absent.
"""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem, compile_problem
from hierfl.errors import DataError, HierflError, SettingError, SiteError
from hierfl.jaxtools.keyed_random import fold_in
from hierfl.jaxtools.precision import computing
from hierfl.language.declaration import Declaration
from hierfl.language.federation.client import Client
from hierfl.language.federation.federated_data import Federation
from hierfl.language.federation.given_arrays import has_names
from hierfl.language.sample import Sample
from hierfl.near_names import near_names, suggests_names
from hierfl.runtime.contract import Received
from hierfl.runtime.in_process.schedule import choose_schedule
from hierfl.runtime.privacy.gaussian_noise import NoisedMessages, SharedNoise, require_covered
from hierfl.runtime.privacy.pairwise_masks import SiteMasks, require_means
from hierfl.runtime.sites.memory_folder import MemoryFolder, memory_bytes, memory_of
from hierfl.runtime.sites.parcels import (
    Answered,
    Asked,
    Keep,
    Kept,
    KeptMark,
    Refusal,
    Settled,
    Start,
    Unmask,
    Unmasked,
    Welcome,
    as_numpy,
    as_tables,
    declaration_mark,
    declared_text,
    items_of,
    leaves_by_path,
    packed,
    unpacked,
)
from hierfl.version import VERSION


@suggests_names
@dataclass(frozen=True)
class SiteRules:
    """A site's rules.

    Parameters
    ----------
    algorithms
        The names of solvers, such as ``("FedAvg", "SCAFFOLD")``; None allows all.
    min_samples
        The fewest rows that each client must hold in every table.
    max_rounds
        The most rounds that are answered, of all runs together; None for no limit.
    min_noise
        The least ``multiplier`` of :class:`hierfl.runtime.GaussianNoise` that a run must have; None allows runs without noise. Noise that
        sites share counts where ``min_sum`` is asked for as well.
    min_sum
        The least ``least`` of :class:`hierfl.runtime.PairwiseMasks` that a run must have; None allows runs without masks.

    Raises
    ------
    SettingError
        For numbers below zero.
    """

    algorithms: tuple[str, ...] | None = None
    min_samples: int = 1
    max_rounds: int | None = None
    min_noise: float | None = None
    min_sum: int | None = None

    def __post_init__(self) -> None:
        if self.min_samples < 0 or (self.max_rounds is not None and self.max_rounds < 0):
            raise SettingError("SiteRules: min_samples and max_rounds are numbers from 0 on.")
        if self.min_noise is not None and not self.min_noise > 0:
            raise SettingError(f"SiteRules(min_noise={self.min_noise!r}): a positive number, or None.")
        if self.min_sum is not None and self.min_sum < 2:
            raise SettingError(f"SiteRules(min_sum={self.min_sum!r}): at least 2 sites, or None.")

    def against(
        self, algorithm: str, held: Mapping[int, Client], noise: float | None = None, least: int | None = None
    ) -> str | None:
        """What speaks against a run of an algorithm, its noise's multiplier, and sums over so many sites; None where nothing does."""
        if self.algorithms is not None and algorithm not in self.algorithms:
            return f"{algorithm} is not among the algorithms that this site allows: {', '.join(self.algorithms)}"
        if self.min_noise is not None and (noise is None or noise < self.min_noise):
            given = "none" if noise is None else f"noise of multiplier {noise:g}"
            return f"this site asks for noise of multiplier {self.min_noise:g} or more, and the run has {given}"
        if self.min_sum is not None and (least is None or least < self.min_sum):
            given = "none" if least is None else f"those of least={least}"
            return f"this site asks for masks of least={self.min_sum} or more, and the run has {given}"
        for place, client in held.items():
            for sample in client.samples:
                count = client.num_samples(sample)
                if count is not None and count < self.min_samples:
                    return f"{client.called(place)} holds fewer rows of {sample.name()!r} than the {self.min_samples} that this site asks for"
        return None

    def against_round(self, answered: int) -> str | None:
        """What speaks against one more round after so many; None where nothing does."""
        if self.max_rounds is not None and answered >= self.max_rounds:
            return f"this site has answered the {self.max_rounds} rounds that it allows"
        return None


def held_of(declaration: Declaration, loaded: Any) -> dict[int, Client]:
    """The site's clients by their index, from ``{client: {sample or constant: values}}``.

    A client is called by its name in the declaration, or by its index where it has none.

    Raises ``DataError`` for names that the declaration does not have, with the nearest; for columns of tables that are
    others; also as :class:`hierfl.Client`.
    """
    federation = declaration.federation
    if federation is None:
        raise DataError(
            "the problem has no federation: declare hf.Federation([hf.Client({...: hf.Elsewhere(rows)}, name=...)])."
        )
    if not isinstance(loaded, Mapping) or not loaded or not all(isinstance(own, Mapping) for own in loaded.values()):
        raise DataError(
            "a site's data are {client: {sample or constant: values}}, such as {'north': {'u': array, 'rho': 0.3}}."
        )
    names: dict[Any, int] = {client.name or place: place for place, client in enumerate(federation.clients)}
    held = {}
    for name, own in loaded.items():
        if name not in names:
            raise DataError(
                f"client {name!r} of this site's data: {near_names(str(name), [str(known) for known in names])}"
            )
        client, label = _client(federation.clients[names[name]], name, own), f"client {name!r} in this site's data"
        _require_columns_to_compare(federation, client, label)
        held[names[name]] = client.with_columns(federation.columns, label)
    return held


def _require_columns_to_compare(federation: Federation, client: Client, label: str) -> None:
    """Refuse names that the declaration cannot say the order of: those of another site may stand in another one."""
    for leaf, labels in client.labels.items():
        if leaf not in federation.columns and any(map(has_names, labels[1 if isinstance(leaf, Sample) else 0 :])):
            raise DataError(
                f"{leaf.name()!r} of {label} has columns with names, and the declaration has none to compare them with: declare "
                f"hf.Elsewhere(rows, columns=[...]) for a sample, or load .to_numpy()."
            )


def _client(declared: Client, name: Any, own: Mapping[Any, Any]) -> Client:
    """A client with the values in place of what was declared of it."""
    samples = {sample.name(): sample for sample in declared.samples}
    constants = {constant.name(): constant for constant in declared.parameters}
    known = [*samples, *constants]
    for leaf in own:
        if leaf not in known:
            raise DataError(f"{leaf!r} of client {name!r} in this site's data: {near_names(str(leaf), known)}")
    if missing := [leaf for leaf in known if leaf not in own]:
        raise DataError(f"this site's data of client {name!r} lack {', '.join(missing)}.")
    tables = [{sample: own[sample.name()] for sample in table} for table in declared.tables]
    rows = tables or {sample: own[known_as] for known_as, sample in samples.items()}
    return Client(rows, {constant: own[known_as] for known_as, constant in constants.items()}, declared.name)


LOG = logging.getLogger("hierfl.site")
NO_RUN = Refusal("no run has begun here for this server: this process is new, or others have begun theirs since")
SERVERS = 4  # that have a run here at once; of one more the run that was asked longest ago is forgotten


class Site:
    """What a site's process holds, and how it answers.

    Parameters
    ----------
    name
        As its owner's log calls it.
    declaration
        The problem; what it says of these clients' data is that they are elsewhere, or the data themselves.
    held
        The data of its clients, by their index in the federation.
    rules
        What the owner allows.
    compiled, programs
        What simulated sites of one process share.
    memories
        Where what its clients remember is kept for the server's checkpoints; ``"handed back"`` to the server, where their data were handed over
        by it; None keeps nothing.
    """

    def __init__(
        self,
        name: str,
        declaration: Declaration,
        held: Mapping[int, Client],
        rules: SiteRules,
        compiled: CompiledProblem | None = None,
        programs: dict[Any, Any] | None = None,
        memories: MemoryFolder | Literal["handed back"] | None = None,
    ) -> None:
        self.memories = memories
        self.name, self.declaration, self.held, self.rules = name, declaration, dict(sorted(held.items())), rules
        self.mark = declaration_mark(declaration)
        self.rounds = 0  # answered, of all runs
        self._compiled = compiled
        self._programs: dict[Any, Any] = {} if programs is None else programs
        self._runs: dict[str, SiteRun] = {}  # by their servers, the one asked last at the end
        self._noised: dict[Any, NoisedMessages] = {}  # of each run with noise, which may begin here more than once

    def answer(self, parcel: bytes, server: str = "") -> bytes:
        """Answer one pickled message of a server."""
        reply = self.respond(unpacked(parcel), server)
        sent = packed(reply)
        self.tell(reply, len(sent))
        return sent

    def respond(
        self, message: Start | Asked | Unmask | Keep, server: str = ""
    ) -> Welcome | Answered | Unmasked | Kept | Refusal:
        """Answer one message; whatever goes wrong is told by its kind, and in full in this site's own log.

        What a server began is its own: another may have a run here at the same time.
        """
        try:
            with computing(double=True):
                if isinstance(message, Start):
                    return self._begin(message, server)
                run = self.run(server)
                if run is None:
                    return NO_RUN
                return self._keep(message, run) if isinstance(message, Keep) else self._step(message, run)
        except HierflError as error:
            LOG.warning("%s: refused: %s", self.name, error)
            return Refusal(str(error))
        except Exception as error:
            LOG.exception("%s: failed", self.name)
            return Refusal(f"{type(error).__name__}, which the site's own log has in full", failed=True)

    def run(self, server: str = "") -> SiteRun | None:
        """The run of a server that it takes part in."""
        run = self._runs.pop(server, None)
        if run is not None:
            self._runs[server] = run
        return run

    def _begin(self, start: Start, server: str) -> Welcome | Refusal:
        """Begin a run, or say why not: another version, another declaration, or the owner's rules."""
        for order in (start.noise, start.masks):
            if order is not None:
                order.require_sound()
        reason = self._against(start)
        if reason is not None:
            LOG.warning("%s: refused a run of %s: %s", self.name, start.algorithm, reason)
            return Refusal(reason)
        if self._compiled is None:
            self._compiled = compile_problem(self.declaration)
        solver = pickle.loads(start.solver) if isinstance(start.solver, bytes) else start.solver
        algorithm = solver.bind(self._compiled, start.rounds, start.queries)
        noised = None
        if start.noise is not None:
            step = require_covered(self._compiled, algorithm)
            noised = self._noised.setdefault((start.noise, start.masks), self._noise_of(start, step))
        masks = None
        if start.masks is not None:
            require_means(self._compiled, algorithm)
            masks = SiteMasks(start.masks)
        run = SiteRun(self._compiled, algorithm, start, self.held, self._programs, noised, masks)
        if start.kept is not None:
            run.remember(self._kept(start.kept))
        self._runs.pop(server, None)
        self._runs[server] = run
        if len(self._runs) > SERVERS:
            del self._runs[next(iter(self._runs))]
        LOG.info("%s: a run of %s begins, %d rounds at most", self.name, start.algorithm, start.rounds)
        return Welcome(tuple(self.held), b"" if masks is None else masks.public)

    def _noise_of(self, start: Start, step: str) -> NoisedMessages:
        assert start.noise is not None  # or there is none
        if not start.noise.shared:
            return NoisedMessages(start.noise, step)
        if start.masks is None:
            raise SiteError("noise that sites share is too little for messages without masks")
        weights = self.declaration.client_weights
        return SharedNoise(start.noise, step, start.masks, weights / np.sum(weights))

    def _against(self, start: Start) -> str | None:
        if start.version != VERSION:
            return f"the server runs hierfl {start.version}, this site hierfl {VERSION}"
        if start.mark != self.mark:
            return (
                f"another problem is declared here than at the server (mathematics, values of parameters, clients' names, or numbers of "
                f"rows). Here:\n{declared_text(self.declaration)}\nAt the server:\n{start.declared}"
            )
        mere_part = start.noise is not None and start.noise.shared and self.rules.min_sum is None
        noise = None if start.noise is None or mere_part else start.noise.multiplier
        least = None if start.masks is None else start.masks.least
        return self.rules.against(start.algorithm, self.held, noise, least) or self.rules.against_round(self.rounds)

    def _keep(self, asked: Keep, run: SiteRun) -> Kept:
        """Keep what clients remember, or hand it back to whom their data came from."""
        if self.memories is None:
            return Kept(False)
        content = run.remembered(asked.settled)
        if self.memories == "handed back":
            return Kept(True, content)
        self.memories.keep(asked.run, asked.number, content)
        LOG.info("%s: kept what its clients remember, %d bytes, in %s", self.name, len(content), self.memories.path)
        return Kept(True)

    def _kept(self, mark: KeptMark) -> bytes:
        if self.memories is None:
            raise SiteError(
                "the run goes on from what this site's clients remember, and it keeps nothing: start it with --keep DIR"
            )
        return mark.content if self.memories == "handed back" else self.memories.read(mark.run, mark.number)

    def _step(self, asked: Asked | Unmask, run: SiteRun) -> Answered | Unmasked | Refusal:
        if isinstance(asked, Unmask):
            if run.masks is None:
                return Refusal("this run has no masks")
            return Unmasked(run.masks.own_mask(asked.attempt))
        noised, new_turn = run.noised, asked.turn != run.turn
        if asked.kind == "map" and (new_turn or noised is not None):
            reason = self.rules.against_round(self.rounds)
            if reason is not None:
                return Refusal(reason)
        if noised is None:
            self.rounds += new_turn and asked.kind == "map"
            return run.answer(asked)
        before = noised.releases.largest
        try:
            return run.answer(asked)
        finally:  # whatever turn the server says it is, and also where the message was drawn and then not sent
            self.rounds += noised.releases.largest - before

    def tell(self, reply: Any, size: int) -> None:
        """The owner's log has every array that leaves: its name, shape and bytes."""
        if isinstance(reply, Answered):
            for item in items_of({"payload": reply.payload, "monitor": reply.monitor}):
                LOG.info("%s: sent %s %s %s, %d bytes", self.name, item.name, item.shape, item.dtype, item.bytes)
        LOG.info("%s: sent %s, %d bytes in all", self.name, type(reply).__name__, size)


class SiteRun:
    """One run at a site: the memories of its clients before the present turn, and after each call in it."""

    def __init__(
        self,
        problem: CompiledProblem,
        algorithm: Any,
        start: Start,
        held: Mapping[int, Client],
        programs: dict[Any, Any],
        noised: NoisedMessages | None,
        masks: SiteMasks | None,
    ) -> None:
        self.noised, self.masks = noised, masks
        self.problem, self.algorithm, self.programs = problem, algorithm, programs
        self.x0 = start.x0
        self.places = {client: place for place, client in enumerate(held)}
        key = ("data", tuple(held), problem.parameter_values)
        if key not in programs:
            programs[key] = problem.population_of(held)
        self.data = programs[key]
        self.tables = as_tables(fitted(start.tables, algorithm.tables))
        first = algorithm.memory(jnp.asarray(start.x0))
        self.memories = [jax.tree.map(lambda a: jnp.broadcast_to(a, (len(held), *jnp.shape(a))), first)]
        self.turn = -1

    def answer(self, asked: Asked) -> Answered:
        """Run a step for some clients, side by side or one after another."""
        began = time.perf_counter()
        if len(set(asked.clients.tolist())) < len(asked.clients):
            raise SiteError("a client was asked for twice in one message")
        if self.noised is not None:
            self.noised.require(asked.kind, asked.step)
        if asked.turn != self.turn:
            self._settle(asked.settled)
            self.turn = asked.turn
        del self.memories[asked.place + 1 :]
        chosen = np.array([self.places[client] for client in asked.clients.tolist()])
        size, count = self._padded(len(chosen)), len(chosen)
        filled = np.concatenate([np.arange(count), np.zeros(size - count, int)])
        each = jax.tree.map(lambda a: np.asarray(a)[filled], asked.each)
        given = (self.tables, self.data, self.memories[-1], chosen[filled], asked.broadcast, each)
        program = self._program(asked.kind, asked.step, size)
        memory, (payload, monitor) = program(*given, np.asarray(asked.round), asked.seed)
        self.memories.append(memory)
        payload, monitor = jax.tree.map(lambda a: np.asarray(a)[:count], as_numpy((payload, monitor)))
        if isinstance(self.noised, SharedNoise):
            assert self.masks is not None  # required when the run began
            clients, withheld = asked.clients.tolist(), int("value" in monitor)
            questions = [
                (question, self.masks.opened) for question in asked.questions()
            ]  # once opened it is another one
            numbers = self.noised.summed(clients, questions, payload, withheld)
            return Answered(self.masks.masked(numbers, asked.masking), {}, 0.0)
        if self.noised is not None:  # what else there is to say is withheld, the time it took as well
            payload = self.noised.of(asked.clients.tolist(), asked.questions(), payload)
            monitor = jax.tree.map(np.zeros_like, monitor)
        if self.masks is not None:
            payload, monitor = self.masks.masked(self._summed(asked.clients, payload, monitor), asked.masking), {}
        return Answered(payload, monitor, 0.0 if self.noised is not None else time.perf_counter() - began)

    def _summed(self, clients: np.ndarray, payload: Any, monitor: Any) -> np.ndarray:
        """The clients' messages, times their share of all weights, as one list of numbers."""
        weights = self.problem.declaration.client_weights
        shares = weights[clients] / np.sum(weights)
        parts = [*jax.tree.leaves(payload), *([monitor["value"]] if "value" in monitor else [])]
        return np.concatenate([np.tensordot(shares, np.asarray(part, float), axes=1).ravel() for part in parts])

    def remembered(self, settled: Settled | None) -> bytes:
        """What clients remember between two turns."""
        self._settle(settled)
        return memory_bytes(self.memories[0], self.places)

    def remember(self, content: bytes) -> None:
        """Begin with what was kept."""
        self.memories = [memory_of(content, self.memories[0], self.places)]

    def _settle(self, settled: Settled | None) -> None:
        """Keep the last turn's memories, or not."""
        first, last = self.memories[0], self.memories[-1]
        if settled is None or settled.turn != self.turn or not settled.kept:
            self.memories = [first]
            return
        undone = np.array([self.places[client] for client in settled.undone], int)
        self.memories = [
            jax.tree.map(lambda new, old: new.at[undone].set(old[undone]), last, first) if undone.size else last
        ]

    def _padded(self, count: int) -> int:
        """A program for so many clients serves fewer as well."""
        return min(len(self.places), 1 << max(count - 1, 0).bit_length())

    def _program(self, kind: str, step: str, size: int) -> Callable[..., Any]:
        key = (self.algorithm.program_key, kind, step, size)
        if key not in self.programs:
            together = choose_schedule(self.problem, size, None, self.algorithm.work).side_by_side
            self.programs[key] = jax.jit(_stepper(self.algorithm, kind, step, together))
        program: Callable[..., Any] = self.programs[key]
        return program


def fitted(tables: Mapping[str, np.ndarray], own: Any) -> Any:
    """The server's tables in the places of one's own.

    Raises ``SiteError`` if they are not the tables of the same algorithm, by their names and shapes.
    """
    kinds = {name: (table.shape, table.dtype.kind) for name, table in leaves_by_path(own).items()}
    sent = {name: (np.shape(table), np.asarray(table).dtype.kind) for name, table in tables.items()}
    if kinds != sent:
        raise SiteError(f"the server's tables are {sent}, those of the same solver here are {kinds}.")
    return jax.tree.unflatten(jax.tree.structure(own), [tables[name] for name in leaves_by_path(own)])


def _stepper(algorithm: Any, kind: str, name: str, together: bool) -> Callable[..., Any]:
    """The program of a step for several clients of a site, as a function of everything that changes."""

    def run(
        tables: Any, data: Any, memory: Any, chosen: Any, broadcast: Any, each: Any, index: Any, seed: Any
    ) -> tuple[Any, tuple[Any, Any]]:
        step, key = attrgetter(name)(algorithm.with_tables(tables)), jax.random.wrap_key_data(seed)

        def one(job: tuple[Any, Any, Any]) -> tuple[Any, tuple[Any, Any]]:
            place, own, sent = job
            party = data.party(place)
            if kind == "query":
                return own, (step(party, broadcast), {})
            after, message = step(party, own, Received(broadcast, sent, index), fold_in(key, party.index))
            return after, (message.payload, message.monitor)

        jobs = (chosen, jax.tree.map(lambda a: a[chosen], memory), each)
        changed, answers = (jax.vmap(one) if together else lambda given: jax.lax.map(one, given))(jobs)
        return jax.tree.map(lambda a, new: a.at[chosen].set(new), memory, changed), answers

    return run
