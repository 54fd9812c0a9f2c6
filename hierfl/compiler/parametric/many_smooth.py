"""Levels of many owners, or of a batch, answered together where their programs are of one shape: quadratic ones, and smooth ones.

Of smooth programs it is Newton's method on all of them side by side, each step of which is a family of quadratic programs.
As of quadratic programs, an answer is taken where it meets the conditions of its own program to rounding and is the only one
beyond doubt; what is left is for others to solve, one after another. Rows that only say where a barrier ends are left out: hardly any
of them ever holds, and where one does no answer is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from hierfl.compiler.parametric.level_form import LevelForm, Thetas
from hierfl.compiler.parametric.many_programs import (
    SCALARS,
    TAKEN,
    FamilyAnswers,
    ManyPrograms,
    Rows,
    Stack,
    times,
)
from hierfl.compiler.parametric.row_block import SeparateBlock
from hierfl.compiler.programs.response import Adjoint
from hierfl.compiler.programs.saddle import Saddles
from hierfl.compiler.programs.smooth_atoms import SQUARE, Blocks, SmoothAtom
from hierfl.compiler.programs.solve_program import inside

MODELS = 50  # quadratic models, at most
GAIN, HALVINGS = 1e-4, 40  # of what a model promises, that a step has to keep; how often it is halved
LARGER = 12  # times as many entries of a linear system as quadratic ones may have: an answer by itself takes several programs (250 scalars: 1.6 times as long)
STALLED, NEAR = 3, 1e-6  # models that make an answer of an error that is near 0 no better


@dataclass(frozen=True, eq=False)
class ManyTerms:
    """One atom of each program: ``form`` (k or 1, n block, width), ``shift`` (k or 1, n block), ``weight`` (k or 1, n)."""

    atom: SmoothAtom
    form: Stack
    shift: Stack
    weight: Stack

    def among(self, chosen: Int[np.ndarray, " some"]) -> ManyTerms:
        form, shift, weight = (part if len(part) == 1 else part[chosen] for part in (self.form, self.shift, self.weight))
        return ManyTerms(self.atom, form, shift, weight)

    @property
    def block(self) -> int:
        return int(self.shift.shape[1] // self.weight.shape[1])

    def _said(self, function: Callable[[Blocks], np.ndarray], u: Stack) -> Stack:
        """What one of the atom's functions says of the arguments at u, times their weights."""
        weight = np.broadcast_to(self.weight, (len(u), self.weight.shape[1]))
        arguments = times(self.form, u) + self.shift
        return self.atom.weighted(function, arguments.reshape(*weight.shape, self.block), weight)

    def value(self, u: Stack) -> Float[np.ndarray, " k"]:
        return np.asarray(self._said(self.atom.value, u).sum(axis=1))

    def slopes(self, u: Stack) -> Stack:
        """The weighted slopes in the arguments: (k, n block)."""
        return self._said(self.atom.slope, u).reshape(len(u), -1)

    def add_curvature(self, u: Stack, to: Stack) -> None:
        """Add the second derivatives in u: those of rows with a single entry have a place of their own."""
        bent = self._said(self.atom.curvature, u)
        if self.block > 1:
            whole = np.broadcast_to(self.form, (len(u), *self.form.shape[1:])).reshape(len(u), -1, self.block, u.shape[1])
            to += np.einsum("knia,knij,knjb->kab", whole, bent, whole, optimize=True)
        elif self._single is None:
            to += self.form.swapaxes(1, 2) @ (bent[:, :, 0] * self.form)
        else:
            columns, squares = self._single
            place: Any = (slice(None), columns, columns)
            np.add.at(to, place, bent[:, :, 0, 0] * squares)

    @cached_property
    def _single(self) -> tuple[np.ndarray, np.ndarray] | None:
        """(columns, squares) of the entries of rows that have one each, the same for all programs."""
        if len(self.form) > 1 or (np.count_nonzero(self.form[0], axis=1) > 1).any():
            return None
        columns = np.abs(self.form[0]).argmax(axis=1)
        return columns, self.form[0][np.arange(len(columns)), columns] ** 2

    def reach(self, u: Stack, way: Stack) -> Float[np.ndarray, " k"]:
        """How much of a step stays inside of the domain, 1 at most."""
        if not self.atom.barrier:
            return np.ones(len(u))
        here = times(self.form, u) + self.shift
        change = times(self.form, way)
        counted = np.repeat(np.broadcast_to(self.weight != 0, (len(u), self.weight.shape[1])), self.block, axis=1)
        rates = np.where(counted & (here > 0), -change / np.where(here > 0, here, 1.0), 0.0).max(axis=1, initial=0.0)
        return np.minimum(1.0, 0.99 / np.maximum(rates, 1e-300))


