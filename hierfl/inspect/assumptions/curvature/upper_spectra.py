"""The ends of the spectra of the clients' upper terms in x, client by client: mu_i and L_i of methods with local gradient steps."""

from __future__ import annotations

from hierfl.inspect.assumptions.curvature.hessians import Curvature, Spectrum
from hierfl.inspect.assumptions.study import Study


def upper_spectra(study: Study) -> tuple[Spectrum, ...]:
    """Bound the spectrum of each client's Hessian of f_i; the problem has clients' terms and no lower level.

    An end is None where there is no bound, and where a sample would stand for a distribution, which proves nothing.
    """
    term, variables = study.compiled.declaration.objective.clients, tuple(study.compiled.upper.variables)
    assert term is not None
    spectra = []
    for holder in study.holders.clients:
        curvature = Curvature(study.compiled, study.compiled.sign * term, variables, holder.known)
        bounds = (curvature.bounds.lower, curvature.bounds.upper)
        used = {p.id for bound in bounds if bound is not None for p in bound.parameters()}
        exact = not used & study.holders.distributed
        spectra.append(curvature.spectrum(holder) if exact else Spectrum(None, None))
    return tuple(spectra)
