"""Switches: expressions whose sign says on which smooth piece of f a point lies.

A nonsmooth atom (abs, maximum, norms, ...) has one for each place where it changes branch, a constraint of Y(x) has its
slack. f is smooth where no switch changes; where one does it may have a kink. That is how kinks are found and named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
from cvxpy.atoms.max import max as max_entries
from cvxpy.atoms.min import min as min_entries
from cvxpy.constraints import PSD, SOC, Equality, ExpCone, Inequality, NonNeg, NonPos, PowCone3D, PowConeND, Zero

from hierfl.analysis.hoist import instantiate
from hierfl.analysis.variable_attributes import attribute_constraints
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Data
from hierfl.compiler.expressions.program import Array, Program
from hierfl.language.expectation import SampleAverage
from hierfl.language.function import BlackBox, Function
from hierfl.language.printing.text import expression_text
from hierfl.language.sample import ClientParameter

TOLERANCE, HOST_TOLERANCE = 1e-11, 1e-6  # projections are exact on their boundary; what CVXPY returns is not
ROUNDING = 4e-16
HALF_DECIMAL = 0.5e-4  # CVXPY rounds to four decimals before it takes ceil and floor


class Switch(NamedTuple):
    """``expression`` changes sign where ``source``, an atom or a constraint of Y(x), changes branch."""

    source: str
    expression: Any
    is_slack: bool = False


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


# --- the switches of an expression ------------------------------------------------------------------------------------


def switches_of(expression: Any, per_row: bool = False) -> Iterator[tuple[Switch, bool]]:
    """(switch, whether it stands under a mean over samples) for every nonsmooth atom of a tree."""
    inside = per_row or isinstance(expression, SampleAverage)
    for found in _own_switches(expression):
        yield Switch(expression_text(expression), found), per_row
    for argument in getattr(expression, "args", ()):
        yield from switches_of(argument, inside)


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
            yield instantiate([constraint], client.parameters)[0], f"{expression_text(constraint)} of client {index}"


def atoms_of(compiled: CompiledProblem) -> Iterator[Any]:
    """Every expression within the declared terms and the lower level."""
    problem, level = compiled.declaration, compiled.declaration.lower_level
    trees: list[Any] = [term for term in (problem.objective.server, problem.objective.clients) if term is not None]
    trees += [*level.expressions, *level.constraints, *attribute_constraints(level.variables)] if level else []
    for tree in trees:
        yield from _atoms(tree)


def constraint_switches(constraint: Any, name: str = "") -> Iterator[Switch]:
    """The slack of a constraint, and the switches of its own atoms."""
    text = name or expression_text(constraint)
    if isinstance(constraint, Inequality):
        yield Switch(text, constraint.args[1] - constraint.args[0], True)
    elif isinstance(constraint, (NonNeg, NonPos)):
        yield Switch(text, constraint.args[0] if isinstance(constraint, NonNeg) else -constraint.args[0], True)
    elif isinstance(constraint, SOC):
        length = cp.norm(constraint.args[1], 2, axis=constraint.axis)
        yield Switch(text, constraint.args[0] - length, True)
        yield Switch(text, length)
    elif isinstance(constraint, PSD):
        yield Switch(text, cp.lambda_min(constraint.args[0]), True)
    elif not isinstance(constraint, (Equality, Zero)):
        return
    for argument in constraint.args:
        yield from (switch for switch, _ in switches_of(argument))


def _own_switches(atom: Any) -> list[Any]:
    made = next((make(atom) for kind, make in _SWITCHES.items() if isinstance(atom, kind)), [])
    return [e for e in made if not e.is_constant()]


def _between(arguments: list[Any]) -> list[Any]:
    """Of the largest (or smallest) of several: their differences."""
    return [a - b for place, a in enumerate(arguments) for b in arguments[:place]]


def _from_extreme(atom: Any) -> list[Any]:
    """Of the largest (or smallest) entry: how far every entry is from it."""
    extreme = cp.max if isinstance(atom, max_entries) else cp.min
    return [atom.args[0] - extreme(atom.args[0], axis=atom.axis, keepdims=atom.axis is not None)]


def _at_whole_numbers(shift: float) -> Callable[[Any], list[Any]]:
    """Of what is constant between whole numbers, from ``shift`` before them."""

    def made(atom: Any) -> list[Any]:
        shifted = atom.args[0] + shift
        return [Function(lambda a: jnp.sin(jnp.pi * a), shifted, shape=shifted.shape, name="sin")]

    return made


def _ties(atom: Any) -> list[Any]:
    """Of the k largest entries: the gap between the k-th and the next; of a fractional k, those on either side of it."""
    x = atom.args[0]
    whole = {int(np.floor(atom.k)), int(np.ceil(atom.k))}
    return [_tie(x, k) for k in sorted(whole) if 0 < k < x.size]


def _tie(x: Any, k: int) -> Any:
    """The gap between the k-th largest entry and the next."""
    fewer = cp.sum_largest(x, k - 1) if k > 1 else 0
    return 2 * cp.sum_largest(x, k) - fewer - cp.sum_largest(x, k + 1)


_SWITCHES: dict[type, Callable[[Any], list[Any]]] = {
    cp.abs: lambda atom: [atom.args[0]],
    cp.norm1: lambda atom: [atom.args[0]],
    cp.norm_inf: lambda atom: [atom.args[0], cp.abs(atom.args[0]) - cp.norm_inf(atom.args[0])],
    cp.Pnorm: lambda atom: [
        cp.norm(atom.args[0] if atom.axis is not None else cp.vec(atom.args[0], order="F"), 2, axis=atom.axis)
    ],
    cp.huber: lambda atom: [cp.abs(atom.args[0]) - atom.M],
    cp.maximum: lambda atom: _between(atom.args),
    cp.minimum: lambda atom: _between(atom.args),
    max_entries: _from_extreme,
    min_entries: _from_extreme,
    cp.sum_largest: _ties,
    cp.sign: lambda atom: [atom.args[0]],
    cp.floor: _at_whole_numbers(HALF_DECIMAL),
    cp.ceil: _at_whole_numbers(-HALF_DECIMAL),
}
OPAQUE = (
    *(cp.lambda_max, cp.lambda_sum_largest, cp.normNuc, cp.sigma_max, cp.condition_number, cp.dotsort, cp.cummax),
    *(PSD, ExpCone, PowCone3D, PowConeND, Function, BlackBox),
)


# --- the switches of a problem ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Group:
    """Switches evaluated alike: at an owner (``table`` None), or on every row of a table of one side."""

    side: str  # "server", "clients" (upper terms) or "lower"
    table: int | None
    switches: tuple[Switch, ...]
    program: Program

    @property
    def size(self) -> int:
        """Entries at one holder."""
        return sum(int(np.prod(switch.expression.shape, dtype=int)) for switch in self.switches)

    @property
    def averages(self) -> bool:
        """Whether a switch is a mean over samples."""
        return any(isinstance(atom, SampleAverage) for switch in self.switches for atom in _atoms(switch.expression))

    @classmethod
    def of(cls, side: str, table: int | None, switches: list[Switch]) -> Group:
        """Compiled."""
        return cls(side, table, tuple(switches), Program([switch.expression for switch in switches]))


@dataclass(frozen=True, eq=False)
class Switches:
    """All switches of a problem; ``opaque`` names pieces whose switches cannot be told (functions, spectral atoms)."""

    compiled: CompiledProblem
    groups: tuple[Group, ...]
    opaque: tuple[str, ...]

    @classmethod
    def of(cls, compiled: CompiledProblem) -> Switches:
        """Collected from the declaration."""
        problem, level = compiled.declaration, compiled.declaration.lower_level
        upper = {"server": problem.objective.server, "clients": problem.objective.clients}
        found: dict[tuple[str, int | None], list[Switch]] = {}
        for side, term in upper.items():
            for switch, per_row in () if term is None else switches_of(term):
                found.setdefault((side, _table(compiled, side, switch, per_row)), []).append(switch)
        if level is not None:
            for expression in level.expressions:
                for switch, per_row in switches_of(expression):
                    found.setdefault(("lower", _table(compiled, "lower", switch, per_row)), []).append(switch)
            for constraint, owner in owned_constraints(compiled):
                for switch in constraint_switches(constraint, owner):
                    found.setdefault(("lower", _table(compiled, "lower", switch, False)), []).append(switch)
        opaque = {expression_text(atom): None for atom in atoms_of(compiled) if isinstance(atom, OPAQUE)}
        groups = tuple(Group.of(side, table, switches) for (side, table), switches in found.items() if switches)
        return cls(compiled, groups, tuple(opaque))

    @property
    def tolerance(self) -> float:
        """What counts as zero."""
        method = self.compiled.exact.method
        return HOST_TOLERANCE if method is not None and method.on_host else TOLERANCE

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
                zero = size <= self.tolerance * (1.0 + size)
                if self.tolerance == HOST_TOLERANCE:  # CVXPY's errors are those of the largest entry
                    zero |= size <= self.tolerance * largest
                parts.append(jnp.where(zero | (size <= ROUNDING * largest), 0, jnp.sign(flat)).astype(jnp.int8))
        return jnp.concatenate(parts)

    @cached_property
    def entries(self) -> int:
        """Length of a signature."""
        return sum(self._holders(group) * group.size for group in self.groups)

    @cached_property
    def slacks(self) -> np.ndarray:
        """Which entries are slacks of constraints of Y(x), (entries,)."""
        return self._flags(lambda group, switch: switch.is_slack)

    @cached_property
    def sampled(self) -> np.ndarray:
        """Which entries belong to rows of a distribution's quasi-random sample, (entries,)."""
        return self._flags(lambda group, switch: self._is_sampled(group))

    def _is_sampled(self, group: Group) -> bool:
        static = self.compiled.static_data
        side = static.server if group.side == "server" else static.clients
        return group.table is not None and side is not None and side.tables[group.table].quantiles is not None

    def _flags(self, flag: Callable[[Group, Switch], bool]) -> np.ndarray:
        parts = [
            np.full(self._holders(group) * int(np.prod(switch.expression.shape, dtype=int)), flag(group, switch))
            for group in self.groups
            for switch in group.switches
        ]
        return np.concatenate([np.zeros(0, bool), *parts])

    def place(self, entry: int) -> Cause:
        """What an entry of a signature belongs to."""
        for group in self.groups:
            holders = self._holders(group)
            for switch in group.switches:
                shape = tuple(switch.expression.shape)
                size = int(np.prod(shape, dtype=int))
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

            def at(holder: Array) -> tuple[Array, ...]:
                own = compiled.environment(x, answer(holder), side.party(holder).environment)
                if not group.averages:
                    return group.program(own)
                found: tuple[Array, ...] = side.party(holder).mean(lambda rows: group.program(own, rows))
                return found

            return jax.vmap(at)(jnp.arange(self._holders(group)))
        table = side.tables[group.table]
        rows = table.size
        holder = jnp.searchsorted(table.offsets, jnp.arange(rows), side="right") - 1
        answered = self._answered(group) and answers is not None

        def one(job: tuple[Array, Array]) -> tuple[Array, ...]:
            row, index = job
            y = answers[row] if answered and answers is not None else answer(index)
            return group.program(compiled.environment(x, y, {**side.party(index).environment, **table.rows(row)}))

        return jax.vmap(one)((jnp.arange(rows), holder))

    def _answered(self, group: Group) -> bool:
        """Whether each row of the group has a y of its own."""
        compiled = self.compiled
        if compiled.scope != "sample" or group.side == "server" or group.table is None:
            return False
        return group.table == compiled.row_table(compiled.static_data.clients)

    def _holders(self, group: Group) -> int:
        static = self.compiled.static_data
        side = static.server if group.side == "server" else static.clients
        if group.table is not None:
            assert side is not None
            return int(np.sum(side.tables[group.table].counts))
        lower_shared = group.side == "lower" and self.compiled.scope == "federation"
        return 1 if group.side == "server" or lower_shared else static.clients.size

    def _named(self, group: Group, switch: Switch, index: tuple[int, ...], holder: int) -> Cause:
        static = self.compiled.static_data
        if group.table is None:
            alone = group.side == "server" or self._holders(group) == 1
            owner = "server" if group.side == "server" else "" if alone else f"client {holder}"
            return Cause(switch.source, index, owner, None, switch.is_slack)
        side = static.server if group.side == "server" else static.clients
        assert side is not None
        table = side.tables[group.table]
        owner_index = int(np.searchsorted(np.asarray(table.offsets), holder, side="right")) - 1
        row = holder - int(table.offsets[owner_index])
        owner = "server" if group.side == "server" else f"client {owner_index}"
        return Cause(switch.source, index, owner, row, switch.is_slack)


def _table(compiled: CompiledProblem, side: str, switch: Switch, per_row: bool) -> int | None:
    """The table on whose rows a switch is evaluated; None where it holds no sample."""
    population = compiled.static_data.server if side == "server" else compiled.static_data.clients
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


def _atoms(expression: Any) -> Iterator[Any]:
    yield expression
    for argument in getattr(expression, "args", ()):
        yield from _atoms(argument)
