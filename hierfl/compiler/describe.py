"""A short account of what each piece of a problem was lowered to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hierfl.compiler.compiled import CompiledProblem


def describe(compiled: CompiledProblem) -> str:
    """One line per piece: decisions, terms, sets, the lower level's exact method, data."""
    names = ", ".join(v.name() for v in compiled.upper.variables)
    lines = [f"x = ({names}): {compiled.upper.size} scalars; X: {_indent(compiled.upper_set.explain())}"]
    for what, program in (("server term", compiled.server_program), ("clients term", compiled.client_program)):
        if program is not None:
            lines.append(f"{what}: a JAX program of {len(program)} operations")
    plan = compiled.exact.plan
    if plan is not None and compiled.lower_set is not None and compiled.lower_program is not None:
        names = ", ".join(v.name() for v in compiled.lower.variables)
        lines.append(
            f"y = ({names}): {compiled.lower.size} scalars per {compiled.scope}; Y(x): {_indent(compiled.lower_set.explain())}"
        )
        lines.append(
            f"lower level: a JAX program of {len(compiled.lower_program)} operations; exact by {plan.method} ({plan.reason})"
        )
        modulus = (
            f"mu = {plan.constant_modulus:.6g}"
            if plan.modulus_mode == "constant" and plan.constant_modulus > 0
            else (
                "mu unknown, so errors of y are not bounded"
                if plan.modulus_mode in ("unknown", "constant")
                else f"mu computed for each {compiled.scope} ({plan.modulus_mode} Hessian of the quadratic part)"
            )
        )
        lines.append(f"strong convexity: {modulus}")
    rows = [int(table.counts.sum()) for table in compiled.static_data.clients.tables]
    held = ", ".join(str(n) for n in rows) or "no"
    lines.append(f"data: {compiled.num_clients} client{'s' * (compiled.num_clients > 1)}, {held} rows")
    return "\n".join(lines)


def _indent(text: str) -> str:
    return text.replace("\n", "\n    ")
