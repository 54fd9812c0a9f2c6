"""A compiled problem that counts what is asked of its lower level while a run goes on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.expressions.program import NO_ROWS, Rows
from hierfl.compiler.oracles import Environment, Lower, Upper

GRADIENTS, PROJECTIONS = "gradients", "projections"


@dataclass(frozen=True, eq=False, repr=False)
class CountedProblem(CompiledProblem):
    """The same oracles, and how often programs evaluated F and projected on Y(x), one owner of y and one point at a time.

    Programs that are made of it call the host at every evaluation, which is slow: it is for short runs that are looked at. A
    mapping that is evaluated on pieces of a client's rows counts once for all pieces together.
    """

    tally: Counter[str] = field(default_factory=Counter, kw_only=True)

    @classmethod
    def of(cls, compiled: CompiledProblem) -> CountedProblem:
        """Count from zero, with programs of its own."""
        return cls(**{f.name: getattr(compiled, f.name) for f in fields(compiled) if f.name != "programs"})

    @property
    def counts(self) -> dict[str, int]:
        """``{"gradients": ..., "projections": ...}`` until now."""
        jax.effects_barrier()
        return {name: round(self.tally[name]) for name in (GRADIENTS, PROJECTIONS)}

    def operator_parts(
        self, x: Upper, parts: dict[int, Array], own: Environment, rows: Rows = NO_ROWS
    ) -> dict[int, Array]:
        """F(x, y), counted by the share of the rows that it is a mean over."""
        self._count(GRADIENTS, self._share(rows), x, parts, own)
        return super().operator_parts(x, parts, own, rows)

    def project_lower(self, x: Upper, y: Lower, own: Environment) -> Lower:
        """The projection on Y(x), counted where it is not all of the space."""
        if self.lower_set is not None and self.lower_set.kind != "free":
            self._count(PROJECTIONS, 1.0, x, y, own)
        return super().project_lower(x, y, own)

    def _share(self, rows: Rows) -> Array | float:
        """Of a whole mean: its pieces' weights add up to 1 for each table, and what they are added to weighs nothing."""
        if self.scope == "sample" or not self.lower_samples:
            return 1.0
        tables = [
            table.samples for table in self.static_data.clients.tables if set(table.samples) & set(self.lower_samples)
        ]
        shares = [jnp.sum(rows.weights[samples[0]]) for samples in tables if samples[0] in rows.weights]
        return sum(shares, jnp.zeros(())) / len(tables)

    def _count(self, name: str, share: Any, *given: Any) -> None:
        """Count a call; what it is ``given`` goes along, so that of calls side by side each is heard."""

        def heard(share: np.ndarray, *_: np.ndarray) -> None:
            self.tally[name] += float(share)  # type: ignore[assignment]

        jax.debug.callback(heard, share, *(jnp.ravel(leaf)[:1] for leaf in jax.tree.leaves(given)))
