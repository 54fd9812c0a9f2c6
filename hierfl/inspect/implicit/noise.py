"""How far computed values of f may be from exact ones: measured, since what cancels inside f does not show in f.

Rounding in single precision is that of double precision, 2^29 times enlarged: the two differ by what rounding makes of f. Single
precision may also lose a small term in a large one altogether; then the values in double precision are multiples of the large one's
last digit, a power of two far above their own.
"""

from __future__ import annotations

import jax
import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem

ENLARGED = 2.0**29
EPS = float(np.finfo(float).eps)
SAFETY = 32  # errors of a sum of many, at points where they happen to be small
LEAST_LEVELS = 256  # fewer are the values of a step function


def rounding(compiled: CompiledProblem, at: np.ndarray, values: np.ndarray) -> float:
    """Measure what rounding may make of f near the points (k, n), y(x) given; infinite where single precision has no value.

    ``values`` are any more of f, in a larger neighbourhood, in which its last digit shows.
    """
    exact, data = compiled.exact, compiled.data()
    evaluations = [exact.compiled_evaluation(x, data) for x in at]
    answers = [None if one.solution is None else np.asarray(one.solution.y) for one in evaluations]
    with jax.enable_x64(False):
        short = compiled.data()
        single = [
            exact.compiled_value_at(x.astype(np.float32), None if y is None else y.astype(np.float32), short)
            for x, y in zip(at, answers)
        ]
    weights = np.asarray(data.clients.weights)
    apart = [
        abs(float(one.value) - float(s) - weights @ np.asarray(c, float)) for one, (s, c) in zip(evaluations, single)
    ]
    terms = [abs(float(one.server)) + weights @ np.abs(np.asarray(one.clients)) for one in evaluations]
    largest = max(float(np.max(apart)) / ENLARGED, EPS * float(np.max(terms)), last_digit(values))
    return SAFETY * largest if np.isfinite(largest) else np.inf


def last_digit(values: np.ndarray) -> float:
    """Find the largest power of two of which all values are multiples; 0 for those of a step function."""
    finite = values[np.isfinite(values) & (values != 0)]
    if not len(finite):
        return 0.0
    fractions, exponents = np.frexp(finite)
    whole = (fractions * 2.0**53).astype(np.int64)
    digit = float(np.min(np.ldexp((whole & -whole).astype(float), exponents - 53)))
    return digit if np.ptp(values[np.isfinite(values)]) >= LEAST_LEVELS * digit else 0.0
