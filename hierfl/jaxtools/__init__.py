"""Plumbing around JAX that knows nothing of hierfl: precision, keyed random numbers, callbacks to the host, cheap and early
compilation, compiled programs in memory and on disk, what must keep one thread, threads, the rewriting of traced products.
"""
