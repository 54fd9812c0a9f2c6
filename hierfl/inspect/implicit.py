"""The implicit function f(x) of a problem: its values, its response y(x), and its smoothing f^eta."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from hierfl.compiler.hypergradient import gradient_on_host
from hierfl.compiler.precision import double_precision
from hierfl.errors import SettingError
from hierfl.result import Certificate, public_response

if TYPE_CHECKING:
    from hierfl.compiler.exact import Evaluation
    from hierfl.inspect.symbolic.view import SymbolicView
    from hierfl.problem import Problem


class ImplicitFunction:
    """f(x) = f_1(x) + sum_i w_i f_i(x, y_i(x)) with the lower level solved exactly.

    ``x`` is an array for one upper variable, else ``{variable: array}``.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    def __call__(self, x: Any) -> float:
        """f(x).

        Raises
        ------
        EmptyLowerSetError, LowerLevelError, DataError
            If Y(x) is empty, the lower level cannot be solved, or x has the wrong shape.
        """
        return self._compiled.sign * float(self._evaluate(x).value)

    def response(self, x: Any) -> Any:
        """y(x), in the shapes of ``Result.y``; None without a lower level. Errors as for calling."""
        solution = self._evaluate(x).solution
        return None if solution is None else public_response(self._compiled, solution.y)

    def certificate(self, x: Any) -> Certificate:
        """How the lower level is solved at x, and how accurately. Errors as for calling."""
        return Certificate.of(self._compiled, self._evaluate(x))

    @double_precision
    def gradient(self, x: Any) -> Any:
        """The gradient of f at x by implicit differentiation, in the shapes of x.

        Exact where the active constraints and the branches of nonsmooth atoms are locally constant; at a kink an element
        that depends on conventions (see ``hierfl.compiler.hypergradient``).

        Raises
        ------
        IncompatibleSolverError
            If the lower level is not smooth or has no projection to differentiate.
        EmptyLowerSetError, LowerLevelError, DataError
            As for calling.
        """
        compiled = self._compiled
        flat = compiled.upper.flatten(x, "x")
        return compiled.upper.unflatten(compiled.sign * gradient_on_host(compiled, flat)[1])

    @double_precision
    def smoothed(self, x: Any, eta: float, samples: int = 1000, seed: int = 0) -> float:
        """f^eta(x) = E f(x + eta u), u uniform in the unit ball, from ``samples`` antithetic draws (Monte Carlo).

        f is queried at projections on X, as algorithms do by default.

        Raises
        ------
        SettingError
            If eta is not positive or there are fewer than two samples.
        """
        if not eta > 0 or samples < 2:
            raise SettingError(f"smoothed needs eta > 0 and at least 2 samples; got eta={eta}, samples={samples}.")
        compiled = self._compiled
        center = compiled.upper.flatten(x, "x")
        rng = np.random.default_rng(seed)
        normal = rng.standard_normal((samples // 2, center.size))
        radius = rng.random((samples // 2, 1)) ** (1 / center.size)
        shifts = eta * radius * normal / np.linalg.norm(normal, axis=1, keepdims=True)
        public = {p.id: jnp.asarray(p.value, float) for p in self._problem.roles.parameters}
        warm, values = None, []
        for shift in np.concatenate([shifts, -shifts]):
            evaluation = compiled.exact.at(
                np.asarray(compiled.project_upper(jnp.asarray(center + shift), public)), warm
            )
            warm = None if evaluation.solution is None else evaluation.solution.y
            values.append(float(evaluation.value))
        return compiled.sign * float(np.mean(values))

    def symbolic(self) -> SymbolicView:
        """y(x) and f(x) as SymPy formulas, with kinks and one-sided derivatives exact, for small separable problems.

        The lower level must be separable, ``sum h_i(x) y_i^2 / 2 + g_i(x) y_i`` (or an equilibrium with that derivative),
        over bounds ``l_i(x) <= y_i <= u_i(x)`` or, with one curvature h for all entries, over a ball; x may enter in any way
        that SymPy can solve for. Without a lower level f is the declared objective itself. What is returned has been
        compared with this function at random points of X, and holds on X.

        Raises
        ------
        SymbolicError
            Where no formula is derived: the problem has data, more than 20 scalars, entries of y that meet in the objective
            or in a constraint, or an atom that SymPy cannot treat; the message says which.
        """
        from hierfl.inspect.symbolic.view import symbolic

        return symbolic(self._problem)

    @property
    def _compiled(self) -> Any:
        return self._problem.compile()

    def _evaluate(self, x: Any) -> Evaluation:
        return self._compiled.exact.at(self._compiled.upper.flatten(x, "x"))
