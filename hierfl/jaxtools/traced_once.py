"""A function that is traced once for arguments of a shape, and whose equations are copied wherever other programs call it.

Tracing Python code takes several times as long as copying its equations, under ``jax.vmap`` above all, and every question about a problem
(values, slopes, kinks, a search) is a program around the same evaluation of f.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from hierfl.jaxtools.cheap_jit import traced_for_numpy
from hierfl.jaxtools.precision import is_double


class TracedOnce:
    """The function, to be called within programs; its trace also depends on the precision, and on whether NumPy will run it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._traced: dict[Any, tuple[Callable[..., list[jax.Array]], Any]] = {}

    def __call__(self, *arguments: Any) -> Any:
        """The function's result; arguments are trees of arrays and numbers."""
        leaves, form = jax.tree.flatten(arguments)
        arrays = [jnp.asarray(leaf) for leaf in leaves]
        key = form, tuple((array.shape, array.dtype) for array in arrays), is_double(), traced_for_numpy()
        if key not in self._traced:
            shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
            program, result = jax.make_jaxpr(self.function, return_shape=True)(*jax.tree.unflatten(form, shapes))
            self._traced[key] = jaxpr_as_fun(program), jax.tree.structure(result)
        apply, structure = self._traced[key]
        return jax.tree.unflatten(structure, apply(*arrays))
