"""y(x, theta) and f(x, theta) as functions that JAX compiles, batches and differentiates; theta are parameters of the problem.

Parameters become upper variables, so that values, adjoints, and where there is none, are those of the
implicit function itself. All is computed in double precision, whatever the precision around it; batches are asked at once.
All that is said of x then holds of parameters: how y moves, where it has kinks, what is refused. Convexity is proved for all of their values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import Any, NamedTuple

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
from cvxpy.expressions.leaf import Leaf
from jax import Array
from jaxtyping import Bool, Float, Int

from hierfl.analysis.declare import declare
from hierfl.analysis.hoist import instantiate, leaf_attributes
from hierfl.analysis.several_levels import with_places
from hierfl.analysis.variable_bounds import require_continuous
from hierfl.atoms.algebra import nodes_of
from hierfl.compiler.compiled_problem import CompiledProblem, compile_problem
from hierfl.compiler.data.tables import Data
from hierfl.compiler.implicit_differentiation import STEEP, Hypergradient, gradient_at
from hierfl.compiler.lower_level.certificate import Evaluation
from hierfl.compiler.lower_level.diagnosis import place, require_gradient, require_solved
from hierfl.compiler.lower_level.methods.parametric_program import ParametricProgram, generic_ways, level_solver
from hierfl.compiler.lower_level.owner import Owner
from hierfl.compiler.oracles import by_owner
from hierfl.compiler.programs.cones import NoStandardFormError
from hierfl.compiler.programs.convex_program import ALIKE, SEVERAL, TWISTED
from hierfl.compiler.starting_points import AS_GIVEN, project_on_all, require_in_upper_set
from hierfl.errors import (
    DataError,
    DeclarationError,
    IncompatibleSolverError,
    NoGradientError,
    NotConvexError,
    SettingError,
)
from hierfl.inspect.implicit.points import Points
from hierfl.inspect.kinks.switches import is_opaque
from hierfl.jaxtools.cheap_jit import quick_jit
from hierfl.jaxtools.precision import computing, double_precision
from hierfl.language.declaration import Declaration
from hierfl.language.levels import Followers
from hierfl.language.player import Nash
from hierfl.language.printing.text import expression_text
from hierfl.language.sample import ClientParameter, Sample

SIGNS = ("nonneg", "nonpos", "pos", "neg")  # what a client's row has if all rows have it


def raised(declaration: Declaration, parameters: Sequence[cp.Parameter]) -> tuple[Declaration, tuple[cp.Variable, ...]]:
    """(the declaration, the upper variable of each parameter), a ``ClientParameter``'s with a leading axis of clients.

    Raises ``SettingError`` for what is no parameter of the problem; ``NotConvexError`` or ``DeclarationError`` where a lower level is
    convex for the values only that parameters have now; ``IncompatibleSolverError`` for games, several levels in sequence, and prices.
    """
    level, federation = declaration.lower_level, declaration.federation
    _require_parameters(declaration, parameters)
    if level is None or isinstance(level, (Followers, Nash)) or level.prices:
        kind = "no lower level" if level is None else "prices" if level.prices else "a game" if isinstance(level, Nash) else "several lower levels"
        made_of = "a layer is made of one hf.ArgMin, hf.ArgMax or hf.Equilibrium without prices"
        raise IncompatibleSolverError(f"{made_of}; here there is {kind}. Where only x moves, implicit(x) and implicit.gradient(x) answer.")
    count = 1 if federation is None else len(federation.clients)
    own = ClientParameter(count, name="place among the clients", nonneg=True)
    variables = tuple(_variable(parameter, count) for parameter in parameters)
    meant = {p: _read(p, variable, own) for p, variable in zip(parameters, variables)}
    if federation is not None and any(isinstance(p, ClientParameter) for p in parameters):
        federation = with_places(federation, own)
    upper = [*declaration.constraints, *(one.constraint for one in declaration.coupled)]
    try:
        objective = declaration.objective.over(lambda term: instantiate([term], meant)[0])
        below = copy(level)
        below.expressions = tuple(instantiate(level.expressions, meant))
        below.constraints = tuple(instantiate(level.constraints, meant))
        made = declare(objective, below, instantiate(upper, meant), federation)
    except (NotConvexError, DeclarationError) as error:
        wanted = f"In a layer this has to hold for all values of {', '.join(p.name() for p in parameters)} together with x"
        advice = "say what they are, as in cp.Parameter(..., nonneg=True), or leave one that stays as it is out of jax(...)"
        raise type(error)(f"{error.args[0]} {wanted}: {advice}.") from error
    return made, variables


def _require_parameters(declaration: Declaration, parameters: Sequence[Any]) -> None:
    """Each is a parameter of the problem, given once."""
    roles = declaration.roles
    known = [*roles.parameters, *roles.client_parameters]
    for parameter in parameters:
        if isinstance(parameter, Sample):
            instead = "A cp.Parameter or a hf.ClientParameter with a row for each of them is"
            raise SettingError(f"{parameter.name()!r} is a Sample: rows of data are no inputs of a layer. {instead}.")
        if not any(parameter is one for one in known):
            names = ", ".join(one.name() for one in known) or "none"
            given = parameter.name() if isinstance(parameter, Leaf) else parameter
            raise SettingError(f"{given!r} is no parameter of the problem, which has {names}.")
    if len({id(parameter) for parameter in parameters}) < len(parameters):
        raise SettingError("a parameter is given twice.")


def _variable(parameter: cp.Parameter, clients: int) -> cp.Variable:
    """What is decided in its place."""
    attributes = {name: value for name, value in leaf_attributes(parameter).items() if value is not None}
    shape, other = parameter.shape, [name for name in attributes if name not in SIGNS]
    if isinstance(parameter, ClientParameter):
        if other:
            raise IncompatibleSolverError(f"{parameter.name()!r} is declared {other[0]}, which rows of a layer's input cannot be: give it as a cp.Parameter.")
        shape = (clients, parameter.size) if parameter.ndim else (clients,)
    return cp.Variable(shape, name=parameter.name(), **attributes)


def _read(parameter: cp.Parameter, variable: cp.Variable, own: ClientParameter) -> Any:
    """What stands for the parameter: a client's is its row."""
    if not isinstance(parameter, ClientParameter):
        return variable
    return own @ variable if parameter.ndim < 2 else cp.reshape(own @ variable, parameter.shape, order="C")


