"""Factorisations of JAX in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import scipy.linalg
import scipy.special


def _triangular(equation: Any) -> Made:
    """Solve with a triangular matrix from the left or the right, over leading axes."""
    settings = equation.params
    left, lower, transposed = settings["left_side"], settings["lower"], settings["transpose_a"]
    unit = settings["unit_diagonal"]

    trans = int(transposed) if left else 1 - int(transposed)

    def one(a: Any, b: Any) -> Any:
        try:
            return scipy.linalg.solve_triangular(a, b, trans=trans, lower=lower, unit_diagonal=unit, check_finite=False)
        except np.linalg.LinAlgError:  # a zero on the diagonal, by which JAX divides
            return np.full_like(b, np.nan)

    def solve(a: Any, b: Any) -> Any:
        return _each(one, a, b) if left else np.swapaxes(_each(one, a, np.swapaxes(b, -1, -2)), -1, -2)

    return solve


def _each(function: Made, a: Any, b: Any) -> Any:
    """A function of two matrices, over leading axes."""
    if a.ndim == 2:
        return function(a, b)
    out = np.empty_like(b)
    for place in np.ndindex(a.shape[:-2]):
        out[place] = function(a[place], b[place])
    return out


def _lu(x: Any) -> tuple[Any, Any, Any]:
    """Find (both factors in one matrix, pivots, the rows' permutation), over leading axes."""
    rows, least = x.shape[-2], min(x.shape[-2:])
    factors, lead = np.empty_like(x), x.shape[:-2]
    pivots, order = np.empty((*lead, least), np.int32), np.empty((*lead, rows), np.int32)
    (factorise,) = scipy.linalg.get_lapack_funcs(("getrf",), (x,))
    for place in np.ndindex(lead):
        factors[place], pivots[place], _ = factorise(x[place])
        permutation = np.arange(rows)
        for row, pivot in enumerate(pivots[place]):
            permutation[[row, pivot]] = permutation[[pivot, row]]
        order[place] = permutation
    return factors, pivots, order


def _eigh(x: Any) -> tuple[Any, Any]:
    """Find (eigenvectors, eigenvalues) of a symmetric matrix."""
    values, vectors = np.linalg.eigh(x)
    return vectors, values


def _svd(equation: Any) -> Made:
    """Find singular values, with vectors where they are asked for."""
    full, vectors = equation.params["full_matrices"], equation.params["compute_uv"]

    def found(x: Any) -> tuple[Any, ...]:
        finite = np.isfinite(x).all(axis=(-2, -1), keepdims=True)  # elsewhere NumPy raises, and JAX has NaN
        parts = np.linalg.svd(np.where(finite, x, 0.0), full, vectors)
        left, values, *right = parts if vectors else (None, parts)
        values = np.where(finite[..., 0], values, np.nan)
        return (values, *(np.where(finite, part, np.nan) for part in (left, *right))) if vectors else (values,)

    return found


def _cholesky(x: Any) -> Any:
    """Find the lower factors, NaN where a matrix is not definite, as JAX has it."""
    with suppress(np.linalg.LinAlgError):
        return np.linalg.cholesky(x)
    return np.full_like(x, np.nan) if x.ndim == 2 else np.stack([_cholesky(each) for each in x])


class Indexing:
    """A gather or scatter; its second argument says where, which is worked out once where it never changes.

    ``at`` makes of indices a function of the other arguments, and of whatever is given in the indices' place.
    """

    def __init__(self, at: Callable[[Any], Made]) -> None:
        self.at = at

    def __call__(self, x: Any, indices: Any, *updates: Any) -> Any:
        return self.at(indices)(x, indices, *updates)


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


def _gather(equation: Any) -> Made:
    """Take windows of an array."""
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    missing, filling = equation.params["fill_value"], "FILL" in str(equation.params["mode"])
    shape, dtype = equation.invars[0].aval.shape, equation.outvars[0].aval.dtype
    offsets, gone = numbers.offset_dims, {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    if missing is None:  # as JAX has it: the least of signed numbers, the largest of others
        missing = (np.iinfo(dtype).min or np.iinfo(dtype).max) if dtype.kind in "iu" else dtype.kind == "b" or np.nan

    def fixed(indices: Any) -> Made:
        """Every entry of the result is one of the operand, counted along all its dimensions, or is missing."""
        mapped, batching = numbers.start_index_map, numbers.operand_batching_dims
        flat, fits = _places(shape, sizes, indices, mapped, batching, numbers.start_indices_batching_dims)
        batch = indices.shape[:-1]

        def laid_out(entries: Any) -> Any:
            entries = entries.reshape((*batch, *(s for d, s in enumerate(sizes) if d not in gone)))
            windows, places = iter(range(len(batch), entries.ndim)), iter(range(len(batch)))
            return entries.transpose([next(windows) if k in offsets else next(places) for k in range(entries.ndim)])

        flat = laid_out(flat)
        if not filling or fits.all():
            return lambda x, *_: x.take(flat)
        there = laid_out(fits)
        return lambda x, *_: np.where(there, x.take(flat), missing)

    return Indexing(fixed)


def _scatter(ufunc: Any) -> Maker:
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


SMALL = 4096  # entries of an array that is sooner copied than looked at in another form
Made = Callable[..., Any]
Maker = Callable[[Any], Made]  # of an equation of a jaxpr


def _plain(function: Made) -> Maker:
    return lambda equation: function


def _with(*names: str) -> Callable[[Callable[..., Made]], Maker]:
    """A maker that needs the named settings of the equation alone."""

    def decorate(make: Callable[..., Made]) -> Maker:
        return lambda equation: make(*(equation.params[name] for name in names))

    return decorate


# --- entry by entry ------------------------------------------------------------------------------------------------


def _divide(equation: Any) -> Made:
    if np.issubdtype(equation.outvars[0].aval.dtype, np.integer):
        return lambda a, b: np.trunc(np.divide(a, b)).astype(equation.outvars[0].aval.dtype)
    return np.divide


def _away(x: Any) -> Any:
    """Rounded to the nearest whole number, halves away from zero."""
    return np.trunc(x + np.copysign(0.5, x))


def _select(equation: Any) -> Made:
    if len(equation.invars) > 3:
        return lambda which, *cases: np.choose(which, cases)
    if not equation.outvars[0].aval.shape:
        return lambda which, no, yes: yes if which else no
    return lambda which, no, yes: np.where(which, yes, no)


@_with("y")
def _integer_power(power: int) -> Made:
    if power == 2:
        return np.square
    if power < 0:
        return lambda x: 1.0 / x ** (-power)
    return lambda x: x**power


def _before(equation: Any) -> Made:
    """The order of sorting, in which NaN comes last and -0 before 0."""
    if np.issubdtype(equation.invars[0].aval.dtype, np.integer):
        return np.less

    def before(a: Any, b: Any) -> Any:
        signed = (a == b) & np.signbit(a) & ~np.signbit(b)
        return (a < b) | signed | (np.isnan(b) & ~np.isnan(a))

    return before


def _converted(equation: Any) -> Made:
    dtype = equation.params["new_dtype"]
    if equation.invars[0].aval.dtype == dtype:
        return _same
    if np.issubdtype(equation.invars[0].aval.dtype, np.floating) and np.issubdtype(dtype, np.bool_):
        return lambda x: np.not_equal(x, 0)
    if np.issubdtype(equation.invars[0].aval.dtype, np.floating) and np.issubdtype(dtype, np.integer):
        return lambda x: _nearest_whole(np.iinfo(dtype), x)
    return lambda x: np.asarray(x).astype(dtype)


def _nearest_whole(of: np.iinfo, x: Any) -> Any:
    """Numbers cut to whole ones of a type: beyond its ends those, where NumPy wraps round, and 0 for NaN."""
    inside = np.where((x > of.min) & (x < of.max), x, 0).astype(of.dtype)
    return np.where(x >= of.max, of.max, np.where(x <= of.min, of.min, inside)).astype(of.dtype)


def _same(x: Any) -> Any:
    return x


@_with("new_dtype")
def _bits(dtype: Any) -> Made:
    target = np.dtype(dtype)

    def cast(x: Any) -> Any:
        shape, whole = np.shape(x), np.ascontiguousarray(x)  # which has one dimension at least
        if whole.dtype.itemsize == target.itemsize:
            return whole.view(target).reshape(shape)
        if whole.dtype.itemsize > target.itemsize:
            return whole.reshape(*shape, 1).view(target)
        return whole.view(target).reshape(shape[:-1])

    return cast


# --- shapes --------------------------------------------------------------------------------------------------------


def _broadcast(equation: Any) -> Made:
    shape, dimensions = equation.params["shape"], equation.params["broadcast_dimensions"]
    source, dtype = equation.invars[0].aval.shape, equation.outvars[0].aval.dtype
    inner = [1] * len(shape)
    for axis, size in zip(dimensions, source):
        inner[axis] = size
    if tuple(inner) == tuple(shape):
        return lambda x, *_: x.reshape(shape)
    if np.prod(shape, dtype=float) > SMALL:
        return lambda x, *_: np.broadcast_to(x.reshape(inner), shape)

    def copied(x: Any, *_: Any) -> Any:  # a view by broadcast_to takes four times as long
        out = np.empty(shape, dtype)
        out[...] = x.reshape(inner)
        return out

    return copied


def _reshape(equation: Any) -> Made:
    shape, order = equation.outvars[0].aval.shape, equation.params.get("dimensions")
    if equation.primitive.name == "reshape" and order is not None:
        return lambda x, *_: x.transpose(order).reshape(shape)
    return lambda x, *_: x.reshape(shape)


@_with("start_indices", "limit_indices", "strides")
def _slice(start: Any, limit: Any, strides: Any) -> Made:
    window = tuple(slice(a, b, s) for a, b, s in zip(start, limit, strides or [1] * len(start)))
    return lambda x: x[window]


def _window(shape: Any, sizes: Any, starts: Any) -> tuple[slice, ...]:
    places = [min(max(int(s), 0), n - k) for s, n, k in zip(starts, shape, sizes)]
    return tuple(slice(p, p + k) for p, k in zip(places, sizes))


def _dynamic_update(x: Any, update: Any, *starts: Any) -> Any:
    out = np.array(x)
    out[_window(out.shape, np.shape(update), starts)] = update
    return out


def _pad(equation: Any) -> Made:
    """Put entries apart and others around them; of a padding below zero so many are cut off."""
    config, shape = equation.params["padding_config"], equation.invars[0].aval.shape
    spread = [n + max(n - 1, 0) * inner for n, (_, _, inner) in zip(shape, config)]
    whole = [max(low, 0) + n + max(high, 0) for n, (low, high, _) in zip(spread, config)]
    inside = tuple(slice(max(low, 0), max(low, 0) + n, inner + 1) for n, (low, _, inner) in zip(spread, config))
    kept = tuple(slice(max(-low, 0), n - max(-high, 0)) for n, (low, high, _) in zip(whole, config))

    def pad(x: Any, fill: Any) -> Any:
        out = np.empty(whole, x.dtype)
        out.fill(fill)
        out[inside] = x
        return out[kept]

    return pad


@_with("dtype", "shape", "dimension")
def _iota(dtype: Any, shape: Any, dimension: int) -> Made:
    along = [1] * len(shape)
    along[dimension] = shape[dimension]
    return lambda: np.broadcast_to(np.arange(shape[dimension], dtype=dtype).reshape(along), shape)


def _split(equation: Any) -> Made:
    ends, axis = np.cumsum(equation.params["sizes"])[:-1], equation.params["axis"]
    return lambda x: tuple(np.split(x, ends, axis))


# --- sums, products, orders ------------------------------------------------------------------------------------------


def _reduction(ufunc: Any) -> Maker:
    @_with("axes")
    def make(axes: Any) -> Made:
        axes = tuple(axes)
        return (lambda x: ufunc.reduce(x, axis=axes, dtype=x.dtype)) if axes else _same

    return make


def _arg(find: Any) -> Maker:
    @_with("axes", "index_dtype")
    def make(axes: Any, dtype: Any) -> Made:
        return lambda x: np.asarray(find(x, axis=axes[0])).astype(dtype)

    return make


def _cumulative(ufunc: Any) -> Maker:
    @_with("axis", "reverse")
    def make(axis: int, reverse: bool) -> Made:
        if not reverse:
            return lambda x: ufunc.accumulate(x, axis=axis, dtype=x.dtype)
        return lambda x: np.flip(ufunc.accumulate(np.flip(x, axis), axis=axis, dtype=x.dtype), axis)

    return make


@_with("dimension", "num_keys")
def _sort(axis: int, keys: int) -> Made:
    def sort(*arrays: Any) -> tuple[Any, ...]:
        if len(arrays) == 1:
            return (np.sort(arrays[0], axis=axis, kind="stable"),)
        order = np.lexsort([np.moveaxis(a, axis, -1) for a in reversed(arrays[:keys])], axis=-1)
        order = np.moveaxis(order, -1, axis)
        return tuple(np.take_along_axis(a, order, axis) for a in arrays)

    return sort


def _dot(equation: Any) -> Made:
    (left, right), (left_batch, right_batch) = equation.params["dimension_numbers"]
    axes = [len(atom.aval.shape) for atom in equation.invars]
    if not left_batch and len(left) == 1 and max(axes) <= 2:
        first, second = left[0] < axes[0] - 1, right[0] > 0  # what np.dot takes turned
        return lambda a, b: np.dot(a.T if first else a, b.T if second else b)
    if not left_batch:
        return lambda a, b: np.tensordot(a, b, axes=(left, right))

    def batched(a: Any, b: Any) -> Any:
        free_a = [k for k in range(a.ndim) if k not in left and k not in left_batch]
        free_b = [k for k in range(b.ndim) if k not in right and k not in right_batch]
        lead = [a.shape[k] for k in left_batch]
        inner = int(np.prod([a.shape[k] for k in left], dtype=int))
        first = a.transpose([*left_batch, *free_a, *left]).reshape(*lead, -1, inner)
        second = b.transpose([*right_batch, *right, *free_b]).reshape(*lead, inner, -1)
        return (first @ second).reshape(*lead, *(a.shape[k] for k in free_a), *(b.shape[k] for k in free_b))

    return batched


def _platform(platforms: Any) -> Made:
    """The branch for processors, or the default."""
    place = next((k for k, names in enumerate(platforms) if names is None or "cpu" in names))
    return lambda: np.int32(place)


ALIKE = (
    *("abs", "sign", "floor", "ceil", "exp", "exp2", "log", "log1p", "expm1", "sqrt", "cbrt", "square", "nextafter"),
    *("sin", "cos", "tan", "sinh", "cosh", "tanh"),
)  # NumPy has them by JAX's names
OTHERWISE_CALLED = {
    **{"add": np.add, "add_any": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative, "pow": np.power},
    **{"max": np.maximum, "min": np.minimum, "rem": np.fmod, "is_finite": np.isfinite},
    **{"asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2},
    **{"asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh},
    **{"not": np.invert, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor},
    **{"eq": np.equal, "ne": np.not_equal},
    **{"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal},
    **{"logistic": scipy.special.expit, "erf": scipy.special.erf, "erfc": scipy.special.erfc},
    **{"erf_inv": scipy.special.erfinv, "lgamma": scipy.special.gammaln, "digamma": scipy.special.digamma},
}
PLAIN: dict[str, Made] = {
    **{name: getattr(np, name) for name in ALIKE},
    **OTHERWISE_CALLED,
    **dict.fromkeys(("copy", "copy_p", "reduce_precision", "stage", "stop_gradient"), _same),
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "optimization_barrier": lambda *x: x,
    "dynamic_update_slice": _dynamic_update,
    "cholesky": _cholesky,
    "lu": _lu,
    "eigh": _eigh,
}

MAKERS: dict[str, Maker] = {
    **{name: _plain(function) for name, function in PLAIN.items()},
    "div": _divide,
    "select_n": _select,
    "lt_to": _before,
    "integer_pow": _integer_power,
    "convert_element_type": _converted,
    "bitcast_convert_type": _bits,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "transpose": _with("permutation")(lambda permutation: lambda x: np.transpose(x, permutation)),
    "concatenate": _with("dimension")(lambda axis: lambda *parts: np.concatenate(parts, axis)),
    "rev": _with("dimensions")(lambda axes: lambda x: np.flip(x, axes)),
    "slice": _slice,
    "dynamic_slice": _with("slice_sizes")(lambda sizes: lambda x, *starts: x[_window(x.shape, sizes, starts)]),
    "pad": _pad,
    "iota": _iota,
    "split": _split,
    "reduce_sum": _reduction(np.add),
    "reduce_prod": _reduction(np.multiply),
    "reduce_max": _reduction(np.maximum),
    "reduce_min": _reduction(np.minimum),
    "reduce_and": _reduction(np.bitwise_and),
    "reduce_or": _reduction(np.bitwise_or),
    "argmax": _arg(np.argmax),
    "argmin": _arg(np.argmin),
    "cumsum": _cumulative(np.add),
    "cumprod": _cumulative(np.multiply),
    "cummax": _cumulative(np.maximum),
    "cummin": _cumulative(np.minimum),
    "cumlogsumexp": _cumulative(np.logaddexp),
    "sort": _sort,
    "dot_general": _dot,
    "gather": _gather,
    "scatter": _scatter(None),
    "scatter-add": _scatter(np.add),
    "scatter-mul": _scatter(np.multiply),
    "scatter-max": _scatter(np.maximum),
    "scatter-min": _scatter(np.minimum),
    "triangular_solve": _triangular,
    "stack": _with("axis")(lambda axis: lambda *parts: np.stack(parts, axis)),
    "unstack": _with("axis")(lambda axis: lambda x: tuple(np.moveaxis(x, axis, 0))),
    "tile": _with("reps")(lambda reps: lambda x: np.tile(x, reps)),
    "platform_index": _with("platforms")(_platform),
    "svd": _svd,
    "round": _with("rounding_method")(lambda method: np.round if "EVEN" in method.name else _away),
}
