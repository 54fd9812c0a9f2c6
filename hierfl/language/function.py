"""Atoms around a user's own code, and its calls: ``Function`` (JAX, with gradients) and ``BlackBox`` (NumPy on the host, values only)."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np

from hierfl.atoms.ranges import always_smooth
from hierfl.atoms.row import AtomRow, Unknown
from hierfl.atoms.writing.phrase import Phrase
from hierfl.atoms.writing.spelling import Reader
from hierfl.errors import DeclarationError, DivergedError, HierflError, NotConvexError
from hierfl.jaxtools.lazy_module import LazyModule
from hierfl.language.declared_arguments import as_expression
from hierfl.near_names import suggests_names

if TYPE_CHECKING:
    import jax.numpy as jnp

    from hierfl.jaxtools import host_callback
else:
    jnp, host_callback = map(LazyModule, ("jax.numpy", "hierfl.jaxtools.host_callback"))


def call_function(atom: Any, *values: Any) -> Any:
    """A ``Function`` within the program."""
    try:
        result = jnp.asarray(atom.callable(*values))
    except HierflError:
        raise
    except Exception as error:
        raise DeclarationError(f"hf.Function {atom.label_name!r} {_why_not_traced(error)}") from error
    _check_shape(f"hf.Function {atom.label_name!r}", result.shape, atom.declared_shape)
    return result.astype(jnp.result_type(*values))


def _why_not_traced(error: Exception) -> str:
    """What stands in a function that JAX cannot follow, and what to write instead; else the error in its own words."""
    from jax import errors

    host = "or write it as a hf.BlackBox, of which only values are used."
    if isinstance(error, errors.TracerArrayConversionError):
        return f"calls a function of NumPy (or SciPy) on an array that JAX traces. Write jax.numpy's, jnp.sin(x) for np.sin(x), {host}"
    if isinstance(error, errors.TracerBoolConversionError):
        return f"asks with if, while, and, or or not about a value that JAX traces. Write jnp.where(condition, this, that), {host}"
    if isinstance(error, (errors.ConcretizationTypeError, errors.TracerIntegerConversionError)):
        return f"needs as a number of Python (float(), int(), an index, a length) a value that JAX traces. Keep it an array of jax.numpy, {host}"
    return f"raised {type(error).__name__}: {error}"


def call_black_box(atom: Any, *values: Any) -> Any:
    """A ``BlackBox`` on the host; differentiating is refused."""
    refusal = DeclarationError(
        f"hf.BlackBox {atom.label_name!r} has values only and was asked for a gradient: use it in a term that a "
        f"zeroth-order algorithm such as ZOHFL only evaluates, or write it for JAX as a hf.Function."
    )

    def call(*given: np.ndarray) -> np.ndarray:
        return _on_one(atom, list(given))

    return host_callback.call_on_host(call, atom.declared_shape, jnp.result_type(*values), *values, refusal=refusal)


def _on_one(atom: Any, arrays: list[np.ndarray]) -> np.ndarray:
    label = f"hf.BlackBox {atom.label_name!r}"
    try:
        result = np.asarray(atom.callable(*arrays))
    except Exception as error:  # JAX only shows the message: it says in whose callable, and at which arguments
        raise DeclarationError(f"{label} raised {type(error).__name__}: {error} at {_shown(arrays)}.") from error
    _check_shape(label, result.shape, atom.declared_shape)
    if np.isnan(result).any() and not any(np.isnan(array).any() for array in arrays):
        raise DivergedError(f"{label} returned NaN at {_shown(arrays)}.")
    return result


def _check_shape(label: str, shape: tuple[int, ...], declared: tuple[int, ...]) -> None:
    if shape != declared:
        raise DeclarationError(f"{label} returned an array of shape {shape}; declared shape={declared}.")


def _shown(arrays: list[np.ndarray]) -> str:
    return ", ".join(np.array2string(array, threshold=6, precision=4) for array in arrays)


def _read(reader: Reader, atom: Any) -> Phrase:
    name = "f" if atom.label_name == "<lambda>" else atom.label_name
    return Phrase("call", tuple(reader(argument) for argument in atom.args), value=name, shape=tuple(atom.shape))


class UserAtom(Unknown):
    """An atom whose value is computed by a callable of the arguments' values."""

    @suggests_names
    def __init__(
        self,
        callable: Callable[..., Any],
        *args: Any,
        shape: int | tuple[int, ...] = (),
        convex: bool = False,
        name: str | None = None,
    ) -> None:
        if not args:
            raise DeclarationError(f"{type(self).__name__} needs at least one argument besides its callable.")
        if not builtins.callable(callable):
            raise DeclarationError(f"{type(self).__name__} takes a callable first, then its arguments, not {callable!r}.")
        self.callable = callable
        self.declared_shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.asserted_convex = convex
        self.label_name = name or getattr(callable, "__name__", type(callable).__name__)
        super().__init__(*(as_expression(one, f"an argument of {type(self).__name__} {self.label_name!r}") for one in args))

    def shape_from_args(self) -> tuple[int, ...]:
        """The declared shape, which is compared with that of the callable's result when the problem is compiled."""
        return self.declared_shape

    # CVXPY's hooks: nothing is known of the code but what the user asserts

    def is_atom_convex(self) -> bool:
        """Whether the user asserted convexity (of the callable, for affine arguments)."""
        return self.asserted_convex

    def get_data(self) -> list[Any]:
        return [self.callable, self.declared_shape, self.asserted_convex, self.label_name]

    def copy(self, args: Any = None, id_objects: Any = None) -> UserAtom:
        told: dict[str, Any] = {"shape": self.declared_shape, "convex": self.asserted_convex, "name": self.label_name}
        return type(self)(self.callable, *(args or self.args), **told)

    def name(self) -> str:
        return f"{self.label_name}({', '.join(arg.name() for arg in self.args)})"

    def numeric(self, values: Any) -> np.ndarray:
        return np.asarray(self.callable(*values), dtype=float).reshape(self.declared_shape)

    def canonicalize(self) -> NoReturn:
        raise NotConvexError(f"{self.name()} is user code: CVXPY has no conic form of it, and no solver that can treat it.")

    def _grad(self, values: Any) -> NoReturn:
        raise NotImplementedError


