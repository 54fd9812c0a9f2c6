"""What JAX traces of a lower level on the host: the quadratic model, the force of what is smooth, and how both move with x."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from hierfl.compiler.host.standard_form import StandardForm
from hierfl.compiler.lower_level.on_host.averaged_form import AveragedForm
from hierfl.compiler.lower_level.on_host.owner_terms import OwnerTerms
from hierfl.compiler.lower_level.owner import Held

VANISHED = 1e-60  # of the largest second derivative


@dataclass(frozen=True)
class TracedModel:
    """One problem's standard form and smooth terms as functions of x and of what an owner holds.

    ``interior`` says that what is smooth may grow without bound where it ends, ``roots`` that its second derivative may be infinite inside.
    """

    form: StandardForm | AveragedForm
    terms: OwnerTerms
    interior: bool = False
    roots: bool = False

    def model(self, x: Array, held: Held) -> tuple[Array, ...]:
        """(H, g, A, b) of an affine F."""
        curved, linear, a, b = self.cone_model(x, held)
        size = self.form.size
        zero = jnp.zeros(size)
        slope = jax.jacfwd(lambda y: self.terms.force(x, held, y))(zero)
        force = self.terms.force(x, held, zero)
        return curved.at[:size, :size].add(slope), linear.at[:size].add(force), a, b

    def cone_model(self, x: Array, held: Held) -> tuple[Array, ...]:
        """(H, g, A, b) of the standard form alone."""
        values, zero = self._values(x, held), jnp.zeros(self.form.width)

        def gradient(u: Array) -> Array:
            return jax.grad(lambda v: self.form.cost(values, v))(u)

        a = jax.jacfwd(lambda u: self.form.slack(values, u))(zero)
        if not self.form.costs:
            return jnp.zeros((self.form.width, self.form.width)), zero, a, self.form.slack(values, zero)
        return jax.jacfwd(gradient)(zero), gradient(zero), a, self.form.slack(values, zero)

    @property
    def reach(self) -> int:
        """How many of the first entries of u the smooth cost is about: those of y, or all."""
        return self.form.width if self.form.curves else self.form.size

    def force(self, x: Array, held: Held, u: Array) -> tuple[Array, Array]:
        """(the force of what is smooth at the first ``reach`` entries of u, its derivative in them)."""
        slope = jax.jacfwd(lambda v: self._force(x, held, v))(u)
        if (
            self.form.curves
        ):  # what vanishes in a bound on the way to 0 is no curvature, in whose units the rest would be told
            bounds = jnp.arange(len(u)) >= self.form.size
            faint = jnp.abs(slope) < VANISHED * jnp.max(jnp.abs(slope))
            slope = jnp.where(faint & (bounds | bounds[:, None]), 0.0, slope)
        return self._force(x, held, u), slope

    def _force(self, x: Array, held: Held, u: Array) -> Array:
        size = self.form.size
        on_y = self.terms.force(x, held, u[:size])
        if not self.form.curves:
            return on_y
        values = self._values(x, held)
        cost, slope = jax.value_and_grad(lambda v: self.form.curved_cost(values, v))(u)
        return jnp.where(jnp.isfinite(cost), slope, jnp.nan).at[:size].add(on_y)

    def cost_sizes(self, x: Array, held: Held, u: Array) -> Array:
        """The sizes of what is smooth in the cost, at y = 0 and at the first ``reach`` entries of u."""
        y = u[: self.form.size]
        sizes = [self.terms.cost(x, held, at) for at in (jnp.zeros_like(y), y)]
        if self.form.curves:
            sizes.append(self.form.curved_cost(self._values(x, held), u))
        return jnp.abs(jnp.stack(sizes))

    def _lagrangian(self, x: Array, held: Held, u: Array, z: Array) -> tuple[Array, Array]:
        """(G - E'z, e) at u."""
        conic, e = self._conic(x, held, u, z)
        return conic.at[: self.form.size].add(self.terms.force(x, held, u[: self.form.size])), e

    def _conic(self, x: Array, held: Held, u: Array, z: Array, costly: bool = True) -> tuple[Array, Array]:
        """(the standard form's part of G - E'z, or -E'z alone, and e) at u."""
        values = self._values(x, held)

        def lagrangian(v: Array) -> Array:
            pulled = z @ self.form.slack(values, v)
            return self.form.cost(values, v) + self.form.curved_cost(values, v) - pulled if costly else -pulled

        return jax.grad(lagrangian)(u), self.form.slack(values, u)

    def push(self, x: Array, held: Held, u: Array, z: Array, r: Array) -> tuple[Array, Array]:
        """How (G - E'z, e) moves with x along r."""
        moved: tuple[Array, Array] = jax.jvp(lambda at: self._lagrangian(at, held, u, z), (x,), (r,))[1]
        return moved

    def pull(self, x: Array, held: Held, u: Array, z: Array, v: Array, w: Array) -> Array:
        """The gradient in x of (v, w) times (G - E'z, e)."""
        size = self.form.size
        pulled: Array = jax.vjp(lambda at: self._conic(at, held, u, z), x)[1]((v, w))[0]
        return pulled + self.terms.pull_of_force(x, held, u[:size], v[:size])

    def push_selected(self, x: Array, held: Held, u: Array, z: Array, r: Array, sign: Array) -> tuple[Array, Array]:
        """The same where y is chosen among several solutions by the upper objective, times ``sign``."""

        def lagrangian(at: Array) -> tuple[Array, Array]:
            conic, e = self._conic(at, held, u, z, costly=False)
            return conic.at[:size].add(sign * self.terms.upper_gradient(at, held, u[:size])), e

        size = self.form.size
        moved: tuple[Array, Array] = jax.jvp(lagrangian, (x,), (r,))[1]
        return moved

    def pull_selected(self, x: Array, held: Held, u: Array, z: Array, v: Array, w: Array, sign: Array) -> Array:
        """The gradient in x of (v, w) times that."""
        size = self.form.size
        pulled: Array = jax.vjp(lambda at: self._conic(at, held, u, z, costly=False), x)[1]((v, w))[0]
        return pulled + sign * self.terms.pull_of_upper_gradient(x, held, u[:size], v[:size])

    def upper_slopes(self, x: Array, held: Held, y: Array) -> tuple[Array, Array]:
        def gradient(v: Array) -> Array:
            return self.terms.upper_gradient(x, held, v)

        return gradient(y), jax.jacfwd(gradient)(y)

    def _values(self, x: Array, held: Held) -> Any:
        environment = self.terms.oracles.environment(x, None, held.own)
        if isinstance(self.form, AveragedForm):
            assert held.data is not None  # or there would be nothing to average
            return self.form.values(environment, held.data.clients)
        return self.form.values(environment)
