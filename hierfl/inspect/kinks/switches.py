"""Switches: expressions whose sign says on which smooth piece of f a point lies; all those of a problem, evaluated at a point.

A nonsmooth atom (abs, maximum, norms, ...) has one for each place where it changes branch, a constraint of Y(x) has its
slack. f is smooth where no switch changes; where one does it may have a kink. That is how kinks are found and named.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
from cvxpy.constraints import PSD, SOC, ExpCone, PowCone3D, PowConeND
from jax import Array

from hierfl.analysis.hoist import instantiate
from hierfl.analysis.variable_bounds import attribute_constraints
from hierfl.atoms.algebra import nodes_of, sides_of
from hierfl.atoms.table import row_of
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.evaluation_nodes import RULES, SUM
from hierfl.compiler.data.tables import Data, Population
from hierfl.compiler.expressions.law_kinks import crossed_atoms
from hierfl.compiler.expressions.program import Program
from hierfl.language.aggregates import Worst
from hierfl.language.expectation import SampleAverage
from hierfl.language.printing.text import expression_text
from hierfl.language.sample import ClientParameter

_OPAQUE_CONES = (PSD, ExpCone, PowCone3D, PowConeND)


class Switch(NamedTuple):
    """``expression`` changes sign where ``source``, an atom or a constraint of Y(x), changes branch.

    ``smoothed`` is one that a sample carries across zero, whose law makes its mean smooth but where the law's density jumps. ``tail`` is for a loss
    of each row: what changes sign is by how much it exceeds the least loss within that share of its holder's rows.
    """

    source: str
    expression: Any
    is_slack: bool = False
    smoothed: bool = False
    tail: float | None = None


def switches_of(
    expression: Any, laws: frozenset[int] = frozenset(), crossed: Container[int] | None = None
) -> Iterator[Switch]:
    """Those of every nonsmooth atom of a tree; ``laws`` make means smooth, by id."""
    inside = crossed_atoms(expression.per_sample, laws) if isinstance(expression, SampleAverage) else crossed
    make = row_of(expression).switches
    for sign_changing in () if make is None else make(expression):
        if not sign_changing.is_constant():
            smoothed = crossed is not None and id(expression) in crossed
            yield Switch(expression_text(expression), sign_changing, False, smoothed)
    if isinstance(expression, Worst):
        yield Switch(expression_text(expression), expression.args[0], tail=expression.tail)
    for argument in getattr(expression, "args", ()):
        yield from switches_of(argument, laws, inside)


def owned_constraints(compiled: CompiledProblem) -> Iterator[tuple[Any, str]]:
    """The constraints of Y(x), each with whose it is: a federation's Y(x) has every client's own."""
    level, federation = compiled.declaration.lower_level, compiled.declaration.federation
    assert level is not None
    for constraint in [*level.constraints, *attribute_constraints(level.variables)]:
        private = any(isinstance(p, ClientParameter) for p in constraint.parameters())
        if not private or level.scope != "federation" or federation is None:
            yield constraint, ""
            continue
        for index, client in enumerate(federation.clients):
            (own,) = instantiate([constraint], client.parameters)
            yield own, f"{expression_text(constraint)} of {client.called(index)}"


def atoms_of(compiled: CompiledProblem) -> Iterator[Any]:
    """Every expression within the declared terms and the lower level."""
    level = compiled.declaration.lower_level
    below = [*level.expressions, *level.constraints, *attribute_constraints(level.variables)] if level else []
    for tree in (*compiled.declaration.objective.terms, *below):
        yield from nodes_of(tree)


def constraint_switches(constraint: Any, name: str = "") -> Iterator[Switch]:
    """The slack of a constraint, and the switches of its own atoms."""
    text = name or expression_text(constraint)
    if (compared := sides_of(constraint)) is not None:
        left, right, equal = compared
        yield from [] if equal else [Switch(text, right - left, True)]
    elif isinstance(constraint, SOC):
        length = cp.norm(constraint.args[1], 2, axis=constraint.axis)
        yield Switch(text, constraint.args[0] - length, True)
        yield Switch(text, length)
    elif isinstance(constraint, PSD):
        yield Switch(text, cp.lambda_min(constraint.args[0]), True)
    else:
        return
    for argument in constraint.args:
        yield from switches_of(argument)


def is_opaque(part: Any) -> bool:
    """Whether an atom or a constraint has pieces whose switches cannot be told."""
    row = row_of(part)
    told = isinstance(part, Worst) or bool(row.switches and row.switches(part))
    return (row.opaque and not told) or isinstance(part, _OPAQUE_CONES)


TOLERANCE = 1e-11  # projections are exact on their boundary
ROUNDING = 4e-16


class Cause(NamedTuple):
    """What one entry of a signature belongs to: an atom or a constraint, the entry in it, its holder and the holder's row."""

    source: str
    entry: tuple[int, ...]
    holder: str
    row: int | None
    is_constraint: bool

    def __str__(self) -> str:
        entry = f"[{', '.join(map(str, self.entry))}]" if self.entry else ""
        row = "" if self.row is None else f"row {self.row}"
        where = ", ".join(filter(None, (self.holder, row)))
        name = f"({self.source}){entry}" if entry else self.source
        return f"{name} of {where}" if where else name


