"""How far beyond a point r a law of one scalar lies: E(d - r)+ and E(d - r)+^2 / 2, which are smooth in r.

Nodes that stand for a law (``evaluation_nodes``) make a staircase of a kink's average; these integrals mend it. Between two nodes the
probability beyond r is a polynomial of degree 5, by its values and densities at both and halfway, and is integrated as it stands. A
row of a table carries what holds from its node to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float
from numpy.polynomial.polynomial import polyval

ORDER = np.arange(6)  # of the powers of a polynomial
KNOWN_AT = np.array([0.0, 0.5, 1.0])  # of the way to the next node
TRIED_AT = np.array([0.25, 0.75])
BUMP = np.array([0, 0, 16, -32, 16, 0])  # 16 s^2 (1 - s)^2: the shape that errors between nodes are taken to have
START, END, LOW, GAP, LEAST, MOST, SQUARE, EXCESS = range(8)  # the columns of a table


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LawIntegrals:
    """What rows tell of ``LOW`` <= r < ``END``, (rows, columns), and by how much that was seen to miss the law.

    With s = (r - START) / (END - START), E(d - r)+ has the coefficients in s from column ``EXCESS`` on, and ``SQUARE`` is
    E(d - START)+^2 / 2. ``LOW`` is the start, and minus infinity for a law's first node; nothing lies beyond its last. ``GAP``,
    ``LEAST`` and ``MOST`` are the same for all rows of a law: the median width, the first and the last node.
    """

    table: Any
    missed: Any

    @classmethod
    def of(cls, law: Any, nodes: Float[np.ndarray, " n"], jump: Bool[np.ndarray, " n"]) -> LawIntegrals:
        """Those of one law, whose nodes ascend; at those marked ``jump`` its density does."""
        end = np.append(nodes[1:], nodes[-1])
        beyond, missed = _between_nodes(law, nodes, end - nodes, jump)
        known = [nodes, end, np.append(-np.inf, nodes[1:])]
        known += [np.full(nodes.size, one) for one in (np.median(np.diff(nodes)), nodes[0], nodes[-1])]
        integrals = [_integrals(each, end - nodes) for each in (beyond, missed[:, None] * BUMP)]
        return cls(np.column_stack([*known, integrals[0]]), np.pad(integrals[1], ((0, 0), (len(known), 0))))

    @classmethod
    def joined(cls, parts: Sequence[LawIntegrals]) -> LawIntegrals:
        """Those of all parties, one after another."""
        return jax.tree.map(lambda *columns: np.concatenate(columns), *parts)

    def tilted(self) -> LawIntegrals:
        """The same, off by what they were seen to miss."""
        return replace(self, table=self.table + self.missed)


def excess(table: Float[Array, "rows columns"], r: Float[Array, " k"]) -> tuple[Array, Array]:
    """(E(d - r)+, E(d - r)+^2 / 2), as far as these rows tell, which ascend; all of a law's tell it."""
    row = table[jnp.maximum(jnp.searchsorted(table[:, START], r, side="right", method="compare_all") - 1, 0)].T
    ahead, width = r - row[START], row[END] - row[START]
    place = jnp.where(ahead >= 0, ahead, 0.0) / jnp.where(width > 0, width, 1.0)
    first, second = jnp.zeros_like(r), jnp.zeros_like(r)
    for power in range(len(ORDER), -1, -1):
        first, second = first * place + row[EXCESS + power], second * place + row[EXCESS + power] / (power + 1)
    before = jnp.where(ahead < 0, -ahead, 0.0)  # to the first node, where all is ahead
    squared = row[SQUARE] - width * place * second + before * (first + before / 2)
    told = (r >= row[LOW]) & (r < row[END])
    return jnp.where(told, first + before, 0.0), jnp.where(told, squared, 0.0)


def _between_nodes(
    law: Any, nodes: np.ndarray, width: np.ndarray, jump: Bool[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, "n coefficients"], Float[np.ndarray, " n"]]:
    """The coefficients of the probability beyond a point, of a straight line where the density jumps on the way; what they miss."""
    places, tried = (nodes[:, None] + width[:, None] * at for at in (KNOWN_AT, TRIED_AT))
    beyond = np.asarray(law.sf(places), float)
    inward = np.maximum(1e-10 * width, 4 * np.spacing(np.abs(nodes)))  # the density there is that of one side
    places[:, 0] += np.where(jump, inward, 0.0)
    places[:, -1] -= np.where(np.append(jump[1:], False), inward, 0.0)
    values = KNOWN_AT[:, None] ** ORDER
    slopes = ORDER * KNOWN_AT[:, None] ** np.maximum(ORDER - 1, 0)
    with np.errstate(invalid="ignore", over="ignore"):  # a density may be infinite at an end
        known = np.hstack([beyond, -width[:, None] * np.asarray(law.pdf(places), float)])
        smooth = np.linalg.solve(np.vstack([values, slopes]), known.T).T
        line = np.pad(beyond[:, :1], ((0, 0), (0, 5))) + np.outer(beyond[:, 2] - beyond[:, 0], ORDER == 1)
        there = np.asarray(law.sf(tried), float)
        missed = [np.abs(polyval(TRIED_AT, one.T) - there).max(axis=1) for one in (smooth, line)]
    fits = missed[0] <= missed[1]
    return np.where(fits[:, None], smooth, line), np.where(fits, *missed)


def _integrals(beyond: Float[np.ndarray, "n coefficients"], width: np.ndarray) -> Float[np.ndarray, "n columns"]:
    """E(d - r)+^2 / 2 at every node, and the coefficients of E(d - r)+ between it and the next."""
    pieces = width[:, None] * beyond / (ORDER + 1)
    first = _sums_from_here(pieces.sum(axis=1))
    second = _sums_from_here(width * (first - (pieces / (ORDER + 2)).sum(axis=1)))
    return np.column_stack([second, first, -pieces])


def _sums_from_here(parts: np.ndarray) -> np.ndarray:
    """For each entry, the sum of it and those after it."""
    return np.cumsum(parts[::-1])[::-1]
