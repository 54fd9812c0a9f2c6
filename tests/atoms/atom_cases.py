"""One specification or more for every compiled atom: (name, atom class, expression of leaves, domain of the leaves)."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.wraps import (
    Wrap,
    hermitian_wrap,
    nonneg_wrap,
    nonpos_wrap,
    nsd_wrap,
    psd_wrap,
    skew_symmetric_wrap,
    symmetric_wrap,
)
from cvxpy.atoms.condition_number import condition_number
from cvxpy.atoms.cumprod import cumprod
from cvxpy.atoms.elementwise import logic
from cvxpy.atoms.elementwise.hyperbolic import asinh, atanh, sinh, tanh
from cvxpy.atoms.elementwise.normcdf import normcdf
from cvxpy.atoms.elementwise.trig import cos, sin, tan
from cvxpy.atoms.gen_lambda_max import gen_lambda_max
from cvxpy.atoms.quad_form import SymbolicQuadForm

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape)


def positive(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.uniform(0.2, 3.0, shape)


def unit(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.uniform(0.05, 0.9, shape) / 3


def round_matrix(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """A multiple of the identity, all of whose eigenvalues meet."""
    return rng.uniform(0.2, 3.0) * np.eye(shape[0])


def definite(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    a = rng.standard_normal(shape)
    return a @ a.T + 0.5 * np.eye(shape[0])


def density(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Positive definite, of trace 1."""
    matrix = definite(rng, shape)
    return matrix / np.trace(matrix)


