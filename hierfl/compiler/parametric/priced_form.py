"""A level whose prices are asked for: multipliers of some of its rows are unknowns beside y.

The conditions of a level are those of a variational inequality in y and the multipliers z of some rows r,

    P u + q + s'(u) - A_r' z = A_o' z_o,    (A_r u + b_r) in VI with z in its cone,    A_o u + b_o in K,

whose map is monotone where the level is convex: P bordered by -A_r' and A_r (Facchinei and Pang, 2003, section 1.3.2). So prices are what
y is: unknowns of a map, unique or several, with slopes, kinks and adjoints of their own. What a template says of the level says all of it,
in other places: nothing is canonicalised again, and a solution is that of the level itself with its multipliers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from hierfl.compiler.parametric.level_form import LevelForm, Thetas
from hierfl.compiler.parametric.template import AffineEntries, LevelTemplate
from hierfl.compiler.programs.cones import NONNEGATIVE, ZERO, Cone, NoStandardFormError, blocks, of_kind
from hierfl.compiler.programs.convex_program import ConvexProgram, ProgramSolution, merged
from hierfl.compiler.programs.saddle import Saddles


@dataclass(frozen=True, eq=False)
class PricedForm(LevelForm):
    """The level with ``signs`` times the multipliers of the base's ``priced`` rows as its last unknowns."""

    plain: LevelForm = field(kw_only=True)
    priced: np.ndarray = field(kw_only=True)
    signs: np.ndarray = field(kw_only=True)
    _known: Saddles = field(default_factory=Saddles, kw_only=True)

    @classmethod
    def with_prices(cls, plain: LevelForm, rows: np.ndarray, signs: np.ndarray) -> PricedForm:
        """The level with these prices.

        Raises ``NoStandardFormError`` for rows of a curved cone.
        """
        groups = tuple(group._replace(template=_with_room(group.template, len(rows))) for group in plain.groups)
        base = _bordered(plain.base, rows, signs)
        return cls(base, groups, is_map=True, stairs=plain.stairs, plain=plain, priced=rows, signs=signs)

    @cached_property
    def _kept(self) -> np.ndarray:
        return _unpriced(self.plain.base, self.priced)

    def is_monotone(self, program: ConvexProgram) -> bool:
        latest = self.plain.latest
        return latest is None or not latest.is_map or self.plain.is_monotone(latest)

    def of_level(self, thetas: Thetas) -> tuple[ConvexProgram, ProgramSolution]:
        level = self.plain.program(thetas)
        return level, self.plain.solution(thetas, level, self._known)

    def solution(self, thetas: Thetas, program: ConvexProgram, known: Saddles) -> ProgramSolution:
        level, found = self.of_level(thetas)
        if not found.solved:
            return program.none(found.status)
        loose, size, height = self.plain.base.loose[self.priced], self.plain.size, self.plain.base.height
        u = np.concatenate([found.u[:size], self.signs * found.z[self.priced], found.u[size:]])
        slack = level.slack(found.u)[self.priced[loose]]
        z = np.concatenate([found.z[:height][self._kept], slack, found.z[height:]])
        return program.judged(u, z, found.work)

    def of_signs(self, program: ConvexProgram) -> np.ndarray:
        """Which rows of its program are signs of prices."""
        first, count = self.plain.base.height - len(self.priced), int(self.plain.base.loose[self.priced].sum())
        places = np.arange(len(program.b))
        return (places >= first) & (places < first + count)

    def within_signs(self, found: ProgramSolution) -> ProgramSolution:
        """The solution with prices of inequalities on their side of zero to the last bit."""
        if not found.solved:
            return found
        size, loose = self.plain.size, self.plain.base.loose[self.priced]
        prices = found.u[size : size + len(self.priced)]
        kept = np.where(loose, self.signs * np.maximum(self.signs * prices, 0.0), prices)
        return replace(found, u=np.concatenate([found.u[:size], kept, found.u[size + len(kept) :]]))

    def multipliers(self, found: ProgramSolution) -> np.ndarray:
        """Those of the level's own rows."""
        base, kept = self.plain.base, self._kept
        own, others = np.zeros(base.height), len(kept) + int(base.loose[self.priced].sum())
        own[kept], size = found.z[: len(kept)], self.plain.size
        own[self.priced] = self.signs * found.u[size : size + len(self.priced)]
        return np.concatenate([own, found.z[others:]])


def _unpriced(base: LevelTemplate, priced: np.ndarray) -> np.ndarray:
    return np.setdiff1d(np.arange(base.height), priced)


