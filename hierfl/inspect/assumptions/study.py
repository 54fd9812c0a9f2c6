"""What every part of ``problem.check()`` works with: the compiled problem, the holders of data, points of X.

Of the lower level: its mapping F and the Jacobian, at points, of which sampling and witnesses are made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from cvxpy.constraints.constraint import Constraint

from hierfl.analysis.moving import Movement, movement
from hierfl.analysis.variable_attributes import attribute_constraints
from hierfl.atoms.intervals import Interval
from hierfl.compiler.data.tables import Population
from hierfl.compiler.expressions.program import NO_ROWS
from hierfl.inspect.assumptions.holders import Holder, Holders
from hierfl.jaxtools.cheap_jit import quick_jit

if TYPE_CHECKING:
    from hierfl.compiler.compiled_problem import CompiledProblem
    from hierfl.inspect.assumptions.holders import Holder
    from hierfl.language.levels import LowerLevel


JACOBIAN_LIMIT = 400
Weighted = Sequence[tuple[float, "Holder"]]


@dataclass(frozen=True, eq=False)
class MappingAtPoints:
    """F of one owner of a y, as a weighted sum over holders."""

    compiled: CompiledProblem

    def operator(self, x: np.ndarray, y: np.ndarray, owner: Weighted) -> np.ndarray:
        """Evaluate F(x, y), which has y's size."""
        return self._sum(self._operator, x, y, owner)

    def jacobian(self, x: np.ndarray, y: np.ndarray, owner: Weighted) -> np.ndarray:
        """Evaluate the dense Jacobian of F in y."""
        return self._sum(self._jacobian, x, y, owner)

    def monotonicity(self, x: np.ndarray, first: np.ndarray, second: np.ndarray, owner: Weighted) -> float:
        """Evaluate (F(y1) - F(y2))'(y1 - y2) / |y1 - y2|^2."""
        step = np.asarray(first) - np.asarray(second)
        change = self.operator(x, first, owner) - self.operator(x, second, owner)
        return float(change @ step / (step @ step))

    def project(self, x: np.ndarray, y: np.ndarray, owner: Weighted) -> np.ndarray:
        """Project y on Y(x)."""
        return np.asarray(self._project(jnp.asarray(x), jnp.asarray(y), owner[0][1].own))

    @cached_property
    def _project(self) -> Callable[..., jax.Array]:
        lower_set = self.compiled.lower_set
        exact = lower_set is None or lower_set.is_exact
        return jax.jit(self.compiled.project_lower) if exact else self.compiled.project_lower

    def gap(self, x: np.ndarray, owner: Weighted) -> float:
        """The amount by which the constraints of Y(x) miss each other: positive where Y(x) is empty."""
        if self.compiled.lower_set is None:
            return -np.inf
        return float(self.gap_function(jnp.asarray(x), owner[0][1].own))

    @cached_property
    def gap_function(self) -> Callable[..., jax.Array]:
        """The map ``(x, the owner's numbers) -> gap`` as a traceable function, compiled where the set has an exact projection."""
        lower_set = self.compiled.lower_set
        assert lower_set is not None

        def gap(x: jax.Array, own: dict[int, Any]) -> jax.Array:
            return jnp.max(lower_set.gap(self.compiled.environment(x, None, own)))

        return jax.jit(gap) if lower_set.is_exact else gap

    def _sum(self, function: Callable[..., jax.Array], x: np.ndarray, y: np.ndarray, owner: Weighted) -> np.ndarray:
        parts = [
            weight * np.asarray(function(jnp.asarray(x), jnp.asarray(y), h.population, h.index, h.own))
            for weight, h in owner
        ]
        return np.asarray(sum(parts[1:], start=parts[0]))

    def _mapping(
        self, x: jax.Array, y: jax.Array, population: Population | None, index: int, own: dict[int, Any]
    ) -> jax.Array:
        compiled = self.compiled
        if population is None:
            return compiled.operator(x, y, own, NO_ROWS)
        party = population.party(index)
        return party.mean(lambda rows: compiled.operator(x, y, own, rows), compiled.lower_samples)

    @cached_property
    def _operator(self) -> Callable[..., jax.Array]:
        return quick_jit(self._mapping)

    @cached_property
    def _jacobian(self) -> Callable[..., jax.Array]:
        return quick_jit(jax.jacfwd(self._mapping, argnums=1))


_CLASSES = {None: "nn", "federation": "bl", "sample": "2s", "client": "hfl"}
_ASSUMPTIONS = {
    "nn": "[NN] Assumption 1",
    "bl": "[2S] Assumption 2",
    "mm": "[2S] Assumption 2",
    "2s": "[2S] Assumption 3",
    "hfl": "[HFL] Assumption 1",
}
_SCALES = (0.1, 1.0, 10.0, 100.0)


