"""The compiler's choice of an exact method for a lower level, with the reason for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.atom import Atom
from cvxpy.atoms.elementwise.power import Power

from hierfl.analysis.bounds import bounds_of
from hierfl.analysis.convexity import attribute_constraints
from hierfl.analysis.enclosure import Enclosure
from hierfl.compiler.curvature import (
    CONSTANT_DENSE_LIMIT,
    DENSE_LIMIT,
    QuadraticPart,
    Structure,
    dense,
    is_symmetric,
    probe,
    quadratic_part,
    safe_smallest_eigenvalue,
)
from hierfl.compiler.ladder import Ladder
from hierfl.compiler.low_rank import LowRank, Skeleton
from hierfl.compiler.program import NO_ROWS, Array, Rows
from hierfl.errors import IncompatibleSolverError, NotConvexError
from hierfl.language.function import UserAtom

if TYPE_CHECKING:
    from hierfl.compiler.compiled import CompiledProblem
    from hierfl.compiler.cvxpy_lower import CvxpyLower
    from hierfl.compiler.exact import Owner
    from hierfl.compiler.fixed_point import LowerSolution
    from hierfl.language.levels import LowerLevel

_LINEAR_SYSTEM_LIMIT = 1000
_SMOOTH = (cp.log_sum_exp, cp.logistic, cp.huber, cp.exp, cp.QuadForm, cp.quad_over_lin)


@dataclass(frozen=True, eq=False)
class Facts:
    """What the choice of a method depends on."""

    compiled: CompiledProblem
    level: LowerLevel
    quadratic: QuadraticPart
    structure: Structure
    modulus_mode: str
    constant_modulus: float
    skeleton: Skeleton | None
    parts: LowRank | None  # the low-rank structure itself, where it is the same everywhere
    ladder: Ladder | None

    @classmethod
    def of(cls, compiled: CompiledProblem) -> Facts:
        """Probe the Jacobian of the quadratic part at two random points."""
        level = compiled.problem.lower_level
        assert level is not None
        quadratic = quadratic_part(level, compiled.lower.size <= DENSE_LIMIT, compiled.problem.known_bounds)
        return cls(compiled, level, quadratic, *_probed(compiled, quadratic))

    @property
    def kind(self) -> str:
        """Of Y(x)."""
        assert self.compiled.lower_set is not None
        return self.compiled.lower_set.kind

    @property
    def exact(self) -> bool:
        """Whether Y(x) has an exact projection."""
        assert self.compiled.lower_set is not None
        return self.compiled.lower_set.is_exact

    @property
    def affine(self) -> bool:
        """Whether F is affine in y, and known whole."""
        return self.quadratic.complete

    @property
    def rough(self) -> Atom | None:
        """An atom without a locally Lipschitz gradient in y."""
        if self.level.kind == "equilibrium":
            return None
        problem = self.compiled.problem
        known = problem.known_bounds | bounds_of(
            [*self.level.constraints, *attribute_constraints(self.level.variables)],
            self.level.variables,
            problem.known_bounds,
        )
        return nonsmooth_atom(self.level.expressions, {v.id for v in self.level.variables}, Enclosure(known))

    @property
    def is_gradient(self) -> bool:
        """Whether F is a gradient."""
        return self.level.kind != "equilibrium" or (self.affine and self.structure.symmetric)


# --- the methods, cheapest first: (applies, the reason either way) -------------------------------------------------


def _closed_form(f: Facts) -> tuple[bool, str]:
    s = f.structure
    if f.affine and s.positive and (s.isotropic or (s.diagonal and f.kind in ("box", "free"))):
        return True, "a projection of the unconstrained solution: the Hessian is diagonal"
    return (
        False,
        "needs an affine F with a positive multiple of the identity, or a positive diagonal over a box, as its Jacobian",
    )


def _low_rank(f: Facts) -> tuple[bool, str]:
    affine = f.affine and f.kind in ("box", "free")
    # Newton's method in theta stalls on skew parts of rank 2 and more
    if affine and f.skeleton is not None and (f.skeleton.rank == 1 or f.structure.symmetric):
        return (
            True,
            f"the Jacobian is diagonal plus rank {f.skeleton.rank}, over a {f.kind if f.kind == 'box' else 'free'} set",
        )
    return (
        False,
        "needs an affine F over a box (or no constraints) whose Jacobian is diagonal plus rank 1, or symmetric and "
        "diagonal plus a rank of up to 8, in at least 8 variables and 4 for each rank",
    )


def _linear_system(f: Facts) -> tuple[bool, str]:
    if f.affine and f.kind == "free" and f.compiled.lower.size <= _LINEAR_SYSTEM_LIMIT:
        return True, "F is affine and y is unconstrained"
    return False, f"needs an affine F, no constraints, and at most {_LINEAR_SYSTEM_LIMIT} variables"


def _newton(f: Facts) -> tuple[bool, str]:
    if f.rough is None and f.exact:
        how = "Newton-CG" if f.kind == "free" and f.is_gradient else "on the normal map"
        return (
            True,
            f"F is smooth and Y(x) has an exact projection ({how}); safeguarded by {'accelerated gradient' if f.is_gradient else 'extragradient'}",
        )
    return False, _needs_smooth(f)


def _accelerated(f: Facts) -> tuple[bool, str]:
    if f.rough is None and f.exact and f.is_gradient:
        return True, "F is a Lipschitz gradient and Y(x) can be projected on"
    return False, _needs_smooth(f) if f.rough is not None or not f.exact else "needs a gradient; F is not one"


def _extragradient(f: Facts) -> tuple[bool, str]:
    if f.rough is None and (f.exact or f.level.kind == "equilibrium"):
        return True, "F can be evaluated and Y(x) projected on"
    return False, _needs_smooth(f)


def _cvxpy(f: Facts) -> tuple[bool, str]:
    if f.level.kind == "equilibrium":
        return False, "needs an objective; an equilibrium has none"
    rough = f.rough
    why = f"{type(rough).__name__} is not smooth in y" if rough is not None else "Y(x) has no exact projection"
    return True, why


def _needs_smooth(f: Facts) -> str:
    rough = f.rough
    return f"{type(rough).__name__} is not smooth in y" if rough is not None else "Y(x) has no exact projection"


AT_ONCE = ("closed form", "diagonal plus low rank", "linear system")
METHODS: dict[str, Callable[[Facts], tuple[bool, str]]] = {
    "closed form": _closed_form,
    "diagonal plus low rank": _low_rank,
    "linear system": _linear_system,
    "semismooth Newton": _newton,
    "extragradient": _extragradient,
    "cvxpy": _cvxpy,
    "accelerated gradient": _accelerated,  # never the first choice: Newton is safeguarded by it
}


@dataclass(frozen=True, eq=False)
class LowerPlan:
    """Method and modulus of a lower level.

    ``method`` is a key of ``METHODS``; ``modulus_mode`` says where mu comes from: ``"constant"``, ``"diagonal"``, ``"dense"``,
    ``"low rank"`` or ``"unknown"``.
    """

    facts: Facts
    method: str
    reason: str
    host: CvxpyLower | None

    @property
    def at_once(self) -> bool:
        """Whether y is a formula, or a few steps in a few unknowns."""
        return self.method in AT_ONCE

    @classmethod
    def of(cls, compiled: CompiledProblem) -> LowerPlan:
        """The first method that applies.

        Raises
        ------
        NotConvexError
            If a nonsmooth lower level contains user code, so that neither iteration nor CVXPY applies.
        """
        facts = Facts.of(compiled)
        method, reason = next(
            (name, why) for name, rule in METHODS.items() for applies, why in [rule(facts)] if applies
        )
        return cls(facts, method, reason, _host(compiled, method, reason))

    def override(self, method: str) -> LowerPlan:
        """The same lower level by another method.

        Raises
        ------
        IncompatibleSolverError
            If there is no such method, or it cannot treat this lower level; names those that can.
        """
        able = [name for name, rule in METHODS.items() if rule(self.facts)[0]]
        if method not in METHODS:
            raise IncompatibleSolverError(f"method={method!r}: write one of {', '.join(map(repr, able))}.")
        applies, why = METHODS[method](self.facts)
        if not applies:
            raise IncompatibleSolverError(
                f"method={method!r} cannot solve this lower level: it {why}. These can: {', '.join(map(repr, able))}."
                if why.startswith("needs")
                else f"method={method!r} cannot solve this lower level: {why}. These can: {', '.join(map(repr, able))}."
            )
        reason = f"asked for; {why}"
        return LowerPlan(self.facts, method, reason, _host(self.facts.compiled, method, reason))

    @property
    def compiled(self) -> CompiledProblem:
        """The problem."""
        return self.facts.compiled

    @property
    def quadratic(self) -> QuadraticPart:
        """The quadratic addends of the objective."""
        return self.facts.quadratic

    @property
    def structure(self) -> Structure:
        """Of the Jacobian of the quadratic part."""
        return self.facts.structure

    @property
    def modulus_mode(self) -> str:
        """Where mu comes from."""
        return self.facts.modulus_mode

    @property
    def constant_modulus(self) -> float:
        """mu, where it is the same everywhere."""
        return self.facts.constant_modulus

    @property
    def exact_projection(self) -> bool:
        """Whether the certificate may trust the projection."""
        return self.facts.exact

    def quadratic_operator(self, x: Array, y: Array, own: Any, rows: Rows = NO_ROWS) -> Array:
        """The affine map of the quadratic part (a gradient, or the mapping itself)."""
        return _quadratic_operator(self.compiled, self.quadratic, x, y, own, rows)

    def modulus(self, multiply: Any, dtype: Any) -> Array:
        """mu of one owner, safe from below; 0 where unknown."""
        size = self.compiled.lower.size
        if self.modulus_mode == "diagonal":
            return jnp.maximum(jnp.min(multiply(jnp.ones(size, dtype))), 0.0)
        if self.modulus_mode == "low rank":
            return self.low_rank(multiply, size).modulus()
        if self.modulus_mode == "dense":
            return safe_smallest_eigenvalue(dense(multiply, size, dtype))
        return jnp.asarray(self.constant_modulus, dtype)

    def low_rank(self, multiply: Any, size: int) -> LowRank:
        """diag(d) + U V' of one owner's Jacobian."""
        facts = self.facts
        if facts.parts is not None:
            return facts.parts
        assert facts.skeleton is not None
        if facts.structure.symmetric:
            return facts.skeleton.decompose(multiply, multiply, size)
        return facts.skeleton.decompose(*_with_transpose(multiply, size), size)

    def on_host(self, x: Array, owner: Owner, mu: Array) -> LowerSolution:
        """Solve one owner's problem with CVXPY through a callback."""
        assert self.host is not None
        return self.host.solve(x, owner, mu)


