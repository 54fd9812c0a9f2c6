"""What f was found to be at the last points: asked again, it is not evaluated again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.lower_level.evaluation import Evaluation
from hierfl.language.function import uses_black_box

LATEST = 64  # points
LARGEST = 100_000  # scalars of an evaluation, beyond which finding it again is cheaper than keeping it


@dataclass(eq=False)
class KnownValues:
    """Evaluations by x and by the values of the parameters; none of a ``BlackBox``, which may answer differently each time."""

    repeatable: bool
    _known: OrderedDict[Hashable, Evaluation] = field(default_factory=OrderedDict)

    @classmethod
    def of(cls, compiled: CompiledProblem) -> KnownValues:
        """Those of a problem, kept with it."""
        return compiled.programs.keep("known values", lambda: cls(uses_black_box(_terms(compiled)) is None))

    def at(self, x: np.ndarray, parameters: Hashable) -> Evaluation | None:
        """The evaluation at a flat x; None where it is not known."""
        return self._known.get((x.tobytes(), parameters))

    def keep(self, x: np.ndarray, parameters: Hashable, evaluation: Evaluation) -> None:
        """Keep an evaluation, and forget the oldest."""
        if self.repeatable and sum(np.size(leaf) for leaf in jax.tree.leaves(evaluation)) <= LARGEST:
            self._known[x.tobytes(), parameters] = evaluation
            while len(self._known) > LATEST:
                self._known.popitem(last=False)  # in one piece, whatever other threads do


def _terms(compiled: CompiledProblem) -> list[Any]:
    declaration = compiled.declaration
    level = declaration.lower_level
    upper = [term for term in (declaration.objective.server, declaration.objective.clients) if term is not None]
    return [*upper, *(level.expressions if level else ())]
