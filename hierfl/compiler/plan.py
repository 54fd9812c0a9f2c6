"""The compiler's choice of an exact method for a lower level, with the reason for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.atom import Atom
from cvxpy.atoms.elementwise.power import Power

from hierfl.compiler.curvature import (
    CONSTANT_DENSE_LIMIT,
    DENSE_LIMIT,
    QuadraticPart,
    Structure,
    dense,
    probe,
    quadratic_part,
    safe_smallest_eigenvalue,
)
from hierfl.compiler.program import NO_ROWS, Array, Rows
from hierfl.errors import NotConvexError
from hierfl.language.function import UserAtom

if TYPE_CHECKING:
    from hierfl.compiler.compiled import CompiledProblem
    from hierfl.compiler.cvxpy_lower import CvxpyLower
    from hierfl.compiler.exact import Owner
    from hierfl.compiler.fixed_point import LowerSolution

_LINEAR_SYSTEM_LIMIT = 1000
_SMOOTH = (cp.log_sum_exp, cp.logistic, cp.huber, cp.exp, cp.QuadForm, cp.quad_over_lin)


@dataclass(frozen=True, eq=False)
class LowerPlan:
    """Method and modulus of a lower level.

    ``method`` is ``"closed form"``, ``"linear system"``, ``"accelerated gradient"``, ``"extragradient"`` or ``"cvxpy"``;
    ``modulus_mode`` says where mu comes from: ``"constant"``, ``"diagonal"``, ``"dense"`` or ``"unknown"``.
    """

    compiled: CompiledProblem
    method: str
    reason: str
    quadratic: QuadraticPart
    structure: Structure
    modulus_mode: str
    constant_modulus: float
    exact_projection: bool
    host: CvxpyLower | None

    @classmethod
    def of(cls, compiled: CompiledProblem) -> LowerPlan:
        """Choose the method; probes the Jacobian at random points.

        Raises
        ------
        NotConvexError
            If a nonsmooth lower level contains user code, so that neither iteration nor CVXPY applies.
        """
        level = compiled.problem.lower_level
        assert level is not None and compiled.lower_set is not None
        size = compiled.lower.size
        quadratic = quadratic_part(level, with_data=size <= DENSE_LIMIT)
        structure, mode, constant = _modulus(compiled, quadratic)
        exact = compiled.lower_set.is_exact
        kind = compiled.lower_set.kind
        rough = nonsmooth_atom(level.expressions, {v.id for v in level.variables})
        if rough is not None and level.kind != "equilibrium":
            method, reason = "cvxpy", f"{type(rough).__name__} is not smooth in y"
        elif (
            quadratic.complete
            and structure.positive
            and (structure.isotropic or (structure.diagonal and kind in ("box", "free")))
        ):
            method, reason = "closed form", "a projection of the unconstrained solution: the Hessian is diagonal"
        elif quadratic.complete and kind == "free" and size <= _LINEAR_SYSTEM_LIMIT:
            method, reason = "linear system", "F is affine and y is unconstrained"
        elif not exact and level.kind != "equilibrium":
            method, reason = "cvxpy", "Y(x) has no closed-form projection"
        elif level.kind != "equilibrium" or (quadratic.complete and structure.symmetric):
            method, reason = "accelerated gradient", "F is a Lipschitz gradient and Y(x) can be projected on"
        else:
            method, reason = "extragradient", "F is monotone and not a gradient"
        host = None
        if method == "cvxpy":
            from hierfl.compiler.cvxpy_lower import CvxpyLower

            if _has_user_atom(level.expressions):
                raise NotConvexError(
                    f"the lower level needs CVXPY ({reason}), which cannot see into a hf.Function in it."
                )
            host = CvxpyLower(compiled)
        return cls(compiled, method, reason, quadratic, structure, mode, constant, exact, host)

    def quadratic_operator(self, x: Array, y: Array, own: Any, rows: Rows = NO_ROWS) -> Array:
        """The affine map of the quadratic part (a gradient, or the mapping itself)."""
        return _quadratic_operator(self.compiled, self.quadratic, x, y, own, rows)

    def modulus(self, multiply: Any, dtype: Any) -> Array:
        """mu of one owner, safe from below; 0 where unknown."""
        size = self.compiled.lower.size
        if self.modulus_mode == "diagonal":
            return jnp.maximum(jnp.min(multiply(jnp.ones(size, dtype))), 0.0)
        if self.modulus_mode == "dense":
            return safe_smallest_eigenvalue(dense(multiply, size, dtype))
        return jnp.asarray(self.constant_modulus, dtype)

    def on_host(self, x: Array, owner: Owner, mu: Array) -> LowerSolution:
        """Solve one owner's problem with CVXPY through a callback."""
        assert self.host is not None
        return self.host.solve(x, owner, mu)


def nonsmooth_atom(expressions: Any, lower_ids: set[int]) -> Atom | None:
    """The first atom over y whose gradient is not known to be locally Lipschitz; None if there is none."""
    for expression in expressions:
        if not isinstance(expression, Atom) or not any(v.id in lower_ids for v in expression.variables()):
            continue
        found = nonsmooth_atom(expression.args, lower_ids)
        if found is not None:
            return found
        if not _is_smooth(expression, lower_ids):
            return expression
    return None


def _is_smooth(atom: Atom, lower_ids: set[int]) -> bool:
    if isinstance(atom, (cp.quad_over_lin, cp.QuadForm)):
        return not any(v.id in lower_ids for v in atom.args[1].variables())
    if isinstance(atom, Power):
        exponent = float(np.asarray(atom.p.value)) if hasattr(atom.p, "value") else float(atom.p)
        return exponent in (0.0, 1.0, 2.0) or exponent >= 2.0
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


def _modulus(compiled: CompiledProblem, part: QuadraticPart) -> tuple[Structure, str, float]:
    """(structure, mode, constant) of the quadratic part's Jacobian, from probes at random points."""
    size = compiled.lower.size
    if part.program is None:
        return Structure(False, False, False, False), "unknown", 0.0
    points = [_random_point(compiled, seed) for seed in (0, 1)]
    products = [_product_at(compiled, part, *point) for point in points]
    found = [probe(product, size, seed) for seed, product in enumerate(products)]
    structure = Structure(
        *(all(getattr(s, field) for s in found) for field in ("diagonal", "isotropic", "symmetric", "positive"))
    )
    vector = np.random.default_rng(7).standard_normal(size)
    first, second = (np.asarray(product(vector)) for product in products)
    constant = not part.from_data and bool(np.allclose(first, second, rtol=1e-12, atol=1e-13))
    if constant and structure.diagonal:
        return structure, "constant", max(float(np.min(np.asarray(products[0](np.ones(size))))), 0.0)
    if constant and size <= CONSTANT_DENSE_LIMIT:
        return structure, "constant", float(safe_smallest_eigenvalue(dense(products[0], size)))
    if structure.diagonal:
        return structure, "diagonal", 0.0
    if size <= DENSE_LIMIT:
        return structure, "dense", 0.0
    return structure, "unknown", 0.0


def _random_point(compiled: CompiledProblem, seed: int) -> tuple[Array, dict[int, Any], Rows]:
    """A point of X, a client's constants and some of its rows (in sample scope: one row, as constants)."""
    data = compiled.data()
    key = jax.random.key(seed)
    x = compiled.project_upper(jax.random.normal(key, (compiled.upper.size,), float))
    party = data.clients.party(seed % data.clients.size)
    rows = party.batch(key, 8, compiled.lower_samples)
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