def nonsmooth_atom(expressions: Any, lower_ids: set[int], enclosure: Enclosure) -> Atom | None:
    """The first atom over y whose gradient is not known to be locally Lipschitz, or that is not defined everywhere on Y(x)."""
    for expression in expressions:
        if not isinstance(expression, Atom) or not any(v.id in lower_ids for v in expression.variables()):
            continue
        found = nonsmooth_atom(expression.args, lower_ids, enclosure)
        if found is not None:
            return found
        if not _is_smooth(expression, lower_ids, enclosure):
            return expression
    return None


def _is_smooth(atom: Atom, lower_ids: set[int], enclosure: Enclosure) -> bool:
    if isinstance(atom, (cp.quad_over_lin, cp.QuadForm)):
        return not any(v.id in lower_ids for v in atom.args[1].variables())
    if isinstance(atom, Power):
        exponent = float(np.asarray(atom.p.value)) if hasattr(atom.p, "value") else float(atom.p)
        defined = exponent % 2 == 0 or bool((enclosure(atom.args[0]).lo >= 0).all())
        return exponent in (0.0, 1.0) or (exponent >= 2.0 and defined)
    return isinstance(atom, (AffAtom, UserAtom, *_SMOOTH))


def _has_user_atom(expressions: Any) -> bool:
    return any(isinstance(e, UserAtom) or _has_user_atom(getattr(e, "args", ())) for e in expressions)