def _with_room(template: LevelTemplate, count: int) -> LevelTemplate:
    """The template for a y with so many more scalars, about which it says nothing."""
    size = template.size

    def moved(places: np.ndarray) -> np.ndarray:
        return np.where(places >= size, places + count, places)

    def placed(entries: AffineEntries, rows: bool, columns: bool) -> AffineEntries:
        height, width = entries.shape
        return replace(
            entries,
            shape=(height + count * rows, width + count * columns),
            rows=moved(entries.rows) if rows else entries.rows,
            columns=moved(entries.columns) if columns else entries.columns,
        )

    smooth = tuple(replace(part, form=placed(part.form, False, True)) for part in template.smooth)
    return replace(
        template,
        size=size + count,
        width=template.width + count,
        quadratic=placed(template.quadratic, True, True),
        linear=placed(template.linear, True, False),
        matrix=placed(template.matrix, False, True),
        smooth=smooth,
    )


def _bordered(plain: LevelTemplate, priced: np.ndarray, signs: np.ndarray) -> LevelTemplate:
    """The template with the rows as a border of P, and a row for the sign of each inequality's price."""
    template, count = _with_room(plain, len(priced)), sum(part.size for part in plain.theta)
    first, kinds = plain.size, plain.loose
    if not of_kind(plain.cones, ZERO, NONNEGATIVE)[priced].all():
        raise NoStandardFormError("it has the price of a curved cone")
    column, sign = np.full(plain.height, -1), np.zeros(plain.height)
    column[priced], sign[priced] = first + np.arange(len(priced)), signs
    kept = _unpriced(plain, priced)
    place = np.full(plain.height, -1)
    place[kept] = np.arange(len(kept))
    bounded = np.flatnonzero(kinds[priced])  # prices of inequalities
    height = len(kept) + len(bounded)
    a, b = _parts(template.matrix, count), _parts(template.offset, count)
    here, there = column[a[0]] >= 0, place[a[0]] >= 0
    border_down = (column[a[0]], a[1], a[2], sign[a[0]] * a[3])
    border_across = (a[1], column[a[0]], a[2], -sign[a[0]] * a[3])
    quadratic = [_parts(template.quadratic, count), *(tuple(e[here] for e in one) for one in (border_down, border_across))]
    of_price, of_row = column[b[0]] >= 0, place[b[0]] >= 0
    linear = [_parts(template.linear, count), tuple(e[of_price] for e in (column[b[0]], b[1], b[2], sign[b[0]] * b[3]))]
    own = np.arange(len(bounded))
    bounds = (len(kept) + own, first + bounded, np.full(len(own), count), signs[bounded])
    matrix = [tuple(e[there] for e in (place[a[0]], *a[1:])), bounds]
    offset = [tuple(e[of_row] for e in (place[b[0]], *b[1:]))]
    return replace(
        template,
        quadratic=_joined(quadratic, template.quadratic.shape, count),
        linear=_joined(linear, template.linear.shape, count),
        matrix=_joined(matrix, (height, template.width), count),
        offset=_joined(offset, (height, 1), count),
        cones=tuple(merged([*_cones_of(plain, kept), *([Cone(NONNEGATIVE, len(own))] if len(own) else [])])),
        rows=tuple(place[rows] if (place[rows] >= 0).all() else rows[:0] for rows in plain.rows),
    )


def _cones_of(plain: LevelTemplate, kept: np.ndarray) -> list[Cone]:
    """The cones of the rows that stay."""
    cones = []
    for cone, rows in blocks(plain.cones):
        if cone.kind in (ZERO, NONNEGATIVE):
            left = int(np.isin(np.arange(plain.height)[rows], kept).sum())
            cones += [Cone(cone.kind, left)] if left else []
        else:
            cones.append(cone)
    return cones


def _parts(entries: AffineEntries, count: int) -> tuple[np.ndarray, ...]:
    """(rows, columns, numbers of theta, values) of what adds up in each entry; number ``count`` stands for 1."""
    coo = sp.coo_array(entries.linear)
    entry = np.concatenate([coo.row, np.arange(len(entries.rows))])
    number = np.concatenate([coo.col, np.full(len(entries.rows), count)])
    return entries.rows[entry], entries.columns[entry], number, np.concatenate([coo.data, entries.constant])


def _joined(parts: Sequence[Any], shape: tuple[int, int], count: int) -> AffineEntries:
    rows, columns, numbers, values = (np.concatenate(each) for each in zip(*parts))
    return AffineEntries.of(shape, rows, columns, numbers, values, count)
