"""Elementwise atoms, with a fixed element of the subdifferential at kinks and +-infinity, never NaN, at the domain's edge."""

from __future__ import annotations

import functools
from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import jax.scipy.special as special
import numpy as np
from cvxpy.atoms.elementwise.hyperbolic import asinh, atanh, sinh, tanh
from cvxpy.atoms.elementwise.logic import And, LogicExpression, Not, Or, Xor, _NaryLogicExpression
from cvxpy.atoms.elementwise.normcdf import normcdf
from cvxpy.atoms.elementwise.power import Power, PowerApprox
from cvxpy.atoms.elementwise.trig import cos, sin, tan

from hierfl.compiler.registry import lowers, refuses


@lowers(cp.abs)
def _absolute(atom: Any, value: Any) -> Any:
    return jnp.abs(value)  # derivative 0 at 0


@lowers(cp.ceil)
def _ceiling(atom: Any, value: Any) -> Any:
    return jnp.ceil(value)


@lowers(cp.floor)
def _floor(atom: Any, value: Any) -> Any:
    return jnp.floor(value)


@lowers(cp.sign)
def _sign(atom: Any, value: Any) -> Any:
    return jnp.where(value > 0, 1.0, -1.0).astype(value.dtype)


@lowers(cp.exp)
def _exp(atom: Any, value: Any) -> Any:
    return jnp.exp(value)


@lowers(cp.log)
def _log(atom: Any, value: Any) -> Any:
    return jnp.log(value)


@lowers(cp.log1p)
def _log1p(atom: Any, value: Any) -> Any:
    return jnp.log1p(value)


@lowers(cp.logistic)
def _logistic(atom: Any, value: Any) -> Any:
    return jnp.logaddexp(value, jnp.zeros((), value.dtype))


@lowers(cp.entr)
def _entropy(atom: Any, value: Any) -> Any:
    inside = value > 0
    safe = jnp.where(inside, value, 1.0)
    edge = jnp.where(value == 0, _infinite_slope(value), -jnp.inf)
    return jnp.where(inside, -safe * jnp.log(safe), edge)


@lowers(cp.rel_entr)
def _relative_entropy(atom: Any, x: Any, y: Any) -> Any:
    x, y = jnp.broadcast_arrays(x, y)
    inside = (x > 0) & (y > 0)
    safe_x, safe_y = jnp.where(inside, x, 1.0), jnp.where(inside, y, 1.0)
    edge = jnp.where((x == 0) & (y >= 0), -_infinite_slope(x), jnp.inf)
    return jnp.where(inside, safe_x * (jnp.log(safe_x) - jnp.log(safe_y)), edge)


@lowers(cp.kl_div)
def _kl_divergence(atom: Any, x: Any, y: Any) -> Any:
    return _relative_entropy(atom, x, y) - x + y


@lowers(cp.xexp)
def _x_exp_x(atom: Any, value: Any) -> Any:
    return value * jnp.exp(value)


@lowers(cp.huber)
def _huber(atom: Any, value: Any) -> Any:
    bound = jnp.asarray(np.asarray(atom.M.value, dtype=float), value.dtype)
    size = jnp.abs(value)
    inner = jnp.minimum(size, bound)
    return inner**2 + 2 * bound * (size - inner)


@lowers(cp.maximum)
def _maximum(atom: Any, *values: Any) -> Any:
    return functools.reduce(_larger, values)


@lowers(cp.minimum)
def _minimum(atom: Any, *values: Any) -> Any:
    return -functools.reduce(_larger, [-value for value in values])


@lowers(Power, PowerApprox)
def _power(atom: Any, value: Any) -> Any:
    exponent = float(np.asarray(atom.p.value)) if hasattr(atom.p, "value") else float(atom.p)
    if exponent.is_integer() and exponent >= 0:
        return value ** int(exponent)
    if exponent.is_integer():
        return _negative_integer_power(value, int(exponent))
    if exponent < 0:
        return jnp.where(value > 0, jnp.where(value > 0, value, 1.0) ** exponent, jnp.inf)
    return _root(value, exponent)


@lowers(normcdf)
def _normal_cdf(atom: Any, value: Any) -> Any:
    return special.ndtr(value)


@lowers(sin)
def _sin(atom: Any, value: Any) -> Any:
    return jnp.sin(value)


@lowers(cos)
def _cos(atom: Any, value: Any) -> Any:
    return jnp.cos(value)


@lowers(tan)
def _tan(atom: Any, value: Any) -> Any:
    return jnp.tan(value)


@lowers(sinh)
def _sinh(atom: Any, value: Any) -> Any:
    return jnp.sinh(value)


@lowers(tanh)
def _tanh(atom: Any, value: Any) -> Any:
    return jnp.tanh(value)


@lowers(asinh)
def _asinh(atom: Any, value: Any) -> Any:
    return jnp.arcsinh(value)


@lowers(atanh)
def _atanh(atom: Any, value: Any) -> Any:
    return jnp.arctanh(value)


refuses(
    "it is a logic atom of boolean variables, which hierfl does not treat",
    LogicExpression,
    Not,
    _NaryLogicExpression,
    And,
    Or,
    Xor,
)


def _larger(a: Any, b: Any) -> Any:
    """max with the derivative of the first argument at ties: one element of the subdifferential."""
    return jnp.where(a >= b, a, b)


def _negative_integer_power(value: Any, exponent: int) -> Any:
    safe = jnp.where(value == 0, 1.0, value)
    return jnp.where(value == 0, jnp.inf, safe**exponent)


def _root(value: Any, exponent: float) -> Any:
    """value**p for fractional p > 0: NaN below 0 as in CVXPY; slope at 0 is 0 for p > 1 and +inf for p < 1."""
    inside = value > 0
    safe = jnp.where(inside, value, 1.0)
    at_zero = jnp.zeros_like(value) if exponent > 1 else _infinite_slope(value)
    return jnp.where(inside, safe**exponent, jnp.where(value == 0, at_zero, jnp.nan))


@jax.custom_jvp
def _infinite_slope(value: Any) -> Any:
    """0 with derivative +infinity: the edge of a domain where the function is finite and its slope is not."""
    return jnp.zeros_like(value)


@_infinite_slope.defjvp
def _infinite_slope_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    (value,), (tangent,) = primals, tangents
    return jnp.zeros_like(value), tangent * jnp.asarray(jnp.finfo(value.dtype).max, value.dtype)
