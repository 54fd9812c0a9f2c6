"""Levels of many owners, or of a batch, answered together where their programs are of one shape: quadratic ones and smooth ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool

from hierfl.compiler.parametric.level_form import LevelForm, Thetas
from hierfl.compiler.parametric.many_programs import SCALARS, FamilyAnswers, ManyPrograms, Stack
from hierfl.compiler.parametric.many_smooth import ManySmooth, treats_smooth
from hierfl.compiler.parametric.row_block import SeparateBlock
from hierfl.compiler.programs.response import Adjoint
from hierfl.compiler.programs.smooth_atoms import SQUARE


def treats_together(form: LevelForm, largest: int) -> bool:
    """Whether many can be answered together."""
    return ManyPrograms.treats(form, largest) or treats_smooth(form, largest)


def family_of(form: LevelForm, thetas: Thetas) -> ManyPrograms:
    """The programs at thetas with a leading axis."""
    smooth = any(part.atom is not SQUARE for part in form.base.smooth)
    return ManySmooth.of_smooth(form, thetas) if smooth else ManyPrograms.of(form, thetas)


def solved_together(form: LevelForm, thetas: Thetas, latest: FamilyAnswers | None, side_by_side: bool = False) -> FamilyAnswers:
    """The answers at thetas with a leading axis; what held in the ``latest`` ones of as many is tried first, unless all are solved side by side."""
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
        family = family_of(form, theta) if len(kept) else None
        if family is None:
            fine, v, w = np.zeros(0, bool), answer.u, answer.z
        else:
            fine, v, w = family.adjoints(answer.u, answer.z, seeds[some][kept], side_by_side)
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