@dataclass(frozen=True, eq=False)
class ManySmooth(ManyPrograms):
    """Programs with smooth terms, and where Newton's method begins: ``start`` (k or 1, width), NaN where nothing is inside."""

    terms: tuple[ManyTerms, ...]
    start: Stack
    rows: Int[np.ndarray, " kept"]  # of the level's rows, those that are no ends of barriers
    height: int  # how many rows the level has

    @staticmethod
    def of_smooth(form: LevelForm, thetas: Thetas) -> ManySmooth:
        """The programs at thetas with a leading axis."""
        base, block = ManyPrograms.of(form, thetas), SeparateBlock.of(form.base, thetas[0])
        terms = tuple(
            ManyTerms(part.atom, block.dense(part.form, part.form.shape), *(_alike(block.column(one)) for one in (part.shift, part.weight)))
            for part in form.base.smooth
            if part.atom is not SQUARE
        )
        start, height = np.zeros((1, base.q.shape[1])), len(base.equal)
        ends = [term for term in terms if term.atom.barrier]
        if ends:
            still = len(base.a) == 1 and (base.b == base.b[:1]).all()
            still = still and all(len(part) == 1 for term in ends for part in (term.form, term.shift, term.weight))
            start = np.stack([_start(form, thetas, k) for k in range(1 if still else len(base))])
        rows = np.flatnonzero(~_only_ends(base, ends))
        return ManySmooth(base.p, base.q, base.a[:, rows], base.b[:, rows], base.equal[rows], terms, start, rows, height)

    def among(self, chosen: Int[np.ndarray, " some"]) -> ManySmooth:
        base = super().among(chosen)
        start = self.start if len(self.start) == 1 else self.start[chosen]
        return ManySmooth(base.p, base.q, base.a, base.b, base.equal, tuple(term.among(chosen) for term in self.terms), start, self.rows, self.height)

    def solve(self, held: Rows | None = None, side_by_side: bool = False) -> FamilyAnswers:
        """Those beyond doubt, by Newton's method."""
        count, width = self.q.shape
        u = np.array(np.broadcast_to(self.start, (count, width)))
        best, best_z, error = u.copy(), np.zeros_like(self.b), np.full(count, np.inf)
        left, stalled = np.flatnonzero(np.isfinite(u).all(axis=1)), np.zeros(count, int)
        rows = np.array(np.broadcast_to(self.equal, self.b.shape))
        within = any(term.atom.barrier for term in self.terms)
        with np.errstate(all="ignore"):
            for model in range(MODELS):
                if not len(left):
                    break
                part, here = self.among(left), u[left]
                there, z = part.model(here)._step(rows[left])
                rows[left] = self.equal | (z > 0)
                way = there - here
                length = part._length(here, way) if within or model else np.ones(len(left))
                u[left] = here + length[:, None] * way
                found = part.errors(u[left], z)
                better = found < error[left]
                at = left[better]
                best[at], best_z[at], error[at] = u[at], z[better], found[better]
                stalled[left] = np.where(better | (found > NEAR), 0, stalled[left] + 1)
                left = left[(error[left] > TAKEN / 10) & (length > 0) & np.isfinite(u[left]).all(axis=1) & (stalled[left] < STALLED)]
            taken = error <= TAKEN
            some = np.flatnonzero(taken)
            if len(some):
                taken[some] = self.among(some).model(best[some]).is_one(best[some], best_z[some])
        return FamilyAnswers(best, self._whole(best_z), error, taken, self._whole(self.equal | (best_z > 0)))

    def _whole(self, of_rows: np.ndarray) -> np.ndarray:
        """What there is for the rows, and nothing for those that were left out."""
        out = np.zeros((len(of_rows), self.height), of_rows.dtype)
        out[:, self.rows] = of_rows
        return out

    def model(self, u: Stack) -> ManyPrograms:
        """The quadratic programs that they are like at u."""
        curvature = np.array(np.broadcast_to(self.p, (len(u), *self.p.shape[1:])))
        for term in self.terms:
            term.add_curvature(u, curvature)
        return ManyPrograms(curvature, self.slope(u) - times(curvature, u), self.a, self.b, self.equal)

    def adjoints(self, u: Stack, z: Stack, seeds: Stack, side_by_side: bool = False) -> tuple[Bool[np.ndarray, " k"], Stack, Stack]:
        with np.errstate(all="ignore"):
            sure, v, w = self.model(u).adjoints(u, z[:, self.rows], seeds)
        return sure, v, self._whole(w)

    def slope(self, u: Stack) -> Stack:
        return super().slope(u) + sum(times(term.form.swapaxes(1, 2), term.slopes(u)) for term in self.terms)

    def slope_size(self, u: Stack) -> Stack:
        sizes = (times(np.abs(term.form).swapaxes(1, 2), np.abs(term.slopes(u))) for term in self.terms)
        return super().slope_size(u) + sum(sizes)

    def _parts(self, u: Stack) -> list[Stack]:
        slopes = ManyPrograms.slope(self, u) - self.slope(u)
        return [*super()._parts(u), np.abs(slopes).max(axis=1, keepdims=True, initial=0.0)]

    def _cost(self, u: Stack) -> Float[np.ndarray, " k"]:
        """The objectives; infinite where they are not defined."""
        cost = ((0.5 * times(self.p, u) + self.q) * u).sum(axis=1) + sum(term.value(u) for term in self.terms)
        return np.where(np.isfinite(cost), cost, np.inf)

    def _length(self, u: Stack, way: Stack) -> Float[np.ndarray, " k"]:
        """How much of each step keeps some of what it promises; 0 where rounding leaves nothing."""
        here, slope = self._cost(u), np.minimum((self.slope(u) * way).sum(axis=1), 0.0)
        noise = 1e-15 * (1.0 + np.abs(here))
        length = np.min([term.reach(u, way) for term in self.terms], axis=0)
        asked = np.arange(len(u))
        for _ in range(HALVINGS):
            there = self.among(asked)._cost(u[asked] + length[asked, None] * way[asked])
            asked = asked[~(there <= (here + GAIN * length * slope + noise)[asked])]
            if not len(asked):
                return length
            length[asked] *= 0.5
        length[asked] = 0.0
        return length


