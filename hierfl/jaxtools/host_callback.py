"""Calls from compiled code to functions on the host, in full precision on every thread.

JAX converts a callback's arguments on the thread that runs it, where the double-precision setting of the calling
thread does not hold: doubles would arrive as singles. They therefore travel as pairs of 32-bit words.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from hierfl.errors import IncompatibleSolverError
from hierfl.jaxtools.interruption import CutShort, heed

Many = Callable[..., Sequence[np.ndarray] | np.ndarray]

VALUES_ONLY = IncompatibleSolverError(
    "a function on the host has values only and was asked for a derivative: use a method that only evaluates."
)


def call_on_host(
    function: Callable[..., np.ndarray],
    shape: tuple[int, ...],
    dtype: Any,
    *arguments: Any,
    refusal: Exception = VALUES_ONLY,
    many: Many | None = None,
) -> jax.Array:
    """``function(*arguments)`` on NumPy arrays, from compiled code; batches run one after another, or all at once by ``many``.

    Arguments are floating-point arrays, or integers (which arrive as 32-bit); the result is cast to its type. They travel as integers, through which
    JAX would see a derivative of zero: asking for one raises the ``refusal``. ``many`` is given the count of the calls, then the arguments with a
    leading axis, of an entry for each call or of one for all; it returns what ``function`` would for each.
    """

    @jax.custom_jvp
    def call(*given: Any) -> jax.Array:
        return _called(function, shape, dtype, given, many)

    @call.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        raise refusal

    return call(*map(jnp.asarray, arguments))


def numbers_on_host(
    function: Callable[..., np.ndarray],
    shape: tuple[int, ...],
    dtype: Any,
    *trees: Any,
    many: Many | None = None,
) -> jax.Array:
    """``call_on_host`` of a function of trees of arrays, which arrive in double precision; ``many`` is called with the count of the calls
    before trees whose arrays have an entry for each.
    """
    leaves, form = jax.tree.flatten(trees)

    def one(*arrays: np.ndarray) -> np.ndarray:
        return function(*jax.tree.unflatten(form, [np.asarray(array, float) for array in arrays]))

    def each(count: int, *arrays: np.ndarray) -> Sequence[np.ndarray] | np.ndarray:
        assert many is not None
        return many(count, *jax.tree.unflatten(form, [_for_each(count, array) for array in arrays]))

    return call_on_host(one, shape, dtype, *leaves, many=None if many is None else each)


def _rows(array: np.ndarray, lead: tuple[int, ...], batch: tuple[int, ...]) -> np.ndarray:
    """An argument's entries for the calls of a batch, in order; one where it is the same for all."""
    core = array.shape[len(lead) :]
    if any(n != 1 for n in lead):
        return np.broadcast_to(array, (*batch, *core)).reshape(-1, *core)
    return array.reshape(1, *core)


def _last(arrays: Sequence[np.ndarray], leads: Sequence[tuple[int, ...]], batch: tuple[int, ...]) -> int:
    """The entry of the batch's first axis from which on all are the same, as where it has been filled up to a size."""
    last = 0
    for array, lead in zip(arrays, leads):
        if len(lead) == len(batch) and lead[0] > 1 and last + 1 < batch[0]:
            others = (array != array[-1]).reshape(len(array), -1).any(axis=1)
            last = max(last, int(np.flatnonzero(others)[-1]) + 1 if others.any() else 0)
    return last


def _called(
    function: Callable[..., np.ndarray],
    shape: tuple[int, ...],
    dtype: Any,
    arguments: Sequence[jax.Array],
    many: Many | None,
) -> jax.Array:
    """The callback itself, its arguments and its result packed as words."""
    packed, result = [_pack(argument) for argument in arguments], jax.ShapeDtypeStruct(shape, dtype)
    ranks = [argument.ndim for argument in arguments]

    def values(arrays: Sequence[np.ndarray]) -> tuple[tuple[int, ...], Sequence[np.ndarray] | np.ndarray]:
        """(the shape of the batch, the value of each of its calls)."""
        leads = [array.shape[: array.ndim - rank] for array, rank in zip(arrays, ranks)]
        batch = np.broadcast_shapes(*leads)
        if not batch:
            return batch, [function(*arrays)]
        last = _last(arrays, leads, batch)
        if last + 1 < batch[0]:
            cut = [a[: last + 1] if len(lead) == len(batch) and lead[0] > 1 else a for a, lead in zip(arrays, leads)]
            before, answers = values(cut)
            each = np.asarray(answers).reshape(*before, *shape)
            return batch, np.concatenate([each, np.repeat(each[-1:], batch[0] - last - 1, axis=0)])
        count, given = int(np.prod(batch)), [_rows(a, lead, batch) for a, lead in zip(arrays, leads)]
        if many is not None:
            return batch, many(count, *given)
        answers = []
        for call in range(count):
            heed()
            answers.append(function(*(array[0 if len(array) == 1 else call] for array in given)))
        return batch, answers

    def on_host(*words: Any) -> np.ndarray:
        arrays = [_unpack(np.asarray(w), is_wide) for w, (_, is_wide) in zip(words, packed)]
        try:
            heed()
            batch, given = values(arrays)
            return _to_words(np.asarray(given, dtype=dtype).reshape((*batch, *shape)), result)
        except BaseException as error:  # whatever a user's function raises reaches the caller as it was, Ctrl-C too
            _raised.append(error)
            raise

    words = jax.pure_callback(on_host, _words_struct(result), *(array for array, _ in packed), vmap_method="expand_dims")
    return _from_words(words, result)


