"""Gathers and scatters of JAX in NumPy: windows of arrays, told by where they start."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

Made = Callable[..., Any]
Maker = Callable[[Any], Made]  # of an equation of a jaxpr


class Indexing:
    """A gather or scatter; its second argument says where, which is worked out once where it never changes."""

    def __init__(self, apply: Made, places: Callable[[Any], Any]) -> None:
        self._apply, self._places = apply, places

    def __call__(self, *arguments: Any) -> Any:
        """Of arrays in the order of JAX's primitive."""
        return self._apply(*arguments)

    def at(self, indices: Any) -> Made:
        """The same for these indices, whatever is given in their place."""
        return partial(self._apply, known=self._places(indices))


def _places(
    shape: Any, sizes: Any, indices: Any, mapped: Any, batching: Any, index_batching: Any
) -> tuple[list[Any], Any]:
    """(an index of every dimension of the operand, each (*batch, *sizes); which windows fit, (*batch,)).

    ``indices`` (*batch, k) holds where windows of these sizes start along the dimensions ``mapped``.
    """
    batch = indices.shape[:-1]
    where, fits = [], np.ones(batch, bool)
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
        where.append(start.reshape(*batch, *[1] * len(sizes)) + np.arange(size).reshape(along))
    return where, fits


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

    def places(indices: Any) -> Any:
        return _places(
            shape,
            sizes,
            indices,
            numbers.start_index_map,
            numbers.operand_batching_dims,
            numbers.start_indices_batching_dims,
        )

    def taken_from(x: Any, indices: Any, known: Any = None) -> Any:
        where, fits = known or places(indices)
        taken, count = x[tuple(where)], fits.ndim
        if filling and not fits.all():
            taken = np.where(fits.reshape(*fits.shape, *[1] * len(sizes)), taken, missing)
        taken = taken.reshape(*fits.shape, *(s for d, s in enumerate(sizes) if d not in gone))
        windows = iter(range(count, taken.ndim))
        batch = iter(range(count))
        return taken.transpose([next(windows) if k in offsets else next(batch) for k in range(taken.ndim)])

    return Indexing(taken_from, places)


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

        def places(indices: Any) -> Any:
            return _places(
                shape,
                sizes,
                indices,
                numbers.scatter_dims_to_operand_dims,
                numbers.operand_batching_dims,
                numbers.scatter_indices_batching_dims,
            )

        def scattered(x: Any, indices: Any, updates: Any, known: Any = None) -> Any:
            where, fits = known or places(indices)
            out = np.array(x)
            values = updates.transpose([*batch, *windows]).reshape(*fits.shape, *sizes)
            if clip or fits.all():
                into: Any = tuple(where)
            else:
                into, values = tuple(np.broadcast_to(w, values.shape)[fits] for w in where), values[fits]
            if ufunc is None:
                out[into] = values
            else:
                ufunc.at(out, into, values)
            return out

        return Indexing(scattered, places)

    return make
