"""The ends of the spectrum of the lower level's Hessian or Jacobian, holder by holder, by intervals where it moves with x or y.

With them those of the clients' upper terms in x, client by client: mu_i and L_i of methods with local gradient steps.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.add_expr import AddExpression

from hierfl.analysis.curvature_bounds import moves_slopes
from hierfl.analysis.enclosure import Known
from hierfl.analysis.hoist import hoist
from hierfl.analysis.lipschitz import ROW_LIMIT, JacobianRows
from hierfl.analysis.monotonicity import (
    BoundingJacobians,
    bounding_jacobians,
    largest_norm,
    least_eigenvalue,
)
from hierfl.analysis.spectrum import DENSE_LIMIT, Edge
from hierfl.atoms.intervals import EPS, Interval, interval_sum
from hierfl.inspect.assumptions.curvature.hessians import Curvature, Spectrum
from hierfl.inspect.assumptions.holders import Holder, known_of_all
from hierfl.inspect.assumptions.study import Study
from hierfl.language.nash import Nash
from hierfl.language.printing.text import expression_text


@dataclass(frozen=True)
class LowerSpectra:
    """The spectra holder by holder, and ``together`` that of their weighted sum (federation scope).

    ``rule`` says how they are known, ``notes`` what could not be bounded; ``proved`` unless a sample stands for a distribution.
    """

    spectra: tuple[Spectrum, ...]
    together: Spectrum | None
    rule: str
    notes: tuple[str, ...]
    proved: bool


def hessian_spectra(study: Study) -> LowerSpectra:
    """Bound the spectra of the lower objectives' Hessians in y."""
    level = study.below
    known = known_of_all(study.y_holders)
    curvature = Curvature(study.compiled, level.sign * level.expression, level.variables, known)
    spectra = tuple(curvature.spectrum(holder) for holder in study.y_holders)
    together = curvature.mean_spectrum(study.owners[0][1]) if study.compiled.scope == "federation" else None
    used = {p.id for b in (curvature.bounds.lower, curvature.bounds.upper) if b is not None for p in b.parameters()}
    exact = data_exact(study, used)
    rule = "curvature of the terms" if not curvature.bounds.exact else "the Hessian, which is constant"
    return LowerSpectra(spectra, together, rule, curvature.bounds.notes, exact)


def data_exact(study: Study, used: set[int]) -> bool:
    """Whether the numbers are those of the declared problem, not of a sample that stands for it."""
    return not used & study.holders.distributed and _of_every_holder(study, used)


def _of_every_holder(study: Study, used: set[int]) -> bool:
    """Whether those looked at are all whose numbers differ: of many samples, and of a law's, only some are."""
    sampled = {s.id for s in study.compiled.declaration.roles.lower_samples}
    return study.compiled.scope != "sample" or study.holders.every_sample or not used & sampled


def mapping_spectra(study: Study) -> LowerSpectra:
    """Bound the spectra of an equilibrium's Jacobians in y: exactly where they are constant, else by intervals."""
    level = study.below
    ids = {v.id for v in level.variables}
    hoisted = hoist(level.expressions, level.variables, study.compiled.declaration.known_bounds).expressions
    curved = next((e for e, h in zip(level.expressions, hoisted) if not h.is_affine()), None)
    if curved is not None:
        return _by_intervals(study, f"{expression_text(curved)} is not affine in y")
    if any(moves_slopes(e, ids) for e in level.expressions):
        return _by_intervals(study, "x moves the mapping's slopes")
    if study.compiled.lower.size > DENSE_LIMIT:
        nothing = (Spectrum(None, None),) * len(study.y_holders)
        return LowerSpectra(nothing, None, "", ("the Jacobian is too large",), False)
    x, y = study.project_x(np.zeros(study.compiled.upper.size)), np.zeros(study.compiled.lower.size)
    used = {leaf for e in level.expressions for leaf in slope_parameters(e, ids)}
    matrices: dict[Hashable, np.ndarray] = {}
    spectra: dict[Hashable, Spectrum] = {}
    keys = [slope_key(study, holder, used) for holder in study.y_holders]
    for key, holder in zip(keys, study.y_holders):
        if key not in matrices:
            matrices[key] = study.lower.jacobian(x, y, ((1.0, holder),))
            spectra[key] = _of_matrix(matrices[key])
    together = None
    if study.compiled.scope == "federation":
        together = _of_matrix(np.asarray(sum(w * matrices[k] for k, (w, _) in zip(keys, study.owners[0][1]))))
    return LowerSpectra(
        tuple(spectra[key] for key in keys), together, "the Jacobian, which is constant", (), data_exact(study, used)
    )


def _by_intervals(study: Study, moved: str) -> LowerSpectra:
    """The same for a Jacobian that moves; ``moved`` says why it does."""
    level = study.below
    if not can_be_bounded(study):
        nothing = (Spectrum(None, None),) * len(study.y_holders)
        return LowerSpectra(
            nothing, None, "", (f"{moved}, and its Jacobian is too large for a bound entry by entry",), False
        )
    bounds = MappingBounds(study, known_of_all(study.y_holders))
    together = None
    if study.compiled.scope == "federation":
        together = bounds.together([weight for weight, _ in study.owners[0][1]])
    used = {p.id for e in level.declared for p in e.parameters()}
    note = f"{moved}, and intervals through its Jacobian prove nothing"
    proved = _of_every_holder(study, used)  # a client's intervals contain the supports of its laws
    return LowerSpectra(bounds.spectra(), together, RULE, (note,), proved)


