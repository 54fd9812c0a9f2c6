"""What a run may take, in whatever is counted of it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Real

from hierfl.errors import SettingError

# what each unit is called in a run's history; rounds and seconds are no columns of counts
COLUMNS = {
    "floats": "scalars",
    **{name: name for name in ("values", "gradients", "products", "projections", "lower_gradients", "lower_solves")},
}


@dataclass(frozen=True)
class Budget:
    """A limit for a run, or several, whichever is reached first; never exceeded, trial runs for ``step_size="auto"`` included.

    Parameters
    ----------
    floats
        Scalars sent down and up, those of the lower level's solver included. An exact answer that all clients share, and an adjoint of one, count as
        the data that they are made of, sent once.
    values, gradients
        Evaluations of f_i at a point, and of its gradient (in x, or in y of methods that move y along), on a minibatch or on all rows of one client:
        a value of f counts as many as there are clients. A gradient counts no value beside.
    products
        Products of a client's second derivatives with a vector.
    projections
        On X, X_i and Y(x).
    lower_gradients
        Evaluations of the lower level's F by a client. Exact answers have no such number: their solvers are refused.
    lower_solves
        Lower levels solved, one y at one point each.
    rounds, seconds
        Communication rounds, and seconds with compilation.

    Raises
    ------
    SettingError
        Without any limit, and for one that is no positive number.

    Examples
    --------
    >>> from hierfl.solvers import FedRZO
    >>> result = problem.solve(FedRZO(smoothing=0.1, step_size=0.05), rounds=500, budget=hf.Budget(values=100), progress=False)
    >>> result.status, int(result.history["values"].sum())
    ('budget spent: values', 100)
    """

    floats: float | None = None
    values: float | None = None
    gradients: float | None = None
    products: float | None = None
    projections: float | None = None
    lower_gradients: float | None = None
    lower_solves: float | None = None
    rounds: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if not self.limits:
            raise SettingError("Budget(): give a limit, such as Budget(values=1000) or Budget(floats=1e6).")
        for name, value in self.limits.items():
            if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < float("inf"):
                raise SettingError(f"Budget({name}={value!r}): a positive number.")
        if self.rounds is not None and self.rounds != int(self.rounds):
            raise SettingError(f"Budget(rounds={self.rounds!r}): a whole number.")

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are given, by name."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}

    @property
    def counts(self) -> dict[str, float]:
        """Those of columns of the history, by column."""
        return {COLUMNS[name]: value for name, value in self.limits.items() if name in COLUMNS}

    def __str__(self) -> str:
        return f"Budget({', '.join(f'{name}={value:g}' for name, value in self.limits.items())})"
