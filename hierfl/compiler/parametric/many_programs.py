"""Many small programs of one shape: those that hold the same rows are one linear system, the others are systems side by side.

What holds is guessed: what held last time, what DAQP finds for each; or all are solved side by side where JAX computes. An answer is taken where it meets the
conditions of its own program to rounding and is the only one beyond doubt; what is left is for others to solve, one after another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from hierfl.compiler.parametric.level_form import LevelForm, Thetas
from hierfl.compiler.parametric.row_block import SeparateBlock
from hierfl.compiler.programs.backends import FIRMER, daqp_pairs
from hierfl.compiler.programs.cones import ZERO, of_kind
from hierfl.compiler.programs.side_by_side import adjoints_side_by_side, pairs_side_by_side
from hierfl.compiler.programs.small_and_sparse import as_array
from hierfl.compiler.programs.smooth_atoms import SQUARE

TAKEN = 1e-13  # the relative error of the conditions up to which an answer is
STRICT = 1e-9  # relative: how far a multiplier or a slack is from zero where what holds is beyond doubt
HIDING = 1e8  # times a number, from which another one hides it
REGULAR = 1e-10  # of the largest eigenvalue of P, scaled, from which the least makes it definite
SINGULAR = 1e12  # entries of an inverse, from which a system has none
ALIKE = 3  # programs that hold the same rows, from which their system is inverted
CACHED = 400_000  # entries of linear systems that are treated at once
MODERATE = 1e6  # of a seed, up to which its adjoint depends on nothing that rounding decides
SCALARS = 30_000_000  # that programs looked at at once may have in all, and
LARGEST = 20_000  # entries of a program's linear system, of which many are solved side by side unless somebody says otherwise

Stack = Float[np.ndarray, "k *shape"]
Rows = Bool[np.ndarray, "k rows"]


class FamilyAnswers(NamedTuple):
    """(u, z) of each program with the rows that ``held``, and where they are ``taken``: the only ones, of small error."""

    u: Stack
    z: Stack
    error: Float[np.ndarray, " k"]
    taken: Bool[np.ndarray, " k"]
    held: Rows


@dataclass(frozen=True, eq=False)
class ManyPrograms:
    """P (k or 1, width, width), q (k, width), A (k or 1, rows, width), b (k, rows) over equations (``equal``) and inequalities."""

    p: Stack
    q: Stack
    a: Stack
    b: Stack
    equal: Bool[np.ndarray, " rows"]

    @staticmethod
    def treats(form: LevelForm, largest: int = LARGEST) -> bool:
        """Whether it can answer a level: quadratic programs over rows, of one shape whatever the owner."""
        templates = [form.base, *(group.template for group in form.groups)]
        quadratic = all(part.atom is SQUARE for template in templates for part in template.smooth)
        own = any(t.width > t.size or t.height for t in templates[1:])
        return form.polyhedral and quadratic and not own and (form.base.width + form.base.height) ** 2 <= largest

    @staticmethod
    def at_once(form: LevelForm) -> int:
        """How many programs are in memory together."""
        return max(1, SCALARS // (4 * (form.base.width + form.base.height + form.base.count)))

    @classmethod
    def of(cls, form: LevelForm, thetas: Thetas) -> ManyPrograms:
        """The programs at thetas with a leading axis."""
        base, count = form.base, len(thetas[0])
        width, height = base.width, base.height
        equal = of_kind(base.cones, ZERO)
        if form.groups:
            programs = [form.program([part[k] for part in thetas]) for k in range(count)]
            p, a = (
                np.stack([as_array(part) for part in parts]) for parts in zip(*((one.p, one.a) for one in programs))
            )
            q, b = (np.stack(parts) for parts in zip(*((one.q, one.b) for one in programs)))
            return cls(p, q, a, b, programs[0].equal)
        block = SeparateBlock.of(form.base, thetas[0])
        p, q = block.dense(base.quadratic, (width, width)), block.column(base.linear)
        for part in (one for one in base.smooth if one.atom is SQUARE):
            shape = part.form.shape
            rows, shift = block.dense(part.form, shape), block.column(part.shift)
            weight = 2.0 * block.column(part.weight)
            p = p + rows.swapaxes(1, 2) @ (weight[..., None] * rows)
            q = q + times(rows.swapaxes(1, 2), weight * shift)
        a, b = block.dense(base.matrix, (height, width)), block.column(base.offset)
        return cls(
            p, np.array(np.broadcast_to(q, (count, width))), a, np.array(np.broadcast_to(b, (count, height))), equal
        )

    def __len__(self) -> int:
        return len(self.q)

    @property
    def shared(self) -> bool:
        """Whether P and A are the same for all."""
        return len(self.p) == len(self.a) == 1

    def among(self, chosen: Int[np.ndarray, " some"]) -> ManyPrograms:
        p, a = (part if len(part) == 1 else part[chosen] for part in (self.p, self.a))
        return ManyPrograms(p, self.q[chosen], a, self.b[chosen], self.equal)

    @cached_property
    def sizes(self) -> Stack:
        """The length of each row of A, 1 for a row of zeros."""
        sizes = np.linalg.norm(self.a, axis=2)
        return np.where(sizes > 0, sizes, 1.0)

    @cached_property
    def _magnitudes(self) -> tuple[Stack, Stack, Stack]:
        rows = np.abs(self.a)
        return np.abs(self.p), rows, rows.swapaxes(1, 2)

    # --- answers -----------------------------------------------------------------------------------------------------

    def solve(self, held: Rows | None = None, side_by_side: bool = False) -> FamilyAnswers:
        """Those beyond doubt, from the rows that may hold, or all side by side first; an answer depends on its own program alone, up to rounding."""
        count, width, rows = len(self), self.q.shape[1], self.b.shape[1]
        u, z, error = np.zeros((count, width)), np.zeros((count, rows)), np.full(count, np.inf)
        for some, found_u, found_z in self._found(held, error, side_by_side):
            found = self.among(some).errors(found_u, found_z)
            better = found < error[some]
            u[some[better]], z[some[better]], error[some[better]] = found_u[better], found_z[better], found[better]
        taken = error <= TAKEN
        taken[taken] = self.among(np.flatnonzero(taken)).is_one(u[taken], z[taken])
        return FamilyAnswers(u, z, error, taken, self.equal | (z > 0))

    def _found(
        self, held: Rows | None, error: np.ndarray, side_by_side: bool
    ) -> Iterator[tuple[Int[np.ndarray, " some"], Stack, Stack]]:
        """(programs, u and z of each) until all have an answer; ``error`` says how those before fared."""
        if side_by_side:
            yield np.arange(len(self)), *pairs_side_by_side(self.p, self.q, self.a, self.b, self.equal)
        elif held is not None and held.shape == self.b.shape:
            yield np.arange(len(self)), *self._on(held)
        left = np.flatnonzero(error > TAKEN)
        if len(left):
            others = self.among(left)
            yield left, *others._on(others._held_by_daqp())

    def _held_by_daqp(self) -> Rows:
        """The rows that hold by DAQP, asked about each program by itself."""
        _, z, _ = daqp_pairs(self.p, self.q, self.a, self.b, self.equal, firmer=0.0 if self._definite.all() else FIRMER)
        return np.asarray(self.equal | (z > 0))

    def _step(self, held: Rows, good: float = 1e-6) -> tuple[Stack, Stack]:
        """(u, z) to an error that is ``good`` enough for a step: by rows that may hold, by DAQP where these are others."""
        u, z = self._on(held)
        others = np.flatnonzero(self.errors(u, z) > good)
        if len(others) and not self.equal.all():
            part = self.among(others)
            u[others], z[others] = part._on(part._held_by_daqp())
        return u, z

    # --- what holds ----------------------------------------------------------------------------------------------------

    def _on(self, held: Rows) -> tuple[Stack, Stack]:
        """(u, z) with P u + q = A' z where these rows hold and the others have no multipliers."""
        right = -np.concatenate([self.q, np.where(held, self.b / self.sizes, 0.0)], axis=1)
        found = self._solved(held, right)
        width = self.q.shape[1]
        return found[:, :width], -found[:, width:] / self.sizes

    def _solved(self, held: Rows, right: Stack) -> Stack:
        """The solutions of [P R'; R 0], R the rows that hold with length 1: (k, width + rows), zero for other rows."""
        count, width, rows = len(held), self.q.shape[1], self.b.shape[1]
        first, which = _patterns(held) if self.shared else (np.arange(count), np.arange(count))
        alike = len(first) * ALIKE <= count
        shown = held[first] if alike else held
        most = int(shown.sum(axis=1).max(initial=0))
        order = np.argsort(~shown, axis=1, kind="stable")[:, :most]
        real = np.take_along_axis(shown, order, axis=1)
        systems = self._systems(order, real) if alike else None
        inverses = None if systems is None else _inverses(systems)
        out, step = np.zeros_like(right), max(1, CACHED // (width + most) ** 2)
        for start in range(0, count, step):
            some = np.arange(start, min(start + step, count))
            mine = which[some] if alike else some
            places, kept = order[mine], real[mine]
            wanted = np.concatenate([right[some, :width], np.where(kept, np.take_along_axis(right[some, width:], places, 1), 0.0)], axis=1)
            if systems is None or inverses is None:
                found = _solved_each(self.among(some)._systems(places, kept), wanted)
            else:
                system, inverse = systems[mine], inverses[mine]
                found = times(inverse, wanted)
                found += times(inverse, wanted - times(system, found))
            whole = np.zeros((len(some), rows))
            np.put_along_axis(whole, places, np.where(kept, found[:, width:], 0.0), axis=1)
            out[some] = np.concatenate([found[:, :width], whole], axis=1)
        return out

    def _systems(self, order: Int[np.ndarray, "k most"], real: Bool[np.ndarray, "k most"]) -> Stack:
        """The systems; rows that are not ``real`` are x = 0."""
        rows = (
            self._unit_rows[0][order] if len(self.a) == 1 else np.take_along_axis(self._unit_rows, order[..., None], 1)
        )
        rows = np.where(real[..., None], rows, 0.0)
        count, most, width = rows.shape
        system = np.zeros((count, width + most, width + most))
        system[:, :width, :width] = self.p
        system[:, width:, :width], system[:, :width, width:] = rows, rows.swapaxes(1, 2)
        numbers = width + np.arange(most)
        system[:, numbers, numbers] = ~real
        return system

    @cached_property
    def _unit_rows(self) -> Stack:
        return np.asarray(self.a / self.sizes[..., None])

    # --- judgement -----------------------------------------------------------------------------------------------------

    def slope(self, u: Stack) -> Stack:
        return np.asarray(times(self.p, u) + self.q)

    def slope_size(self, u: Stack) -> Stack:
        """The size of what adds up in them."""
        return np.asarray(times(self._magnitudes[0], np.abs(u)) + np.abs(self.q))

    def _parts(self, u: Stack) -> list[Stack]:
        """The sizes of prices and curvatures."""
        return [np.abs(self.q), times(self._magnitudes[0], 1.0 + np.abs(u))]

    def _hide(self, u: Stack) -> Bool[np.ndarray, " k"]:
        """Where some numbers of the objective are so large that rounding beside them hides others."""
        sizes = np.concatenate(self._parts(u), axis=1)
        return np.asarray(((sizes > 0) & (sizes < sizes.max(axis=1, keepdims=True, initial=0.0) / HIDING)).any(axis=1))

    def _force(self, u: Stack, z: Stack) -> Float[np.ndarray, " k"]:
        """The size of what balances in P u + q = A' z."""
        p, _, rows = self._magnitudes
        size = (self.slope_size(u) + times(rows, np.abs(z))).max(axis=1)
        size = np.maximum(size, 1e-4 * p.max(axis=(1, 2), initial=0.0))
        return np.asarray(np.where(size > 0, size, 1.0))

    def _row_sizes(self, u: Stack) -> Stack:
        return np.asarray(times(self._magnitudes[1], np.abs(u)) + np.abs(self.b) + self.sizes)

    def errors(self, u: Stack, z: Stack) -> Float[np.ndarray, " k"]:
        """The largest relative error of the conditions of each, as ``ConvexProgram.error`` has it."""
        with np.errstate(invalid="ignore", over="ignore"):
            force = self._force(u, z)
            balance = np.abs(self.slope(u) - times(self.a.swapaxes(1, 2), z)).max(axis=1) / force
            e, dual = (times(self.a, u) + self.b) / self._row_sizes(u), z * self.sizes / force[:, None]
            outside = np.where(self.equal, np.abs(e), np.maximum(-e, 0.0)).max(axis=1, initial=0.0)
            fit = np.abs(np.where(self.equal, e, np.minimum(dual, e))).max(axis=1, initial=0.0)
            worst = np.maximum(balance, np.maximum(outside, fit))
        return np.where(np.isfinite(worst) & ~self._hide(u), worst, np.inf)

    def is_one(self, u: Stack, z: Stack) -> Bool[np.ndarray, " k"]:
        """Where it is certain that y has no other value: P is definite, or it and the rows with a multiplier determine u."""
        definite = np.array(np.broadcast_to(self._definite, len(self)))
        left = np.flatnonzero(~definite)
        if len(left):
            part = self.among(left)
            pulled = self.equal | (z[left] * part.sizes / part._force(u[left], z[left])[:, None] > STRICT)
            definite[left] = part._determined(pulled)
        return definite

    @cached_property
    def _definite(self) -> Bool[np.ndarray, " k"]:
        stiff = np.sqrt(np.maximum(np.diagonal(self.p, axis1=1, axis2=2), 0.0))
        curved = (stiff > 0).all(axis=1)
        stiff = np.where(stiff > 0, stiff, 1.0)
        scaled = self.p / stiff[:, None, :] / stiff[:, :, None]
        return np.asarray(curved & (np.linalg.eigvalsh(scaled)[:, 0] > REGULAR) if self.p.shape[1] else curved)

    def _determined(self, pulled: Rows) -> Bool[np.ndarray, " k"]:
        first, which = _patterns(pulled)
        if not self.shared:
            return np.array([self.among(np.array([k]))._determines(pulled[k]) for k in range(len(pulled))], bool)
        return np.array([self._determines(pulled[k]) for k in first], bool)[which]

    def _determines(self, pulled: Bool[np.ndarray, " rows"]) -> bool:
        stiff = float(np.abs(self.p[0]).max(initial=0.0)) or 1.0
        rows = np.vstack([self.p[0] / stiff, self.a[0][pulled] / self.sizes[0][pulled, None]])
        values = np.linalg.svd(rows, compute_uv=False)
        return bool(len(values) == self.q.shape[1] and values[-1] > 1e-8)

    # --- derivatives -----------------------------------------------------------------------------------------------------

    def adjoints(self, u: Stack, z: Stack, seeds: Stack, side_by_side: bool = False) -> tuple[Bool[np.ndarray, " k"], Stack, Stack]:
        """(where they are beyond doubt, v, w): the gradient of seed'u is that of -v'(P u + q - A'z) - w'(A u + b) at fixed u and z."""
        force, e = self._force(u, z), (times(self.a, u) + self.b) / self._row_sizes(u)
        dual = z * self.sizes / force[:, None]
        held = self.equal | (dual > STRICT)
        strict = (self.equal | (held != (e > STRICT))).all(axis=1)
        whole = np.zeros((len(self), self.q.shape[1]))
        whole[:, : seeds.shape[1]] = seeds
        if side_by_side:
            v, w = adjoints_side_by_side(self.p, self.a, held, whole)
            w = w * self.sizes
        else:
            v, w = np.split(self._solved(held, np.concatenate([whole, np.zeros_like(z)], axis=1)), [whole.shape[1]], axis=1)
        with np.errstate(invalid="ignore"):
            size = np.abs(seeds).max(axis=1, initial=0.0)
            stiff = times(self._magnitudes[0], np.abs(v)).max(axis=1)
            left = np.abs(times(self.p, v) + times((self.a / self.sizes[..., None]).swapaxes(1, 2), w) - whole).max(
                axis=1
            )
            fine = (np.maximum(stiff, np.abs(w).max(axis=1, initial=0.0)) <= MODERATE * size) & (left <= 1e-10 * size)
        return strict & fine & self.is_one(u, z), v, w / self.sizes


def _inverses(systems: Stack) -> Stack:
    """Those of symmetric systems; of singular ones what is one where there are solutions."""
    try:
        found = np.asarray(np.linalg.inv(systems))
        singular = np.flatnonzero(~(np.abs(found).max(axis=(1, 2), initial=0.0) < SINGULAR))
        found[singular] = np.linalg.pinv(systems[singular], rcond=1e-12, hermitian=True)
        return found
    except np.linalg.LinAlgError:  # it does not say which of them
        if len(systems) == 1:
            return np.asarray(np.linalg.pinv(systems, rcond=1e-12, hermitian=True))
        half = len(systems) // 2
        return np.concatenate([_inverses(systems[:half]), _inverses(systems[half:])])


def _solved_each(systems: Stack, right: Stack) -> Stack:
    """The solutions of symmetric linear systems, each by itself; of singular ones one where there are any."""
    try:
        return np.asarray(np.linalg.solve(systems, right[..., None])[..., 0])
    except np.linalg.LinAlgError:  # it does not say which of them
        if len(systems) == 1:
            return times(_inverses(systems), right)
        half = len(systems) // 2
        return np.concatenate([_solved_each(systems[:half], right[:half]), _solved_each(systems[half:], right[half:])])


def _patterns(held: Rows) -> tuple[Int[np.ndarray, " patterns"], Int[np.ndarray, " k"]]:
    """(the number of one program for each set of rows, which of the sets each program holds)."""
    words = np.packbits(held, axis=1)
    if not words.size:
        return np.arange(min(len(held), 1)), np.zeros(len(held), int)
    rows = np.ascontiguousarray(words).view(f"V{words.shape[1]}").ravel()
    _, first, which = np.unique(rows, return_index=True, return_inverse=True)
    return first, which.ravel()


def times(matrices: Stack, vectors: Stack) -> Stack:
    """Each matrix times its vector."""
    return np.asarray((matrices @ vectors[..., None])[..., 0])