def treats_together(form: LevelForm, largest: int) -> bool:
    """Whether many can be answered together: quadratic ones, or such that curvatures are finite, and all that is said is said once."""
    atoms = [part.atom for part in form.base.smooth]
    bent = any(atom is not SQUARE for atom in atoms) and not any(atom.steep or atom.of_matrices for atom in atoms)
    smooth = form.polyhedral and bent and not form.groups and (form.base.width + form.base.height) ** 2 <= LARGER * largest
    return smooth or ManyPrograms.treats(form, largest)


def family_of(form: LevelForm, thetas: Thetas) -> ManyPrograms:
    """The programs at thetas with a leading axis."""
    smooth = any(part.atom is not SQUARE for part in form.base.smooth)
    return ManySmooth.of_smooth(form, thetas) if smooth else ManyPrograms.of(form, thetas)


def solved_together(form: LevelForm, thetas: Thetas, latest: FamilyAnswers | None, side_by_side: bool = False) -> FamilyAnswers:
    """The answers at thetas with a leading axis; of quadratic ones, what held in the ``latest`` of as many is tried first, unless all are solved
    side by side."""
    parts = []
    for some in _pieces(form, len(thetas[0])):
        family = family_of(form, [part[some] for part in thetas])
        before = latest.held[some] if latest is not None and len(latest.held) == len(thetas[0]) else None
        parts.append(family.solve(before, side_by_side))
    return FamilyAnswers(*(np.concatenate(each) for each in zip(*parts)))


