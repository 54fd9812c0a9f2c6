"""ZO-HFL on the digits, history and a metric on, against the bare loop written by hand in JAX for this one problem.

The paper's settings: minibatches of 128 at the server and 1 at the clients, ceil(20 sqrt(r + 1)) local steps in round r.
``python -m tests.benchmarks.end_to_end``.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import hierfl as hf
from hierfl.models import ClassificationData, heterogeneous_classification
from hierfl.progress import RunProgress
from hierfl.run_settings import RunSettings
from hierfl.runtime.in_process.execution import InProcess
from hierfl.runtime.records import Limits
from hierfl.runtime.run import Watch
from hierfl.solvers import ZOHFL, Decay, ProjectedSGD
from tests.benchmarks.harness import Row, least_times, publish

ROUNDS, ETA, MU, LAM, TAU, SERVER_BATCH = 100, 0.1, 0.1, 1.0, 20, 128


def bare(problem: hf.Problem) -> object:
    """The same algorithm on the same data as one compiled loop, without history, errors or metrics."""
    image, label = problem.federation.clients[0].samples
    held = [(c.samples[image], c.samples[label]) for c in problem.federation.clients]
    server = tuple(jnp.asarray(problem.federation.server.samples[s], float) for s in (image, label))
    first = jnp.asarray(np.cumsum([0, *(len(a) for a, _ in held[:-1])]))
    counts, clients = jnp.asarray([len(a) for a, _ in held]), len(held)
    images, labels = (jnp.asarray(np.concatenate([pair[k] for pair in held]), float) for k in (0, 1))
    shape = (labels.shape[1], images.shape[1])
    size = shape[0] * shape[1]

    def loss(w: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
        scores = w @ a
        return jax.nn.logsumexp(scores) - b @ scores

    def answers(key: jax.Array, client: jax.Array, points: jax.Array, starts: jax.Array, steps: jax.Array) -> jax.Array:
        def step(t: jax.Array, models: jax.Array) -> jax.Array:
            row = first[client] + jax.random.randint(jax.random.fold_in(key, t), (), 0, counts[client])
            slope = jax.vmap(jax.grad(loss), (0, None, None))(models, images[row], labels[row])
            return models - 0.1 / (t + 1) * (slope + MU * (models - points))

        return jax.lax.fori_loop(0, steps, step, starts)

    def one_round(
        r: jax.Array, state: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        x, warm, key = state
        v_key, s_key, c_key = jax.random.split(jax.random.fold_in(key, r), 3)
        v = jax.random.normal(v_key, (clients, *shape))
        v = v / jnp.sqrt(jnp.sum(v**2, axis=(1, 2), keepdims=True))
        rows = jax.random.randint(s_key, (SERVER_BATCH,), 0, len(server[0]))
        mean = jax.grad(lambda w: jnp.mean(jax.vmap(loss, (None, 0, 0))(w, server[0][rows], server[1][rows])))(x)
        steps = jnp.ceil(TAU * jnp.sqrt(r + 1.0)).astype(int)

        def client(i: jax.Array) -> tuple[jax.Array, jax.Array]:
            points = jnp.stack([x + ETA * v[i], x - ETA * v[i]])
            found = answers(jax.random.fold_in(c_key, i), i, points, jnp.stack([warm[i]] * 2), steps)
            values = 0.5 * LAM * jnp.sum((points - found) ** 2, axis=(1, 2))
            return found.mean(axis=0), values[0] - values[1]

        warm, differences = jax.lax.map(client, jnp.arange(clients))
        estimate = size / (2 * ETA) * jnp.tensordot(differences / clients, v, axes=1)
        return x - 0.01 / jnp.sqrt(r + 1.0) * (mean + estimate), warm, key

    @jax.jit
    def run(seed: jax.Array) -> jax.Array:
        start = jnp.zeros(shape), jnp.zeros((clients, *shape)), jax.random.key(seed)
        return jax.lax.fori_loop(0, ROUNDS, one_round, start)[0]

    return run


def main() -> None:
    """Print the rows."""
    digits = load_digits()
    data = ClassificationData(digits.data / 16.0, digits.target)
    scheme = hf.Dirichlet(1000.0, labels=data.labels, min_samples=10)
    problem = heterogeneous_classification(data, clients=10, scheme=scheme, lam=LAM, mu=MU, seed=0)
    lower = ProjectedSGD(steps=Decay(TAU, -0.5), step_size=Decay(0.1, 1.0), batch_size=1)
    solver = ZOHFL(ETA, Decay(0.01, 0.5), batch_size=SERVER_BATCH, lower=lower)
    compiled, metrics = problem.compile(), {"size": lambda x, y: float(np.linalg.norm(x))}
    with jax.enable_x64(True):
        algorithm, by_hand = solver.bind(compiled, ROUNDS), bare(problem)

    def of_hierfl() -> None:
        with jax.enable_x64(True):
            start = np.zeros(compiled.upper.size)
            bar = RunProgress(ROUNDS, "ZOHFL", False)
            watch = Watch(
                compiled, solver, algorithm, RunSettings(rounds=ROUNDS, metrics=metrics), Limits(), bar, start
            )
            InProcess().execute(compiled, algorithm, start, ROUNDS, 0, 10, watch)

    def of_hand() -> None:
        with jax.enable_x64(True):
            by_hand(0).block_until_ready()

    found = least_times({"hierfl": of_hierfl, "hand": of_hand}, repeats=5)
    note = f"{1e3 * found['hierfl'] / ROUNDS:.2f} ms a round against {1e3 * found['hand'] / ROUNDS:.2f}"
    publish(
        [
            Row(
                "ZO-HFL on the digits, history and metric, over the bare loop",
                found["hierfl"] / found["hand"],
                1.3,
                note=note,
            )
        ]
    )


if __name__ == "__main__":
    main()