Shapes = dict[cp.Variable, tuple[int, ...]]  # as they are given
TOGETHER = 100_000  # entries of the linear system of one of a batch, up to which it is solved together
AT_ZERO = 1e-9  # of 1 + the largest: a switch that is at zero as far as y is known
SINGLE = 1e-5  # how far rounding to single precision may put a point outside X


class DerivativeStatus(IntEnum):
    """What is known of a derivative at a point, as :meth:`ImplicitLayer.status` tells it: ``UNIQUE`` is 2, ``ONE_SIDED`` 1, ``REFUSED`` 0.

    Examples
    --------
    >>> layer = problem.implicit.jax()
    >>> int(layer.status(np.array([-1.0, 0.5])).y)
    2
    """

    UNIQUE = 2  # there is one
    ONE_SIDED = 1  # there is one along a generic direction, and one back, and no gradient: a kink
    REFUSED = 0  # none is told: several solutions, none, none beside it, or x outside X


class Statuses(NamedTuple):
    """A ``DerivativeStatus`` of f and one of y; integers, so that they are traced and batched."""

    f: Int[Array, ""]
    y: Int[Array, ""]

    def __repr__(self) -> str:
        """By the names of the numbers, where there are numbers yet."""
        name = np.vectorize(lambda number: DerivativeStatus(number).name)
        f, y = (part if isinstance(part, jax.core.Tracer) else name(part) for part in self)
        return f"Statuses(f={f}, y={y})"


