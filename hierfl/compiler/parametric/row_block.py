"""A template at many thetas: the numbers of its rows' shares in a program, and how these pull on theta."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hierfl.compiler.parametric.template import AffineEntries, LevelTemplate, SmoothPart
from hierfl.compiler.programs.cones import Cone
from hierfl.compiler.programs.response import Adjoint
from hierfl.compiler.programs.small_and_sparse import SMALL, Matrix, from_entries
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

    def push(self, tangent: np.ndarray, u: np.ndarray, z: np.ndarray) -> np.ndarray:
        """What P u + q + s'(u) - A' z and A u + b move by at fixed u and z where each theta moves along ``tangent``."""
        chains, along = self._chains(u), np.ravel(tangent)
        rows, numbers, values = self._moves(u, z, chains)
        moved = _added_up(rows, _times(values, along[numbers]), len(u) + len(z))
        for chain in chains:
            moved[: len(u)] += chain.push(along)
        return moved

    def pull(self, pair: Adjoint, u: np.ndarray) -> np.ndarray:
        """The gradient in each theta of what a pair says at u: see ``Adjoint``."""
        chains = self._chains(u)
        rows, numbers, values = self._moves(u, pair.z, chains)
        seeds = -np.concatenate([pair.a, pair.b])
        found = _added_up(numbers, values * seeds[rows], self.theta.size)
        for chain in chains:
            found += chain.pull(seeds[: len(u)], self.theta.size)
        return found.reshape(self.theta.shape)

    def _moves(self, u: np.ndarray, z: np.ndarray, chains: Sequence[_Chain]) -> tuple[np.ndarray, ...]:
        """(rows, numbers, values) of the derivative of (P u + q + s'(u) - A' z, A u + b) in the thetas, without what its ``chains`` say; entries add up."""
        template, weights = self.template, self.weights[:, None]
        own, pulls, below = u[self.columns], z[self.heights], len(u) + self.heights
        p, q, a, b = template.quadratic, template.linear, template.matrix, template.offset
        parts = [
            self._in_theta(q, self.columns[:, q.rows], weights),
            self._in_theta(p, self.columns[:, p.rows], weights * own[:, p.columns]),
            self._in_theta(a, self.columns[:, a.columns], -pulls[:, a.rows]),
            self._in_theta(a, below[:, a.rows], own[:, a.columns]),
            self._in_theta(b, below[:, b.rows], weights**0),
        ]
        for chain in chains:  # sum_k weight_k s'(v_k) . form_k, where the last form_k moves
            form, pushed = chain.part.form, chain.pushed.reshape(len(self.weights), -1)
            if form.moves:
                parts.append(self._in_theta(form, self.columns[:, form.columns], pushed[:, form.rows]))
        rows, numbers, values = (np.concatenate(each) for each in zip(*parts))
        return rows, numbers, values

    def _in_theta(self, entries: AffineEntries, places: np.ndarray, factors: np.ndarray) -> tuple[np.ndarray, ...]:
        """The same of what has ``factors`` times the entries at ``places``, (k, entries) both."""
        entry, number, value = entries.in_theta
        starts = self.theta.shape[1] * np.arange(len(self.theta))[:, None]
        values = np.broadcast_to(factors, places.shape)[:, entry] * value
        return places[:, entry].ravel(), np.ravel(starts + number), values.ravel()

    def _chains(self, u: np.ndarray) -> list[_Chain]:
        """Of what is smooth and moves: sum_k weight_k s'(form_k u + shift_k) . form_k, at this u."""
        moving = (part for part in self.template.smooth if part.form.moves or part.shift.moves or part.weight.moves)
        return [self._chain(part, u) for part in moving]

    def _chain(self, part: SmoothPart, u: np.ndarray) -> _Chain:
        form, count = part.form, len(self.weights)
        numbers = np.arange(count * form.shape[0]).reshape(count, -1)
        (term,) = self._terms([part], len(u), numbers.size * len(u) <= SMALL)
        v, weight = term.arguments(u), term.weight
        with np.errstate(all="ignore"):  # what has no weight may be undefined, and its weight may move all the same
            slope = part.atom.slope(v)
        bent = part.atom.weighted(part.atom.curvature, v, weight)
        arguments = [
            self._in_theta(part.shift, numbers[:, part.shift.rows], np.ones((count, 1))),
            self._in_theta(form, numbers[:, form.rows], u[self.columns][:, form.columns]),
        ]
        moving = tuple(np.concatenate(each) for each in zip(*arguments))
        every = np.arange(len(v)).reshape(count, -1)[:, part.weight.rows]
        gaining = self._in_theta(part.weight, every, self.weights[:, None])
        pushed = np.where(weight[:, None] != 0, weight[:, None] * slope, 0.0)
        return _Chain(part, term.form, bent, moving, slope, gaining, pushed)


