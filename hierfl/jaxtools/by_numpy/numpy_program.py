"""Programs that JAX has traced, run by NumPy: nothing is compiled, so the first answer comes at once.

JAX's tracing gives values, derivatives and batches; NumPy does the arithmetic, an operation at a time. For the few hundred
small operations of a small problem that takes a fraction of a millisecond, where compiling them takes XLA seconds. What does
not depend on the arguments is computed once, and what is written twice, such as the bounds of a set, once a run. Arrays of
JAX, such as the data, nobody can change: where the same ones come again, what depends on them alone is computed once as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from hierfl.jaxtools.by_numpy.numpy_primitives import MAKERS, Indexing
from hierfl.jaxtools.interruption import heed

Run = Callable[..., Sequence[Any]]
NUMPYS = np.dtype(float)
SMALL = 64  # entries of a constant that is looked at
# times that the same arrays come until there is a program for them, and how many such programs are made
AGAIN, REMADE = 3, 8
_CALLS = {"jit": "jaxpr", "closed_call": "call_jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "remat2": "jaxpr"}


class _Latest(NamedTuple):
    """The arrays of JAX that came last, how often in a row, and the program that has them for constants."""

    arrays: Sequence[Any]
    times: int
    program: Run | None


class NumpyProgram:
    """A function of arrays, traced by JAX for the shapes and types of examples: arrays, or trees of them."""

    def __init__(self, function: Callable[..., Any], *examples: Any) -> None:
        self.traced, result = jax.make_jaxpr(function, return_shape=True)(*examples)
        self._result = jax.tree.structure(result)
        self._latest = _Latest((), 0, None)  # replaced as a whole: several threads may ask at once
        self._made = 0

    @cached_property
    def _run(self) -> Run:
        return program_of(self.traced)

    def _chosen(self, leaves: Sequence[Any]) -> Run:
        """The program for arguments whose arrays of JAX are these."""
        fixed = [leaf for leaf in leaves if type(leaf) is not np.ndarray and isinstance(leaf, jax.Array)]
        latest = self._latest
        same = len(fixed) == len(latest.arrays) and all(a is b for a, b in zip(fixed, latest.arrays))
        if same and latest.program is not None:
            return latest.program
        times, program = latest.times + 1 if same else 1, None
        if fixed and times >= AGAIN and self._made < REMADE and not any(map(_is_key, fixed)):
            known = [_numpy(leaf) if isinstance(leaf, jax.Array) else None for leaf in leaves]
            program, self._made = program_of(self.traced, known), self._made + 1
        self._latest = _Latest(fixed, times, program)
        return program or self._run

    def __call__(self, *arguments: Any) -> Any:
        return self.of_leaves(jax.tree.leaves(arguments))

    def of_leaves(self, leaves: Sequence[Any]) -> Any:
        """The result for arguments that are given as the leaves of their trees."""
        with np.errstate(all="ignore"):
            run = self._chosen(leaves)
            return self.restored(run(*[leaf if type(leaf) is np.ndarray else _numpy(leaf) for leaf in leaves]))

    def restored(self, leaves: Sequence[Any]) -> Any:
        """The tree that the function returns, of its leaves."""
        return jax.tree.unflatten(self._result, leaves)


@dataclass(frozen=True)
class _Step:
    """One operation: its function, the places of its arguments and of its results."""

    apply: Callable[..., Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    several: bool


def program_of(closed: ClosedJaxpr, known: Sequence[Any] | None = None) -> Run:
    """The traced program as a function of flat NumPy arrays; those ``known`` (None elsewhere) are taken for constants."""
    return _Builder([_numpy(c) for c in closed.consts], closed.jaxpr, known or [None] * len(closed.in_avals)).run()


class _Builder:
    """Lays out the equations of one jaxpr, those of the functions it calls among them: what is known is computed now."""

    def __init__(self, consts: Sequence[Any], jaxpr: Jaxpr, known: Sequence[Any]) -> None:
        self.values: list[Any] = []  # by place; None where it is computed at every run
        self.known: list[bool] = []
        self.steps: list[_Step] = []
        self.made: dict[Any, tuple[int, ...]] = {}  # where the results of an operation on these places are already
        self.inputs = tuple(self._place() for _ in jaxpr.invars)
        places = [place if value is None else self._constant(value) for place, value in zip(self.inputs, known)]
        names = dict(zip(jaxpr.constvars, map(self._constant, consts))) | dict(zip(jaxpr.invars, places))
        self.outputs = self._add(jaxpr, names)

    def run(self) -> Run:
        """The program; unused operations are left out."""
        used, kept = set(self.outputs), []
        for step in reversed(self.steps):
            if used & set(step.outputs):
                used |= set(step.inputs)
                kept.append(step)
        return self._written(kept[::-1])

    def _written(self, steps: Sequence[_Step]) -> Run:
        """The operations as a function of Python's, a line each: half the time of going through a list of them."""
        names: dict[str, Any] = {f"v{place}": self.values[place] for place, known in enumerate(self.known) if known}
        lines = [f"def program({', '.join(f'v{place}' for place in self.inputs)}):"]
        for count, step in enumerate(steps):
            names[f"f{count}"] = step.apply
            targets = ", ".join(f"v{place}" for place in step.outputs) + ("," if step.several else "")
            lines.append(f" {targets} = f{count}({', '.join(f'v{place}' for place in step.inputs)})")
        lines.append(f" return [{', '.join(f'v{place}' for place in self.outputs)}]")
        exec("\n".join(lines), names)
        return names["program"]

    def _place(self) -> int:
        self.values.append(None)
        self.known.append(False)
        return len(self.values) - 1

    def _constant(self, value: Any) -> int:
        held = _numpy(value)
        key = _mark(held)
        if key in self.made:
            return self.made[key][0]
        self.values.append(held)
        self.known.append(True)
        place = len(self.values) - 1
        if key is not None:
            self.made[key] = (place,)
        return place

    def _add(self, jaxpr: Jaxpr, names: dict[Any, int]) -> tuple[int, ...]:
        """Add the equations of a jaxpr whose variables have these places; the places of its results."""

        def place(atom: Any) -> int:
            return (
                self._constant(np.asarray(atom.val, getattr(atom.aval, "dtype", None)))
                if isinstance(atom, Literal)
                else names[atom]
            )

        for equation in jaxpr.eqns:
            sources = tuple(map(place, equation.invars))
            targets = self._equation(equation, sources)
            names.update(zip(equation.outvars, targets))
        return tuple(map(place, jaxpr.outvars))

    def _equation(self, equation: Any, sources: tuple[int, ...]) -> tuple[int, ...]:
        name = equation.primitive.name
        if name in _CALLS:
            return self._inlined(equation.params[_CALLS[name]], sources)
        if name == "custom_linear_solve":
            return self._linear_solve(equation, sources)
        if name == "scan" and equation.params["length"] == 1:
            return self._once(equation, sources)
        several = equation.primitive.multiple_results
        apply = _operation(equation)
        if apply is None:
            return sources
        if all(self.known[s] for s in sources) and not equation.effects and name != "pure_callback":
            with np.errstate(all="ignore"):
                result = apply(*(self.values[s] for s in sources))
            return tuple(map(self._constant, result if several else [result]))
        again = _again(equation, sources)
        if again is not None and again in self.made:
            return self.made[again]
        if isinstance(apply, Indexing) and self.known[sources[1]]:
            apply = apply.at(self.values[sources[1]])
        targets = tuple(self._place() for _ in equation.outvars)
        self.steps.append(_Step(apply, sources, targets, several))
        if again is not None:
            self.made[again] = targets
        return targets

    def _inlined(self, called: Any, sources: Sequence[int]) -> tuple[int, ...]:
        inner, consts = (called.jaxpr, called.consts) if isinstance(called, ClosedJaxpr) else (called, ())
        names = dict(zip(inner.constvars, map(self._constant, consts)))
        return self._add(inner, names | dict(zip(inner.invars, sources)))

    def _linear_solve(self, equation: Any, sources: Sequence[int]) -> tuple[int, ...]:
        lengths, jaxprs = equation.params["const_lengths"], equation.params["jaxprs"]
        ends = np.cumsum([0, *lengths])
        solve = list(sources[ends[2] : ends[3]])
        return self._inlined(jaxprs.solve, [*solve, *sources[ends[-1] :]])

    def _once(self, equation: Any, sources: Sequence[int]) -> tuple[int, ...]:
        """A scan of one trip, without its loop."""
        consts, carried = equation.params["num_consts"], equation.params["num_carry"]
        fixed = consts + carried
        rows = [self._applied(lambda x: x[0], s) for s in sources[fixed:]]
        results = self._inlined(equation.params["jaxpr"], [*sources[:fixed], *rows])
        stacked = [self._applied(lambda x: np.asarray(x)[None], r) for r in results[carried:]]
        return (*results[:carried], *stacked)

    def _applied(self, function: Callable[[Any], Any], source: int) -> int:
        if self.known[source]:
            return self._constant(function(self.values[source]))
        target = self._place()
        self.steps.append(_Step(function, (source,), (target,), False))
        return target


