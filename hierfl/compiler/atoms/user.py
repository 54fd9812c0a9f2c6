"""The user's own code: ``Function`` (JAX) and ``BlackBox`` (NumPy on the host, values only)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hierfl.compiler.registry import lowers
from hierfl.errors import DeclarationError
from hierfl.language.function import BlackBox, Function


@lowers(Function)
def _function(atom: Any, *values: Any) -> Any:
    result = jnp.asarray(atom.callable(*values))
    if result.shape != atom.declared_shape:
        raise DeclarationError(
            f"hf.Function {atom.label_name!r} returned an array of shape {result.shape}; declared shape={atom.declared_shape}."
        )
    return result


@lowers(BlackBox)
def _black_box(atom: Any, *values: Any) -> Any:
    def on_host(*arrays: np.ndarray) -> np.ndarray:
        result = np.asarray(atom.callable(*map(np.asarray, arrays)))
        if result.shape != atom.declared_shape:
            raise DeclarationError(
                f"hf.BlackBox {atom.label_name!r} returned an array of shape {result.shape}; declared shape={atom.declared_shape}."
            )
        return result.astype(values[0].dtype)

    @jax.custom_jvp
    def call(*arrays: Any) -> Any:
        out = jax.ShapeDtypeStruct(atom.declared_shape, arrays[0].dtype)
        return jax.pure_callback(on_host, out, *arrays, vmap_method="sequential")

    @call.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        raise DeclarationError(
            f"hf.BlackBox {atom.label_name!r} has values only and was asked for a gradient: use it in a term that a zeroth-order "
            f"algorithm such as ZOHFL only evaluates, or write it for JAX as a hf.Function."
        )

    return call(*values)
