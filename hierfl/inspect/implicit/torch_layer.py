"""y(x, theta) and f(x, theta) as PyTorch functions: a ``ImplicitLayer``'s, with tensors in and out; numbers pass through NumPy."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, reduce
from importlib.util import find_spec
from typing import Any, NoReturn

import jax
import numpy as np

from hierfl.errors import DataError, MissingPackageError, NoGradientError
from hierfl.inspect.implicit.layer import ImplicitLayer, Statuses, named
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
        shapes = {**self._layer.decided, **self._layer.given}
        given = {**named(self._layer.decided, x, "x"), **named(self._layer.given, theta, "theta")}
        names, tensors = [v.name() for v in given], [_tensor(v.name(), one) for v, one in given.items()]
        axes = tuple(0 if tensor.ndim == len(shapes[v]) + 1 else None for v, tensor in zip(given, tensors))
        lengths = {name: len(tensor) for name, tensor, axis in zip(names, tensors, axes) if axis == 0}
        if len(set(lengths.values())) > 1:
            several = ", ".join(f"{length} of {name}" for name, length in lengths.items())
            raise DataError(f"a batch has as many elements of each, and there are {several}: give as many, or one without an axis for all of them.")

        def whole(*arrays: Any) -> Any:
            places, decided = list(zip(names, arrays)), len(self._layer.decided)
            return function(dict(places[:decided]), dict(places[decided:]) or None)

        asked = jax.vmap(whole, axes) if lengths else whole
        made: list[Any] = []

        def ask(*arrays: Any) -> tuple[Any, ...]:
            answers, outside = jax.tree.flatten(asked(*arrays))
            made.append(outside)
            return tuple(answers)

        return ask, tensors, made


def _tensor(name: str, value: Any) -> Any:
    import torch

    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise DataError(f"{name} is {value!r}; expected a tensor of real numbers.") from None


def _array(tensor: Any) -> np.ndarray:
    import torch

    wide = torch.promote_types(tensor.dtype, torch.float64)  # what is complex stays so, and is refused by name
    return np.asarray(tensor.cpu().to(wide).numpy(force=True))


@cache
def _asked() -> Any:
    """The autograd function of (a function of arrays that gives a tuple, tensors)."""
    import torch

    class Once(torch.autograd.Function):
        """The first slopes, which move with the tensors and seeds behind them in ways that are not told: PyTorch would take them for constants."""

        @staticmethod
        def forward(_: Any, count: int, *parts: Any) -> Any:
            return parts[:count]

        @staticmethod
        def backward(_: Any, *seeds: Any) -> NoReturn:
            raise NoGradientError("f and y of a layer have first derivatives only, and a derivative of these was asked for: leave out create_graph=True.")

    class Asked(torch.autograd.Function):
        @staticmethod
        @double_precision
        def forward(ctx: Any, ask: Callable[..., Any], *tensors: Any) -> Any:
            arrays = list(map(_array, tensors))
            if any(ctx.needs_input_grad):
                answers, ctx.pull = jax.vjp(ask, *arrays)
                ctx.save_for_backward(*tensors)
            else:
                answers = ask(*arrays)
            kinds = [one.dtype if one.is_floating_point() else torch.get_default_dtype() for one in tensors]
            dtype, device = reduce(torch.promote_types, kinds), tensors[0].device
            return tuple(torch.as_tensor(np.array(one), dtype=dtype, device=device) for one in answers)

        @staticmethod
        @double_precision
        def backward(ctx: Any, *seeds: Any) -> Any:
            tensors, slopes = ctx.saved_tensors, ctx.pull(tuple(map(_array, seeds)))
            own = [torch.as_tensor(np.array(slope), dtype=one.dtype, device=one.device) for slope, one in zip(slopes, tensors)]
            told = Once.apply(len(own), *own, *tensors, *seeds) if torch.is_grad_enabled() else own
            return (None, *(one if wanted else None for one, wanted in zip(told, ctx.needs_input_grad[1:])))

    return Asked