def pulled_together(
    form: LevelForm, thetas: Thetas, answers: FamilyAnswers, seeds: Stack, side_by_side: bool = False
) -> tuple[Bool[np.ndarray, " k"], Thetas]:
    """(where they are beyond doubt, the gradients of seed'y in theta there) at answers."""
    sure, found = [], []
    for some in _pieces(form, len(thetas[0])):
        theta, answer = [part[some] for part in thetas], FamilyAnswers(*(part[some] for part in answers))
        kept = np.flatnonzero(answer.taken)
        theta, answer = [part[kept] for part in theta], FamilyAnswers(*(part[kept] for part in answer))
        fine, v, w = np.zeros(0, bool), answer.u, answer.z
        if len(kept):
            fine, v, w = family_of(form, theta).adjoints(answer.u, answer.z, seeds[some][kept], side_by_side)
        whole = np.zeros(some.stop - some.start, bool)
        whole[kept[fine]] = True
        sure.append(whole)
        found.append(_pulled([part[fine] for part in theta], form, answer.u[fine], answer.z[fine], v[fine], w[fine]))
    return np.concatenate(sure), [np.concatenate(each) for each in zip(*found)]


def _pieces(form: LevelForm, count: int) -> Iterator[slice]:
    """As many at once as fit in memory: matrices of each, or those of the sets of rows that hold."""
    alike = 8 if not form.groups and form.base.is_still else 1
    step = max(1, alike * SCALARS // (4 * (form.base.width + form.base.height + 1) ** 2))
    return (slice(start, min(start + step, count)) for start in range(0, max(count, 1), step))


def _pulled(thetas: Thetas, form: LevelForm, u: Stack, z: Stack, v: Stack, w: Stack) -> Thetas:
    """The gradients in theta of what ``ManyPrograms.adjoints`` says, of each program."""
    if not len(u):
        return [np.zeros_like(part) for part in thetas]
    if form.groups:
        each = [form.pull([part[k] for part in thetas], Adjoint(v[k], w[k], z[k]), u[k]) for k in range(len(thetas[0]))]
        return [np.stack(parts) for parts in zip(*each)]
    return [SeparateBlock.of(form.base, thetas[0]).pull(Adjoint(np.ravel(v), np.ravel(w), np.ravel(z)), np.ravel(u))]


def _only_ends(base: ManyPrograms, ends: list[ManyTerms]) -> Bool[np.ndarray, " rows"]:
    """The inequalities that are an argument of a barrier, with a weight, in all programs."""
    rows = {(base.a[0, k].tobytes(), float(base.b[0, k])): k for k in np.flatnonzero(~base.equal)}
    found = np.zeros(len(base.equal), bool)
    for term in ends:
        for k in range(term.shift.shape[1]):
            at = rows.get((term.form[0, k].tobytes(), float(term.shift[0, k])))
            same = at is not None and (base.a[:, at] == term.form[:, k]).all() and (base.b[:, at] == term.shift[:, k]).all()
            if at is not None and same and (term.weight[:, k // term.block] != 0).all():
                found[at] = True
    return found


def _start(form: LevelForm, thetas: Thetas, k: int) -> np.ndarray:
    """Inside of the domain of one of the programs; NaN where nothing is."""
    program = form.program([part[k] for part in thetas])
    found = inside(program, Saddles())
    return np.full(program.width, np.nan) if isinstance(found, int) else found


def _alike(columns: Stack) -> Stack:
    """One column where all are the same."""
    return columns[:1] if (columns == columns[:1]).all() else columns