class Function(UserAtom):
    """An atom around a JAX-traceable function: value and gradient.

    Parameters
    ----------
    callable
        JAX-traceable; called with one array per argument.
    *args
        CVXPY expressions or constants.
    shape
        Shape of the result; checked when the problem is compiled.
    convex
        Assert that the callable is convex in its (affine) arguments. Never verified; reported as asserted.
    name
        Name in printed mathematics; default the callable's own name.

    Raises
    ------
    DeclarationError
        Without arguments.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> problem = hf.Problem(hf.Minimize(clients=hf.Function(lambda v: jnp.sum(jnp.tanh(v) ** 2), x)))
    >>> problem.implicit(np.zeros(2))
    0.0
    """

    atom_row: ClassVar[AtomRow] = AtomRow(lower=call_function, smooth=always_smooth, opaque=True, read=_read)


class BlackBox(UserAtom):
    """An atom around a NumPy host function: values only, so that algorithms take differences of these.

    Parameters as for :class:`Function`, without ``convex``. A gradient through it is refused when the
    problem is compiled for an algorithm that needs one.

    Examples
    --------
    >>> problem = hf.Problem(hf.Minimize(clients=hf.BlackBox(lambda v: float(np.max(v)), x)))
    >>> problem.implicit(np.array([1.0, 3.0]))
    3.0
    """

    atom_row: ClassVar[AtomRow] = AtomRow(lower=call_black_box, smooth=always_smooth, opaque=True, read=_read)

    @suggests_names
    def __init__(
        self, callable: Callable[..., Any], *args: Any, shape: int | tuple[int, ...] = (), name: str | None = None
    ) -> None:
        super().__init__(callable, *args, shape=shape, name=name)

    def copy(self, args: Any = None, id_objects: Any = None) -> BlackBox:
        return BlackBox(self.callable, *(args or self.args), shape=self.declared_shape, name=self.label_name)


def user_atoms(parts: Iterable[Any]) -> Iterator[UserAtom]:
    """All functions of the user's in expressions or constraints, those that stand in others as well, from the outside in."""
    for part in parts:
        if isinstance(part, UserAtom):
            yield part
        yield from user_atoms(getattr(part, "args", ()))


def asserted_convex(parts: Iterable[Any], variables: Iterable[Any]) -> tuple[str, ...]:
    """The names of the functions of these variables, in the expressions or constraints, whose convexity is the user's word."""
    wanted, asserted = list(variables), (atom for atom in user_atoms(parts) if atom.asserted_convex)
    found = (str(atom.label_name) for atom in asserted if any(v is w for v in atom.variables() for w in wanted))
    return tuple(dict.fromkeys(found))


def uses_black_box(parts: Iterable[Any]) -> BlackBox | None:
    """The first ``BlackBox`` in the expressions, or None where there is none."""
    return next((atom for atom in user_atoms(parts) if isinstance(atom, BlackBox)), None)


def user_code_in(tree: Any) -> UserAtom | None:
    """A function of the user's that variables enter, of which CVXPY knows nothing but what is asserted."""
    return next((atom for atom in user_atoms([tree]) if atom.variables()), None)