@dataclass(frozen=True, eq=False)
class Study:
    """One check of one problem; ``samples`` points are tried where nothing is proved.

    ``starts`` (k, n) are those of the runs that the theorem is asked about; None stands for any point of X.
    ``local_steps`` is an H that it is asked for, None the one that it chooses.
    """

    compiled: CompiledProblem
    smoothing: float
    samples: int
    seed: int
    starts: np.ndarray | None = None
    local_steps: int | None = None

    @property
    def problem_class(self) -> str:
        """``"nn"``, ``"bl"``, ``"mm"``, ``"2s"`` or ``"hfl"``, as the papers call them."""
        level = self.level
        if level is not None and level.kind == "argmax" and level.scope == "federation":
            return "mm"
        return _CLASSES[self.compiled.scope]

    def assumption(self, part: str, *without: str) -> str:
        """The part of the class's assumption, such as ``"(ii)"``; empty for classes ``without`` it."""
        kind = self.problem_class
        return "" if kind in without else f"{_ASSUMPTIONS[kind]} {part}"

    @property
    def level(self) -> LowerLevel | None:
        """The declared lower level, or None."""
        return self.compiled.declaration.lower_level

    @property
    def below(self) -> LowerLevel:
        """The lower level, of what is about it and asked where there is one."""
        assert self.level is not None
        return self.level

    @property
    def lower_constraints(self) -> list[Constraint]:
        """The constraints of Y(x), attributes of its variables included."""
        return [*self.below.constraints, *attribute_constraints(self.below.variables)]

    @cached_property
    def holders(self) -> Holders:
        return Holders(self.compiled)

    @cached_property
    def lower(self) -> MappingAtPoints:
        """The lower level's mapping F, to be evaluated at points."""
        return MappingAtPoints(self.compiled)

    @cached_property
    def owners(self) -> tuple[tuple[str, Weighted], ...]:
        """Every owner of a y, by label: the federation, the clients, or the samples."""
        clients = self.holders.clients
        if self.compiled.scope == "federation":
            weights = self.holders.data.clients.weights
            return (("the federation", tuple((float(w), h) for w, h in zip(weights, clients))),)
        each = self.holders.samples if self.compiled.scope == "sample" else clients
        return tuple((holder.label, ((1.0, holder),)) for holder in each)

    @cached_property
    def set_owners(self) -> tuple[tuple[str, Weighted], ...]:
        """Owners with different sets Y(x): one, if neither clients nor samples enter the constraints."""
        roles, lower_set = self.compiled.declaration.roles, self.compiled.lower_set
        used = frozenset() if lower_set is None else lower_set.depends_on
        if any(s.id in used for s in roles.lower_samples):
            return self.owners
        if any(p.id in used for p in roles.client_parameters):
            return tuple({owner[0][1].index: (label, owner) for label, owner in reversed(self.owners)}.values())[::-1]
        return self.owners[:1]

    @property
    def y_holders(self) -> tuple[Holder, ...]:
        """Whose lower objectives the assumptions are about: the clients, or the samples."""
        return self.holders.samples if self.compiled.scope == "sample" else self.holders.clients

    @cached_property
    def movement(self) -> Movement:
        """How Y(x) changes with x: not at all, by a translation, or otherwise."""
        return movement(self.lower_constraints, self.below.variables, self.compiled.upper.variables)

    @cached_property
    def x_points(self) -> np.ndarray:
        """Points of X ``(k, n)`` to try: projections of normal draws at several scales, and of corners of the box around X."""
        rng = np.random.default_rng(self.seed)
        size = self.compiled.upper.size
        draws = np.concatenate([scale * rng.standard_normal((max(1, self.samples // 8), size)) for scale in _SCALES])
        box = self.x_box
        low, high = (np.where(np.isfinite(end), end, 10.0 * sign) for end, sign in ((box.lo, -1), (box.hi, 1)))
        corners = np.where(rng.random((max(1, self.samples // 2), size)) < 0.5, low, high)
        middle = 0.5 * (low + high)
        starts = np.concatenate([np.zeros((1, size)), middle[None], low[None], high[None], draws, corners])
        return np.stack([self.project_x(z) for z in starts[: max(self.samples, 4)]])

    @cached_property
    def x_box(self) -> Interval:
        """A box around X, over the flat x."""
        known = self.compiled.declaration.known_bounds
        parts = [known[v.id] for v in self.compiled.upper.variables]
        return Interval(np.concatenate([p.lo.ravel() for p in parts]), np.concatenate([p.hi.ravel() for p in parts]))

    @cached_property
    def unbounded(self) -> str:
        """Which variables nothing is known to bound on X and Y(x), as a remark on a bound that is missing; empty where all are."""
        below = () if self.level is None else self.level.variables
        known = [holder.known for holder in self.holders.clients]
        free = [
            v.name()
            for v in (*self.compiled.upper.variables, *below)
            if not all(v.id in k and np.isfinite([*k[v.id].lo.flat, *k[v.id].hi.flat]).all() for k in known)
        ]
        return f" (nothing is known to bound {', '.join(free)} there: add constraints that do)" if free else ""

    def project_x(self, z: np.ndarray) -> np.ndarray:
        """Project on the public X."""
        return np.asarray(self._project(jnp.asarray(z), self.holders.clients[0].own))

    @cached_property
    def _project(self) -> Callable[..., jax.Array]:
        return jax.jit(self.compiled.project_upper) if self.compiled.upper_set.is_exact else self.compiled.project_upper

    def y_points(self, x: np.ndarray, owner: Weighted, count: int) -> np.ndarray:
        """Draw points of Y(x) ``(count, size)``: projections of normal draws."""
        rng = np.random.default_rng(self.seed + 1)
        draws = rng.standard_normal((count, self.compiled.lower.size)) * rng.choice(_SCALES, (count, 1))
        return np.stack([self.lower.project(x, z, owner) for z in draws])