def _again(equation: Any, sources: tuple[int, ...]) -> Any:
    """What tells that an operation is the same as another; None where nothing may."""
    name = equation.primitive.name
    if equation.effects or name == "pure_callback":
        return None
    key = name, tuple(equation.params.items()), sources
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _mark(value: Any) -> Any:
    """What tells that a small constant is the same as another, to the bit."""
    if _is_key(value) or value.size > SMALL:
        return None
    return "constant", value.dtype, value.shape, value.tobytes()


def _operation(equation: Any) -> Callable[..., Any] | None:
    """The function of one equation on NumPy arrays; None where it is its argument."""
    name = equation.primitive.name
    if name in _LOOPS:
        return _LOOPS[name](equation.params)
    if name in MAKERS and not any(_is_key(atom.aval) for atom in (*equation.invars, *equation.outvars)):
        if name in ("broadcast_in_dim", "reshape", "squeeze", "convert_element_type", "copy", "stop_gradient"):
            source, target = equation.invars[0].aval, equation.outvars[0].aval
            turned = equation.params.get("dimensions") is not None and name == "reshape"
            if (source.shape, source.dtype) == (target.shape, target.dtype) and not turned:
                return None
        return MAKERS[name](equation)
    return _by_jax(equation)


def _by_jax(equation: Any) -> Callable[..., Any]:
    """One operation of JAX itself, for primitives that NumPy has no like of."""
    double = bool(jax.numpy.result_type(float) == np.float64)
    bind, settings, several = equation.primitive.bind, equation.params, equation.primitive.multiple_results

    def apply(*arguments: Any) -> Any:
        with jax.enable_x64(double), jax.ensure_compile_time_eval():
            result = bind(*(a if isinstance(a, jax.Array) else jax.numpy.asarray(a) for a in arguments), **settings)
        return [_numpy(r) for r in result] if several else _numpy(result)

    return apply


