"""One instance of every concrete CVXPY atom and constraint, for tests that must hold for all of them."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

import cvxpy
import cvxpy.atoms
import cvxpy.constraints
import numpy as np
from cvxpy.atoms.atom import Atom
from cvxpy.atoms.elementwise import logic
from cvxpy.atoms.quad_form import SymbolicQuadForm
from cvxpy.constraints.constraint import Constraint

cp: Any = cvxpy  # its annotations are narrower than what it accepts

x, y, t = cp.Variable(3, name="x"), cp.Variable(3, name="y"), cp.Variable(name="t")
X, Y = cp.Variable((3, 3), symmetric=True, name="X"), cp.Variable((3, 3), symmetric=True, name="Y")
A = np.arange(9.0).reshape(3, 3) / 10 + np.eye(3)
a, b, c = A
p, q = cp.Variable(boolean=True, name="p"), cp.Variable(boolean=True, name="q")
complex_x = cp.Variable(3, complex=True, name="u")
positive, scale = cp.Variable(3, pos=True, name="v"), cp.Variable(nonneg=True, name="s")

UNARY_ELEMENTWISE = [
    cp.abs,
    cp.ceil,
    cp.floor,
    cp.entr,
    cp.exp,
    cp.log,
    cp.log1p,
    cp.logistic,
    cp.xexp,
    cp.huber,
    cp.square,
    cp.sqrt,
    cp.inv_pos,
    cp.pos,
    cp.neg,
    cp.conj,
    cp.real,
    cp.one_minus_pos,
    cp.nlp.sin,
    cp.nlp.cos,
    cp.nlp.tan,
    cp.nlp.sinh,
    cp.nlp.tanh,
    cp.nlp.asinh,
    cp.nlp.atanh,
    cp.nlp.normcdf,
    cp.log_normcdf,
    cp.loggamma,
]
VECTOR_TO_SCALAR = [
    cp.sum,
    cp.mean,
    cp.var,
    cp.std,
    cp.max,
    cp.min,
    cp.prod,
    cp.log_sum_exp,
    cp.sum_squares,
    cp.norm,
    cp.norm1,
    cp.norm_inf,
    cp.geo_mean,
    cp.harmonic_mean,
    cp.length,
    cp.ptp,
    cp.tv,
    cp.inv_prod,
]
OF_MATRIX = [
    cp.trace,
    cp.lambda_max,
    cp.lambda_min,
    cp.sigma_max,
    cp.normNuc,
    cp.log_det,
    cp.tr_inv,
    cp.upper_tri,
    cp.condition_number,
    cp.von_neumann_entr,
    cp.eye_minus_inv,
    cp.pf_eigenvalue,
    cp.diag,
    cp.transpose,
    cp.sum,
    cp.sum_squares,
    cp.norm1,
    cp.cumsum,
    cp.cumprod,
    cp.cummax,
]

INSTANCES: list[Any] = [
    *(atom(x) for atom in UNARY_ELEMENTWISE),
    *(atom(x) for atom in VECTOR_TO_SCALAR),
    *(atom(X) for atom in OF_MATRIX),
    x + y,
    -x,
    2 * x,
    x / t,
    X @ x,
    x @ X @ y,
    cp.multiply(x, y),
    x[0],
    x[[0, 2]],
    X[::2, 1:],
    cp.diag(x),
    cp.power(t, 3),
    cp.power(x, 1 / 3),
    cp.PowerApprox(x, 1.5),
    cp.Power(x, 1.5),
    cp.pnorm(x, 3),
    cp.Pnorm(x, 3),
    cp.PnormApprox(x, 1.5),
    cp.norm(X, "fro"),
    cp.norm(X, 2, axis=1),
    cp.GeoMean(x),
    cp.geo_mean(x, [1, 2, 1]),
    cp.maximum(x, 0),
    cp.minimum(x, y, 1),
    cp.kl_div(x, y),
    cp.rel_entr(x, y),
    cp.scalene(x, 1, 2),
    cp.imag(complex_x),
    cp.conj(complex_x),
    cp.real(complex_x),
    cp.hstack([x, y]),
    cp.vstack([x, y]),
    cp.concatenate([x, y]),
    cp.stack([x, y]),
    cp.bmat([[X, Y], [Y, X]]),
    cp.vec(X, order="F"),
    cp.reshape(X, (1, 9), order="C"),
    cp.broadcast_to(x, (3, 3)),
    cp.promote(t, (3,)),
    cp.permute_dims(cp.Variable((2, 3, 4)), (1, 0, 2)),
    cp.kron(A, X),
    cp.conv(a, x),
    cp.convolve(a, x),
    cp.outer(x, y),
    cp.vdot(x, y),
    cp.quad_form(x, np.eye(3)),
    SymbolicQuadForm(x, X, x[0]),
    cp.quad_over_lin(x, t),
    cp.quad_over_lin(X, scale, axis=1),
    cp.MatrixFrac(x, X),
    cp.gen_lambda_max(X, Y),
    cp.lambda_sum_largest(X, 2),
    cp.sum_largest(x, 2),
    cp.sum_smallest(x, 2),
    cp.dotsort(x, a),
    cp.dist_ratio(x, a, b),
    cp.sign(t),
    cp.gmatmul(A, positive),
    cp.perspective(cp.square(t), scale),
    cp.suppfunc(x, [])(y),
    cp.cvar(x, 0.5),
    cp.quantum_rel_entr(X, Y),
    cp.psd_wrap(A),
    cp.symmetric_wrap(X),
    cp.hermitian_wrap(X),
    cp.skew_symmetric_wrap(X),
    cp.atoms.affine.wraps.nonneg_wrap(x),
    cp.atoms.affine.wraps.nonpos_wrap(x),
    cp.atoms.affine.wraps.nsd_wrap(X),
    logic.Not(p),
    logic.And(p, q),
    logic.Or(p, q),
    logic.Xor(p, q),
    cp.resolvent(X, 2.0),
    cp.mixed_norm(X, 2, 1),
]

CONSTRAINTS: list[Any] = [
    x <= y,
    x >= 0,
    x == 1,
    X >> 0,
    X << A,
    X >> Y,
    cp.SOC(t, x),
    cp.SOC(y, X),
    cp.Zero(x),
    cp.NonNeg(x),
    cp.NonPos(x),
    cp.ExpCone(x, y, positive),
    cp.PowCone3D(x, y, positive, 0.5),
    cp.constraints.PowCone3DApprox(x, y, positive, 0.5),
    cp.PowConeND(X, y, np.full((3, 3), 1 / 3)),
    cp.PSD(X),
    cp.constraints.SvecPSD(cp.Variable(6, name="h"), 3),
    cp.FiniteSet(x, [1, 2]),
    cp.constraints.RelEntrConeQuad(x, y, positive, 3, 3),
    cp.constraints.OpRelEntrConeQuad(*(cp.Variable((3, 3), symmetric=True) for _ in "XYZ"), 3, 3),
]

_BASES = {
    "AffAtom",
    "AxisAtom",
    "BinaryOperator",
    "UnaryOperator",
    "Elementwise",
    "Wrap",
    "LogicExpression",
    "_NaryLogicExpression",
    "Cone",
}


def concrete_classes() -> set[type]:
    """All atoms and constraints of CVXPY that can occur in a tree."""
    for package in (cvxpy.atoms, cvxpy.constraints):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    return {
        cls
        for base in (Atom, Constraint)
        for cls in _subclasses(base)
        if cls.__module__.startswith(("cvxpy.atoms", "cvxpy.constraints"))
        and cls.__name__ not in _BASES
        and not inspect.isabstract(cls)
    }


def classes_in(part: Any) -> set[type]:
    """The classes of all nodes of a tree."""
    return {type(part)}.union(*map(classes_in, part.args))


def _subclasses(cls: type) -> Iterator[type]:
    subclasses: list[type] = cls.__subclasses__()
    for sub in subclasses:
        yield sub
        yield from _subclasses(sub)
