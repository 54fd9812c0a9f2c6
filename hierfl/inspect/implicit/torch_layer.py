"""y(x, theta) and f(x, theta) as PyTorch functions: a ``ImplicitLayer``'s, with tensors in and out; numbers pass through NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, reduce
from importlib.util import find_spec
from typing import Any

import jax
import numpy as np

from hierfl.errors import DataError, MissingPackageError
from hierfl.inspect.implicit.layer import ImplicitLayer, Shapes, Statuses
from hierfl.jaxtools.precision import double_precision


class TorchLayer:
    """f(x, theta) and y(x, theta) for PyTorch, made by ``problem.implicit.torch(...)``.

    ``x``, and ``theta``, is a tensor where there is one variable, or parameter, else ``{name: tensor}``; a ``hf.ClientParameter`` has a row for each client. A
    further first axis of some of them is a batch, which is one call of the solvers. All is computed on the host in double precision, and comes back on the inputs'
    device in their precision. ``backward``, ``torch.autograd.grad`` and ``gradcheck`` apply, second derivatives do not.

    A derivative that there is not is never a number: ``backward`` raises a ``NoGradientError`` that says why; in a batch the entries of that element are NaN, and
    :meth:`status` says why. Values that there are not are errors and NaN in the same way.
    """

    def __init__(self, layer: ImplicitLayer) -> None:
        if find_spec("torch") is None:
            raise MissingPackageError("problem.implicit.torch() needs PyTorch: pip install 'hierfl[torch]'.")
        self._layer = layer

    def f(self, x: Any, theta: Any = None) -> Any:
        """f(x, theta), a scalar, or one for each element of a batch; errors as for ``ImplicitLayer.f``."""
        return self._called(self._layer.f, x, theta)

    def y(self, x: Any, theta: Any = None) -> Any:
        """y(x, theta), in the shapes of ``problem.implicit.response(x)`` after the batch's; errors as for ``f``."""
        return self._called(self._layer.y, x, theta)

    @double_precision
    def status(self, x: Any, theta: Any = None) -> Statuses:
        """What is known of the derivatives of f and of y, as ``ImplicitLayer.status`` tells it."""
        import torch

        ask, tensors, _ = self._ready(self._layer.status, x, theta)
        return Statuses(*(torch.as_tensor(np.array(one)) for one in ask(*map(_array, tensors))))

    def _called(self, function: Callable[..., Any], x: Any, theta: Any) -> Any:
        ask, tensors, made = self._ready(function, x, theta)
        answers = _asked().apply(ask, *tensors)
        return jax.tree.unflatten(made[-1], answers)

    def _ready(self, function: Callable[..., Any], x: Any, theta: Any) -> tuple[Callable[..., Any], list[Any], list[Any]]:
        """(a function of arrays that gives a tuple of arrays, the tensors that it is asked at, where it leaves in what shape these are meant)."""
        given = _tensors(x, "x"), None if theta is None else _tensors(theta, "theta")
        axes = _axes(self._layer.decided, given[0]), None if theta is None else _axes(self._layer.given, given[1])
        tensors, inside = jax.tree.flatten(given)
        asked = jax.vmap(function, in_axes=axes) if 0 in jax.tree.leaves(axes) else function
        made: list[Any] = []

        def ask(*arrays: Any) -> tuple[Any, ...]:
            answers, outside = jax.tree.flatten(asked(*jax.tree.unflatten(inside, arrays)))
            made.append(outside)
            return tuple(answers)

        return ask, tensors, made


def _tensors(value: Any, what: str) -> Any:
    import torch

    def tensor(one: Any) -> Any:
        try:
            return torch.as_tensor(one)
        except (TypeError, ValueError, RuntimeError):
            raise DataError(f"{what} has {one!r}; expected a tensor of real numbers.") from None

    return {name: tensor(one) for name, one in value.items()} if isinstance(value, Mapping) else tensor(value)


def _axes(variables: Shapes, value: Any) -> Any:
    """0 where there is an axis of a batch, by name or of the one that there is."""
    shapes = {variable.name(): shape for variable, shape in variables.items()}

    def axis(one: Any, shape: tuple[int, ...] | None) -> int | None:
        return 0 if shape is not None and one.ndim == len(shape) + 1 else None

    if isinstance(value, Mapping):
        return {name: axis(one, shapes.get(name)) for name, one in value.items()}
    return axis(value, next(iter(shapes.values()), None))


def _array(tensor: Any) -> np.ndarray:
    import torch

    wide = torch.promote_types(tensor.dtype, torch.float64)  # what is complex stays so, and is refused by name
    return np.asarray(tensor.cpu().to(wide).numpy(force=True))


@cache
def _asked() -> Any:
    """The autograd function of (a function of arrays that gives a tuple, tensors)."""
    import torch
    from torch.autograd.function import once_differentiable

    def precision(tensors: tuple[Any, ...]) -> Any:
        kinds = [one.dtype if one.is_floating_point() else torch.get_default_dtype() for one in tensors]
        return reduce(torch.promote_types, kinds)

    class Asked(torch.autograd.Function):
        @staticmethod
        @double_precision
        def forward(ctx: Any, ask: Callable[..., Any], *tensors: Any) -> Any:
            arrays = list(map(_array, tensors))
            if any(ctx.needs_input_grad):
                answers, ctx.pull = jax.vjp(ask, *arrays)
            else:
                answers = ask(*arrays)
            ctx.kinds = [(one.device, one.dtype) for one in tensors]
            dtype, device = precision(tensors), tensors[0].device
            return tuple(torch.as_tensor(np.array(one), dtype=dtype, device=device) for one in answers)

        @staticmethod
        @once_differentiable
        @double_precision
        def backward(ctx: Any, *seeds: Any) -> Any:
            slopes = ctx.pull(tuple(map(_array, seeds)))
            own = [torch.as_tensor(np.array(slope), dtype=dtype, device=device) for slope, (device, dtype) in zip(slopes, ctx.kinds)]
            return (None, *(one if wanted else None for one, wanted in zip(own, ctx.needs_input_grad[1:])))

    return Asked
