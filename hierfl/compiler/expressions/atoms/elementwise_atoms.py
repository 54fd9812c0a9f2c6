"""Elementwise atoms: at kinks a fixed element of the subdifferential; at the edge of a domain a huge slope, never NaN."""

from __future__ import annotations

import functools
from typing import Any

import cvxpy as cp
import jax.numpy as jnp
import jax.scipy.special as special
from cvxpy.atoms.elementwise.hyperbolic import asinh, atanh, sinh, tanh
from cvxpy.atoms.elementwise.logic import And, LogicExpression, Not, Or, Xor, _NaryLogicExpression
from cvxpy.atoms.elementwise.normcdf import normcdf
from cvxpy.atoms.elementwise.power import Power, PowerApprox
from cvxpy.atoms.elementwise.trig import cos, sin, tan

from hierfl.compiler.expressions.atoms.safe import steep
from hierfl.compiler.expressions.registry import lowers, refuses, refuses_when

_DECIMALS = 4  # CVXPY rounds to its ATOM_EVAL_TOL before ceil and floor


@lowers(cp.abs)
def _absolute(atom: Any, value: Any) -> Any:
    return jnp.abs(value)  # derivative 0 at 0


@lowers(cp.ceil)
def _ceiling(atom: Any, value: Any) -> Any:
    return jnp.ceil(jnp.round(value, _DECIMALS))


@lowers(cp.floor)
def _floor(atom: Any, value: Any) -> Any:
    return jnp.floor(jnp.round(value, _DECIMALS))


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
    edge = jnp.where(value == 0, steep(value), -jnp.inf)
    return jnp.where(inside, -safe * jnp.log(safe), edge)


@lowers(cp.rel_entr)
def _relative_entropy(atom: Any, x: Any, y: Any) -> Any:
    x, y = jnp.broadcast_arrays(x, y)
    inside = (x > 0) & (y > 0)
    safe_x, safe_y = jnp.where(inside, x, 1.0), jnp.where(inside, y, 1.0)
    edge = jnp.where((x == 0) & (y >= 0), -steep(x), jnp.inf)
    return jnp.where(inside, safe_x * (jnp.log(safe_x) - jnp.log(safe_y)), edge)


@lowers(cp.kl_div)
def _kl_divergence(atom: Any, x: Any, y: Any) -> Any:
    return _relative_entropy(atom, x, y) - x + y


@lowers(cp.xexp)
def _x_exp_x(atom: Any, value: Any) -> Any:
    return value * jnp.exp(value)


@lowers(cp.huber, settings=("M",))
def _huber(atom: Any, value: Any, bound: Any) -> Any:
    size = jnp.abs(value)
    inner = jnp.minimum(size, bound)
    return inner**2 + 2 * bound * (size - inner)


@lowers(cp.maximum)
def _maximum(atom: Any, *values: Any) -> Any:
    return functools.reduce(jnp.maximum, values)  # at ties half of each derivative


@lowers(cp.minimum)
def _minimum(atom: Any, *values: Any) -> Any:
    return functools.reduce(jnp.minimum, values)


@lowers(Power, PowerApprox)
def _power(atom: Any, value: Any) -> Any:
    exponent = float(atom.p.value)
    if exponent.is_integer():
        return value ** int(exponent) if exponent >= 0 else _reciprocal(value ** int(-exponent))
    return _fractional_power(value, exponent)


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


def _parametrised_exponent(atom: Any) -> str | None:
    if isinstance(atom.p, cp.Constant):
        return None
    return (
        f"its exponent {atom.p.name()!r} is a parameter, and the exponent decides the curvature; write it as a number"
    )


refuses_when(_parametrised_exponent, Power, PowerApprox)


def _reciprocal(value: Any) -> Any:
    return jnp.where(value == 0, jnp.inf, 1.0 / jnp.where(value == 0, 1.0, value))


def _fractional_power(value: Any, exponent: float) -> Any:
    """NaN below 0, as in CVXPY; at 0 infinite (p < 0), or with a huge (p < 1) or no slope (p > 1)."""
    inside = value > 0
    safe = jnp.where(inside, value, 1.0)
    at_zero = jnp.inf if exponent < 0 else steep(value) if exponent < 1 else jnp.zeros_like(value)
    return jnp.where(inside, safe**exponent, jnp.where(value == 0, at_zero, jnp.nan))
