"""How far beyond a point r a law of one scalar lies: E(d - r)+ and E(d - r)+^2 / 2, which are smooth in r.

Nodes that stand for a law (``evaluation_nodes``) make a staircase of a kink's average; these integrals mend it. Between two nodes the
probability beyond r is a polynomial of degree 5, by its values and densities at both and halfway, and is integrated as it stands. A
row of a table carries what holds from its node to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float
from numpy.polynomial.polynomial import polyval

from hierfl.compiler.expressions.density_jumps import inward

DEGREE = 5
KNOWN_AT = np.array([0.0, 0.5, 1.0])  # of the way to the next node
TRIED_AT = np.array([0.25, 0.75])
BUMP = np.array(
    [0.0, 0.0, 16.0, -32.0, 16.0, 0.0]
)  # 16 s^2 (1 - s)^2: the shape that errors between nodes are taken to have


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LawIntegrals:
    """What rows tell of ``low`` <= r < ``start`` + ``width``; arrays (rows,), but ``beyond`` (rows, DEGREE + 1).

    ``beyond`` has the coefficients, in (r - start) / width, of the probability beyond r; ``mean`` and ``square`` are E(d - r)+ and
    E(d - r)+^2 / 2 at the next node. ``low`` is the start, and minus infinity for a law's first node; nothing lies beyond its last.
    ``gap``, ``least``, ``middle`` and ``most`` are the same for all rows of a law: the median width, the first, median and last node.

    ``missed`` is by how much the polynomial was seen to miss the probability, ``mean_missed`` and ``square_missed`` what that amounts
    to; ``tilt``, one number for all laws, says how many times the integrals are off by it: 0, but where errors are estimated.
    """

    start: Any
    width: Any
    low: Any
    beyond: Any
    mean: Any
    square: Any
    gap: Any
    least: Any
    middle: Any
    most: Any
    missed: Any
    mean_missed: Any
    square_missed: Any
    tilt: Any
    inside: Any = True

    @classmethod
    def of(cls, law: Any, nodes: Float[np.ndarray, " n"], jump: Bool[np.ndarray, " n"]) -> LawIntegrals:
        """Those of one law, whose nodes ascend; at those marked ``jump`` its density does."""
        width = np.diff(nodes, append=nodes[-1])
        coefficients, missed = _between_nodes(law, nodes, width, jump)
        mean, square = _integrals(coefficients, width)
        mean_missed, square_missed = _integrals(missed[:, None] * BUMP, width)
        return cls(
            start=nodes,
            width=width,
            low=np.append(-np.inf, nodes[1:]),
            beyond=coefficients,
            mean=mean,
            square=square,
            gap=np.full(nodes.size, np.median(width[:-1])),
            least=np.full(nodes.size, nodes[0]),
            middle=np.full(nodes.size, np.median(nodes)),
            most=np.full(nodes.size, nodes[-1]),
            missed=missed,
            mean_missed=mean_missed,
            square_missed=square_missed,
            tilt=np.zeros(()),
        )

    @classmethod
    def joined(cls, parts: Sequence[LawIntegrals]) -> LawIntegrals:
        """Those of all parties, one after another."""
        columns = {field.name: [getattr(part, field.name) for part in parts] for field in fields(cls)}
        tilts, _ = columns.pop("tilt"), columns.pop("inside")
        return cls(**{name: np.concatenate(column) for name, column in columns.items()}, tilt=tilts[0])

    def of_rows(self, rows: Any, inside: Any) -> LawIntegrals:
        """Those of some rows; the ones that are not ``inside`` tell nothing."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        columns |= {name: column[rows] for name, column in columns.items() if name not in ("tilt", "inside")}
        return LawIntegrals(**columns | {"inside": inside})

    def ready(self, precision: Any) -> LawIntegrals:
        """The same as numbers of some precision, tilted as they are, with no range for rows that are not inside."""
        columns = {field.name: jnp.asarray(getattr(self, field.name), precision) for field in fields(self)}
        some = LawIntegrals(**columns | {"inside": self.inside, "tilt": jnp.zeros((), precision)})
        tilt = columns["tilt"]
        return replace(
            some,
            low=jnp.where(self.inside, some.low, jnp.inf),
            beyond=some.beyond + tilt * some.missed[:, None] * jnp.asarray(BUMP, precision),
            mean=some.mean + tilt * some.mean_missed,
            square=some.square + tilt * some.square_missed,
        )

    def excess(self, r: Array) -> tuple[Array, Array]:
        """(E(d - r)+, E(d - r)+^2 / 2) at points r (k,), as far as these rows tell, once they are ready; all of a law's tell it."""
        mine = jnp.asarray((r >= self.low[:, None]) & (r < (self.start + self.width)[:, None]), r.dtype)
        columns = jnp.column_stack([self.start, self.width, self.mean, self.square, self.beyond])
        start, width, mean, square, *beyond = (mine.T @ columns).T  # of the row that tells, 0 where none of these does
        ahead = (r - start) * jnp.sum(mine, axis=0)
        place = jnp.where(ahead >= 0, ahead, 0.0) / jnp.where(width > 0, width, 1.0)
        before = jnp.where(ahead < 0, -ahead, 0.0)  # to the first node, where all is ahead
        first, second = jnp.zeros_like(r), jnp.zeros_like(r)
        power = place
        for k, c in enumerate(
            beyond
        ):  # of the probability beyond, from here to the next node, and of what is beyond there
            first = first + c * (1.0 - power) / (k + 1)
            second = second + c * ((1.0 - power * place) / (k + 2) - place * (1.0 - power) / (k + 1))
            power = power * place
        excess = mean + width * first
        squared = square + width * (1.0 - place) * mean + width**2 * second
        return excess + before, squared + before * (excess + before / 2)