class _Chain(NamedTuple):
    """How weight s'(v), v = forms u + shift, moves with the thetas: by its curvature where v moves, by its slope where its weight does."""

    part: SmoothPart
    forms: Matrix
    bent: np.ndarray
    moving: tuple[np.ndarray, ...]  # (entries of v, numbers of theta, values)
    slope: np.ndarray
    gaining: tuple[np.ndarray, ...]  # (weights, numbers of theta, values)
    pushed: np.ndarray

    def push(self, along: np.ndarray) -> np.ndarray:
        """forms' times what it moves by along a direction of the thetas: products of vectors, however many numbers theta has."""
        rows, numbers, values = self.moving
        moved = _added_up(rows, _times(values, along[numbers]), self.slope.size).reshape(self.slope.shape)
        rows, numbers, values = self.gaining
        gained = _added_up(rows, _times(values, along[numbers]), len(self.slope))
        by = _times(self.bent, moved[:, None, :]).sum(axis=2) + _times(self.slope, gained[:, None])
        return np.asarray(self.forms.T @ by.ravel())

    def pull(self, seed: np.ndarray, count: int) -> np.ndarray:
        """The same transposed: a gradient in ``count`` numbers of theta."""
        seeds = np.asarray(self.forms @ seed).reshape(self.slope.shape)
        of_v = np.einsum("nij,ni->nj", self.bent, seeds).ravel()
        rows, numbers, values = self.moving
        found = _added_up(numbers, values * of_v[rows], count)
        rows, numbers, values = self.gaining
        if len(rows):  # else a slope may be infinite
            found += _added_up(numbers, values * (self.slope * seeds).sum(axis=1)[rows], count)
        return found


def _times(values: np.ndarray, along: np.ndarray) -> np.ndarray:
    """Products, in which what does not move counts for nothing, be it undefined."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(along != 0, values * along, 0.0))


class SeparateBlock(RowBlock):
    """A template at k thetas, each with a u and rows of its own."""

    @classmethod
    def of(cls, template: LevelTemplate, theta: np.ndarray) -> SeparateBlock:
        return cls(template, np.asarray(theta, float), np.ones(len(theta)), np.arange(len(theta)), 0, 0)

    @cached_property
    def columns(self) -> np.ndarray:
        """Of the k vectors u, one after another."""
        return np.arange(len(self.theta) * self.template.width).reshape(len(self.theta), self.template.width)

    def dense(self, entries: AffineEntries, shape: tuple[int, int]) -> np.ndarray:
        """The matrices, or one that is all programs'."""
        theta = self.theta if entries.moves else self.theta[:1]
        out = np.zeros((len(theta), *shape))
        out[:, entries.rows, entries.columns] = entries.values(theta)
        return out[:1] if len(out) > 1 and (out == out[:1]).all() else out

    def column(self, entries: AffineEntries) -> np.ndarray:
        """The columns, or one that is all programs'."""
        return entries.spread(entries.values(self.theta if entries.moves else self.theta[:1]))


def _added_up(places: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """Values at places, which may occur more than once, or not at all."""
    return np.bincount(places, values, count).astype(float)
