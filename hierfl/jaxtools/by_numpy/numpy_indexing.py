"""Gathers and scatters of JAX in NumPy: windows of arrays, told by where they start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Made = Callable[..., Any]
Maker = Callable[[Any], Made]  # of an equation of a jaxpr


class Indexing:
    """A gather or scatter; its second argument says where, which is worked out once where it never changes.

    ``fixed`` makes of indices a function of the other arguments, and of whatever is given in the indices' place.
    """

    def __init__(self, fixed: Callable[[Any], Made]) -> None:
        self._fixed = fixed

    def __call__(self, x: Any, indices: Any, *updates: Any) -> Any:
        """Of arrays in the order of JAX's primitive."""
        return self._fixed(indices)(x, indices, *updates)

    def at(self, indices: Any) -> Made:
        """The same for these indices."""
        return self._fixed(indices)


def _places(shape: Any, sizes: Any, indices: Any, mapped: Any, batching: Any, index_batching: Any) -> tuple[Any, Any]:
    """(the place of every entry, counted along all dimensions of the operand; whether its window fits), both (*batch, *sizes).

    ``indices`` (*batch, k) holds where windows of these sizes start along the dimensions ``mapped``.
    """
    batch = indices.shape[:-1]
    flat, fits = np.zeros((*batch, *sizes), int), np.ones(batch, bool)
    for d, (n, size) in enumerate(zip(shape, sizes)):
        start = np.zeros(batch, int)
        if d in mapped:
            start = indices[..., mapped.index(d)].astype(int)
            fits &= (start >= 0) & (start <= n - size)
            start = np.clip(start, 0, n - size)
        elif d in batching:
            axis = index_batching[batching.index(d)]
            start = np.arange(n).reshape([-1 if k == axis else 1 for k in range(len(batch))]) + start
        along = [1] * (len(batch) + len(sizes))
        along[len(batch) + d] = size
        flat = flat * n + (start.reshape(*batch, *[1] * len(sizes)) + np.arange(size).reshape(along))
    return flat, np.broadcast_to(fits.reshape(*batch, *[1] * len(sizes)), flat.shape)


def gather(equation: Any) -> Made:
    """Take windows of an array."""
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    fill, mode = equation.params["fill_value"], str(equation.params["mode"])
    shape, out = equation.invars[0].aval.shape, equation.outvars[0].aval
    offsets, gone = numbers.offset_dims, {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    filling = "FILL" in mode
    missing = (
        fill
        if fill is not None
        else np.nan
        if np.issubdtype(out.dtype, np.inexact)
        else np.iinfo(out.dtype).min
        if np.issubdtype(out.dtype, np.signedinteger)
        else 0
    )

    def fixed(indices: Any) -> Made:
        """Every entry of the result is one of the operand, counted along all its dimensions, or is missing."""
        mapped, batching, theirs = (
            numbers.start_index_map,
            numbers.operand_batching_dims,
            numbers.start_indices_batching_dims,
        )
        flat, fits = _places(shape, sizes, indices, mapped, batching, theirs)
        batch = indices.shape[:-1]

        def laid_out(entries: Any) -> Any:
            entries = entries.reshape(*batch, *(s for d, s in enumerate(sizes) if d not in gone))
            windows, places = iter(range(len(batch), entries.ndim)), iter(range(len(batch)))
            return entries.transpose([next(windows) if k in offsets else next(places) for k in range(entries.ndim)])

        flat = laid_out(flat)
        if not filling or fits.all():
            return lambda x, *_: x.take(flat)
        there = laid_out(fits)
        return lambda x, *_: np.where(there, x.take(flat), missing)

    return Indexing(fixed)


def scatter(ufunc: Any) -> Maker:
    """Put windows into an array, or combine them with what is there by a function of NumPy's."""

    def make(equation: Any) -> Made:
        numbers = equation.params["dimension_numbers"]
        shape, update_shape = equation.invars[0].aval.shape, equation.invars[2].aval.shape
        gone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
        windows = list(numbers.update_window_dims)
        batch = [k for k in range(len(update_shape)) if k not in windows]
        left = iter(windows)
        sizes = [1 if d in gone else update_shape[next(left)] for d in range(len(shape))]
        clip = "CLIP" in str(equation.params["mode"])

        def fixed(indices: Any) -> Made:
            """Every entry of the updates has a place of the operand, counted along all its dimensions, or falls out."""
            mapped, batching = numbers.scatter_dims_to_operand_dims, numbers.operand_batching_dims
            flat, inside = _places(shape, sizes, indices, mapped, batching, numbers.scatter_indices_batching_dims)
            order = np.argsort([*batch, *windows])  # from the updates as they lie to (*batch, *sizes), and back
            lying = [update_shape[k] for k in (*batch, *windows)]
            into, kept = (a.reshape(lying).transpose(order).ravel() for a in (flat, inside))
            everything = clip or bool(inside.all())
            into = into if everything else into[kept]
            several = ufunc is not None and np.unique(into).size < into.size  # some place takes more than one

            def scattered(x: Any, _: Any, updates: Any) -> Any:
                out, values = x.flatten(), updates.ravel()
                values = values if everything else values[kept]
                if several:
                    ufunc.at(out, into, values)
                else:
                    out[into] = values if ufunc is None else ufunc(out[into], values)
                return out.reshape(shape)

            return scattered

        return Indexing(fixed)

    return make
