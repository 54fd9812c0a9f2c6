"""Interim table of common atoms; replaced by the family modules."""
import cvxpy as cp
import jax, jax.numpy as jnp, numpy as np
from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.unary_operators import NegExpression
from cvxpy.atoms.affine.binary_operators import MulExpression, multiply, DivExpression
from cvxpy.atoms.affine.index import index, special_index
from cvxpy.atoms.affine.promote import Promote
from hierfl.compiler.registry import lowers
import functools, operator
lowers(AddExpression)(lambda a,*v: functools.reduce(operator.add, v))
lowers(NegExpression)(lambda a,v: -v)
lowers(MulExpression)(lambda a,x,y: x@y if x.ndim and y.ndim else x*y)
lowers(multiply)(lambda a,x,y: x*y)
lowers(DivExpression)(lambda a,x,y: x/y)
lowers(Promote)(lambda a,x: jnp.broadcast_to(x,a.shape))
lowers(cp.broadcast_to)(lambda a,x: jnp.broadcast_to(x,a.shape))
lowers(cp.atoms.affine.sum.Sum)(lambda a,x: jnp.sum(x,axis=a.axis,keepdims=a.keepdims))
lowers(cp.quad_over_lin)(lambda a,x,y: jnp.sum(x*x)/y if getattr(a,'axis',None) is None else jnp.sum(x*x,axis=a.axis)/y)
lowers(cp.log_sum_exp)(lambda a,x: jax.scipy.special.logsumexp(x,axis=a.axis,keepdims=a.keepdims))
lowers(cp.abs)(lambda a,x: jnp.abs(x))
lowers(cp.logistic)(lambda a,x: jax.nn.softplus(x))
lowers(cp.exp)(lambda a,x: jnp.exp(x))
lowers(cp.maximum)(lambda a,*v: functools.reduce(jnp.maximum,v))
lowers(index)(lambda a,x: x[a.key])
def _norm(a,x):
    s=jnp.sum(x*x); ok=s>0
    return jnp.where(ok, jnp.sqrt(jnp.where(ok,s,1.0)), 0.0)
from cvxpy.atoms.pnorm import Pnorm, PnormApprox
lowers(Pnorm, PnormApprox)(_norm)
from cvxpy.atoms.elementwise.power import Power, PowerApprox
lowers(Power, PowerApprox)(lambda a,x: x**float(a.p.value if hasattr(a.p,'value') else a.p))