@dataclass(frozen=True, eq=False)
class ImplicitLayer:
    """f(x, theta) and y(x, theta) as JAX functions, made by ``problem.implicit.jax(...)``.

    ``x``, and ``theta``, is an array where there is one variable, or parameter, else ``{name: array}``; a ``hf.ClientParameter`` is an array
    ``(m, *shape)``, a row for each client. ``jax.jit``, ``jax.vmap``, ``jax.grad``, ``jax.vjp`` and ``jax.jacrev`` apply, second derivatives
    and forward mode do not. Under ``jax.vmap`` the batch is one call of the solvers on the host.

    A derivative that there is not is never a number: asked for outside of ``jit`` and ``vmap`` it raises a ``NoGradientError`` that says why,
    within them, where nothing can be raised, all its entries are NaN, and :meth:`status` says why beside the value. Values that there are
    not (an empty Y, an x outside X, NaN or infinity for an input) are errors and NaN in the same way.

    Examples
    --------
    >>> import jax
    >>> layer = problem.implicit.jax()
    >>> points = np.array([[-1.0, 0.5], [-2.0, 2.0]])
    >>> jax.vmap(layer.f)(points).tolist()
    [0.5, 1.0]
    >>> abs(jax.vmap(jax.grad(layer.f))(points)).tolist()
    [[0.0, 0.0], [1.0, 0.0]]
    """

    problem: CompiledProblem
    decided: Shapes
    given: Shapes
    data: Data

    @classmethod
    @double_precision
    def of(cls, declaration: Declaration, parameters: Sequence[cp.Parameter]) -> ImplicitLayer:
        """Of a declared problem; errors as for ``ImplicitFunction.jax``."""
        require_continuous(declaration.upper_variables, "a layer")
        wider, given = raised(declaration, parameters)
        problem = compile_problem(wider)
        decided = {v: v.shape for v in declaration.upper_variables}
        shapes = {v: (*v.shape[: isinstance(p, ClientParameter)], *p.shape) for p, v in zip(parameters, given)}
        structure = problem.exact.method.structure if problem.exact.method is not None else None
        assert structure is not None
        try:
            stairs = level_solver(structure).form.stairs
        except NoStandardFormError as reason:
            stairs = str(reason)
        if stairs or not ParametricProgram.treats(structure):
            why = f"whose kinks are told: {stairs or 'this one has too many rows of data'}. implicit(x) and implicit.gradient(x) answer at one x"
            raise IncompatibleSolverError(f"a layer needs a lower level that is a program of rows, cones and smooth terms, {why}.")
        method = ParametricProgram(structure, "it tells where y has a derivative", has_edges=False, together=TOGETHER)
        _require_told(problem)
        return cls(replace(problem, exact=replace(problem.exact, method=method, method_in_rounds=method)), decided, shapes, problem.data())

    # --- what is asked -------------------------------------------------------------------------------------------

    def f(self, x: Any, theta: Any = None) -> Array:
        """f(x, theta), a scalar.

        Raises
        ------
        DataError
            For arrays of the wrong shape or of no real numbers, and names that are none.
        SettingError, EmptyLowerSetError, LowerLevelError
            Outside of ``jit`` and ``vmap``, as for ``problem.implicit(x)``; NaN within them.
        NoGradientError
            Where a derivative is asked for outside of them and there is none.
        """
        return self._value(self._flat(x, theta))

    def y(self, x: Any, theta: Any = None) -> Any:
        """y(x, theta), in the shapes of ``problem.implicit.response(x)``, with names in place of variables; errors as for ``f``."""
        return self._as_declared(self._answers(self._flat(x, theta)))

    def status(self, x: Any, theta: Any = None) -> Statuses:
        """What is known of the derivatives of f and of y at a point, each the least ``DerivativeStatus`` of all entries; traceable.

        Of f it is that of what f sees: y may have a kink, or several values, that f has not. Where a term or a coefficient is itself at a kink,
        such as ``cp.abs(x)`` at 0, it is not ``UNIQUE`` even if kinks cancel. Errors as for ``f``.
        """
        flat = jax.lax.stop_gradient(self._flat(x, theta))
        with computing(double=True):
            return Statuses(*map(jnp.asarray, self._told(flat.astype(jnp.float64), self.data)))

    # --- flat, in double precision -------------------------------------------------------------------------------

    @cached_property
    def _value(self) -> Any:
        """f of the flat (x, theta), in its own precision."""

        def pulled(flat: Array, seed: Array) -> Array:
            if self._untold:
                untold = f"kinks of {self._untold[0]} in the upper objective cannot be told"
                raise IncompatibleSolverError(f"f has no derivative here: {untold}. Take layer.y, and write that term in JAX.")
            evaluation, gradient = self._gradient(flat, self.data)
            self._require(True, flat, evaluation, gradient)
            return self.problem.sign * seed * gradient

        return self._differentiable(0, pulled)

    @cached_property
    def _answers(self) -> Any:
        """The owners' y (owners, size) of the flat (x, theta)."""

        def pulled(flat: Array, seeds: Array) -> Array:
            evaluation, gradient = self._pulled(flat, seeds, self.data)
            self._require(False, flat, evaluation, gradient)
            return gradient

        return self._differentiable(1, pulled)

    def _differentiable(self, part: int, pulled: Callable[[Array, Array], Array]) -> Any:
        """A part of what is evaluated, with an adjoint that is computed in double precision."""

        def value(flat: Array) -> Array:
            return self._evaluated(flat)[part].astype(flat.dtype)

        def pull(flat: Array, seed: Array) -> tuple[Array]:
            with computing(double=True):
                return (pulled(flat.astype(jnp.float64), seed.astype(jnp.float64)).astype(flat.dtype),)

        call = jax.custom_vjp(value)
        call.defvjp(lambda flat: (value(flat), flat), pull)
        return call

    def _evaluated(self, flat: Array) -> tuple[Array, Array]:
        """(f, the owners' y), NaN where there are none: an error where that can be raised."""
        with computing(double=True):
            evaluation, good = self._evaluation(flat.astype(jnp.float64), self.data)
            if not isinstance(good, jax.core.Tracer) and not bool(good):
                point, slack = np.asarray(flat, float), AS_GIVEN if flat.dtype == jnp.float64 else SINGLE
                if not np.isfinite(point).all():
                    raise DataError(f"NaN or infinity is among what is given: {place(self.problem, point)}.")
                require_in_upper_set(self.problem, point, slack)
                require_solved(self.problem, self.problem.exact.method, point, jax.tree.map(np.asarray, evaluation))
            value = self.problem.sign * jnp.where(good, evaluation.value, jnp.nan)
            return value, jnp.where(good, evaluation.solution.y, jnp.nan)

    def _require(self, of_f: bool, flat: Array, evaluation: Evaluation, gradient: Array) -> None:
        """Raise where a derivative is not one, unless it is traced."""
        if isinstance(gradient, jax.core.Tracer):
            return
        point, what = np.asarray(flat), "f has no gradient" if of_f else "y has no derivative"
        if not bool(self._is_meant(evaluation, of_f)):
            several = f"{what} at {place(self.problem, point)}: the lower level has several solutions there, and the problem does not say which is meant"
            raise NoGradientError(f'{several}. Add a strongly convex term to the lower level, or choose with selection="optimistic".')
        require_gradient(self.problem, point, jax.tree.map(np.asarray, evaluation), np.asarray(gradient), what)

    @cached_property
    def _evaluation(self) -> Any:
        """(the evaluation, whether it is one) as a program of (flat, data)."""

        def evaluate(flat: Array, data: Data) -> tuple[Evaluation, Array]:
            evaluation = self.problem.exact.evaluate(_finite(flat), data)
            return evaluation, self._is_good(flat, data, evaluation)

        return quick_jit(evaluate)

    @cached_property
    def _gradient(self) -> Any:
        """(the evaluation, the gradient of f, oriented for minimisation) as a program of (flat, data)."""
        hyper = Hypergradient(self.problem, self.problem.exact, False)

        def gradient(flat: Array, data: Data) -> tuple[Evaluation, Array]:
            evaluation, slopes = gradient_at(hyper, _finite(flat), data)
            return evaluation, self._sure(slopes, flat, data, evaluation, True)

        return quick_jit(gradient)

    @cached_property
    def _pulled(self) -> Any:
        """(the evaluation, the gradient of what the owners' y are worth by seeds) as a program of (flat, seeds, data)."""

        def pulled(flat: Array, seeds: Array, data: Data) -> tuple[Evaluation, Array]:
            evaluation = self.problem.exact.evaluate(_finite(flat), data)
            assert evaluation.solution is not None
            slopes = self.problem.exact.pulled(_finite(flat), evaluation.solution.y, seeds, None, data).sum(axis=0)
            return evaluation, self._sure(slopes, flat, data, evaluation, False)

        return quick_jit(pulled)

    @cached_property
    def _told(self) -> Any:
        """The statuses of f and y as a program of (flat, data)."""

        def told(flat: Array, data: Data) -> tuple[Array, Array]:
            evaluation, of_f = self._gradient.function(flat, data)
            assert evaluation.solution is not None
            y = evaluation.solution.y
            seeds = generic_ways(y.ravel())[0].reshape(y.shape)
            of_y = self._pulled.function(flat, seeds, data)[1]
            unique = jnp.isfinite(of_f).all() & (not self._untold), jnp.isfinite(of_y).all()
            # a direction of length zero costs the host nothing
            way = jnp.where(unique[0] & unique[1], 0.0, generic_ways(flat)[0])
            moves = self._moves(_finite(flat), y, way, data) & self._is_good(flat, data, evaluation)
            otherwise = jnp.where(moves, DerivativeStatus.ONE_SIDED, DerivativeStatus.REFUSED)
            f, of_answers = (jnp.where(one, DerivativeStatus.UNIQUE, otherwise).astype(jnp.int32) for one in unique)
            return f, of_answers

        return quick_jit(told)

    def _moves(self, flat: Array, y: Float[Array, "owners size"], way: Array, data: Data) -> Bool[Array, ""]:
        """Whether all owners' y have a derivative along a direction, and one back."""
        method = self.problem.exact.method
        assert isinstance(method, ParametricProgram)

        def told(owner: Owner, _: Array) -> Array:
            return jnp.stack([jnp.isfinite(method.rate(flat, owner, sign * way)).all() for sign in (1.0, -1.0)])

        return self.problem.exact.of_each_owner(told, flat, data, y).all()

    # --- what is judged ------------------------------------------------------------------------------------------

    def _is_good(self, flat: Array, data: Data, evaluation: Evaluation) -> Bool[Array, ""]:
        """Whether a point is in X, and its evaluation a solution."""
        solution, problem = evaluation.solution, self.problem
        assert solution is not None
        good = solution.converged.all() & (evaluation.gap <= 0).all() & jnp.isfinite(solution.y).all() & jnp.isfinite(flat).all()
        if problem.upper_set.kind == "free" and problem.private_set is None:
            return good
        away = jnp.linalg.norm(project_on_all(problem, flat, data) - flat)
        return good & (away <= SINGLE * (1.0 + jnp.linalg.norm(flat)))

    def _sure(self, slopes: Array, flat: Array, data: Data, evaluation: Evaluation, of_f: bool) -> Array:
        """An adjoint where it is the derivative, if it is one of y's; NaN elsewhere."""
        good = self._is_good(flat, data, evaluation) & self._is_meant(evaluation, of_f)
        good = good & self._is_smooth(flat, data, evaluation, of_f) & (jnp.abs(slopes) < STEEP).all()
        return jnp.where(good, slopes, jnp.nan)

    def _is_meant(self, evaluation: Evaluation, of_f: bool) -> Bool[Array, ""]:
        """Whether there is one solution, or a selection among them; f may be the same at all."""
        assert evaluation.solution is not None and self.problem.declaration.lower_level is not None
        unique = jnp.asarray(evaluation.solution.unique)
        if self.problem.declaration.lower_level.selection is not None:
            return jnp.asarray(True)
        return ~((unique == SEVERAL) | ((unique == ALIKE) & (not of_f)) | (unique == TWISTED)).any()

    def _is_smooth(self, flat: Array, data: Data, evaluation: Evaluation, of_f: bool) -> Bool[Array, ""]:
        """Whether no term of x and theta, or of f, is at a kink of its own; those of y are told by its method."""
        assert evaluation.solution is not None
        switches = Points(self.problem).switches
        asked = ~switches.of_answers if of_f else switches.of_level & ~switches.of_answers
        if not asked.any():
            return jnp.asarray(True)
        values = jnp.abs(switches.values(flat, evaluation.solution.y, data))
        return ~(values[asked] <= AT_ZERO * (1.0 + values.max(initial=0.0))).any()

    @cached_property
    def _untold(self) -> list[str]:
        """The upper terms' atoms whose kinks cannot be told."""
        return [expression_text(node) for term in self.problem.declaration.objective.terms for node in nodes_of(term) if is_opaque(node)]

    # --- shapes --------------------------------------------------------------------------------------------------

    def _flat(self, x: Any, theta: Any) -> Array:
        """(x, theta) as the raised problem has it."""
        parts = {**_by_variable(self.decided, x, "x"), **_by_variable(self.given, theta, "theta")}
        return _joined([parts[v.id] for v in self.problem.upper.variables])

    def _as_declared(self, answers: Float[Array, "owners size"]) -> Any:
        """The owners' y in the shapes of results, by name where there are several variables."""
        parts = by_owner(self.problem, answers)
        return [self._named(part) for part in parts] if isinstance(parts, list) else self._named(parts)

    def _named(self, flat: Array) -> Any:
        pieces = self.problem.lower.split(flat)
        named = {v.name(): pieces[v.id] for v in self.problem.lower.variables}
        return next(iter(named.values())) if len(named) == 1 else named


