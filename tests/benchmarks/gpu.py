"""Many small lower levels: solved side by side where JAX computes, and on the host: ``python -m tests.benchmarks.gpu [largest]``.

Families of 10^3 to ``largest`` quadratic programs of one shape. Microseconds of a program and its adjoint, the second time, in ratios of what
the host takes from nothing (DAQP for each, and one matrix for all that hold the same rows); how far both answers are apart, the largest relative error of the
conditions, and how many are left to the host. With JAX for a GPU installed it runs there; elsewhere on the CPU, where the host is quicker.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from hierfl.compiler.parametric.many_programs import ManyPrograms
from hierfl.compiler.programs.side_by_side import pairs_side_by_side
from hierfl.jaxtools.precision import double_precision
from tests.benchmarks.harness import Row, publish


def _box_and_rows(count: int, width: int, rows: int, bent: float, own: bool = False) -> ManyPrograms:
    """At least cost, between bounds, over rows that each program moves; ``own`` gives each a P of its own."""
    draw = np.random.default_rng(0)
    a = np.vstack([draw.uniform(0.2, 1.0, size=(rows, width)), np.eye(width), -np.eye(width)])[None]
    sides = draw.uniform(0.3, 1.6, size=(count, rows))
    b = np.hstack([-sides, np.zeros((count, width)), np.full((count, width), 4.0)])
    p = bent * np.eye(width)[None]
    if own:
        forms = draw.normal(size=(count, width, width))
        p = p + forms @ forms.swapaxes(1, 2)
    q = np.broadcast_to(draw.uniform(1.0, 2.0, width), (count, width)) + (draw.normal(size=(count, width)) if own else 0.0)
    return ManyPrograms(p, q, a, b, np.zeros(a.shape[1], bool))


FAMILIES: dict[str, Callable[[int], ManyPrograms]] = {
    "recourse, 10 variables, linear": lambda count: _box_and_rows(count, 10, 6, 0.0),
    "recourse, 10 variables, quadratic": lambda count: _box_and_rows(count, 10, 6, 0.6),
    "5 variables, a box and a row": lambda count: _box_and_rows(count, 5, 1, 1.0),
    "3 variables, P of each": lambda count: _box_and_rows(count, 3, 1, 0.5, own=True),
    "30 variables, 20 rows": lambda count: _box_and_rows(count, 30, 20, 0.6),
}


CLOCK = time.process_time if jax.default_backend() == "cpu" else time.perf_counter  # others may be at work on the CPU


class Measured(NamedTuple):
    """Seconds of a program by the host and side by side, for answers and adjoints; what is said of the answers."""

    host: tuple[float, float]
    beside: tuple[float, float]
    apart: float
    error: float
    left: int


@double_precision
def measured(family: ManyPrograms) -> Measured:
    """Ask both ways."""
    seeds = np.random.default_rng(1).normal(size=family.q.shape)

    def took(question: Callable[[], Any]) -> tuple[float, Any]:
        began = CLOCK()
        answer = question()
        return CLOCK() - began, answer

    def asked(beside: bool) -> tuple[float, float, Any]:
        value, found = took(lambda: family.solve(side_by_side=beside))
        slope, _ = took(lambda: family.adjoints(found.u, found.z, seeds, beside))
        return value / len(family), slope / len(family), found

    asked(True)  # compiled
    *host, by_host = asked(False)
    *beside, found = asked(True)
    own = family.errors(*pairs_side_by_side(family.p, family.q, family.a, family.b, family.equal))
    both = found.taken & by_host.taken
    apart = np.abs(found.u - by_host.u)[both].max(initial=0.0) / (1.0 + np.abs(by_host.u).max())
    return Measured((host[0], host[1]), (beside[0], beside[1]), apart, float(found.error.max()), int((own > 1e-13).sum()))


def rows(largest: int) -> list[Row]:
    """A row for each family and size."""
    device, found = jax.devices()[0], []
    bar = 1.0 if device.platform != "cpu" else float("inf")
    for name, make in FAMILIES.items():
        for count in (10**k for k in range(3, 7) if 10**k <= largest):
            of = measured(make(count))
            micro = [1e6 * seconds for seconds in (*of.beside, *of.host)]
            note = (
                f"{device.device_kind}: {micro[0]:.1f} and {micro[1]:.1f} us, host {micro[2]:.1f} and {micro[3]:.1f}; answers {of.apart:.0e} apart, "
                f"error {of.error:.0e}, {of.left} left to the host"
            )
            for what, k, said in (("answers", 0, note), ("adjoints", 1, "")):
                found.append(Row(f"{count:,} of {name}: {what} over the host's", of.beside[k] / of.host[k], bar, note=said))
    return found


if __name__ == "__main__":
    publish(rows(int(sys.argv[1]) if len(sys.argv) > 1 else 10**5))