@dataclass(frozen=True, eq=False)
class Group:
    """Switches evaluated alike: at an owner (``table`` None), or on some rows of a table of one side, by number."""

    side: str  # "server", "clients" (upper terms) or "lower"
    table: int | None
    switches: tuple[Switch, ...]
    program: Program
    rows: np.ndarray | None


@dataclass(frozen=True, eq=False)
class Switches:
    """All switches of a problem; ``opaque`` names pieces whose switches cannot be told (functions, spectral atoms)."""

    compiled: CompiledProblem
    groups: tuple[Group, ...]
    opaque: tuple[str, ...]

    @classmethod
    def of(cls, compiled: CompiledProblem) -> Switches:
        problem, level = compiled.declaration, compiled.declaration.lower_level
        upper = {"server": problem.objective.server, "clients": problem.objective.clients}
        found: list[tuple[str, Switch]] = []
        for side, term in upper.items():
            of_term = () if term is None else switches_of(term, _smooth_laws(compiled, side))
            found += [(side, switch) for switch in of_term if not switch.smoothed]
        if level is not None:
            for expression in level.expressions:
                found += [("lower", switch) for switch in switches_of(expression, _smooth_laws(compiled, "lower"))]
            for constraint, owner in owned_constraints(compiled):
                found += [("lower", switch) for switch in constraint_switches(constraint, owner)]
        together: dict[tuple[str, int | None, bool], list[Switch]] = {}
        for side, switch in found:
            place = side, _table(compiled, side, switch), switch.smoothed
            together.setdefault(place, []).append(switch)
        opaque = {expression_text(atom): None for atom in atoms_of(compiled) if is_opaque(atom)}
        groups = []
        for (side, table, smoothed), switches in together.items():
            program = Program([switch.expression for switch in switches])
            groups.append(Group(side, table, tuple(switches), program, _rows(compiled, side, table, smoothed)))
        return cls(compiled, tuple(groups), tuple(opaque))

    def values(self, x: Array, answers: Array | None, data: Data) -> Array:
        """The value of every switch at x, ``(entries,)``; traceable."""
        parts = [jnp.ravel(values) for group in self.groups for values in self._values(group, x, answers, data)]
        return jnp.concatenate([jnp.zeros(0), *parts])

    def signature(self, x: Array, answers: Array | None, data: Data) -> Array:
        """The sign of every switch at x, zero within the tolerance: ``(entries,)`` of small integers; traceable."""
        parts = [jnp.zeros(0, jnp.int8)]
        for group in self.groups:
            for values in self._values(group, x, answers, data):
                flat = jnp.ravel(values)
                size, largest = jnp.abs(flat), jnp.max(jnp.abs(flat), initial=0.0)
                zero = size <= TOLERANCE * (1.0 + size)
                parts.append(jnp.where(zero | (size <= ROUNDING * largest), 0, jnp.sign(flat)).astype(jnp.int8))
        return jnp.concatenate(parts)

    @cached_property
    def entries(self) -> int:
        """Length of a signature."""
        return sum(self._holders(group) * switch.expression.size for group in self.groups for switch in group.switches)

    @cached_property
    def slacks(self) -> np.ndarray:
        return self._flags(lambda group, switch: switch.is_slack)

    @cached_property
    def of_level(self) -> np.ndarray:
        return self._flags(lambda group, switch: group.side == "lower")

    @cached_property
    def of_answers(self) -> np.ndarray:
        """Which entries are of the lower level and move with y, (entries,)."""
        lower = {variable.id for variable in self.compiled.lower.variables}

        def moves(group: Group, switch: Switch) -> bool:
            return group.side == "lower" and any(v.id in lower for v in switch.expression.variables())

        return self._flags(moves)

    @cached_property
    def sampled(self) -> np.ndarray:
        """Which entries belong to nodes that stand for a distribution, (entries,); a sum over its values has its kinks."""

        def is_node(group: Group, switch: Switch) -> np.ndarray | bool:
            side = _population(self.compiled, group.side)
            roles = None if group.table is None or side is None else side.tables[group.table].roles
            return False if roles is None or switch.smoothed else roles.rule != RULES.index(SUM)

        return self._flags(is_node)

    def _flags(self, flag: Callable[[Group, Switch], np.ndarray | bool]) -> np.ndarray:
        parts = [np.zeros(0, bool)]
        for group in self.groups:
            for switch in group.switches:
                of_holders = np.broadcast_to(flag(group, switch), self._holders(group))
                parts.append(np.repeat(of_holders, switch.expression.size))
        return np.concatenate(parts)

    def place(self, entry: int) -> Cause:
        """What an entry of a signature belongs to."""
        for group in self.groups:
            holders = self._holders(group)
            for switch in group.switches:
                shape, size = tuple(switch.expression.shape), switch.expression.size
                if entry < size * holders:
                    holder, within = divmod(entry, size)
                    index = tuple(int(i) for i in np.unravel_index(within, shape)) if shape else ()
                    return self._named(group, switch, index, holder)
                entry -= size * holders
        raise IndexError("no such entry")

    # --- where they are evaluated -------------------------------------------------------------------------------

    def _values(self, group: Group, x: Array, answers: Array | None, data: Data) -> tuple[Array, ...]:
        """Values of a group's switches, leading axis: holders."""
        compiled = self.compiled
        side = data.server if group.side == "server" else data.clients
        assert side is not None

        def answer(index: Any) -> Array | None:
            if answers is None or compiled.scope == "sample":
                return None
            return answers[0] if compiled.scope == "federation" else None if group.side == "server" else answers[index]

        if group.table is None:
            atoms = (atom for switch in group.switches for atom in nodes_of(switch.expression))
            averages = any(isinstance(atom, SampleAverage) for atom in atoms)

            def at(holder: Array) -> tuple[Array, ...]:
                own = compiled.environment(x, answer(holder), side.party(holder).environment)
                if not averages:
                    return group.program(own)
                return side.party(holder).mean(lambda rows: group.program(own, rows))

            return jax.vmap(at)(jnp.arange(self._holders(group)))
        table = side.tables[group.table]
        rows = jnp.asarray(group.rows)
        holder = jnp.searchsorted(table.offsets, rows, side="right") - 1
        each_row = compiled.scope == "sample" and group.side != "server" and group.table == compiled.row_table(compiled.static_data.clients)

        def one(job: tuple[Array, Array]) -> tuple[Array, ...]:
            row, index = job
            y = answers[row] if each_row and answers is not None else answer(index)
            return group.program(compiled.environment(x, y, {**side.party(index).environment, **table.rows(row)}))

        found = jax.vmap(one)((rows, holder))
        tails = (switch.tail for switch in group.switches)
        return tuple(value if tail is None else value - _edges(value, tail, holder, table.offsets, table.counts) for value, tail in zip(found, tails))

    def _holders(self, group: Group) -> int:
        if group.rows is not None:
            return group.rows.size
        static = self.compiled.static_data
        lower_shared = group.side == "lower" and self.compiled.scope == "federation"
        return 1 if group.side == "server" or lower_shared else static.clients.size

    def _named(self, group: Group, switch: Switch, index: tuple[int, ...], holder: int) -> Cause:
        def called(owner: int) -> str:
            return "server" if group.side == "server" else self.compiled.declaration.client_called(owner)

        side = _population(self.compiled, group.side)
        if group.table is None or group.rows is None or side is None:
            alone = group.side != "server" and self._holders(group) == 1
            return Cause(switch.source, index, "" if alone else called(holder), None, switch.is_slack)
        table, at = side.tables[group.table], int(group.rows[holder])
        owner = int(np.searchsorted(np.asarray(table.offsets), at, side="right")) - 1
        if switch.smoothed:
            jump = float(np.ravel(table.values[table.samples[0]][at])[0])
            law = f"{called(owner)}, whose law has a jump of its density at {round(jump, 12):.6g}"
            return Cause(switch.source, index, law, None, False)
        return Cause(switch.source, index, called(owner), at - int(table.offsets[owner]), switch.is_slack)