def _numpy(value: Any) -> Any:
    """The value as NumPy has it; keys of random numbers stay JAX's."""
    return value if _is_key(value) else np.asarray(value)


def _is_key(value: Any) -> bool:
    return not isinstance(getattr(value, "dtype", NUMPYS), np.dtype)  # JAX's own types are no types of NumPy's


# --- loops -----------------------------------------------------------------------------------------------------------


def _while(settings: dict[str, Any]) -> Callable[..., Any]:
    test, body = program_of(settings["cond_jaxpr"]), program_of(settings["body_jaxpr"])
    a, b = settings["cond_nconsts"], settings["body_nconsts"]

    def loop(*arguments: Any) -> list[Any]:
        for_test, for_body, carry = arguments[:a], arguments[a : a + b], list(arguments[a + b :])
        while np.any(going := test(*for_test, *carry)[0]):
            heed()
            ahead = body(*for_body, *carry)
            carry = list(ahead) if np.all(going) else [_chosen(going, new, old) for new, old in zip(ahead, carry)]
        return carry

    return loop


def _chosen(going: Any, new: Any, old: Any) -> Any:
    """The new state of the loops of a batch that go on, the old one of those that have ended."""
    return np.where(np.reshape(going, (*going.shape, *[1] * (np.ndim(new) - going.ndim))), new, old)


def _scan(settings: dict[str, Any]) -> Callable[..., Any]:
    body = program_of(settings["jaxpr"])
    consts, carried, length = settings["num_consts"], settings["num_carry"], settings["length"]
    order = range(length - 1, -1, -1) if settings["reverse"] else range(length)
    stacked = [v.aval for v in settings["jaxpr"].jaxpr.outvars[carried:]]

    def scan(*arguments: Any) -> list[Any]:
        fixed, carry = arguments[:consts], list(arguments[consts : consts + carried])
        rows = arguments[consts + carried :]
        outs = [np.empty((length, *a.shape), a.dtype) for a in stacked]
        for k in order:
            heed()
            result = body(*fixed, *carry, *[r[k] for r in rows])
            carry = list(result[:carried])
            for out, value in zip(outs, result[carried:]):
                out[k] = value
        return [*carry, *outs]

    return scan


def _cond(settings: dict[str, Any]) -> Callable[..., Any]:
    branches = [program_of(branch) for branch in settings["branches"]]
    return lambda which, *arguments: branches[min(max(int(which), 0), len(branches) - 1)](*arguments)


def _callback(settings: dict[str, Any]) -> Callable[..., Any]:
    called = settings["callback"]

    def call(*arguments: Any) -> list[Any]:
        given = jax.tree.unflatten(called.in_tree, arguments)
        positional, named = given
        return [np.asarray(r) for r in jax.tree.leaves(called.callback_func(*positional, **named))]

    return call


_LOOPS: dict[str, Callable[[dict[str, Any]], Callable[..., Any]]] = {
    "while": _while,
    "scan": _scan,
    "cond": _cond,
    "pure_callback": _callback,
}