def _between_nodes(
    law: Any, nodes: np.ndarray, width: np.ndarray, jump: Bool[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, "n coefficients"], Float[np.ndarray, " n"]]:
    """The coefficients of the probability beyond a point, of a straight line where the density jumps on the way; what they miss."""

    def at(places: np.ndarray) -> np.ndarray:
        return nodes[:, None] + width[:, None] * places

    places = at(KNOWN_AT)
    beyond = np.asarray(law.sf(places), float)
    places[jump, 0] = inward(nodes, width)[jump]
    before_jump = np.append(jump[1:], False)
    places[before_jump, -1] = inward(places[:, -1], -width)[before_jump]
    density = np.asarray(law.pdf(places), float)
    powers = np.arange(DEGREE + 1)
    values = KNOWN_AT[:, None] ** powers
    slopes = powers * KNOWN_AT[:, None] ** np.maximum(powers - 1, 0)
    with np.errstate(invalid="ignore", over="ignore"):  # a density may be infinite at an end
        known = np.hstack([beyond, -width[:, None] * density])
        smooth = np.linalg.solve(np.vstack([values, slopes]), known.T).T
        line = np.zeros_like(smooth)
        line[:, 0], line[:, 1] = beyond[:, 0], beyond[:, 2] - beyond[:, 0]
        there = np.asarray(law.sf(at(TRIED_AT)), float)
        missed = [np.abs(polyval(TRIED_AT, one.T) - there).max(axis=1) for one in (smooth, line)]
    fits = missed[0] <= missed[1]
    return np.where(fits[:, None], smooth, line), np.where(fits, *missed)


def _integrals(beyond: Float[np.ndarray, "n coefficients"], width: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """E(d - r)+ and E(d - r)+^2 / 2 at the next node of every row."""
    order = np.arange(DEGREE + 1)
    mean = _sums_of_later(width * (beyond @ (1 / (order + 1))))
    return mean, _sums_of_later(width**2 * (beyond @ (1 / (order + 2))) + width * mean)


def _sums_of_later(parts: np.ndarray) -> np.ndarray:
    """For each entry, the sum of those after it."""
    return np.append(np.cumsum(parts[:0:-1])[::-1], 0.0)
