"""One round on several cores: the round's program is cut where the clients run, and groups of them run in threads.

``Clients.map`` leaves a scan without a carry in the traced round: clients one after another, none of whom knows of another. Such
a scan may be done in parts. What lies between becomes programs of the server. Every client's computation is what it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun
from jax.extend.core.primitives import scan_p

from hierfl.compiler.program import Array

Values = dict[Var, Any]


class RoundInGroups:
    """Blocks of rounds, as the one program runs them, with the clients of a round in a group for each core."""

    def __init__(self, traced: Any, cohort: int, cores: int) -> None:
        self._round, self._result = traced.jaxpr.jaxpr, jax.tree.structure(traced.out_info)
        self._known = dict(zip(self._round.constvars, traced.jaxpr.consts))
        self._cores, self._pieces = cores, []
        size = -(-cohort // cores)
        starts = [min(first, cohort - size) for first in range(0, cohort, size)]
        equations, maps = list(self._round.eqns), None
        places = [k for k, equation in enumerate(equations) if _is_client_map(equation, cohort)]
        results = {v for v in self._round.outvars if isinstance(v, Var)}
        for first, last in zip([-1, *places], [*places, len(equations)]):
            later = {v for equation in equations[last:] for v in _inputs(equation)} | results
            self._pieces.append(_Piece(self._round, maps, equations[first + 1 : last], later, size, starts))
            maps = equations[last] if last < len(equations) else None

    @classmethod
    def of(cls, traced: Any, cohort: int, cores: int) -> RoundInGroups | None:
        """The round that ``jax.jit(...).trace`` has traced; None if its clients run inside loops of the server."""
        found = any(_is_client_map(equation, cohort) for equation in traced.jaxpr.eqns)
        return cls(traced, cohort, cores) if found else None

    def __call__(self, state: Any, memory: Any, data: Any, key: Array, first: int, count: int) -> Any:
        """(state, memory, the records' entries stacked) after ``count`` rounds."""
        records = []
        with ThreadPoolExecutor(self._cores) as pool:
            for index in range(first, first + count):
                given = jax.tree.leaves((state, memory, data, key, np.asarray(index, jnp.result_type(int))))
                state, memory, record = jax.tree.unflatten(self._result, self._one(pool, given))
                records.append(record)
        return state, memory, jax.tree.map(lambda *values: np.stack(values), *records) if records else {}

    def _one(self, pool: ThreadPoolExecutor, arguments: Sequence[Any]) -> list[Any]:
        values = self._known | dict(zip(self._round.invars, arguments))
        for piece in self._pieces:
            piece.run(pool, values)
        return [v.val if isinstance(v, Literal) else values[v] for v in self._round.outvars]


class _Piece:
    """The clients' part (none at the beginning) and what the server does next."""

    def __init__(
        self,
        whole: Jaxpr,
        maps: JaxprEqn | None,
        equations: list[JaxprEqn],
        later: set[Var],
        size: int,
        starts: list[int],
    ) -> None:
        self._maps, self._starts, self._ready = maps, starts, False
        mapped = list(maps.outvars) if maps is not None else []
        made = dict.fromkeys([*mapped, *(v for equation in equations for v in equation.outvars)])
        read = dict.fromkeys(v for equation in equations for v in _inputs(equation))
        self._inputs = [v for v in read if v not in made]
        self._outputs = [v for v in made if v in later]
        part = whole.replace(constvars=[], invars=[*mapped, *self._inputs], outvars=self._outputs, eqns=equations)
        of_server = jaxpr_as_fun(ClosedJaxpr(part, []))

        def serve(groups: list[list[Array]], *given: Any) -> list[Any]:
            """The groups' answers one after another; the last group may begin with clients of the one before."""
            last = slice(size - starts[-1] + starts[-2], None) if len(starts) > 1 else slice(None)
            answers = [jnp.concatenate([*parts[:-1], parts[-1][last]]) for parts in zip(*groups)]
            found: list[Any] = of_server(*answers, *given)
            return found

        def group(start: Array, *given: Any) -> list[Array]:
            assert maps is not None
            constants, jobs = given[: maps.params["num_consts"]], given[maps.params["num_consts"] :]
            own = [jax.lax.dynamic_slice_in_dim(job, start, size) for job in jobs]
            found: list[Array] = maps.primitive.bind(*constants, *own, **{**maps.params, "length": size})
            return found

        self._serve, self._group = (
            jax.jit(serve),
            jax.jit(group),
        )

    def run(self, pool: ThreadPoolExecutor, values: Values) -> None:
        groups: list[list[Array]] = []
        if self._maps is not None:
            given = [v.val if isinstance(v, Literal) else values[v] for v in self._maps.invars]
            double = jnp.result_type(float) == jnp.float64  # a setting of the thread

            def one(start: int) -> list[Array]:
                with jax.enable_x64(double):
                    found: list[Array] = jax.block_until_ready(self._group(np.int32(start), *given))
                return found

            groups = list((pool.map if self._ready else map)(one, self._starts))  # the first call compiles
            self._ready = True
        values.update(zip(self._outputs, self._serve(groups, *(values[v] for v in self._inputs))))


def _is_client_map(equation: JaxprEqn, cohort: int) -> bool:
    """Any scan without a carry may be done in parts; one over the cohort is worth it."""
    return equation.primitive is scan_p and equation.params["num_carry"] == 0 and equation.params["length"] == cohort


def _inputs(equation: JaxprEqn) -> list[Var]:
    return [v for v in equation.invars if isinstance(v, Var)]
