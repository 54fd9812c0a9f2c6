"""One round on several cores: the round's program is cut where the clients run, and groups of them run in threads.

``in_groups`` leaves a scan without a carry over the groups in the traced round: none of them knows of another. Such a scan may
be done in parts, each a program of its own; what lies between becomes programs of the server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun
from jax.extend.core.primitives import scan_p

from hierfl.jaxtools.traced import Ahead, Traced

Values = dict[Var, Any]


def in_groups(run: Callable[[Any], Any], jobs: Any, groups: int | None) -> Any:
    """Do ``run(jobs)`` for clients along the leading axis, a group of them at a time; groups are of one size and may overlap."""
    if groups is None:
        return run(jobs)
    count = jax.tree.leaves(jobs)[0].shape[0]
    groups = min(groups, count)
    size = -(-count // groups)
    members = np.array([np.arange(size) + min(group * size, count - size) for group in range(groups)])
    place = np.unique(members, return_index=True)[1]  # of each client in the groups' answers, one after another

    def in_order(answers: Array) -> Array:
        flat = answers.reshape(groups * size, *answers.shape[2:])
        return flat if place.size == flat.shape[0] else flat[place]

    return jax.tree.map(in_order, jax.lax.map(run, jax.tree.map(lambda job: job[members], jobs)))


class RoundInGroups:
    """Blocks of rounds, as the one program runs them, with each group of clients in a thread."""

    def __init__(self, traced: Traced, groups: int) -> None:
        self._round, self._result = traced.program.jaxpr, jax.tree.structure(traced.result)
        self._known = dict(zip(self._round.constvars, traced.program.consts))
        self._groups, self._parts = groups, []
        equations, maps = list(self._round.eqns), None
        places = [k for k, equation in enumerate(equations) if _is_over_groups(equation, groups)]
        results = {v for v in self._round.outvars if isinstance(v, Var)}
        for first, last in zip([-1, *places], [*places, len(equations)]):
            later = {v for equation in equations[last:] for v in _inputs(equation)} | results
            self._parts.append(_RoundPart(self._round, self._known, maps, equations[first + 1 : last], later, groups))
            maps = equations[last] if last < len(equations) else None

    @classmethod
    def of(cls, traced: Traced, groups: int) -> RoundInGroups | None:
        """Cut a traced round where its clients run; None if they run inside loops of the server."""
        is_mapped = any(_is_over_groups(equation, groups) for equation in traced.program.eqns)
        return cls(traced, groups) if is_mapped else None

    @property
    def working(self) -> int:
        """How many bytes a block takes beside its arguments."""
        return sum(part.working for part in self._parts)

    def __call__(self, tables: Any, state: Any, memory: Any, data: Any, key: Array, first: Any, count: Any) -> Any:
        """Run ``count`` rounds: (state, memory, the records' entries stacked)."""
        records = []
        with ThreadPoolExecutor(self._groups) as pool:
            for index in range(int(first), int(first + count)):
                given = jax.tree.leaves((tables, state, memory, data, key, np.asarray(index, jnp.result_type(int))))
                state, memory, record = jax.tree.unflatten(self._result, self._one(pool, given))
                records.append(record)
        return state, memory, jax.tree.map(lambda *values: np.stack(values), *records) if records else {}

    def _one(self, pool: ThreadPoolExecutor, arguments: Sequence[Any]) -> list[Any]:
        values = self._known | dict(zip(self._round.invars, map(_bare, arguments)))
        for part in self._parts:
            part.run(pool, values)
        return [v.val if isinstance(v, Literal) else values[v] for v in self._round.outvars]


class _RoundPart:
    """A part of a round: what the clients do (nothing at its beginning), and what the server does next."""

    def __init__(
        self,
        whole: Jaxpr,
        known: Values,
        maps: JaxprEqn | None,
        equations: list[JaxprEqn],
        later: set[Var],
        groups: int,
    ) -> None:
        self._groups = groups if maps is not None else 0
        asked = _inputs(maps) if maps is not None else []
        self._asked = [v for v in dict.fromkeys(asked) if v not in known]
        mapped = list(maps.outvars) if maps is not None else []
        made = dict.fromkeys([*mapped, *(v for equation in equations for v in equation.outvars)])
        read = dict.fromkeys(v for equation in equations for v in _inputs(equation))
        self._inputs = [v for v in read if v not in made]
        self._outputs = [v for v in made if v in later]
        part = whole.replace(constvars=[], invars=[*mapped, *self._inputs], outvars=self._outputs, eqns=equations)
        of_server = jaxpr_as_fun(ClosedJaxpr(part, []))

        def serve(answers: list[list[Array]], *given: Any) -> list[Any]:
            stacked = [jnp.stack(parts) for parts in zip(*answers)]
            values: list[Any] = [*map(_bare, of_server(*stacked, *map(_keyed, self._inputs, given)))]
            return values

        def group(place: Array, *given: Any) -> list[Array]:
            """Do one of the scan's iterations; what is known becomes a constant of the program, as it is in the whole round's."""
            assert maps is not None
            values = known | dict(zip(self._asked, map(_keyed, self._asked, given)))
            arguments = [v.val if isinstance(v, Literal) else values[v] for v in maps.invars]
            constants, jobs = arguments[: maps.params["num_consts"]], arguments[maps.params["num_consts"] :]
            answers: list[Array] = jaxpr_as_fun(maps.params["jaxpr"])(*constants, *(job[place] for job in jobs))
            return answers

        parts = [[jax.ShapeDtypeStruct(_shape(v)[1:], _dtype(v)) for v in mapped]] * self._groups
        served = Ahead.of(serve, parts, *map(_bare_shape, self._inputs))
        self._serve, self.working = served.run, served.working
        if maps is not None:
            grouped = Ahead.of(group, np.int32(0), *map(_bare_shape, self._asked))
            self._group, self.working = grouped.run, served.working + groups * grouped.working

    def run(self, pool: ThreadPoolExecutor, values: Values) -> None:
        """Add what this part makes to the values."""
        given = [values[v] for v in self._asked]
        double = jnp.result_type(float) == jnp.float64  # a setting of the thread

        def one(place: int) -> list[Array]:
            with jax.enable_x64(double):
                answers: list[Array] = jax.block_until_ready(self._group(np.int32(place), *given))
            return answers

        answers = list(pool.map(one, range(self._groups)))
        values.update(zip(self._outputs, self._serve(answers, *(values[v] for v in self._inputs))))


def _is_over_groups(equation: JaxprEqn, groups: int) -> bool:
    """Whether it is a scan over the groups: any scan without a carry may be done in parts; one over the groups is worth it."""
    return equation.primitive is scan_p and equation.params["num_carry"] == 0 and equation.params["length"] == groups


def _bare(value: Any) -> Any:
    """Give a key as its words: a program that is called with keys keeps other threads from calling theirs while it runs."""
    return jax.random.key_data(value) if jnp.issubdtype(jnp.asarray(value).dtype, jax.dtypes.prng_key) else value


def _bare_shape(variable: Var) -> jax.ShapeDtypeStruct:
    """Give the shape of what ``_bare`` gives."""
    shape = jax.ShapeDtypeStruct(_shape(variable), _dtype(variable))
    if jnp.issubdtype(shape.dtype, jax.dtypes.prng_key):
        words: jax.ShapeDtypeStruct = jax.eval_shape(jax.random.key_data, shape)
        return words
    return shape


def _keyed(variable: Var, value: Any) -> Any:
    """Give back what ``_bare`` was given."""
    return jax.random.wrap_key_data(value) if jnp.issubdtype(_dtype(variable), jax.dtypes.prng_key) else value


def _shape(variable: Var) -> tuple[int, ...]:
    aval: Any = variable.aval  # of an array, which JAX does not say
    return tuple(aval.shape)


def _dtype(variable: Var) -> np.dtype:
    aval: Any = variable.aval
    return aval.dtype


def _inputs(equation: JaxprEqn) -> list[Var]:
    return [v for v in equation.invars if isinstance(v, Var)]
