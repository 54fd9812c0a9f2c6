"""A declaration and its clients' rows as files, for processes that each read their own part of them."""

from __future__ import annotations

STUDY = """
import cvxpy as cp
import hierfl as hf

ROWS = {}

def study(level=1.0, held=None):
    x, u, b = cp.Variable(2, name="x"), hf.Sample(2, name="u"), hf.Sample(name="b")
    tables = {name: {u: hf.Elsewhere(n), b: hf.Elsewhere(n)} for name, n in ROWS.items()}
    if held is not None:
        tables = {name: {u: held[name]["u"], b: held[name]["b"]} for name in ROWS}
    clients = [hf.Client([table], name=name) for name, table in tables.items()]
    return hf.Problem(hf.Minimize(clients=hf.E(cp.square(u @ x - level * b))), federation=hf.Federation(clients, weights="samples"))

def declared() -> hf.Problem:
    return study()
"""
ROWS = """
import numpy as np

def rows(seed, n):
    rng = np.random.default_rng(seed)
    return {"u": rng.standard_normal((n, 2)), "b": rng.standard_normal(n)}

def north(): return {"north": rows(1, 6)}
def south(): return {"south": rows(2, 4)}
def east(): return {"east": rows(3, 5)}
def south_and_east(): return south() | east()
"""


def study_text(**rows: int) -> str:
    """Least squares at clients of so many rows, which are elsewhere unless ``held``; ``ROWS`` has them for 6, 4 and 5."""
    return STUDY.replace("ROWS = {}", f"ROWS = {rows}")
