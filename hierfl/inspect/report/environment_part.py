"""The section of a report on the machine and the versions of packages."""

from __future__ import annotations

import importlib.metadata
import platform
import sys

from hierfl.inspect.report.page import Html, facts, joined, paragraph
from hierfl.version import VERSION

PACKAGES = ("jax", "jaxlib", "cvxpy", "numpy", "scipy", "plotly")


def environment() -> Html:
    """Show versions and the machine; those of the report, which a loaded result need not share."""
    import jax

    versions = [(package, _version(package)) for package in PACKAGES]
    rows = [
        ("Python", sys.version.split()[0]),
        ("hierfl", VERSION),
        *versions,
        ("platform", platform.platform()),
        ("JAX's backend", jax.default_backend()),
        ("precision", "double (64 bits)"),
    ]
    return joined(
        [paragraph("Of the process that wrote this report; a result loaded from a file may come from another."),
         facts(rows, "environment-facts")]
    )  # fmt: skip


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
