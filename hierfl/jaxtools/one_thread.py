"""Programs that must not run beside another, in a thread of the same process."""

from __future__ import annotations

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr

REASONS = {
    # neither CVXPY nor users' functions are to be called by two threads at once
    "pure_callback": "the problem calls Python functions",
    # XLA's kernels for batches of these wait for threads of one pool: two programs that do can wait for each other for ever
    **dict.fromkeys(
        ("cholesky", "lu", "triangular_solve"), "the problem factorises matrices, which XLA does in threads"
    ),
}


def why_alone(program: Jaxpr | ClosedJaxpr) -> str | None:
    """The reason why a traced program has to run alone; None where it need not."""
    for equation in program.eqns:
        if (reason := REASONS.get(equation.primitive.name)) is not None:
            return reason
        for inner in jax.tree.leaves(list(equation.params.values())):
            if isinstance(inner, Jaxpr | ClosedJaxpr) and (reason := why_alone(inner)) is not None:
                return reason
    return None
