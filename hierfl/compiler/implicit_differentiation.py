"""Gradients of the implicit function f(x, y(x)) by implicit differentiation of y = P_Y(x)(y - s F(x, y)), the lower level solved.

With z = y - s F, D = DP(z) (symmetric) and H = D_y F, the adjoint of a seed q = grad_y f solves

    lambda - D lambda + s H' D lambda = q,       grad f = grad_x f - s (D_x F)' D lambda + (D_x P)' lambda;

without constraints H' lambda = q and grad f = grad_x f - (D_x F)' lambda. The last term is what moves with the set. Where the
upper term has the gradient of the lower one in y (a Moreau envelope, a minimax problem) lambda = q solves the system, since
D F = 0 at a solution: that is the envelope theorem, multipliers of a moving set included, and asks for no linear solve.

The result is exact where the active set is locally constant; at a kink it is an element of a conservative Jacobian that
depends on conventions (Bolte and Pauwels, 2021), a heuristic. Rounds take it; looks ask ``beside`` whether f has a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.sparse.linalg import cg, gmres

from hierfl.atoms.table import row_of
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Data, Party
from hierfl.compiler.expressions.program import Rows
from hierfl.compiler.lower_level.certificate import TOLERANCE, Evaluation
from hierfl.compiler.lower_level.diagnosis import require_solved
from hierfl.compiler.lower_level.exact_lower import ExactLower
from hierfl.compiler.lower_level.methods.method import ExactMethod
from hierfl.compiler.lower_level.methods.walk import generic, stretch
from hierfl.compiler.lower_level.owner import Mean, Owner, mean_of_client, mean_of_federation, mean_of_sample
from hierfl.compiler.sets.blocks import ProgramBlock
from hierfl.errors import IncompatibleSolverError
from hierfl.jaxtools.cheap_jit import quick_jit
from hierfl.jaxtools.precision import double_precision
from hierfl.language.printing.text import expression_text

# --- the envelope theorem's case -------------------------------------------------------------------------------------

ROUNDING = 1e-9  # of the upper gradient, whose size says nothing: f may be written in any unit
FURTHER = 10.0, 1e3  # draws of this size where there are pieces
DRAWS = 8  # points of Y(x) whose mean is inside as a rule, where a single one is at its end


@double_precision
def _gradients_coincide(problem: CompiledProblem) -> bool:
    """Whether the clients' upper terms and the lower level have proportional gradients in y, at random points.

    Atoms with branches, of which random points see some, have to be the same in both.
    """
    if not problem.lower.size or problem.scope == "sample" or problem.client_program is None:
        return False
    level, term = problem.declaration.lower_level, problem.declaration.objective.clients
    assert level is not None
    pieces = _pieces([term], problem)
    if not pieces <= _pieces(level.expressions, problem):  # on another piece they may differ
        return False
    data, rng = problem.laid_out(), np.random.default_rng(11)
    pairs = problem.programs.keep(
        "gradients in y", lambda: quick_jit(lambda x, y, data: _gradients(problem, x, y, data))
    )
    draws = []
    for size in (1.0, 1.0, 1.0, *(FURTHER if pieces else ())):
        x, y = rng.standard_normal(problem.upper.size), size * rng.standard_normal((DRAWS, problem.lower.size))
        draws.append(tuple(map(np.asarray, pairs(x, y, data))))
    uppers, lowers = (np.stack(parts) for parts in zip(*draws))  # (draws, owners, size)
    sizes = np.sum(lowers * lowers, axis=-1)
    if not np.isfinite(sizes).all() or (sizes == 0).any():
        return False
    ratios = np.sum(uppers * lowers, axis=-1) / sizes
    ratio = ratios[0, 0]
    alike = _alike(uppers, ratio * lowers, ROUNDING * np.linalg.norm(uppers, axis=-1))
    # beside large constants gradients are all alike, and what tells them apart is how they change
    noise = 64 * np.finfo(float).eps * np.linalg.norm(uppers, axis=-1).max()
    changes = np.diff(uppers, axis=0), ratio * np.diff(lowers, axis=0)
    return (
        alike
        and _alike(*changes, ROUNDING * np.linalg.norm(changes[0], axis=-1) + noise)
        and bool(np.ptp(ratios) <= ROUNDING * abs(ratio))
    )


def _pieces(expressions: Sequence[Any], problem: CompiledProblem) -> set[str]:
    """The atoms over y that have branches, or may have: in words."""
    own, found, left = {v.id for v in problem.lower.variables}, set(), list(expressions)
    while left:
        node = left.pop()
        if row_of(node).branches(node) and any(v.id in own for v in node.variables()):
            found.add(expression_text(node))
        left += getattr(node, "args", ())
    return found


def _alike(some: np.ndarray, others: np.ndarray, allowed: np.ndarray) -> bool:
    """Whether vectors differ by what is allowed at most."""
    return bool((np.linalg.norm(some - others, axis=-1) <= allowed).all())


def _gradients(problem: CompiledProblem, x: Array, y: Array, data: Data) -> tuple[Array, Array]:
    """(grad_y f_i, F) of every client on all its data, in federation scope of their mean: (owners, size) each."""
    clients = data.clients
    x = problem.upper_set.project(x, clients.party(0).environment)

    def one(index: Array) -> tuple[Array, Array]:
        party = clients.party(index)
        own, level = party.environment, problem.lower_set
        at = problem.environment(x, None, own)
        # around a point of Y: draws around 0 all end at one corner of a Y that is far from it, and tell nothing
        near = level.project(jnp.zeros_like(y[0]), at)
        inside = jnp.mean(jax.vmap(lambda z: level.project(near + z, at))(y), axis=0)

        def upper(rows: Rows) -> Array:
            return jax.grad(lambda v: problem.client_value(x, v, party.environment, rows))(inside)

        def lower(rows: Rows) -> Array:
            return problem.operator(x, inside, party.environment, rows)

        return party.mean(upper, problem.upper_samples), party.mean(lower, problem.lower_samples)

    of_clients = clients.one_by_one(one)
    if problem.scope != "federation":
        return of_clients
    return jax.tree.map(lambda parts: (clients.weights @ parts)[None], of_clients)


# --- the adjoint -----------------------------------------------------------------------------------------------------

DENSE_LIMIT = 256
KRYLOV_TOLERANCE = 1e-12
SINGULAR = 1e-13  # of the largest singular value: a smaller one is none
SEED_ROUNDING = 1e-15  # of what a right side is made of
UNSOLVED = 1e-6  # of a right side, that may be left of a system that was solved for
KRYLOV_STEPS = 2000
Map = Callable[[Array], Array]


class LowerMap(NamedTuple):
    """The lower level of one owner at (x, y): F there, products with the transposes of D_y F and D_x F, and z -> P_Y(x)(z)."""

    force: Array
    hessian: Map
    cross: Map
    project: Callable[[Array, Array], Array]


@dataclass(frozen=True, eq=False)
class Hypergradient:
    """Implicit differentiation on one problem, by the answers of ``exact``.

    ``envelope``: upper and lower gradients in y are proportional; not asked outside of rounds where the method differentiates y(x).
    ``ways`` are the directions (k, n) along which there has to be a derivative, there and back; None for all.
    """

    problem: CompiledProblem
    exact: ExactLower
    envelope: bool
    ways: Array | None = None

    def along(self, direction: Array) -> Hypergradient:
        """The same for derivatives along a direction (n,): all that is asked of its gradients."""
        return replace(self, ways=direction[None])

    @classmethod
    def of(cls, problem: CompiledProblem, in_rounds: bool = False) -> Hypergradient:
        """Made once for a problem and either case of ``envelope``, which the present values of parameters decide.

        Raises ``IncompatibleSolverError`` if F has no derivative, or Y(x) no differentiable projection; says which solvers do without.
        """
        exact = problem.exact.in_rounds if in_rounds else problem.exact
        if in_rounds and exact.method is not None and not exact.method.responds and not exact.method.structure.strict:
            exact = problem.exact if problem.exact.method is not None and problem.exact.method.responds else exact
        keep = problem.programs.keep
        if not in_rounds and exact.method is not None and exact.method.responds:
            return keep(("hypergradient", exact), lambda: cls(problem, exact, False))
        envelope = not problem.several and keep(("envelope", problem.parameter_values), lambda: _gradients_coincide(problem))
        if not (envelope and _stays(problem)):
            _require_smooth(problem, exact.method)
        return keep(("hypergradient", exact, envelope), lambda: cls(problem, exact, envelope))

    def gradient(
        self,
        x: Array,
        in_x: Array,
        in_y: Array,
        y: Array,
        owner: Callable[[], Owner],
        lower: Callable[[], LowerMap],
    ) -> Array:
        """grad f from its partial gradients, by the method's own derivative of y(x) where it has one."""
        method = self.exact.method
        if method is not None and method.responds:
            return in_x + method.pull(x, owner(), y, in_y, self.ways)
        return self.adjoint(x, in_x, in_y, lower(), y)

    def adjoint(self, x: Array, gradient: Array, seed: Array, lower: LowerMap, y: Array) -> Array:
        """grad f from its partial gradients in x and y, by the formulas above."""
        if self.problem.lower_set.kind == "free":
            if self.envelope:
                return gradient
            return gradient - lower.cross(self._solve(lower.hessian, seed, self._symmetric))
        if self.envelope and _stays(self.problem):
            return gradient  # Danskin: however y moves, it moves along Y, where the lower objective is stationary
        size = stretch(lower.hessian, y)
        step = jnp.where(size > 0, 1.0 / jnp.where(size > 0, size, 1.0), 1.0)  # any is right, about 1 / |H| is well scaled
        z = y - step * lower.force
        pull = jax.vjp(lower.project, x, z)[1]
        multiplier = seed if self.envelope else self._multiplier(lambda v: pull(v)[1], lower.hessian, step, seed)
        moved, turned = pull(multiplier)
        return gradient - step * lower.cross(turned) + moved

    def _multiplier(self, slope: Map, hessian: Map, step: Array, seed: Array) -> Array:
        def system(v: Array) -> Array:
            w = slope(v)
            return v - w + step * hessian(w)

        if seed.size <= DENSE_LIMIT or not self._symmetric:
            return self._solve(system, seed, False)

        def product(u: Array) -> Array:
            w = slope(u)
            return w - slope(w) + step * slope(hessian(w))

        w = slope(self._solve(product, slope(seed), True, jnp.linalg.norm(seed)))
        return seed + w - step * hessian(w)

    def _solve(self, multiply: Map, right: Array, symmetric: bool, size: Array | float = 0.0) -> Array:
        """Entries that nothing determines, where the system is zero, are 0: y does not move there.

        A right side may be rounding of something of a ``size``. NaN where the system is singular otherwise: of several lower solutions this one moves in ways that it does not tell.
        """
        open_ = multiply(generic(right)) == 0

        def closed(v: Array) -> Array:
            return multiply(v) + jnp.where(open_, v, 0.0)

        right = jnp.where(open_, 0.0, right)
        if right.size <= DENSE_LIMIT:
            matrix = jax.vmap(closed, out_axes=1)(jnp.eye(right.size, dtype=right.dtype))
            found = jnp.linalg.solve(matrix, right)
            if self.exact.method is None or self.exact.method.structure.strict:
                return found
            values = jnp.linalg.svd(matrix, compute_uv=False)
            return jnp.where(values[-1] <= SINGULAR * values[0], jnp.nan, found)
        rounding = SEED_ROUNDING * size
        if symmetric:
            solution: Array = cg(closed, right, tol=KRYLOV_TOLERANCE, atol=rounding, maxiter=KRYLOV_STEPS)[0]
        else:
            solution = gmres(closed, right, tol=KRYLOV_TOLERANCE, restart=50, maxiter=KRYLOV_STEPS // 50)[0]
        left = jnp.linalg.norm(closed(solution) - right)
        return jnp.where(left <= UNSOLVED * jnp.linalg.norm(right) + rounding, solution, jnp.nan)

    @property
    def _symmetric(self) -> bool:
        method = self.exact.method
        return method is not None and method.structure.is_gradient

    # --- one party ---------------------------------------------------------------------------------------------------

    def client(self, x: Array, y: Array, party: Party, mean: Callable[..., Any]) -> tuple[Array, Array]:
        """(value, gradient) of a client's term with its own y; ``mean`` averages a function of the upper-level rows."""
        value, gradient, seed = self.partials(x, y, party, mean)
        if not self.problem.lower.size:
            return value, gradient
        owner, lower = partial(self.exact.client_owner, x, party), partial(self.lower_map, x, y, party)
        return value, self.gradient(x, gradient, seed, y, owner, lower)

    def partials(self, x: Array, y: Array, party: Party, mean: Callable[..., Any]) -> tuple[Array, Array, Array]:
        """(value, gradient in x, gradient in y) of a client's term."""

        def at(rows: Rows) -> tuple[Array, tuple[Array, Array]]:
            def value(x: Array, y: Array) -> Array:
                return self.problem.client_value(x, y, party.environment, rows)

            return jax.value_and_grad(value, argnums=(0, 1))(x, y)

        value, (in_x, in_y) = mean(at)
        return value, in_x, in_y

    def lower_map(self, x: Array, y: Array, party: Party) -> LowerMap:
        """The lower level of a client, on all its data."""
        return self.map_of_means(x, y, party.environment, mean_of_client(party))

    def map_of_means(self, x: Array, y: Array, own: dict[int, Array], mean: Mean) -> LowerMap:
        """The lower level of whoever has these constants, and whose F is such a mean."""
        problem, samples = self.problem, self.problem.lower_samples

        def in_y(v: Array, own: dict[int, Array], rows: Rows) -> Array:
            def mapping(y: Array) -> Array:
                return problem.operator(x, y, own, rows)

            if self._symmetric:  # pushed forward, nothing of a pass over the data is kept
                return jax.jvp(mapping, (y,), (v,))[1]
            return jax.vjp(mapping, y)[1](v)[0]

        def in_x(v: Array, own: dict[int, Array], rows: Rows) -> Array:
            return jax.vjp(lambda x: problem.operator(x, y, own, rows), x)[1](v)[0]

        return LowerMap(
            mean(lambda own, rows: problem.operator(x, y, own, rows), samples, y),
            lambda v: mean(partial(in_y, v), samples, y),
            lambda v: mean(partial(in_x, v), samples, x),
            lambda x, z: problem.project_lower(x, z, own),
        )

    def rows(
        self, x: Array, party: Party, rows: Rows, answer: Callable[[dict[int, Array]], Array]
    ) -> tuple[Array, Array]:
        """(value, gradient) of a client's term on rows that a sample-scope lower level answers, one y each."""
        problem, table = self.problem, self.problem.row_samples
        if not set(table) & set(rows.values):
            return jax.value_and_grad(lambda v: problem.client_value(v, None, party.environment, rows))(x)
        given = {leaf: rows.values[leaf] for leaf in table}
        ys = jax.vmap(answer)(given)
        value, (gradient, seeds) = jax.value_and_grad(
            lambda v, y: problem.client_value(v, y, party.environment, rows), argnums=(0, 1)
        )(x, ys)

        def one(row: dict[int, Array], y: Array, seed: Array) -> Array:
            own = {**party.environment, **row}

            def lower() -> LowerMap:
                return self.map_of_means(x, y, own, mean_of_sample(own))

            return self.gradient(x, jnp.zeros_like(x), seed, y, partial(self.exact.sample_owner, x, own), lower)

        return value, gradient + jnp.sum(jax.vmap(one)(given, ys, seeds), axis=0)


def _stays(problem: CompiledProblem) -> bool:
    """Whether Y is the same set at every x."""
    return not any(variable.id in problem.lower_set.depends_on for variable in problem.upper.variables)


def _require_smooth(problem: CompiledProblem, method: ExactMethod | None) -> None:
    lower_set = problem.lower_set
    if method is None or method.responds:
        return
    why = method.values_only
    if not why and not lower_set.is_exact:
        why = f"projecting on Y(x): {'; '.join(block.explain() for block in lower_set.blocks if isinstance(block, ProgramBlock))}"
    if why:
        raise IncompatibleSolverError(
            f"implicit gradients need a lower level with a differentiable gradient and projection, which this one has not ({why}): use FedRZO "
            f"or ZOHFL, which ask for values only."
        )


# --- the gradient at a point -----------------------------------------------------------------------------------------

# what stands for an infinite slope is 1e154, times what is beside it: ``hierfl.atoms.numerics.safe.steep``
STEEP = 1e120


def gradient_at(hyper: Hypergradient, x: Array, data: Data, warm: Array | None = None) -> tuple[Evaluation, Array]:
    """(evaluation, gradient of f) at x with the lower level solved for all owners; traceable."""
    problem, exact = hyper.problem, hyper.exact
    evaluation = exact.evaluate_within(x, data, warm, TOLERANCE)
    answers = None if evaluation.solution is None else evaluation.solution.y
    data = problem.priced(x, answers, data)
    clients = data.clients
    together = problem.scope == "client" and exact.method is not None and exact.method.responds  # many owners are asked side by side

    def one(index: Array) -> Any:
        party = clients.party(index)

        def mean(function: Callable[[Rows], Any]) -> Any:
            return party.mean(function, problem.upper_samples)

        if problem.scope == "sample":

            def answer(row: dict[int, Array]) -> Array:
                owner = exact.sample_owner(x, {**party.environment, **row})
                return exact.solve(x, owner, jnp.zeros(problem.lower.size, x.dtype)).y

            return mean(lambda rows: hyper.rows(x, party, rows, answer)[1]), jnp.zeros(problem.lower.size)
        y = jnp.zeros(0) if answers is None else answers[0] if problem.scope == "federation" else answers[index]
        if problem.scope == "federation" or together:
            return hyper.partials(x, y, party, mean)[1:]
        return hyper.client(x, y, party, mean)[1], jnp.zeros_like(y)

    if problem.client_program is None:
        gradients, seeds = (jnp.zeros((clients.size, size)) for size in (x.size, problem.lower.size))
    else:
        gradients, seeds = clients.one_by_one(one)
    if together:
        assert answers is not None
        gradients = gradients + exact.pulled(x, answers, seeds, hyper.ways, data)
    gradient, seed = clients.weights @ gradients, clients.weights @ seeds
    if data.server is not None:
        in_x, in_y = _server_partials(problem, x, answers, data.server_party)
        gradient, seed = gradient + in_x, seed + in_y
    if problem.scope == "federation":
        assert answers is not None
        owner = partial(exact.federation_owner, x, clients)
        lower = partial(hyper.map_of_means, x, answers[0], clients.party(0).environment, mean_of_federation(clients))
        gradient = hyper.gradient(x, gradient, seed, answers[0], owner, lower)
    return evaluation, gradient


def _server_partials(problem: CompiledProblem, x: Array, answers: Array | None, party: Party) -> tuple[Array, Array]:
    """Gradients of the server's term in x and in the federation's y (zeros in other scopes)."""
    shared = answers[0] if answers is not None and problem.scope == "federation" else jnp.zeros(problem.lower.size)

    def at(rows: Rows) -> tuple[Array, Array]:
        return jax.grad(lambda v, y: problem.server_value(v, y, party.environment, rows), argnums=(0, 1))(x, shared)

    return party.mean(at)


@double_precision
def evaluated_with_gradient(
    problem: CompiledProblem, x: np.ndarray, warm: np.ndarray | None = None
) -> tuple[Evaluation, np.ndarray]:
    """(evaluation, gradient) of f at x, oriented for minimisation; the gradient is NaN where there is none, or infinite.

    At kinks that the method for the lower level does not tell it is an element between both slopes. ``warm`` are the owners' y (leading axis
    as from ``ExactLower.solve_all``) that an iterative method begins at, at a point nearby.

    Raises ``EmptyLowerSetError`` or ``LowerLevelError`` as for ``ExactLower.at``.
    """
    evaluation, gradient = unchecked_gradient(problem, np.asarray(x, float), warm)
    require_solved(problem, problem.exact.method, x, evaluation)
    return evaluation, np.where(np.abs(gradient) >= STEEP, np.copysign(np.inf, gradient), gradient)


def unchecked_gradient(
    problem: CompiledProblem, x: np.ndarray, warm: np.ndarray | None = None
) -> tuple[Evaluation, np.ndarray]:
    """The same, whatever came of the lower level."""
    hyper = Hypergradient.of(problem)
    program = problem.programs.keep(
        ("gradient program", hyper), lambda: quick_jit(lambda x, data, warm: gradient_at(hyper, x, data, warm))
    )
    method = hyper.exact.method
    if method is None or not method.iterative:
        warm = None
    elif warm is None:
        warm = np.zeros((method.structure.oracles.owners, problem.lower.size))
    evaluation, gradient = jax.tree.map(np.asarray, program(x, problem.data(), warm))
    return evaluation, gradient
