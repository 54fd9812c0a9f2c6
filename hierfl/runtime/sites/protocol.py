"""What a run's own algorithm asks of a site, found by tracing the server's programs: a site answers nothing else."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Drawn
from hierfl.errors import SiteError
from hierfl.jaxtools.keyed_random import key_of
from hierfl.jaxtools.precision import computing
from hierfl.runtime.sites.parcels import Asked, leaves_by_path
from hierfl.runtime.sites.rounds import present_in
from hierfl.runtime.sites.site_programs import SitePrograms, Wire

Step = tuple[str, str]  # its kind, and its name


class _Noting(Wire):
    """A wire on which nothing is sent: it notes what would be, and how often in one program; ``inf`` where that is for data to say."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: dict[Step, list[Any]] = {}
        self.told: dict[Step, Any] = {}
        self.often: Counter[Step] = Counter()
        self.drawn: list[Drawn] = []  # by the step that is noted next
        self.drawn_by: dict[Step, set[Drawn]] = {}
        self._times = 1.0

    def note(self, kind: str, name: str, broadcast: Any, each: Any, told: Any) -> None:
        self.told[kind, name] = told
        self.drawn_by.setdefault((kind, name), set()).update(self.drawn)
        self.drawn.clear()
        shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(jnp.shape(a), jnp.result_type(a)), (broadcast, each))
        known = self.shapes.setdefault((kind, name), [])
        if shapes not in known:
            known.append(shapes)
        self.often[kind, name] += self._times  # type: ignore[assignment]

    @contextmanager
    def repeated(self, count: Any) -> Iterator[None]:
        before = self._times
        self._times *= count if isinstance(count, int | np.integer) else math.inf
        yield
        self._times = before


@dataclass(frozen=True)
class RunProtocol:
    """The messages of a round, and of the run's own value at its end.

    ``shapes`` has by step the trees of ``jax.ShapeDtypeStruct`` of (broadcast, each) that it may be sent, ``told`` that of what a client tells,
    (payload, monitor), ``often`` how many times in one turn; ``drawn`` is what clients' steps draw of their tables.
    """

    shapes: Mapping[Step, list[Any]]
    told: Mapping[Step, Any]
    often: Mapping[Step, float]
    drawn: Mapping[Step, set[Drawn]]

    @classmethod
    def of(cls, problem: CompiledProblem, algorithm: Any, x0: np.ndarray) -> RunProtocol:
        with computing(double=True):
            parts = []
            for everybody in (False, True):
                noting = _Noting()
                programs = SitePrograms(problem, algorithm, tracing=noting)
                state, index = algorithm.init(jnp.asarray(x0)), jnp.asarray(0)
                given = (programs.tables, state, problem.laid_out())
                all_there = present_in(np.arange(problem.num_clients), problem.num_clients)
                if everybody:
                    jax.eval_shape(programs.own_value(), *given, all_there, key_of(0), index, jnp.asarray(x0))
                else:
                    some = present_in(np.arange(algorithm.cohorts.size), algorithm.cohorts.size)
                    jax.eval_shape(programs.round(), *given, some, all_there, key_of(0), index)
                parts.append(noting)
        shapes = {step: [*trees] for part in parts for step, trees in part.shapes.items()}
        for step, trees in parts[0].shapes.items():
            shapes[step] += [tree for tree in trees if tree not in shapes[step]]
        often = {step: max(part.often[step] for part in parts) for step in shapes}
        drawn = {step: parts[0].drawn_by.get(step, set()) | parts[1].drawn_by.get(step, set()) for step in shapes}
        return cls(shapes, parts[1].told | parts[0].told, often, drawn)

    def require(self, asked: Asked, before: int) -> None:
        """Require a message of the run's algorithm, of a step that was answered so many times in this turn.

        Raises ``SiteError`` for any other.
        """
        step = asked.kind, asked.step
        if not any(_fit(asked, *trees) for trees in self.shapes.get(step, ())):
            raise SiteError(f"{asked.kind} {asked.step!r} as it was sent is no message of this run's algorithm")
        if before >= self.often[step]:
            raise SiteError(f"{asked.kind} {asked.step!r} was answered in this round: it is asked for {before} times in one, not more")

    def fewest_rows(self, counts: Mapping[int, int], step: Step | None = None) -> int | None:
        """The fewest rows that a step, or any, reads at once of a holder of so many in each table; None where it always reads all."""
        drawn = set().union(*self.drawn.values()) if step is None else self.drawn[step]
        return min((one.least(counts[one.table]) for one in drawn if one.table in counts), default=None)

    @property
    def numbers(self) -> int:
        """The most numbers that a client tells at once."""
        return max((sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(told[0])) for told in self.told.values()), default=0)


def _fit(asked: Asked, broadcast: Any, each: Any) -> bool:
    """Whether what was sent has the form of these trees; what each client has its own of has a leading axis of clients."""
    sent, wanted = (asked.broadcast, asked.each), (broadcast, each)
    kinds: list[Any] = [jax.tree.structure(sent), jax.tree.structure(wanted)]
    if kinds[0] != kinds[1]:
        return False
    own = [(len(asked.clients), *leaf.shape[1:]) for leaf in jax.tree.leaves(each)]
    shapes = [leaf.shape for leaf in jax.tree.leaves(broadcast)] + own
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(sent)]
    types = [np.dtype(leaf.dtype) for leaf in jax.tree.leaves(wanted)]
    return all(a.shape == shape and of_type(a.dtype, wanted) for a, shape, wanted in zip(arrays, shapes, types))


def of_type(sent: np.dtype, wanted: np.dtype) -> bool:
    """Whether numbers are of a type; whole ones come out of a compiled program as words of 32 bits, whose sign says nothing."""
    return sent == wanted or (sent.kind in "iu" and wanted.kind in "iu" and sent.itemsize <= wanted.itemsize)


def fitted(tables: Mapping[str, np.ndarray], own: Any) -> Any:
    """The server's tables in the places of one's own.

    Raises ``SiteError`` if they are not the tables of the same algorithm, by their names and shapes.
    """
    kinds = {name: (table.shape, table.dtype.kind) for name, table in leaves_by_path(own).items()}
    sent = {name: (np.shape(table), np.asarray(table).dtype.kind) for name, table in tables.items()}
    if kinds != sent:
        raise SiteError(f"the server's tables are {sent}, those of the same solver here are {kinds}.")
    return jax.tree.unflatten(jax.tree.structure(own), [tables[name] for name in leaves_by_path(own)])


def require_alike(algorithm: Any, sent: Mapping[str, np.ndarray]) -> None:
    """Require that the clients of a sum do alike, by the tables of the solver as it was sent: a client that does more is most of the sum.

    Raises ``SiteError``, naming the table that is another one, or by which they do not.
    """
    for name, own in leaves_by_path(algorithm.tables).items():
        if not np.array_equal(own, sent[name]):
            raise SiteError(f"under masks the server's table {name} has to be that of the solver as it was sent")
    for field in fields(algorithm):
        table = getattr(algorithm, field.name)
        if isinstance(table, np.ndarray | jax.Array) and table.ndim == 2 and not (np.all(table > 0) and np.all(table == table[:, :1])):
            raise SiteError(f"by the table {field.name} clients do not alike, and one that does more than others is most of a sum")
