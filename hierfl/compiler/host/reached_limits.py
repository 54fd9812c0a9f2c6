"""Upper bounds of convex terms that nothing pulls at: they are taken to be at their limits, since else they are not determined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hierfl.compiler.host.cone_solution import ConeSolution
from hierfl.compiler.host.cones import blocks
from hierfl.compiler.host.standard_form import NONNEGATIVE, ZERO, Cone


@dataclass(frozen=True)
class ReachedLimits:
    """Bounds of convex terms that have one limit, affine in the rest of u, and no cost are at it: else they are not determined.

    ``columns`` are their entries of u, ``rows`` the rows of their limits.
    """

    columns: tuple[int, ...]
    rows: tuple[int, ...]

    @classmethod
    def of(
        cls, h: np.ndarray, g: np.ndarray, a: np.ndarray, cones: Sequence[Cone], bounds: int
    ) -> ReachedLimits | None:
        """Those among the last ``bounds`` entries of u, where there are any."""
        width = len(g)
        places: list[tuple[int, int]] = []
        equations = sum(c.size for c in cones if c.kind == ZERO)
        filled = a[: sum(c.size for c in cones if c.kind in (ZERO, NONNEGATIVE))] != 0
        taken = np.zeros(width, bool)  # columns of rows that are limits
        for column in range(width - bounds, width):
            rows = np.flatnonzero(filled[:, column])
            free = not h[column].any() and g[column] == 0
            if not free or len(rows) != 1 or rows[0] < equations or not a[rows[0], column] < 0:
                continue
            others = filled[rows[0]] & (np.arange(width) != column)
            if not taken[column] and not others[[c for c, _ in places]].any():
                places.append((column, int(rows[0])))
                taken |= others
        return cls(*zip(*places)) if places else None

    def inner(self, h: np.ndarray, g: np.ndarray, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, ...]:
        """H, g, A and b without them, of one program or of a stack."""
        kept, left = self._kept(g.shape[-1], self.columns), self._kept(b.shape[-1], self.rows)
        rows, columns = np.array(self.rows), np.array(self.columns)
        least = -a[..., rows, columns]
        limits, slopes = b[..., rows] / least, a[..., rows[:, None], kept] / least[..., None]
        coupled = a[..., left[:, None], columns]
        moved = (coupled @ limits[..., None])[..., 0]
        inner = a[..., left[:, None], kept] + coupled @ slopes
        return h[..., kept[:, None], kept], g[..., kept], inner, b[..., left] + moved

    def inner_cones(self, cones: Sequence[Cone]) -> list[Cone]:
        """The cones of that."""
        less = [replace(c, size=c.size - sum(s.start <= row < s.stop for row in self.rows)) for c, s in blocks(cones)]
        return [cone for cone in less if cone.size]

    def outer(self, a: np.ndarray, b: np.ndarray, answer: ConeSolution) -> ConeSolution:
        """The whole program's answer, from that without them."""
        kept, left = self._kept(a.shape[1], self.columns), self._kept(len(b), self.rows)
        rows, columns = list(self.rows), list(self.columns)
        u, z = np.full(a.shape[1], np.nan), np.full(len(b), np.nan)
        u[kept], z[left] = answer.u, answer.z
        u[columns] = (b[rows] + a[rows][:, kept] @ answer.u) / -a[rows, columns]
        z[rows] = a[left[:, None], columns].T @ answer.z / -a[rows, columns]
        return replace(answer, u=u, z=z)

    def of_inner(self, answer: ConeSolution) -> ConeSolution:
        """What of the whole program's answer is the inner one's."""
        return replace(
            answer,
            u=answer.u[self._kept(len(answer.u), self.columns)],
            z=answer.z[self._kept(len(answer.z), self.rows)],
        )

    @staticmethod
    def _kept(count: int, left_out: tuple[int, ...]) -> np.ndarray:
        return np.delete(np.arange(count), list(left_out))
