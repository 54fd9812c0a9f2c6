"""A data set for benchopt's ``benchmark_bilevel`` that needs no download: copy this file to the benchmark's ``datasets/``.

Logistic regression with a penalty of each feature, half of which tell nothing: the regularisation problem of the benchmark, as of ijcnn1.
"""

from benchopt import BaseDataset, safe_import_context

with safe_import_context() as import_ctx:
    from functools import partial

    import jax
    import jax.numpy as jnp
    import numpy as np


class Dataset(BaseDataset):
    """Rows of features of sizes between 1 and a tenth, and noisy signs."""

    name = "simulated penalties"
    parameters = {"n_samples": [2048], "n_features": [22], "random_state": [0]}  # noqa: RUF012

    def get_data(self):
        """The two levels, with minibatches from ``start``, and metrics with the lower level solved."""
        rng, n, d = np.random.default_rng(self.random_state), self.n_samples, self.n_features
        features = rng.standard_normal((2 * n, d)) * np.geomspace(1.0, 0.1, d)
        labels = np.sign(features @ (rng.standard_normal(d) * (rng.random(d) < 0.5)) + 0.5 * rng.standard_normal(2 * n))
        rows_below, rows_above = ((features[s], labels[s]) for s in (slice(n), slice(n, None)))
        below, above = (tuple(map(jnp.asarray, rows)) for rows in (rows_below, rows_above))

        def loss(inner, rows, start, batch_size):
            x, y = (jax.lax.dynamic_slice_in_dim(part, start, batch_size) for part in rows)
            return jnp.mean(jax.nn.softplus(-y * (x @ inner)))

        @partial(jax.jit, static_argnames="batch_size")
        def f_inner(inner_var, outer_var, start=0, batch_size=1):
            return loss(inner_var, below, start, batch_size) + jnp.dot(jnp.exp(outer_var) * inner_var, inner_var) / 2

        @partial(jax.jit, static_argnames="batch_size")
        def f_outer(inner_var, outer_var, start=0, batch_size=1):
            return loss(inner_var, above, start, batch_size)

        whole_inner, whole_outer = (partial(f, start=0, batch_size=n) for f in (f_inner, f_outer))

        def derivatives(inner, rows):
            x, y = rows
            margin = y * (x @ inner)
            share = np.exp(-np.logaddexp(0.0, margin))
            return np.logaddexp(0.0, -margin).mean(), x.T @ (-y * share) / n, (x.T * (share * (1 - share))) @ x / n

        def metrics(inner_var, outer_var):
            """f and its gradient, the lower level solved by damped Newton steps in double precision: penalties differ by powers of ten."""
            penalty, inner = np.exp(np.asarray(outer_var, float)), np.zeros(d)
            for _ in range(200):
                loss, slope, hessian = derivatives(inner, rows_below)
                slope, hessian = slope + penalty * inner, hessian + np.diag(penalty)
                step, share = -np.linalg.solve(hessian, slope), 1.0
                value = loss + penalty @ inner**2 / 2
                while derivatives(inner + share * step, rows_below)[0] + penalty @ (inner + share * step) ** 2 / 2 > value + 1e-4 * share * slope @ step + 1e-15:
                    share /= 2
                inner = inner + share * step
                if np.abs(slope).max() < 1e-12:
                    break
            found, slope, _ = derivatives(inner, rows_above)
            gradient = -penalty * inner * np.linalg.solve(hessian, slope)
            return dict(value_func=float(found), value=float(gradient @ gradient))

        def init_var(key):
            first, second = jax.random.split(key)
            return jax.random.normal(first, (d,)), jnp.log(jax.random.uniform(second, (d,)))

        inner, outer = (f_inner, n, d, whole_inner), (f_outer, n, d, whole_outer)
        return dict(pb_inner=inner, pb_outer=outer, metrics=metrics, init_var=init_var)
