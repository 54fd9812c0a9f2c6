"""JAX, SymPy and what is built on them, loaded when an atom first needs them: ``import hierfl`` loads neither."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hierfl.jaxtools.lazy_module import LazyModule

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    import jax.scipy as jsp
    import sympy
    from jax.scipy import special

    from hierfl.atoms.numerics import safe, spectral_values
else:
    jax, jnp, jsp, special = map(LazyModule, ("jax", "jax.numpy", "jax.scipy", "jax.scipy.special"))
    sympy, safe = map(LazyModule, ("sympy", "hierfl.atoms.numerics.safe"))
    spectral_values = LazyModule("hierfl.atoms.numerics.spectral_values")

__all__ = ["jax", "jnp", "jsp", "safe", "special", "spectral_values", "sympy"]