@jax.jit
def _joined(parts: list[Array]) -> Array:
    return jnp.concatenate([jnp.ravel(part).astype(jnp.result_type(*parts, float)) for part in parts])


def _finite(flat: Array) -> Array:
    """A point that solvers may be given, who leave out a row whose limit is no number: 0 where this is none, and told apart by ``_is_good``."""
    return jnp.where(jnp.isfinite(flat).all(), flat, 0.0)


def _require_told(problem: CompiledProblem) -> None:
    """The lower level's kinks that y does not tell, of terms of x and theta, are told by switches."""
    level, lower = problem.declaration.lower_level, {v.id for v in problem.lower.variables}
    assert level is not None
    for part in (*level.expressions, *level.constraints):
        for node in nodes_of(part):
            if is_opaque(node) and node.variables() and not any(v.id in lower for v in node.variables()):
                untold = f"kinks of {expression_text(node)} cannot be told, so a layer might differentiate where there is no derivative"
                raise IncompatibleSolverError(f"{untold}: give its values as a cp.Parameter, and compute them in JAX before the layer.")


def named(variables: Shapes, value: Any, what: str) -> dict[cp.Variable, Any]:
    """What is given as an array, or by name, by variable."""
    names = ", ".join(v.name() for v in variables)
    if not variables:
        if value is not None:
            raise DataError(f"{what} is given, and the layer was made without parameters: name them, problem.implicit.jax(parameter, ...).")
        return {}
    if isinstance(value, Mapping):
        if set(value) != {v.name() for v in variables}:
            raise DataError(f"{what} has {', '.join(map(str, value))}; expected {{name: array}} for {names}.")
        return {v: value[v.name()] for v in variables}
    if len(variables) > 1 or value is None:
        raise DataError(f"{what} must be {{name: array}} for {names}, or an array where there is one.")
    return dict.fromkeys(variables, value)


def _by_variable(variables: Shapes, value: Any, what: str) -> dict[int, Array]:
    """Arrays by leaf id."""
    found = {}
    for variable, given in named(variables, value, what).items():
        array, shape = None, variables[variable]
        with suppress(TypeError, ValueError):
            array = jnp.asarray(given)
        if array is None or jnp.iscomplexobj(array):
            raise DataError(f"{what} for {variable.name()!r} is {given!r}; expected real numbers.")
        if array.shape != shape:
            raise DataError(f"{what} for {variable.name()!r} has shape {array.shape}; expected {shape}. A batch goes through jax.vmap, or has one more first axis in PyTorch.")
        found[variable.id] = array
    return found
