"""The upper objective: what each client and the server contribute to the function of x."""

from __future__ import annotations

from typing import Any, ClassVar

import cvxpy as cp
from cvxpy.expressions.expression import Expression

from hierfl.errors import DeclarationError


class Objective:
    """Base of ``Minimize`` and ``Maximize``.

    The objective is ``f(x) = server term + sum over clients i of w_i * clients term``, the weights being the
    federation's.

    Parameters
    ----------
    clients
        A scalar CVXPY expression, evaluated by every client with its own data, parameters and y.
    server
        A scalar CVXPY expression, evaluated with the server's data.

    Raises
    ------
    DeclarationError
        If neither term is given or a term is not a scalar expression.
    """

    sense: ClassVar[str]

    def __init__(self, clients: Any = None, server: Any = None) -> None:
        if clients is None and server is None:
            raise DeclarationError(f"{type(self).__name__}() is empty: give clients=..., server=... or both.")
        self.clients = None if clients is None else scalar(clients, f"the clients term of {type(self).__name__}")
        self.server = None if server is None else scalar(server, f"the server term of {type(self).__name__}")

    @property
    def terms(self) -> tuple[Expression, ...]:
        """The terms that were given."""
        return tuple(term for term in (self.server, self.clients) if term is not None)

    @property
    def sign(self) -> float:
        """+1 for minimisation, -1 for maximisation."""
        return 1.0 if self.sense == "minimize" else -1.0

    def __repr__(self) -> str:
        given = {"clients": self.clients, "server": self.server}
        parts = ", ".join(f"{name}={term}" for name, term in given.items() if term is not None)
        return f"{type(self).__name__}({parts})"


class Minimize(Objective):
    """Minimise the sum of the server's and the clients' terms; see :class:`Objective`."""

    sense = "minimize"


class Maximize(Objective):
    """Maximise the sum of the server's and the clients' terms; see :class:`Objective`."""

    sense = "maximize"


def scalar(expression: Any, what: str) -> Expression:
    """The expression, checked to be a real scalar.

    Raises
    ------
    DeclarationError
        Naming ``what`` and the shape found.
    """
    if isinstance(expression, (cp.Minimize, cp.Maximize)):
        raise DeclarationError(f"{what} is a cvxpy {type(expression).__name__}; give the expression inside it.")
    if not isinstance(expression, Expression):
        try:
            expression = cp.Constant(expression)
        except (TypeError, ValueError) as error:
            raise DeclarationError(f"{what} must be a CVXPY expression, not {type(expression).__name__}.") from error
    if expression.size != 1:
        raise DeclarationError(
            f"{what} must be a scalar, but {expression} has shape {expression.shape}; write cp.sum(...) of it?"
        )
    if expression.is_complex():
        raise DeclarationError(f"{what} is complex; hierfl treats real problems only.")
    return expression