def exchange_on_host(function: Callable[..., Any], expected: Any, given: Any) -> Any:
    """``function(given)`` on the host from compiled code: once each time that the program comes by, in the program's order.

    Both are trees of arrays, NumPy's on the host, what is ``expected`` back one of ``jax.ShapeDtypeStruct``; integers arrive as 32-bit.
    """
    leaves, structure = jax.tree.flatten(given)
    packed = [_pack(jnp.asarray(leaf)) for leaf in leaves]
    shapes, result = jax.tree.flatten(expected)

    def on_host(*arrays: Any) -> list[np.ndarray]:
        arrived = [_unpack(np.asarray(a), is_wide) for a, (_, is_wide) in zip(arrays, packed)]
        answers = jax.tree.leaves(function(jax.tree.unflatten(structure, arrived)))
        return [_to_words(answer, shape) for answer, shape in zip(answers, shapes)]

    answered = io_callback(on_host, [_words_struct(shape) for shape in shapes], *(array for array, _ in packed), ordered=True)
    return jax.tree.unflatten(result, [_from_words(words, shape) for words, shape in zip(answered, shapes)])


@contextmanager
def as_raised() -> Iterator[None]:
    """Raise what a function on the host raised, instead of the error that JAX makes of it."""
    before = len(_raised)
    try:
        yield
    except Exception as error:
        if "allback" not in str(error):
            raise
        if len(_raised) > before:
            raise _raised[before] from None
        heed()  # Ctrl-C may have met JAX itself, on its way to the function or back
        raise
    finally:
        del _raised[before:]


_raised: list[BaseException] = []  # by functions on the host, within the contexts of `as_raised` that are open


def _is_news(record: logging.LogRecord) -> bool:
    """Whether JAX logs anything but an error that the caller gets."""
    error = None if record.exc_info is None else record.exc_info[1]
    return error is None or not (isinstance(error, CutShort) or any(error is known for known in _raised))


logging.getLogger("jax._src.callback").addFilter(_is_news)


def _pack(array: jax.Array) -> tuple[jax.Array, bool]:
    """The argument as it travels, and whether doubles travel in it."""
    if array.dtype == jnp.float64:
        return jax.lax.bitcast_convert_type(array, jnp.uint32), True
    return (array.astype(jnp.int32) if jnp.issubdtype(array.dtype, jnp.integer) else array), False


def _unpack(words: np.ndarray, wide: bool) -> np.ndarray:
    return np.ascontiguousarray(words, dtype=np.uint32).view(np.float64)[..., 0] if wide else words


def _words_struct(result: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """What travels of a result."""
    if result.dtype == jnp.float64:
        return jax.ShapeDtypeStruct((*result.shape, 2), jnp.uint32)
    return jax.ShapeDtypeStruct(result.shape, jnp.int32 if jnp.issubdtype(result.dtype, jnp.integer) else result.dtype)


def _to_words(value: Any, result: jax.ShapeDtypeStruct) -> np.ndarray:
    """A result as it travels, with the axes of a batch before its own."""
    wide = result.dtype == jnp.float64
    return np.asarray(value, float)[..., None].view(np.uint32) if wide else np.asarray(value, _words_struct(result).dtype)


def _from_words(words: jax.Array, result: jax.ShapeDtypeStruct) -> jax.Array:
    return jax.lax.bitcast_convert_type(words, jnp.float64) if result.dtype == jnp.float64 else words.astype(result.dtype)


def _for_each(count: int, array: np.ndarray) -> np.ndarray:
    """An array of an entry for each call, where it may have one for all; numbers as doubles."""
    array = array.astype(float, copy=False) if array.dtype.kind == "f" else array
    if len(array) == count:
        return array
    whole = np.empty((count, *array.shape[1:]), array.dtype)
    whole[:] = array
    return whole
