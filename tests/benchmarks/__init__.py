"""Benchmarks: ratios measured in one run. Run them with ``make bench``; they are no tests."""

import os

os.environ.setdefault("HIERFL_CACHE", "off")  # what is compiled is measured
