"""A template at many thetas: the numbers of its rows' shares in a program, and how these pull on theta."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hierfl.compiler.parametric.template import AffineEntries, LevelTemplate, SmoothPart
from hierfl.compiler.programs.cones import Cone
from hierfl.compiler.programs.response import Slopes
from hierfl.compiler.programs.small_and_sparse import from_entries
from hierfl.compiler.programs.smooth_atoms import SQUARE, SmoothTerm


@dataclass(frozen=True, eq=False)
class RowBlock:
    """A template at k thetas, with weights; ``first`` and ``top`` are where its bounds and its rows start. The base has one theta."""

    template: LevelTemplate
    theta: np.ndarray
    weights: np.ndarray
    kept: np.ndarray
    first: int
    top: int

    @property
    def is_base(self) -> bool:
        return self.first == 0

    @property
    def extra(self) -> int:
        """How many entries of u each row has of its own."""
        return self.template.width - self.template.size

    @property
    def end(self) -> tuple[int, int]:
        """Where the next block's bounds and rows start."""
        count = len(self.weights)
        if self.is_base:
            return self.template.width, self.template.height
        return self.first + count * self.extra, self.top + count * self.template.height

    @cached_property
    def columns(self) -> np.ndarray:
        """The places in u of each row's (y, bounds): (k, width)."""
        if self.is_base:
            return np.arange(self.template.width)[None]
        count, size = len(self.weights), self.template.size
        own = self.first + np.arange(count * self.extra).reshape(count, self.extra)
        return np.hstack([np.broadcast_to(np.arange(size), (count, size)), own])

    @cached_property
    def heights(self) -> np.ndarray:
        """The places of each row's rows of A: (k, height)."""
        count, height = len(self.weights), self.template.height
        return self.top + np.arange(count * height).reshape(count, height)

    @property
    def cones(self) -> list[Cone]:
        return list(self.template.cones) * len(self.weights)

    def _placed(
        self, entries: AffineEntries, rows: np.ndarray, columns: np.ndarray | None, weighted: bool
    ) -> tuple[np.ndarray, ...]:
        values = entries.values(self.theta)
        values = values * self.weights[:, None] if weighted else values
        place = rows[:, entries.rows].ravel()
        if columns is None:
            return place, np.ravel(values)
        return place, columns[:, entries.columns].ravel(), np.ravel(values)

    @property
    def quadratic(self) -> tuple[np.ndarray, ...]:
        """(rows, columns, numbers) of P."""
        return self._placed(self.template.quadratic, self.columns, self.columns, True)

    @property
    def linear(self) -> tuple[np.ndarray, ...]:
        """(places, numbers) of q."""
        return self._placed(self.template.linear, self.columns, None, True)

    @property
    def matrix(self) -> tuple[np.ndarray, ...]:
        """(rows, columns, numbers) of A."""
        return self._placed(self.template.matrix, self.heights, self.columns, False)

    @property
    def offset(self) -> tuple[np.ndarray, ...]:
        """(places, numbers) of b."""
        return self._placed(self.template.offset, self.heights, None, False)

    def squares(self, width: int, dense: bool) -> Iterator[SmoothTerm]:
        """Squares of linear forms, of which the program is quadratic."""
        return self._terms([part for part in self.template.smooth if part.atom is SQUARE], width, dense)

    def smooth_terms(self, width: int, dense: bool) -> Iterator[SmoothTerm]:
        """The other smooth functions of linear forms."""
        return self._terms([part for part in self.template.smooth if part.atom is not SQUARE], width, dense)

    def _terms(self, parts: Sequence[SmoothPart], width: int, dense: bool) -> Iterator[SmoothTerm]:
        for part in parts:
            count = part.form.shape[0]
            numbers = np.arange(len(self.weights) * count).reshape(-1, count)
            row, column, value = self._placed(part.form, numbers, self.columns, False)
            form = from_entries(row, column, value, (numbers.size, width), dense)
            weight = np.ravel(self._dense(part.weight) * self.weights[:, None])
            yield SmoothTerm(part.atom, part.block, form, np.ravel(self._dense(part.shift)), weight)

    def _dense(self, entries: AffineEntries) -> np.ndarray:
        """A column for each theta: (k, height)."""
        return entries.spread(entries.values(self.theta))

    def pull(self, slopes: Slopes) -> np.ndarray:
        """The gradient in each theta."""
        template, weights = self.template, self.weights[:, None]
        out = np.zeros(self.theta.shape)
        p, q, a = template.quadratic, template.linear, template.matrix
        for left, right in slopes.forces:
            left, right = left[self.columns], right[self.columns]
            out += q.pull(weights * left[:, q.rows])
            out += p.pull(weights * left[:, p.rows] * right[:, p.columns])
            for part in template.smooth:
                out += self._pull_of_smooth(part, left, right)
        for left, right in slopes.bends:
            left, right = left[self.columns], right[self.columns]
            out += p.pull(weights * left[:, p.rows] * right[:, p.columns])
            for part in template.smooth:
                out += self._pull_of_bend(part, left, right)
        for left, right in slopes.rows:
            left, right = left[self.heights], right[self.columns]
            out += a.pull(left[:, a.rows] * right[:, a.columns])
        if slopes.offset is not None:
            out += template.offset.pull(slopes.offset[self.heights][:, template.offset.rows])
        return out

    def push(self, tangent: np.ndarray, u: np.ndarray, z: np.ndarray, force: np.ndarray, slack: np.ndarray) -> None:
        """Add to both what P u + q + s'(u) - A' z and A u + b move by where each theta moves along ``tangent``."""
        template, weights = self.template, self.weights[:, None]
        own, pulls = u[self.columns], z[self.heights]
        p, q, a, b = template.quadratic, template.linear, template.matrix, template.offset
        if q.moves:
            _add(force, self.columns[:, q.rows], weights * q.moved(tangent))
        if p.moves:
            _add(force, self.columns[:, p.rows], weights * p.moved(tangent) * own[:, p.columns])
        if a.moves:
            moved = a.moved(tangent)
            _add(force, self.columns[:, a.columns], -moved * pulls[:, a.rows])
            _add(slack, self.heights[:, a.rows], moved * own[:, a.columns])
        if b.moves:
            _add(slack, self.heights[:, b.rows], b.moved(tangent))
        for part in template.smooth:
            self._push_of_smooth(part, tangent, own, force)

    def _push_of_smooth(self, part: SmoothPart, tangent: np.ndarray, own: np.ndarray, force: np.ndarray) -> None:
        form, block, count = part.form, part.block, len(self.weights)
        weight = self._dense(part.weight) * self.weights[:, None]
        v = (self._through(form, own) + self._dense(part.shift)).reshape(-1, block)
        counted = np.ravel(weight) != 0
        slope, bent = np.zeros(v.shape), np.zeros(v.shape)
        with np.errstate(all="ignore"):
            every = part.atom.slope(v)
        slope[counted] = every[counted]
        along = part.shift.spread(part.shift.moved(tangent))
        moved = form.moved(tangent) if form.moves else None
        if moved is not None:
            along += form.row_sums(moved * own[:, form.columns])
        bent[counted] = np.einsum("nij,nj->ni", part.atom.curvature(v[counted]), along.reshape(-1, block)[counted])
        gained = part.weight.spread(part.weight.moved(tangent)) * self.weights[:, None]
        with np.errstate(invalid="ignore"):
            priced = np.where(np.ravel(gained)[:, None] != 0, np.ravel(gained)[:, None] * every, 0.0)
        pushed = (priced + np.ravel(weight)[:, None] * bent).reshape(count, -1)
        places = self.columns[:, form.columns]
        _add(force, places, form.values(self.theta) * pushed[:, form.rows])
        if moved is not None:
            slopes = (np.ravel(weight)[:, None] * slope).reshape(count, -1)
            _add(force, places, moved * slopes[:, form.rows])

    def _pull_of_smooth(self, part: SmoothPart, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Of sum_k weight_k s'(form_k right + shift_k) . form_k left."""
        count, block = len(self.weights), part.block
        of_left = self._through(part.form, left)
        v = (self._through(part.form, right) + self._dense(part.shift)).reshape(-1, block)
        factor = np.repeat(self.weights, part.weight.shape[0])
        weight = np.ravel(self._dense(part.weight)) * factor
        counted = weight != 0
        bent = np.zeros(v.shape)
        with np.errstate(all="ignore"):  # what has no weight may be undefined, and its weight may move all the same
            slope = part.atom.slope(v)
        along = of_left.reshape(-1, block)
        bent[counted] = np.einsum("nij,nj->ni", part.atom.curvature(v[counted]), along[counted])
        bent, pushed = (
            (weight[:, None] * bent).reshape(count, -1),
            np.where(counted[:, None], weight[:, None] * slope, 0.0).reshape(count, -1),
        )
        out = self._pull_of_forms(part, [(pushed, left), (bent, right)]) + part.shift.pull(bent[:, part.shift.rows])
        gained = (factor * np.einsum("ni,ni->n", slope, along)).reshape(count, -1)
        return out + part.weight.pull(gained[:, part.weight.rows])

    def _pull_of_bend(self, part: SmoothPart, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Of sum 2 weight (form left) (form right), for squares."""
        of_left, of_right = self._through(part.form, left), self._through(part.form, right)
        weight = 2.0 * self._dense(part.weight) * self.weights[:, None]
        out = self._pull_of_forms(part, [(weight * of_right, left), (weight * of_left, right)])
        return out + part.weight.pull((2.0 * self.weights[:, None] * of_left * of_right)[:, part.weight.rows])

    def _through(self, form: AffineEntries, given: np.ndarray) -> np.ndarray:
        """The forms of (k, width): (k, height)."""
        return form.row_sums(form.values(self.theta) * given[:, form.columns])

    @staticmethod
    def _pull_of_forms(part: SmoothPart, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        form = part.form
        return form.pull(np.asarray(sum(rows[:, form.rows] * given[:, form.columns] for rows, given in pairs)))


class SeparateBlock(RowBlock):
    """A template at k thetas, each with a u and rows of its own."""

    @classmethod
    def of(cls, template: LevelTemplate, theta: np.ndarray) -> SeparateBlock:
        return cls(template, np.asarray(theta, float), np.ones(len(theta)), np.arange(len(theta)), 0, 0)

    @cached_property
    def columns(self) -> np.ndarray:
        """Of the k vectors u, one after another."""
        return np.arange(len(self.theta) * self.template.width).reshape(len(self.theta), self.template.width)

    @cached_property
    def heights(self) -> np.ndarray:
        """Of their rows."""
        return np.arange(len(self.theta) * self.template.height).reshape(len(self.theta), self.template.height)

    def dense(self, entries: AffineEntries, shape: tuple[int, int]) -> np.ndarray:
        """The matrices, or one that is all programs'."""
        theta = self.theta if entries.moves else self.theta[:1]
        out = np.zeros((len(theta), *shape))
        out[:, entries.rows, entries.columns] = entries.values(theta)
        return out[:1] if len(out) > 1 and (out == out[:1]).all() else out

    def column(self, entries: AffineEntries) -> np.ndarray:
        """The columns, or one that is all programs'."""
        return entries.spread(entries.values(self.theta if entries.moves else self.theta[:1]))


def _add(target: np.ndarray, places: np.ndarray, values: np.ndarray) -> None:
    """Add values at places, which may occur more than once."""
    target += np.bincount(np.ravel(places), np.ravel(values), len(target))
