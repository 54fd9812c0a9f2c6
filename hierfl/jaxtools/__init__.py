"""Plumbing around JAX that knows nothing of hierfl: precision, keyed random numbers, callbacks to the host, cheap and early
compilation, compiled programs in memory and on disk, what must keep one thread, threads; and files of
arrays that are not trusted.
"""

import os

# Scheduled for concurrency on a CPU, programs of several seeds with loops within loops wait for themselves without end (jaxlib 0.10.2 on two
# cores: most runs; in order none of 11). XLA reads this when it is first used; as an option of a program it has no effect.
IN_ORDER = "--xla_cpu_enable_concurrency_optimized_scheduler"
if IN_ORDER not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {IN_ORDER}=false".strip()