def distribution(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    weights = positive(rng, shape)
    return weights / weights.sum()


@dataclass(frozen=True)
class Case:
    """An expression of variables ``v[0], v[1], ...`` of the given shapes, drawn from a domain."""

    name: str
    build: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    draws: tuple[Draw, ...] = (normal,)
    differentiable: bool = True

    @property
    def every_draw(self) -> tuple[Draw, ...]:
        return self.draws * len(self.shapes) if len(self.draws) == 1 else self.draws

    def draw(self, rng: np.random.Generator) -> list[np.ndarray]:
        return [d(rng, s) for d, s in zip(self.every_draw, self.shapes)]

    def of_variables(self) -> tuple[Any, list[cp.Variable]]:
        """The expression, and the variables that it is of."""
        kinds = zip("xyz", self.shapes, self.every_draw)
        variables = [cp.Variable(shape, name=name, pos=draw is positive) for name, shape, draw in kinds]
        return self.build(*variables), variables


A34 = np.random.default_rng(3).standard_normal((3, 4))
SYM = np.array([[2.0, 0.3, 0.0], [0.3, 1.0, -0.2], [0.0, -0.2, 3.0]])
V, M, S, T = (4,), (3, 4), (3, 3), (2, 3, 4)

CASES = [
    Case("add broadcast", lambda x, y: x + y + 1, (M, ())),
    Case("sub", lambda x, y: x - 2 * y, (M, M)),
    Case("matvec", lambda x: A34 @ x, (V,)),
    Case("vecmat", lambda x, y: x @ y, ((3,), M)),
    Case("dot of vectors", lambda x, y: x @ y, (V, V)),
    Case("matmat", lambda x, y: x @ y, (M, (4, 2))),
    Case("scalar times matrix", lambda x, y: x * y, ((), M)),
    Case("multiply", lambda x, y: cp.multiply(x, y), (M, M)),
    Case("multiply broadcast", lambda x, y: cp.multiply(x, y), (M, (3, 1))),
    Case("divide", lambda x, y: x / y, (M, ()), (normal, positive)),
    Case("promote", lambda x: cp.promote(x, (2, 3)), ((),)),
    Case("broadcast_to", lambda x: cp.broadcast_to(x, (3, 4)), ((1, 4),)),
    Case("sum", lambda x: cp.sum(x), (M,)),
    Case("sum axis", lambda x: cp.sum(x, axis=1, keepdims=True), (M,)),
    Case("mean", lambda x: cp.mean(x, axis=0), (M,)),
    Case("var", lambda x: cp.var(x), (V,)),
    Case("std", lambda x: cp.std(x), (V,)),
    Case("concatenate", lambda x, y: cp.concatenate([x, y], axis=0), (M, (2, 4))),
    Case("hstack", lambda x, y: cp.hstack([x, y]), (M, (3, 2))),
    Case("hstack vectors", lambda x, y: cp.hstack([x, y]), (V, ())),
    Case("vstack", lambda x, y: cp.vstack([x, y]), (V, V)),
    Case("bmat", lambda x, y: cp.bmat([[x, y], [y, x]]), (S, S)),
    Case("kron", lambda x: cp.kron(np.array([[1.0, 2.0], [3.0, 4.0]]), x), (M,)),
    Case("conv", lambda x: cp.conv(np.array([1.0, -2.0, 3.0]), x), (V,)),
    Case("convolve", lambda x: cp.convolve(np.array([1.0, -2.0, 3.0]), x), (V,)),
    Case("cumsum", lambda x: cp.cumsum(x, axis=1), (M,)),
    Case("diff", lambda x: cp.diff(x, k=2), (V,)),
    Case("diag of vector", lambda x: cp.diag(x), (V,)),
    Case("diag offset", lambda x: cp.diag(x, k=1), (V,)),
    Case("diag of matrix", lambda x: cp.diag(x), (S,)),
    Case("diag of matrix offset", lambda x: cp.diag(x, k=-1), (S,)),
    Case("trace", lambda x: cp.trace(x), (S,)),
    Case("transpose", lambda x: x.T, (M,)),
    Case("swapaxes", lambda x: cp.swapaxes(x, 0, 1), (M,)),
    Case("reshape F", lambda x: cp.reshape(x, (2, 6), order="F"), (M,)),
    Case("reshape C", lambda x: cp.reshape(x, (2, 6), order="C"), (M,)),
    Case("vec", lambda x: cp.vec(x, order="F"), (M,)),
    Case("vec C", lambda x: cp.vec(x, order="C"), (M,)),
    Case("upper_tri", lambda x: cp.upper_tri(x), (S,)),
    Case("index", lambda x: x[1], (V,)),
    Case("slice", lambda x: x[0:3:2, 1:], (M,)),
    Case("row", lambda x: x[-1], (M,)),
    Case("fancy pairs", lambda x: x[[0, 2], [1, 3]], (M,)),
    Case("index with None", lambda x: x[None, 1:], (V,)),
    Case("negative step with negative stop", lambda x: x[-1:-4:-2], (V,)),
    Case("all the way backwards", lambda x: x[::-1, 3::-1], (M,)),
    Case("index of a cube", lambda x: x[1, :, ::-2], (T,)),
    Case("mask of a matrix", lambda x: x[np.abs(A34) > 0.5], (M,)),
    Case("list and slice", lambda x: x[[2, 0], 1:3], (M,)),
    Case("matrix times cube", lambda x, y: x @ y, ((2, 3, 4), (4, 2))),
    Case("sum over two axes", lambda x: cp.sum(x, axis=(0, 2), keepdims=True), (T,)),
    Case("transpose of a cube", lambda x: cp.transpose(x, (2, 0, 1)), (T,)),
    Case("trace of a batch", lambda x: cp.trace(x), ((2, 3, 3),)),
    Case("upper_tri of a batch", lambda x: cp.upper_tri(x), ((2, 3, 3),)),
    Case("stack", lambda x, y: cp.stack([x, y], axis=1), (V, V)),
    Case("cumsum flat", lambda x: cp.cumsum(x, axis=None), (M,)),
    Case("vec_to_upper_tri", lambda x: cp.vec_to_upper_tri(x), ((3,),)),
    Case("einsum", lambda x: cp.einsum("ij,jk->ik", A34.T, x), (M,)),
    Case("hermitian wrap", lambda x: hermitian_wrap(x), (S,), (definite,)),
    Case("wraps", lambda x: Wrap(x) + nonneg_wrap(x) + nonpos_wrap(x), (V,)),
    Case("matrix wraps", lambda x: psd_wrap(x) + nsd_wrap(x) + symmetric_wrap(x), (S,), (definite,)),
    Case("skew wrap", lambda x: skew_symmetric_wrap(x - x.T), (S,)),
    Case("real and conj", lambda x: cp.real(x) + cp.conj(x), (M,)),
    Case("imag", lambda x: cp.imag(x), (M,)),
    Case("abs", lambda x: cp.abs(x), (M,)),
    Case("ceil", lambda x: cp.ceil(x), (M,)),
    Case("floor", lambda x: cp.floor(x), (M,)),
    Case("sign", lambda x: cp.sign(x), ((),)),
    Case("exp", lambda x: cp.exp(x), (M,)),
    Case("log", lambda x: cp.log(x), (M,), (positive,)),
    Case("log1p", lambda x: cp.log1p(x), (M,), (positive,)),
    Case("logistic", lambda x: cp.logistic(30 * x), (M,)),
    Case("entr", lambda x: cp.entr(x), (M,), (positive,)),
    Case("rel_entr", lambda x, y: cp.rel_entr(x, y), (M, M), (positive,)),
    Case("kl_div", lambda x, y: cp.kl_div(x, y), (M, M), (positive,)),
    Case("xexp", lambda x: cp.xexp(x), (M,), (positive,)),
    Case("huber", lambda x: cp.huber(2 * x), (M,)),
    Case("huber M", lambda x: cp.huber(x, 0.3), (M,)),
    Case("maximum", lambda x, y: cp.maximum(x, y, 0.1), (M, M)),
    Case("minimum", lambda x, y: cp.minimum(x, y), (M, ())),
    Case("pos", lambda x: cp.pos(x), (M,)),
    Case("neg", lambda x: cp.neg(x), (M,)),
    Case("square", lambda x: cp.square(x), (M,)),
    *[
        Case(f"power {p}", lambda x, p=p: cp.power(x, p), (V,), (positive,))
        for p in (-2, -0.5, 0, 0.3, 1, 1.5, 2, 3, 4, 2.7)
    ],
    *[Case(f"exact power {p}", lambda x, p=p: cp.power(x, p, approx=False), (V,), (positive,)) for p in (-1, 0.5, 1.7)],
    Case("power 3 of both signs", lambda x: cp.power(x, 3), (V,)),
    Case("even power", lambda x: cp.power(x, 4), (V,)),
    Case("inv_pos", lambda x: cp.inv_pos(x), (V,), (positive,)),
    Case("sqrt", lambda x: cp.sqrt(x), (V,), (positive,)),
    Case("normcdf", lambda x: normcdf(x), (V,)),
    Case("trigonometric", lambda x: sin(x) + cos(x) + tan(0.3 * x), (V,)),
    Case("hyperbolic", lambda x: sinh(x) + tanh(x) + asinh(x), (V,)),
    Case("atanh", lambda x: atanh(x), (V,), (unit,)),
    Case("log_sum_exp", lambda x: cp.log_sum_exp(50 * x), (M,)),
    Case("log_sum_exp axis", lambda x: cp.log_sum_exp(x, axis=1, keepdims=True), (M,)),
    Case("norm1", lambda x: cp.norm1(x), (M,)),
    Case("norm1 axis", lambda x: cp.norm(x, 1, axis=0), (M,)),
    Case("norm_inf", lambda x: cp.norm_inf(x), (M,)),
    Case("norm_inf axis", lambda x: cp.norm(x, "inf", axis=1), (M,)),
    Case("norm2", lambda x: cp.norm(x), (V,)),
    Case("norm2 axis", lambda x: cp.norm(x, 2, axis=1), (M,)),
    Case("frobenius", lambda x: cp.norm(x, "fro"), (M,)),
    *[Case(f"pnorm {p}", lambda x, p=p: cp.pnorm(x, p), (V,)) for p in (1.5, 2, 3, 7.3)],
    *[Case(f"pnorm {p}", lambda x, p=p: cp.pnorm(x, p), (V,), (positive,)) for p in (0.5, -1, -2.5)],
    Case("exact pnorm", lambda x: cp.pnorm(x, 2.5, approx=False), (V,)),
    Case("norm1 keepdims", lambda x: cp.norm(x, 1, axis=0, keepdims=True), (M,)),
    Case("norm_inf keepdims", lambda x: cp.norm(x, "inf", axis=1, keepdims=True), (M,)),
    Case("norm2 keepdims", lambda x: cp.norm(x, 2, axis=0, keepdims=True), (M,)),
    Case("mixed_norm", lambda x: cp.mixed_norm(x, 2, 1), (M,)),
    Case("sigma_max tall", lambda x: cp.sigma_max(x), ((4, 2),)),
    Case("normNuc tall", lambda x: cp.normNuc(x), ((4, 2),)),
    Case("sigma_max", lambda x: cp.sigma_max(x), (M,)),
    Case("normNuc", lambda x: cp.normNuc(x), (M,)),
    Case("max", lambda x: cp.max(x), (M,)),
    Case("max over two axes", lambda x: cp.max(x, axis=(0, 2)), (T,)),
    Case("log_sum_exp over two axes", lambda x: cp.log_sum_exp(x, axis=(0, 1)), (T,)),
    Case("max axis", lambda x: cp.max(x, axis=0, keepdims=True), (M,)),
    Case("min axis", lambda x: cp.min(x, axis=1), (M,)),
    Case("ptp", lambda x: cp.ptp(x), (V,)),
    Case("cummax", lambda x: cp.cummax(x, axis=1), (M,)),
    Case("quad_over_lin", lambda x, y: cp.quad_over_lin(x, y), (M, ()), (normal, positive)),
    Case("quad_over_lin axis", lambda x, y: cp.quad_over_lin(x, y, axis=0), (M, ()), (normal, positive)),
    Case(
        "quad_over_lin keepdims",
        lambda x, y: cp.quad_over_lin(x, y, axis=1, keepdims=True),
        (M, (1,)),
        (normal, positive),
    ),
    Case("sum_squares axis", lambda x: cp.sum_squares(x, axis=1), (M,)),
    Case("quad_form of a column", lambda x: cp.quad_form(x, SYM), ((3, 1),)),
    Case("sum_squares", lambda x: cp.sum_squares(x), (M,)),
    Case("quad_form", lambda x: cp.quad_form(x, SYM), ((3,),)),
    Case("matrix_frac", lambda x, p: cp.matrix_frac(x, p), ((3, 2), S), (normal, definite)),
    Case("matrix_frac vector", lambda x, p: cp.matrix_frac(x, p), ((3,), S), (normal, definite)),
    Case("sum_largest", lambda x: cp.sum_largest(x, 2), (M,)),
    Case("sum_largest fraction", lambda x: cp.sum_largest(x, 2.5), (V,)),
    Case("sum_largest of all", lambda x: cp.sum_largest(x, 4), (V,)),
    Case("sum_largest of more", lambda x: cp.sum_largest(x, 5.5), (V,)),
    Case("sum_largest axis", lambda x: cp.sum_largest(x, 1.5, axis=1, keepdims=True), (M,)),
    Case("sum_smallest", lambda x: cp.sum_smallest(x, 2), (V,)),
    Case("dotsort", lambda x: cp.dotsort(x, np.array([2.0, 1.0, -1.0])), (V,)),
    Case("cvar", lambda x: cp.cvar(x, 0.6), (V,)),
    Case("geo_mean", lambda x: cp.geo_mean(x), (V,), (positive,)),
    Case("geo_mean weights", lambda x: cp.geo_mean(x, [1, 2, 0, 3]), (V,), (positive,)),
    Case("geo_mean axis", lambda x: cp.geo_mean(x, [1, 2, 0], axis=0), (M,), (positive,)),
    Case("geo_mean of a matrix", lambda x: cp.geo_mean(x, np.arange(1, 13)), (M,), (positive,)),
    Case("exact geo_mean", lambda x: cp.geo_mean(x, [0.3, 1.2, 0.5, 2.0], approx=False), (V,), (positive,)),
    Case("harmonic_mean", lambda x: cp.harmonic_mean(x), (V,), (positive,)),
    Case("prod", lambda x: cp.prod(x), (V,)),
    Case("prod axis", lambda x: cp.prod(x, axis=1), (M,)),
    Case("cumprod", lambda x: cumprod(x, axis=1), (M,)),
    Case("length", lambda x: cp.length(x), (V,)),
    Case("dist_ratio", lambda x: cp.dist_ratio(x, np.zeros(4), np.ones(4)), (V,)),
    Case("one_minus_pos", lambda x: cp.one_minus_pos(x), (V,), (unit,)),
    Case("log_det", lambda x: cp.log_det(x), (S,), (definite,)),
    Case("tr_inv", lambda x: cp.tr_inv(x), (S,), (definite,)),
    Case("von_neumann_entr", lambda x: cp.von_neumann_entr(symmetric_wrap(x)), (S,), (definite,)),
    Case(
        "von_neumann_entr where eigenvalues meet",
        lambda x: cp.von_neumann_entr(symmetric_wrap(x)),
        (S,),
        (round_matrix,),
    ),
    Case(
        "von_neumann_entr of a sum of dyads",
        lambda x: cp.von_neumann_entr(psd_wrap(A34 @ cp.diag(x) @ A34.T)),
        (V,),
        (positive,),
    ),
    Case("von_neumann_entr of a diagonal", lambda x: cp.von_neumann_entr(cp.diag(x)), (V,), (positive,)),
    # CVXPY's value of it scales the first matrix to trace 1
    Case(
        "quantum_rel_entr",
        lambda x, y: cp.quantum_rel_entr(symmetric_wrap(x), symmetric_wrap(y)),
        (S, S),
        (density, definite),
    ),
    Case(
        "quantum_rel_entr where eigenvalues meet",
        lambda x, y: cp.quantum_rel_entr(symmetric_wrap(x), symmetric_wrap(y)),
        (S, S),
        (density, round_matrix),
    ),
    Case("quantum_rel_entr to a target", lambda x: cp.quantum_rel_entr(symmetric_wrap(x), SYM), (S,), (density,)),
    Case(
        "quantum_rel_entr of diagonals",
        lambda x, y: cp.quantum_rel_entr(cp.diag(x), cp.diag(y)),
        (V, V),
        (distribution, positive),
    ),
    Case("lambda_max", lambda x: cp.lambda_max(x), (S,), (definite,)),
    Case("lambda_min", lambda x: cp.lambda_min(x), (S,), (definite,)),
    Case("lambda_max of a batch", lambda x: cp.lambda_max(x + cp.swapaxes(x, 1, 2)), ((2, 3, 3),)),
    Case("lambda_sum_largest fraction", lambda x: cp.lambda_sum_largest(x, 1.4), (S,), (definite,)),
    Case("lambda_sum_smallest", lambda x: cp.lambda_sum_smallest(x, 2), (S,), (definite,)),
    Case("pf_eigenvalue", lambda x: cp.pf_eigenvalue(x), ((4, 4),), (positive,)),
    Case(
        "perspective",
        lambda t, x: cp.perspective(cp.sum_squares(x) + cp.sum(cp.exp(x)), t),
        ((), V),
        (positive, normal),
    ),
    Case("lambda_sum_largest", lambda x: cp.lambda_sum_largest(x, 2), (S,), (definite,)),
    Case("gen_lambda_max", lambda x, y: gen_lambda_max(x, y), (S, S), (definite,)),
    Case("condition_number", lambda x: condition_number(x), (S,), (definite,)),
    Case("eye_minus_inv", lambda x: cp.eye_minus_inv(x), (S,), (unit,)),
    Case("gmatmul", lambda x: cp.gmatmul(A34, x), (V,), (positive,)),
    Case("tv", lambda x: cp.tv(x), (M,)),
    Case("loggamma", lambda x: cp.loggamma(x), (V,), (positive,)),
    Case("log_normcdf", lambda x: cp.log_normcdf(x), (V,)),
    Case("outer", lambda x, y: cp.outer(x, y), (V, (3,))),
    Case("partial_trace", lambda x: cp.partial_trace(x, [2, 2], 0), ((4, 4),)),
    Case("partial_transpose", lambda x: cp.partial_transpose(x, [2, 2], 1), ((4, 4),)),
    Case("vdot", lambda x, y: cp.vdot(x, y), (M, M)),
    Case("inv_prod", lambda x: cp.inv_prod(x), (V,), (positive,)),
]

x, y, positive_z, t = cp.Variable(3, name="x"), cp.Variable(3, name="y"), cp.Variable(3, pos=True, name="z"), cp.Variable(name="t")
X, Y, Z = (cp.Variable((3, 3), symmetric=True, name=name) for name in "XYZ")
p, q = cp.Variable(boolean=True, name="p"), cp.Variable(boolean=True, name="q")
complex_u = cp.Variable(3, complex=True, name="u")

# every other atom that may stand in a tree: those that are refused, or are complex
OTHERS: list[Any] = [
    *(kind(complex_u) for kind in (cp.imag, cp.conj, cp.real)),
    SymbolicQuadForm(x, X, x[0]),
    cp.suppfunc(x, [])(y),
    logic.Not(p),
    *(kind(p, q) for kind in (logic.And, logic.Or, logic.Xor)),
]

CONSTRAINTS: list[Any] = [
    *(x <= y, x >= 0, x == 1),
    *(X >> 0, X << SYM, X >> Y, cp.PSD(X)),
    *(cp.SOC(t, x), cp.SOC(y, X)),
    *(kind(x) for kind in (cp.Zero, cp.NonNeg, cp.NonPos)),
    cp.ExpCone(x, y, positive_z),
    *(kind(x, y, positive_z, 0.5) for kind in (cp.PowCone3D, cp.constraints.PowCone3DApprox)),
    cp.PowConeND(X, y, np.full((3, 3), 1 / 3)),
    cp.constraints.SvecPSD(cp.Variable(6, name="h"), 3),
    cp.FiniteSet(x, [1, 2]),
    cp.constraints.RelEntrConeQuad(x, y, positive_z, 3, 3),
    cp.constraints.OpRelEntrConeQuad(X, Y, Z, 3, 3),
]


def instances() -> list[Any]:
    """One expression or more of every concrete class of CVXPY's atoms, and one constraint of each of theirs."""
    return [*(case.of_variables()[0] for case in CASES), *OTHERS, *CONSTRAINTS]


def concrete_classes(base: type) -> set[type]:
    """All of CVXPY's subclasses of a base that can occur in a tree."""
    for package in (cp.atoms, cp.constraints):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)

    def below(kind: type) -> set[type]:
        return set().union(*({k} | below(k) for k in kind.__subclasses__()))

    return {k for k in below(base) if k.__module__.startswith("cvxpy") and not inspect.isabstract(k)}


def classes_in(part: Any) -> set[type]:
    """The classes of all nodes of a tree."""
    return {type(part)}.union(*map(classes_in, getattr(part, "args", ())))