def slope_key(study: Study, holder: Holder, used: set[int]) -> Hashable:
    """Equal for holders whose Jacobians are equal, because no private number of theirs is in the slopes."""
    roles = study.compiled.declaration.roles
    if any(s.id in used for s in roles.lower_samples):
        return holder.label
    return holder.index if any(p.id in used for p in roles.client_parameters) else 0


def slope_parameters(node: cp.Expression, kept: set[int]) -> set[int]:
    """Parameters beside which the kept variables stand, in anything but a sum."""
    if not any(v.id in kept for v in node.variables()):
        return set()
    beside = (
        set()
        if isinstance(node, AddExpression)
        else {p.id for a in node.args if not any(v.id in kept for v in a.variables()) for p in a.parameters()}
    )
    return beside.union(*(slope_parameters(argument, kept) for argument in node.args))


def _of_matrix(matrix: np.ndarray) -> Spectrum:
    """mu from the symmetric part, L from the norm, both moved outward by the rounding."""
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    norm = float(np.linalg.norm(matrix, 2))
    slack = (64 + 8 * len(matrix)) * EPS * norm
    low = Edge(float(values[0]) - slack, "smallest eigenvalue of the symmetric part", vectors[:, 0])
    return Spectrum(low, Edge(norm + slack, "norm of the Jacobian"))


def upper_spectra(study: Study) -> tuple[Spectrum, ...]:
    """Bound the spectrum of each client's Hessian of f_i; the problem has clients' terms and no lower level.

    An end is None where there is no bound, and where a sample would stand for a distribution, which proves nothing.
    """
    term, variables = study.compiled.declaration.objective.clients, tuple(study.compiled.upper.variables)
    assert term is not None
    spectra = []
    for holder in study.holders.clients:
        curvature = Curvature(study.compiled, study.compiled.sign * term, variables, holder.known)
        bounds = (curvature.bounds.lower, curvature.bounds.upper)
        used = {p.id for bound in bounds if bound is not None for p in bound.parameters()}
        exact = not used & study.holders.distributed
        spectra.append(curvature.spectrum(holder) if exact else Spectrum(None, None))
    return tuple(spectra)


DISTINCT_LIMIT = 64  # holders that are looked at one by one
RULE = "intervals through the Jacobian, for x in X and y in the box around Y(x)"


class MappingBounds:
    """Bounds on the spectra of F's Jacobians, for the holders one by one or, where these are many, for all alike."""

    def __init__(self, study: Study, common: Known) -> None:
        level = study.below
        self._whole = JacobianRows.of(level.expressions, level.variables)
        self._parts = bounding_jacobians(level, common) if isinstance(level, Nash) else None
        leaves = [leaf.id for e in level.declared for leaf in (*e.variables(), *e.parameters())]
        self._keys = [_key(holder.known, leaves) for holder in study.y_holders]
        self._known: dict[Hashable, Known] = dict(zip(self._keys, (holder.known for holder in study.y_holders)))
        if len(self._known) > DISTINCT_LIMIT:
            self._keys, self._known = [None] * len(self._keys), {None: common}

    def spectra(self) -> tuple[Spectrum, ...]:
        """One for each holder."""
        found = {key: self._spectrum([(1.0, key)]) for key in self._known}
        return tuple(found[key] for key in self._keys)

    def together(self, weights: Sequence[float]) -> Spectrum:
        """That of the holders' weighted sum."""
        return self._spectrum(list(zip(weights, self._keys)))

    def _spectrum(self, owner: list[tuple[float, Hashable]]) -> Spectrum:
        whole = self._matrix(self._whole, owner)
        low, high = least_eigenvalue(whole), largest_norm(whole)
        parts: BoundingJacobians | None = self._parts
        if parts is not None:
            lower = self._matrix(parts.lower, owner)
            low = max(low, least_eigenvalue(lower))
            if parts.gap is not None:
                high = min(high, largest_norm(lower, self._matrix(parts.gap, owner)))
        return Spectrum(
            Edge(low, RULE) if np.isfinite(low) else None,
            Edge(high, RULE) if np.isfinite(high) else None,
        )

    def _matrix(self, rows: JacobianRows, owner: list[tuple[float, Hashable]]) -> Interval:
        weights: dict[Hashable, float] = {}
        for weight, key in owner:
            weights[key] = weights.get(key, 0.0) + weight
        return interval_sum(
            [Interval.of(np.asarray(w)) * rows.enclosed(self._known[key]) for key, w in weights.items()]
        )


def can_be_bounded(study: Study) -> bool:
    """Whether F has few enough entries to be differentiated one by one."""
    return study.compiled.lower.size <= ROW_LIMIT


def _key(known: Known, leaves: Sequence[int]) -> Hashable:
    """Equal for holders of whom the same is known."""
    return tuple((leaf, known[leaf].lo.tobytes(), known[leaf].hi.tobytes()) for leaf in leaves if leaf in known)
