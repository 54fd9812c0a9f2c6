"""What rows that stand for distributions are in the rules they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hierfl.compiler.data.evaluation_nodes import RULES, EvaluationNodes


@dataclass(frozen=True, eq=False)
class NodeRoles:
    """What rows that stand for distributions are in the rules they belong to; arrays (rows,), as in ``EvaluationNodes``.

    ``rule`` indexes ``RULES``.
    """

    rule: np.ndarray
    part: np.ndarray
    band: np.ndarray
    jump: np.ndarray

    @classmethod
    def of(cls, nodes: Sequence[EvaluationNodes]) -> NodeRoles:
        """Those of all parties, one after another."""
        rule = [np.full(one.weights.size, RULES.index(one.rule)) for one in nodes]
        part, band = [one.part for one in nodes], [one.band for one in nodes]
        return cls(*map(np.concatenate, (rule, part, band, [one.jump for one in nodes])))