def _quadratic_operator(
    compiled: CompiledProblem, part: QuadraticPart, x: Array, y: Array, own: Any, rows: Rows
) -> Array:
    if part.program is None:
        return jnp.zeros(compiled.lower.size, x.dtype)
    program, sign = part.program, part.gradient_of
    if sign is None:
        return jnp.concatenate([jnp.ravel(value) for value in program(compiled.environment(x, y, own), rows)])
    return jax.grad(lambda flat: sign * jnp.reshape(program(compiled.environment(x, flat, own), rows)[0], ()))(y)


def _host(compiled: CompiledProblem, method: str, reason: str) -> CvxpyLower | None:
    if method != "cvxpy":
        return None
    from hierfl.compiler.cvxpy_lower import CvxpyLower

    level = compiled.problem.lower_level
    if level is not None and _has_user_atom(level.expressions):
        raise NotConvexError(f"the lower level needs CVXPY ({reason}), which cannot see into a hf.Function in it.")
    return CvxpyLower(compiled)


def _probed(
    compiled: CompiledProblem, part: QuadraticPart
) -> tuple[Structure, str, float, Skeleton | None, LowRank | None, Ladder | None]:
    """(structure, modulus mode, constant modulus, skeleton, constant parts, ladder) from products at two random points."""
    size = compiled.lower.size
    if part.program is None:
        return Structure(False, False, False, False), "unknown", 0.0, None, None, None
    points = [_random_point(compiled, seed, part.from_data) for seed in (0, 1)]
    products = [_product_at(compiled, part, *point) for point in points]
    found = [probe(product, size, seed) for seed, product in enumerate(products)]
    structure = Structure(
        *(all(getattr(s, field) for s in found) for field in ("diagonal", "isotropic", "symmetric", "positive"))
    )
    if part.gradient_of is not None:
        _require_convex(products, structure, size)
    vector = np.random.default_rng(7).standard_normal(size)
    first, second = (np.asarray(product(vector)) for product in products)
    constant = not part.from_data and bool(np.allclose(first, second, rtol=1e-12, atol=0.0))
    if structure.diagonal:
        if constant:
            return (
                structure,
                "constant",
                max(float(np.min(np.asarray(products[0](np.ones(size))))), 0.0),
                None,
                None,
                None,
            )
        return structure, "diagonal", 0.0, None, None, None
    jacobian = np.asarray(dense(products[0], size)) if size <= CONSTANT_DENSE_LIMIT else None
    if jacobian is not None:
        structure = replace(structure, symmetric=structure.symmetric and is_symmetric(jacobian))
    skeleton = _skeleton(products, size, structure, compiled)
    if constant and (jacobian is not None or skeleton is not None):
        parts = None if skeleton is None else skeleton.decompose(*_with_transpose(products[0], size), size)
        if jacobian is not None:
            modulus = float(safe_smallest_eigenvalue(jnp.asarray(jacobian)))
        else:
            assert parts is not None
            modulus = float(parts.modulus())
        return structure, "constant", modulus, skeleton, parts, _ladder(compiled, part, parts, points)
    mode = "low rank" if skeleton is not None else "dense" if size <= DENSE_LIMIT else "unknown"
    return structure, mode, 0.0, skeleton, None, None


