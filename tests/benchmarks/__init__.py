"""Benchmarks: ratios measured in one run. Run them with ``make bench``; they are no tests."""
