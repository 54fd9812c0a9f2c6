"""Programs that run a few times, such as exact values and looks at f: small ones by NumPy at once, others compiled quickly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.core import trace_state_clean
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun, jaxprs_in_params

from hierfl.jaxtools.by_numpy.numpy_program import NumpyProgram
from hierfl.jaxtools.precision import is_double
from hierfl.jaxtools.thread_pool import apart, core_count
from hierfl.jaxtools.traced import Traced

# measured on one core of a desktop processor, in seconds
OPERATION, ENTRY = 1.5e-6, 1e-9  # NumPy: a call, and each number that it makes or reads
COMPILING, EQUATION = 0.05, 4e-4  # XLA: a program, and each of its equations
TRIPS = 200  # of a loop whose end is not known
CALLS = 20  # of a program, that its compilation has to pay for
LONGEST = 0.25  # seconds that NumPy may take for a call
LONG = 0.05  # seconds of a call that one may want to give up
PATIENCE = 5.0  # and for one whose time is that of solvers on the host


class QuickProgram:
    """A function of arrays, traced once for arguments of a shape, that NumPy runs where that is done before XLA had compiled it, and XLA elsewhere.

    The choice depends on the traced program alone, never on a clock: the same question has the same answer, to the last bit.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._within = jax.jit(function)
        self._by_form: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        leaves, form = jax.tree.flatten((arguments, named))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return self._within(*arguments, **named)
        shapes = tuple([(leaf.shape, leaf.dtype) if hasattr(leaf, "dtype") else type(leaf) for leaf in leaves])
        key = form, shapes, is_double()
        if key not in self._by_form:
            self._by_form[key] = self._made(arguments, named)
        return self._by_form[key](leaves, arguments, named)

    def _made(self, arguments: Any, named: Any) -> Callable[..., Any]:
        """What answers for arguments of one form, given as leaves and as they are."""
        with _looking():
            program = NumpyProgram(lambda arguments, named: self.function(*arguments, **named), arguments, named)
        if numpy_is_quicker(program.traced):
            return lambda leaves, arguments, named: program.of_leaves(leaves)
        if _calls_host(program.traced.jaxpr):  # where XLA compiles, sets are projected on by programs
            return self._by_xla(lambda leaves, arguments, named: self._compiled(*arguments, **named))
        compiled = _compiled(jaxpr_as_fun(program.traced))  # to trace a large program again takes as long as loading it from disk
        return self._by_xla(lambda leaves, arguments, named: program.restored(compiled(*leaves)))

    def _by_xla(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """The compiled program, or a part of what is being traced around the call, where something is.

        A call that may take long, as the first one that compiles and any after a long one, can be given up.
        """
        took = LONG

        def call(*given: Any) -> Any:
            return jax.block_until_ready(compiled(*given))

        def answer(leaves: Any, arguments: Any, named: Any) -> Any:
            nonlocal took
            if not trace_state_clean():
                return self._within(*arguments, **named)
            began, given = perf_counter(), (leaves, arguments, named)
            result = apart(call, *given) if took >= LONG else call(*given)
            took = perf_counter() - began
            return result

        return answer

    @cached_property
    def _compiled(self) -> Any:
        return _compiled(self.function)

    def trace(self, *arguments: Any, **named: Any) -> Any:
        """JAX's own trace of the function."""
        return self._compiled.trace(*arguments, **named)


quick_jit = QuickProgram

_LOOKS: ContextVar[bool] = ContextVar("traced for NumPy", default=False)


@contextmanager
def _looking() -> Iterator[None]:
    token = _LOOKS.set(True)
    try:
        yield
    finally:
        _LOOKS.reset(token)


def traced_for_numpy() -> bool:
    """Whether what is being traced will be run by NumPy, for which a call of a solver on the host costs nothing extra.

    Only calls of functions on the host may depend on it: a trace without any is compiled as it is.
    """
    return _LOOKS.get()


def numpy_is_quicker(program: ClosedJaxpr) -> bool:
    """Whether NumPy has run a program ``CALLS`` times before XLA would have compiled it.

    Where solvers on the host are called the time is theirs, and XLA would compile solvers of its own instead.
    """
    seconds = _running(program.jaxpr)
    if _calls_host(program.jaxpr):
        return seconds <= PATIENCE
    return seconds <= LONGEST and CALLS * seconds <= COMPILING + EQUATION * equations(program.jaxpr)


def _running(program: Jaxpr) -> float:
    """Seconds that NumPy takes for a program, about."""
    total = 0.0
    for equation in program.eqns:
        inner = [_running(part) for part in jaxprs_in_params(equation.params)]
        if equation.primitive.name == "scan":
            total += equation.params["length"] * sum(inner)
        elif equation.primitive.name == "while":
            total += TRIPS * sum(inner)
        elif inner:
            total += max(inner) if equation.primitive.name == "cond" else inner[-1]
        total += OPERATION + ENTRY * _work(equation)
    return total


def equations(program: Jaxpr) -> int:
    """How many equations a program has, those of the functions it calls among them."""
    return sum(1 + sum(map(equations, jaxprs_in_params(equation.params))) for equation in program.eqns)


def _calls_host(program: Jaxpr) -> bool:
    return any(e.primitive.name == "pure_callback" or any(map(_calls_host, jaxprs_in_params(e.params))) for e in program.eqns)


def _work(equation: Any) -> float:
    sizes = [
        int(np.prod(atom.aval.shape)) for atom in (*equation.invars, *equation.outvars) if hasattr(atom.aval, "shape")
    ]
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        return sizes[-1] * float(np.prod([equation.invars[0].aval.shape[k] for k in contracted], dtype=float))
    return float(sum(sizes))


def _compiled(function: Callable[..., Any]) -> Any:
    """``jax.jit`` without XLA's newer fusion emitters on a CPU, and with a module for each core rather than for each kernel.

    Measured: 0.5 to 0.65 of the compilation; runs take as long, a fifth longer at worst. Not for local steps, where matrices
    indexed by flat counters would make them three times as slow.
    """
    if jax.default_backend() != "cpu":
        return jax.jit(function)
    options = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": core_count()}
    return jax.jit(function, compiler_options=options)


class TracedOnce:
    """A function that is traced once for arguments of a shape, and whose equations are copied wherever other programs call it.

    Tracing Python code takes several times as long as copying its equations, under ``jax.vmap`` above all, and every question about a
    problem (values, slopes, kinks, a search) is a program around the same evaluation of f. The trace also depends on the precision, and
    on whether NumPy will run it.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._traced: dict[Any, Traced] = {}

    def __call__(self, *arguments: Any) -> Any:
        """The function's result; arguments are trees of arrays and numbers."""
        leaves, form = jax.tree.flatten(arguments)
        arrays = [jnp.asarray(leaf) for leaf in leaves]
        key = form, tuple((array.shape, array.dtype) for array in arrays), is_double(), traced_for_numpy()
        if key not in self._traced:
            shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
            self._traced[key] = Traced.of(self.function, *jax.tree.unflatten(form, shapes))
        return self._traced[key](*jax.tree.unflatten(form, arrays))
