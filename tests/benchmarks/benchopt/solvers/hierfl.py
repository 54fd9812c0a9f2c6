"""hierfl as a solver of benchopt's ``benchmark_bilevel``: copy this file to the benchmark's ``solvers/``."""

from benchopt import BaseSolver, safe_import_context
from benchopt.stopping_criterion import SufficientProgressCriterion

with safe_import_context() as import_ctx:
    import cvxpy as cp
    import numpy as np
    from benchmark_utils import constants

    import hierfl as hf


class Solver(BaseSolver):
    """Exact implicit gradients in a bundle: what ``Problem.solve()`` chooses where all data are here. It has no settings."""

    name = "hierfl"
    requirements = ["pip:hierfl"]  # noqa: RUF012 (benchopt wants a list)
    stopping_criterion = SufficientProgressCriterion(patience=constants.PATIENCE, strategy="callback")

    @staticmethod
    def get_next(stop_val):
        """Ask after every round."""
        return stop_val + 1

    def set_objective(self, f_inner, f_outer, n_inner_samples, n_outer_samples, inner_var0, outer_var0):
        """Declare the problem, and compile it by two rounds."""
        x, y = cp.Variable(outer_var0.shape, name="x"), cp.Variable(inner_var0.shape, name="y")
        below = hf.Function(lambda y, x: f_inner(y, x, start=0, batch_size=n_inner_samples), y, x, convex=True, name="f_inner")
        above = hf.Function(lambda y, x: f_outer(y, x, start=0, batch_size=n_outer_samples), y, x, name="f_outer")
        self.problem = hf.Problem(hf.Minimize(clients=above), lower=hf.ArgMin(y, below))
        self.inner_var0, self.outer_var0 = inner_var0, outer_var0
        self.run_once(2)

    def run(self, callback):
        """Rounds until benchopt has seen enough; at rest there is nothing more to do."""
        self.inner_var, self.outer_var = self.inner_var0, self.outer_var0

        def seen(round_, x, y):
            self.inner_var, self.outer_var = y, x
            return not callback()

        if callback():
            x0 = np.asarray(self.outer_var0, float)
            self.problem.solve(x0=x0, callback=seen, evaluate_every=1, progress=False)

    def get_result(self):
        """The variables where the last round ended."""
        return dict(inner_var=self.inner_var, outer_var=self.outer_var)
