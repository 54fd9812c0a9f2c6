"""A data set for benchopt's ``benchmark_bilevel`` that needs no download: copy this file to the benchmark's ``datasets/``.

Logistic regression with a penalty of each feature, half of which tell nothing: the regularisation problem of the benchmark, as of ijcnn1.
"""

from benchopt import BaseDataset, safe_import_context

with safe_import_context() as import_ctx:
    from functools import partial

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jaxopt import LBFGS


class Dataset(BaseDataset):
    """Rows of features of sizes between 1 and a tenth, and noisy signs."""

    name = "simulated penalties"
    requirements = ["pip::jaxopt"]  # noqa: RUF012 (benchopt wants a list)
    parameters = {"n_samples": [2048], "n_features": [22], "random_state": [0]}  # noqa: RUF012

    def get_data(self):
        """The two levels, with minibatches from ``start``, and metrics with the lower level solved."""
        rng, n, d = np.random.default_rng(self.random_state), self.n_samples, self.n_features
        features = rng.standard_normal((2 * n, d)) * np.geomspace(1.0, 0.1, d)
        labels = np.sign(features @ (rng.standard_normal(d) * (rng.random(d) < 0.5)) + 0.5 * rng.standard_normal(2 * n))
        below, above = ((jnp.asarray(features[s]), jnp.asarray(labels[s])) for s in (slice(n), slice(n, None)))

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
        solver = LBFGS(fun=whole_inner)

        @jax.jit
        @jax.value_and_grad
        def value(outer_var):
            return whole_outer(solver.run(jnp.zeros(d), outer_var).params, outer_var)

        def metrics(inner_var, outer_var):
            found, gradient = value(jnp.asarray(outer_var))
            return dict(value_func=float(found), value=float(jnp.linalg.norm(gradient) ** 2))

        def init_var(key):
            first, second = jax.random.split(key)
            return jax.random.normal(first, (d,)), jnp.log(jax.random.uniform(second, (d,)))

        inner, outer = (f_inner, n, d, whole_inner), (f_outer, n, d, whole_outer)
        return dict(pb_inner=inner, pb_outer=outer, metrics=metrics, init_var=init_var)
