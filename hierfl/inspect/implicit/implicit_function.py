"""The implicit function f(x) of a problem: its values, kept for the last points, its response y(x), and its smoothing f^eta."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.expectation_error import warn_of_doubts
from hierfl.compiler.lower_level.certificate import TOLERANCE, Evaluation
from hierfl.compiler.oracles import public_response
from hierfl.compiler.violations import Violations
from hierfl.errors import FeasibilityWarning, warn
from hierfl.jaxtools.precision import computing, double_precision
from hierfl.language.function import uses_black_box
from hierfl.language.printing.card import Card, Shown
from hierfl.language.printing.text import domain_text
from hierfl.progress import Waits
from hierfl.value_certificate import Certificate

if TYPE_CHECKING:
    from hierfl.inspect.implicit.layer import ImplicitLayer
    from hierfl.inspect.implicit.smoothing import Midpoints
    from hierfl.inspect.implicit.stationarity import Stationarity
    from hierfl.inspect.implicit.torch_layer import TorchLayer
    from hierfl.inspect.pictures.slice import Slice
    from hierfl.inspect.pictures.surface import Surface
    from hierfl.inspect.symbolic.derivation import SymbolicView
    from hierfl.language.declaration import Declaration


LATEST = 64  # points
LARGEST = 100_000  # scalars of an evaluation, beyond which finding it again is cheaper than keeping it


class ImplicitFunction(Shown):
    """f(x) = f_1(x) + sum_i w_i f_i(x, y_i(x)) with the lower level solved exactly.

    ``x`` is an array for one upper variable, else ``{variable: array}``.

    Examples
    --------
    >>> f, point = problem.implicit, np.array([-1.0, 0.5])
    >>> f(point), f.response(point), f.gradient(point)
    (0.5, array([0. , 0.5]), array([0., 0.]))
    """

    _elsewhere: ClassVar[dict[str, str]] = {
        "value": "call it, problem.implicit(x).",
        "y": "it depends on x: problem.implicit.response(x).",
        **dict.fromkeys(("minimize", "minimum", "solve", "optimize"), "problem.solve() looks for a good x, problem.reference() for the best one."),
        **dict.fromkeys(("plot", "heatmap", "contour"), "draw a line of it, problem.implicit.slice(x).plot(), or a plane, problem.implicit.surface(x).plot()."),
    }

    def __init__(self, compiled: Callable[..., CompiledProblem], declaration: Declaration) -> None:
        self._compiled_when_asked, self._declaration, self._waits = compiled, declaration, Waits()

    def _card(self) -> Card:
        rows = [("x", ", ".join(f"{v.name()} in {domain_text(v.shape)}" for v in self._declaration.upper_variables))]
        for level in self._declaration.lower:
            whose = f"{'the' if level.scope == 'federation' else 'each'} {level.scope}"
            rows.append(("y(x)", f"{', '.join(v.name() for v in level.decided)} by {level.kind}, one for {whose}"))
        rows.append(("at an x", "response(x), gradient(x), multipliers(x), violation(x), certificate(x), smoothed(x, eta)"))
        rows.append(("look", "slice(), surface(), stationarity(x, eta), convexity(), symbolic()"))
        return Card("f(x), the implicit function: call it for a value", rows)

    def __call__(self, x: Any) -> float:
        """Evaluate f(x); an ``hf.FeasibilityWarning`` names the upper constraints that its answer y(x) violates, if any mention y.

        Raises
        ------
        SettingError
            If x is not in X; the message says how far it is away, and which point of X is nearest.
        EmptyLowerSetError, LowerLevelError, DataError
            If Y(x) is empty, the lower level cannot be solved, or x has the wrong shape.
        """
        value = self._compiled.sign * float(self._evaluate(x).value) + 0.0  # no -0
        if self._compiled.coupled.conditions and (violated := self.violation(x).violated):
            told = "; ".join(map(str, violated))
            warn(FeasibilityWarning(f"x is not feasible: {told}. f is the objective alone."))
        return value

    def violation(self, x: Any) -> Violations:
        """What the answer y(x) violates of the upper constraints that mention y: by constraint, how much, and whose answer is worst.

        ``violation(x).feasible`` says whether x is feasible; it is empty where no constraint mentions y. Errors as for calling.
        """
        solution = self._evaluate(x).solution
        compiled = self._compiled
        return Violations() if solution is None else Violations.at(compiled, compiled.upper.flatten(x, "x"), solution.y)

    def response(self, x: Any) -> Any:
        """Evaluate y(x), in the shapes of ``Result.y``; None without a lower level. Errors as for calling."""
        solution = self._evaluate(x).solution
        return None if solution is None else public_response(self._compiled, np.array(solution.y))

    def certificate(self, x: Any) -> Certificate:
        """How the lower level is solved at x, and how accurately. Errors as for calling."""
        flat = self._point_of_x(x)
        with self._waits.at("f(x)"):
            return Certificate.of(self._compiled, flat, self._compiled.exact.at(flat))

    def multipliers(self, x: Any) -> dict[Any, Any]:
        """The multipliers of the constraints of Y(x) at x, by declared constraint; attributes such as nonneg=True come after them.

        Each has the shape and the sign of CVXPY's ``dual_value``: nonnegative for an inequality. With several owners of a y they
        come as ``Result.y`` does: ``(m, *shape)`` in client scope, a list over clients in sample scope. Where constraints are
        degenerate there are several multipliers, of which these are one choice.

        Raises
        ------
        IncompatibleSolverError
            If the lower level cannot be reduced to rows, second-order and semidefinite cones.
        EmptyLowerSetError, LowerLevelError, DataError, SettingError
            As for calling, and without a lower level.
        """
        from hierfl.inspect.implicit.multipliers import multipliers_at

        flat = self._point_of_x(x, "multipliers")
        with self._waits.at("multipliers"):
            return multipliers_at(self._compiled, flat)

    def project(self, x: Any) -> Any:
        """The nearest point of X, in the shapes of x: f can be asked there.

        Raises ``DataError`` for arrays of the wrong shape, ``SettingError`` for whole numbers and where no projection settles.

        Examples
        --------
        >>> ball = hf.Problem(hf.Minimize(clients=cp.sum(x)), constraints=[cp.norm(x) <= 1])
        >>> ball.implicit.project(np.array([3.0, 4.0])).round(9)
        array([0.6, 0.8])
        """
        from hierfl.compiler.starting_points import nearest_in_upper_set

        compiled = self._moving("a projection")
        return compiled.upper.unflatten(nearest_in_upper_set(compiled, compiled.upper.flatten(x, "x")))

    @double_precision
    def gradient(self, x: Any) -> Any:
        """The gradient of f at x by implicit differentiation, in the shapes of x.

        Where y(x) or a term has a kink that f does not see, that is f's gradient all the same. Kinks are not looked for where
        y(x) is iterated to.

        Raises
        ------
        NoGradientError
            Where f has none: its slopes differ, or are infinite.
        IncompatibleSolverError
            If the lower level is not smooth or has no projection to differentiate.
        EmptyLowerSetError, LowerLevelError, DataError
            As for calling.
        """
        from hierfl.inspect.implicit.beside import gradient_beside

        compiled, flat = self._moving("a gradient"), self._point_of_x(x, "gradient of f(x)")
        with self._waits.at("gradient of f(x)"):
            return compiled.upper.unflatten(compiled.sign * gradient_beside(compiled, flat))

    def jax(self, *parameters: Any) -> ImplicitLayer:
        """y and f as differentiable JAX functions of x and of these parameters: a layer.

        Parameters
        ----------
        *parameters
            Each a ``cp.Parameter`` or an ``hf.ClientParameter`` of the problem, given as an input at every call; it needs no value. The others
            keep the values that they have now. A lower level is convex for all values of an input: attributes such as ``nonneg=True`` say what they are.

        Returns
        -------
        ImplicitLayer
            ``f(x, theta)``, ``y(x, theta)`` and ``status(x, theta)``, for ``jax.jit``, ``jax.vmap`` and ``jax.grad``.

        Raises
        ------
        SettingError
            For what is no parameter of the problem, and x of whole numbers.
        NotConvexError
            If the lower level is convex for some values of a parameter only.
        IncompatibleSolverError
            Without a lower level, for games, prices and several levels; where kinks of y or of a term cannot be told.

        References
        ----------
        Amos and Kolter, OptNet, 2017; Agrawal et al., Differentiable convex optimization layers, 2019.

        Examples
        --------
        >>> layer = problem.implicit.jax()
        >>> float(layer.f(np.array([-2.0, 0.5])))
        1.0
        """
        from hierfl.inspect.implicit.layer import ImplicitLayer

        with self._waits.at("a layer"):
            return ImplicitLayer.of(self._declaration, parameters)

    def torch(self, *parameters: Any) -> TorchLayer:
        """The same as PyTorch functions, with tensors for arrays, batches by a further first axis, and ``backward``; arguments and errors as for ``jax``.

        Raises
        ------
        MissingPackageError
            Without PyTorch: ``pip install 'hierfl[torch]'``.
        """
        from hierfl.inspect.implicit.torch_layer import TorchLayer

        return TorchLayer(self.jax(*parameters))

    def slice(
        self,
        center: Any = None,
        direction: Any = None,
        radius: float = 1.0,
        points: int = 401,
        smoothing: float | Sequence[float] | None = None,
        *,
        samples: int = 256,
        seed: int = 0,
        tolerance: float = TOLERANCE,
        progress: bool = True,
        time_limit: float | None = None,
    ) -> Slice:
        """f(center + t direction) for t in [-radius, radius], the lower level solved exactly at every point.

        Parameters
        ----------
        center
            A point of X (default: the projection of 0), or a ``Result`` of this problem, whose iterates are shown as well.
        direction
            In the shapes of x, made a unit vector; by default the leading principal direction of the result's iterates, else a
            random unit vector of this seed, or one into X where that leaves X on both sides. ``chosen`` says which.
        radius
            Half the length of the window.
        points
            How many points, equally spaced, both ends included.
        smoothing
            eta, or several: f^eta is added, by Monte Carlo with ``samples`` antithetic draws in the ball, shared by all points.
        samples, seed
            How many draws, and of which seed.
        tolerance
            To what the lower level is solved; a looser one makes costly slices faster, and kinks coarser.
        progress
            Show a progress bar if it takes long.
        time_limit
            Seconds that the search for kinks may take, which begins when they are first asked for (default: no limit). Where it is not enough
            the slice has no kinks, and says so; its values are complete.

        Returns
        -------
        Slice
            Values, terms, responses; ``kinks``, ``gaps``, ``ties``, ``plot()``.

        Raises
        ------
        SettingError
            For a centre outside X, a direction that is zero, a radius, tolerance or time_limit that is not positive, a seed that is no
            whole number, a result of another problem.
        DataError
            For arrays of the wrong shape.
        """
        from hierfl.inspect.pictures.slice import slice_of

        compiled, line = self._moving("a slice", progress), (center, direction, radius, points)
        return slice_of(compiled, *line, smoothing, samples, seed, tolerance, progress, time_limit)

    def surface(
        self,
        center: Any = None,
        directions: Any = None,
        radius: float = 1.0,
        points: int = 101,
        *,
        seed: int = 0,
        tolerance: float = TOLERANCE,
        progress: bool = True,
    ) -> Surface:
        """f(center + s d_1 + t d_2) on a grid of ``points`` by ``points``, |s|, |t| <= radius.

        Parameters
        ----------
        center
            A point of X (default: the projection of 0), or a ``Result`` of this problem, whose iterates are shown as well.
        directions
            Two, each in the shapes of x, made orthonormal; by default the coordinates where x has two scalars, else the
            principal directions of the result's iterates, else random ones of this seed. ``chosen`` says which.
        radius, points, seed, tolerance, progress
            As for :meth:`slice`.

        Returns
        -------
        Surface
            ``value``, ``kink_points`` and ``plot()``.

        Raises
        ------
        SettingError, DataError
            As for :meth:`slice`; for an x of one scalar, and for parallel directions.
        """
        from hierfl.inspect.pictures.surface import surface_of

        compiled = self._moving("a surface", progress)
        return surface_of(compiled, center, directions, radius, points, seed, tolerance, progress)

    def stationarity(
        self, x: Any, eta: float, *, samples: int | None = None, tolerance: float = 1e-3, seed: int = 0, progress: bool = True
    ) -> Stationarity:
        """How stationary x is on X, from gradients sampled within eta of it (Goldstein's subdifferential).

        A normal of X at one of its points within eta counts as well.

        Parameters
        ----------
        x
            A point of X.
        eta
            The radius of the ball.
        samples
            How many gradients; by default 64, or twice the number of upper scalars if that is more.
        tolerance
            An absolute slope, in units of f per unit of x, with which the verdict compares ``distance``.
        seed, progress
            The seed of the sampling; whether to show a progress bar if it takes long.

        Returns
        -------
        Stationarity
            ``distance``, an upper bound on the distance to stationarity, and ||grad f^eta|| with its 95% interval.

        Raises
        ------
        IncompatibleSolverError
            If f has no implicit gradients.
        SettingError
            For a point outside X and arguments out of range.
        """
        from hierfl.inspect.implicit.stationarity import stationarity_of

        return stationarity_of(self._moving("stationarity", progress), x, eta, samples, tolerance, seed, progress)

    def convexity(
        self, center: Any, radius: float = 1.0, *, samples: int = 256, seed: int = 0, progress: bool = True
    ) -> Midpoints:
        """Search the ball for a violated midpoint inequality f((a + b) / 2) <= (f(a) + f(b)) / 2, of f convex.

        Where f is maximised the inequality is the reverse, of f concave: what is minimised is -f.

        Parameters
        ----------
        center, radius
            The ball's; points are projected on X.
        samples
            Pairs in each of 13 turns: the first all over the ball, the others around the worst pair so far.
        seed, progress
            The seed of the sampling; whether to show a progress bar if it takes long.

        Returns
        -------
        Midpoints
            The witness, or the pair that comes closest; no violation proves nothing.

        Raises
        ------
        SettingError
            For a point outside X and arguments out of range.
        """
        from hierfl.inspect.implicit.smoothing import midpoints_of

        return midpoints_of(self._moving("convexity", progress), center, radius, samples, seed, progress)

    def smoothed(self, x: Any, eta: float, samples: int = 1000, seed: int = 0) -> float:
        """f^eta(x) = E f(x + eta u), u uniform in the unit ball, from ``samples`` antithetic draws (Monte Carlo), one more if that is odd.

        f is queried at projections on X, as algorithms do by default.

        Raises
        ------
        SettingError
            If eta is not positive, there are fewer than four samples, or the seed is no whole number of at least 0.
        EmptyLowerSetError, LowerLevelError, DataError
            As for calling, at a drawn point.
        """
        from hierfl.inspect.implicit.smoothing import smoothed_at

        compiled = self._moving("f^eta")
        with self._waits.at("f^eta(x)"):
            return smoothed_at(compiled, x, eta, samples, seed)

    def symbolic(self) -> SymbolicView:
        """y(x) and f(x) as SymPy formulas, with kinks and one-sided derivatives exact, for small separable problems.

        The lower level must be separable, ``sum h_i(x) y_i^2 / 2 + g_i(x) y_i`` (or an equilibrium with that derivative),
        over bounds ``l_i(x) <= y_i <= u_i(x)`` or, with one curvature h for all entries, over a ball; x may enter in any way
        that SymPy can solve for. Without a lower level f is the declared objective itself. What is returned has been
        compared with this function at random points of X, and holds on X.

        Raises
        ------
        SymbolicError
            Where no formula is derived: the problem has data, more than 200 scalars or more than 20 of x in one term,
            entries of y that meet in the objective or in a constraint, or an atom that SymPy cannot treat; the message says
            which.
        """
        from hierfl.inspect.symbolic.derivation import symbolic

        compiled = self._compiled
        with self._waits.at("formulas"):
            return symbolic(compiled)

    @property
    def _compiled(self) -> CompiledProblem:
        return self._compiled_when_asked()

    def _moving(self, what: str, progress: bool = True) -> CompiledProblem:
        """The same for what moves x, as no whole numbers are."""
        from hierfl.analysis.variable_bounds import require_continuous

        compiled = self._compiled_when_asked(progress=progress)
        require_continuous(compiled.upper.variables, what)
        return compiled

    def _point_of_x(self, x: Any, asked: str = "f(x)") -> np.ndarray:
        """The flat x, in X: f is not declared elsewhere, whatever its formula gives there; ``asked`` is what is shown while it waits."""
        from hierfl.compiler.compiled_problem import verify_sets
        from hierfl.compiler.starting_points import require_in_upper_set

        compiled = self._compiled
        flat = compiled.upper.flatten(x, "x")
        with self._waits.at(asked):
            verify_sets(compiled, outside=True)
            require_in_upper_set(compiled, flat)
        return flat

    def _evaluate(self, x: Any) -> Evaluation:
        """The evaluation at x, kept with the problem; that of a ``BlackBox`` is not, which may answer differently each time."""
        compiled = self._compiled
        known: OrderedDict[Hashable, Evaluation] = compiled.programs.keep("known values", OrderedDict)
        key = compiled.upper.flatten(x, "x").tobytes(), compiled.parameter_values
        if (found := known.get(key)) is not None:
            return found
        with computing(double=True):  # entered once, for all that is asked
            point = self._point_of_x(x)
            with self._waits.at("f(x)"):
                evaluation = compiled.exact.at(point)
            warn_of_doubts(compiled, point, evaluation)
        objective, level = compiled.declaration.objective, compiled.declaration.lower_level
        repeatable = uses_black_box([*objective.terms, *(level.expressions if level else ())]) is None
        if repeatable and sum(np.size(leaf) for leaf in jax.tree.leaves(evaluation)) <= LARGEST:
            known[key] = evaluation
            while len(known) > LATEST:
                known.popitem(last=False)  # in one piece, whatever other threads do
        return evaluation
