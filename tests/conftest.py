"""Shared fixtures: double precision for tests that call traced code directly, and nothing kept from test to test.

Compiled programs are kept in ``.cache/programs``, for all workers and for the next run: what a test asks of a program is asked of
the same program, which XLA has compiled for another test or yesterday. ``HIERFL_CACHE=off make test`` compiles all of them.
"""

import gc
import itertools
import os
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

# every core has a worker: a program is compiled in one piece, a seventh sooner than in as many as there may be cores; without MLIR's
# emitters for fusions, in half the time
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_parallel_codegen_split_count=1 --xla_cpu_use_fusion_emitters=false")

import hypothesis
import jax
import matplotlib.pyplot as plt
import pytest

from hierfl.jaxtools.disk_cache import SETTING, kept_on_disk

os.environ.setdefault(SETTING, str(Path(__file__).parents[1] / ".cache" / "programs"))

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # as shells start what runs in their background; tests press Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

# a busy machine is no failure; a change is judged by the same examples each time, and whoever works on it meets new ones
hypothesis.settings.register_profile("untimed", max_examples=40, deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("untimed")

jax.config.update("jax_traceback_in_locations_limit", 0)
gc.set_threshold(
    100_000, 50, 1000
)  # tracing makes millions of small objects that live for long: a fifth of its time was collection

_COUNT = itertools.count(1)
_KEEP = 40  # tests between two clearings: thousands of compiled programs would fill the memory of a small machine
_SLOWEST = 20
_seconds: Counter[str] = Counter()  # by file, fixtures included; in the process that reports


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--nightly``: what becomes of the tests in nightly.txt, ``with`` the others, ``only`` they, or ``without`` them."""
    parser.addoption("--nightly", choices=("with", "only", "without"), default="with", help="the tests in tests/nightly.txt")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what was not asked for."""
    asked, lines = config.getoption("nightly"), _listed("nightly.txt")
    if config.args == config.getini("testpaths"):
        _require_there([line.rsplit(" 1/", 1)[0] for line in lines] + _listed("quick.txt"), items)
    if asked == "with":
        return
    every = {line.split()[0]: int(line.split(" 1/")[1]) for line in lines if " 1/" in line}
    listed, cases = set(lines), Counter[str]()

    def is_nightly(item: pytest.Item) -> bool:
        of = item.nodeid.split("[")[0]
        path = of.split("::")[0]
        cases[of] += 1
        return item.nodeid in listed or of in listed or (cases[of] - 1) % every.get(path, every.get("*", 1)) != 0

    nightly = [is_nightly(item) for item in items]
    config.hook.pytest_deselected(items=[item for item, late in zip(items, nightly) if late != (asked == "only")])
    items[:] = [item for item, late in zip(items, nightly) if late == (asked == "only")]


def _listed(name: str) -> list[str]:
    """The lines of a list of tests."""
    return [line for line in (Path(__file__).parent / name).read_text().splitlines() if not line.startswith("#")]


def _require_there(listed: list[str], items: list[pytest.Item]) -> None:
    """Require that what is listed is among all tests."""
    there = {"*"}
    for item in items:
        of = item.nodeid.split("[")[0]
        path = Path(of.split("::")[0])
        there |= {item.nodeid, of, path.as_posix(), *(parent.as_posix() for parent in path.parents)}
    if gone := sorted({*listed} - there):
        raise pytest.UsageError(f"tests/nightly.txt or tests/quick.txt names no test: {', '.join(gone)}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Programs that run for a moment need not be good ones: unless a test is marked ``optimised``, XLA leaves most passes out."""
    jax.config.update("jax_disable_most_optimizations", item.get_closest_marker("optimised") is None)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add what a test's setup, call or end took to its file."""
    _seconds[report.nodeid.split("::")[0]] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the slowest files, where several were run."""
    total = sum(_seconds.values())
    if len(_seconds) > 1:
        terminalreporter.section(f"slowest of {len(_seconds)} files ({total:.0f} s in all processes)")
        for file, seconds in _seconds.most_common(_SLOWEST):
            terminalreporter.write_line(f"{seconds:7.1f} s  {seconds / total:6.1%}  {file}")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """A Ctrl-C of a test's own that gets out of it fails the test: it would end the worker, and all that is left to do with it."""
    try:
        return (yield)
    except KeyboardInterrupt as error:
        if "PYTEST_XDIST_WORKER" in os.environ:
            raise AssertionError("an interrupt got out of the test") from error
        raise


@pytest.fixture
def x64() -> Iterator[None]:
    """64-bit JAX types, as hierfl's public entry points enable them."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def programs() -> Iterator[list[str]]:
    """An entry for every program that XLA compiles, or that is loaded from disk, from now on."""
    compiled: list[str] = []

    def heard(event: str, seconds: float, **_: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(heard)
    yield compiled
    jax.monitoring.unregister_event_duration_listener(heard)


@pytest.fixture(autouse=True)
def kept_programs() -> Iterator[None]:
    """What a test compiles itself is kept on disk as well."""
    with kept_on_disk():
        yield


@pytest.fixture(autouse=True)
def forget_compiled_programs() -> Iterator[None]:
    """Compiled programs of a few tests only."""
    yield
    if next(_COUNT) % _KEEP == 0:
        jax.clear_caches()


@pytest.fixture(autouse=True)
def close_figures() -> Iterator[None]:
    """Matplotlib warns of more than twenty open figures, which the next test would see as an error."""
    yield
    plt.close("all")