def _ladder(
    compiled: CompiledProblem,
    part: QuadraticPart,
    parts: LowRank | None,
    points: list[tuple[Array, dict[int, Any], Rows]],
) -> Ladder | None:
    """Of an affine F whose Jacobian is the same everywhere, over a box."""
    assert compiled.lower_set is not None
    if parts is None or not part.complete or compiled.lower_set.kind != "box":
        return None
    zero, (x, own, _) = jnp.zeros(compiled.lower.size), points[0]
    constants = [np.asarray(compiled.operator(x, zero, own, rows)) for x, own, rows in points]
    return Ladder.of(parts, *constants, *(np.asarray(bound) for bound in compiled.lower_limits(x, own)))


def _require_convex(products: list[Any], structure: Structure, size: int) -> None:
    """CVXPY believes what the user asserts of a matrix; the Hessian at points of X tells."""
    for product in products:
        if structure.diagonal:
            values = np.asarray(product(np.ones(size)))
        elif size <= DENSE_LIMIT:
            values = np.linalg.eigvalsh(np.asarray(dense(product, size)))
        else:
            return
        if values.min() < -1e-9 * np.abs(values).max():
            raise NotConvexError(
                f"the quadratic terms of the lower level are not convex in y: their Hessian has the eigenvalue {values.min():.4g} "
                f"at a point of X. Something that was asserted (psd_wrap, assume_PSD, a parameter's PSD=True) does not hold."
            )


def _skeleton(products: list[Any], size: int, structure: Structure, compiled: CompiledProblem) -> Skeleton | None:
    """The skeleton of the Jacobian at one point, if it holds at another one as well."""
    if not (structure.symmetric or compiled.scope == "sample" or not compiled.lower_samples):
        return None
    found = Skeleton.of(*_with_transpose(products[0], size), size)
    if found is None:
        return None
    parts = found.decompose(*_with_transpose(products[1], size), size)
    return found if parts.invertible() and parts.reproduces(products[1]) else None


def _with_transpose(multiply: Any, size: int) -> tuple[Any, Any]:
    """Products with a matrix and with its transpose."""
    transposed = jax.linear_transpose(multiply, jnp.zeros(size))
    return multiply, lambda v: transposed(v)[0]


def _random_point(compiled: CompiledProblem, seed: int, from_data: bool) -> tuple[Array, dict[int, Any], Rows]:
    """A point of X, a client's constants and some of its rows if wanted (in sample scope: one row, as constants)."""
    data = compiled.data()
    x = compiled.project_upper(jnp.asarray(np.random.default_rng(seed).standard_normal(compiled.upper.size), float))
    party = data.clients.party(seed % data.clients.size)
    sampled = from_data or compiled.scope == "sample"
    rows = party.batch(jax.random.key(seed), 8, compiled.lower_samples) if sampled else NO_ROWS
    own = dict(party.environment)
    if compiled.scope == "sample":
        own |= {leaf: value[seed] for leaf, value in rows.values.items()}
        rows = NO_ROWS
    return x, own, rows


def _product_at(compiled: CompiledProblem, part: QuadraticPart, x: Array, own: dict[int, Any], rows: Rows) -> Any:
    zero = jnp.zeros(compiled.lower.size, x.dtype)

    @jax.jit
    def multiply(vector: Array) -> Array:
        return jax.jvp(lambda y: _quadratic_operator(compiled, part, x, y, own, rows), (zero,), (vector,))[1]

    return lambda vector: multiply(jnp.asarray(vector, x.dtype))