def _edges(losses: Array, tail: float, holder: Array, offsets: Array, counts: Array) -> Array:
    """The least loss within a share of the rows with the largest ones, of the holder of each row, of one row at least."""
    ordered = losses[jnp.lexsort((-losses, holder))]
    last = jnp.maximum(jnp.ceil(tail * counts - TOLERANCE).astype(int) - 1, 0)
    return ordered[(offsets[: len(counts)] + last)[holder]]


def _population(compiled: CompiledProblem, side: str) -> Population | None:
    return compiled.static_data.server if side == "server" else compiled.static_data.clients


def _smooth_laws(compiled: CompiledProblem, side: str) -> frozenset[int]:
    """The samples, by id, whose law makes means of kinks smooth."""
    population = _population(compiled, side)
    apart = side != "server" and compiled.scope == "sample"  # each node has a y of its own
    return frozenset() if population is None or apart else population.scalar_laws


def _rows(compiled: CompiledProblem, side: str, table: int | None, smoothed: bool) -> np.ndarray | None:
    """On which rows of a table switches are evaluated: on all, or where the density of a law that smooths their kinks jumps."""
    population = _population(compiled, side)
    if table is None or population is None:
        return None
    rows, roles = np.arange(population.tables[table].size), population.tables[table].roles
    return rows[roles.jump] if smoothed and roles is not None else rows


def _table(compiled: CompiledProblem, side: str, switch: Switch) -> int | None:
    """The table on whose rows a switch is evaluated; None where it holds no sample."""
    population = _population(compiled, side)
    if population is None:
        return None
    leaves = {leaf.id for leaf in [*switch.expression.parameters(), *switch.expression.variables()]}
    lower = {v.id for v in compiled.lower.variables}
    for place, table in enumerate(population.tables):
        if leaves & set(table.samples):
            return place
    if compiled.scope == "sample" and side != "server" and (leaves & lower):
        return compiled.row_table(compiled.static_data.clients)
    return None
