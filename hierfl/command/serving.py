"""``hierfl site``: the process that holds the data of one client, or of several, and answers the server of a run."""

from __future__ import annotations

import argparse
import logging
import sys

from hierfl.command.loading import load_problem, load_rows, load_solver
from hierfl.errors import SettingError
from hierfl.near_names import near_names


def serve_site(chosen: argparse.Namespace) -> None:
    """Load the problem and the data, join the cluster or listen at the socket, and answer until it ends."""
    from hierfl import solvers
    from hierfl.runtime.sites.memory_folder import MemoryFolder
    from hierfl.runtime.sites.site import Site
    from hierfl.runtime.sites.site_data import held_of
    from hierfl.runtime.sites.site_rules import SiteRules

    dask, flower = ("tls_ca", "tls_cert", "tls_key", "host"), ("parent_pid",)
    for name in flower if chosen.socket is None else dask:
        if getattr(chosen, name) is not None:
            place = "--scheduler, on Dask" if chosen.socket is None else "--socket, on Flower"
            raise SettingError(f"--{name.replace('_', '-')} says nothing with {place}: leave it out.")
    handler = logging.StreamHandler(sys.stderr) if chosen.log is None else logging.FileHandler(chosen.log)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log = logging.getLogger("hierfl.site")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    algorithms = None if chosen.algorithms is None else tuple(name.strip() for name in chosen.algorithms.split(","))
    for name in algorithms or ():
        if name not in solvers.__all__:
            raise SettingError(f"--algorithms {name!r}: {near_names(name, solvers.__all__)}")
    rules = SiteRules(algorithms, chosen.min_samples, chosen.max_rounds, chosen.min_noise, chosen.min_sum)
    declaration = load_problem(chosen.problem).declaration
    held = held_of(declaration, load_rows(chosen.data))
    name = chosen.name or "+".join(str(client.name or place) for place, client in held.items())
    memories = None if chosen.keep is None else MemoryFolder(chosen.keep)
    site = Site(name, declaration, held, rules, memories=memories)
    if chosen.socket is not None:
        from hierfl.runtime.on_flower.letter_desk import LetterDesk
        from hierfl.runtime.on_flower.site_socket import serve_socket

        serve_socket(LetterDesk(site, load_solver).answer, chosen.socket, chosen.parent_pid)
        return
    from hierfl.runtime.on_dask.site_process import TLSFiles, run_site

    files = TLSFiles(chosen.tls_ca, chosen.tls_cert, chosen.tls_key)
    run_site(site, chosen.scheduler, files, chosen.host)
