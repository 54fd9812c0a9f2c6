"""Plumbing around JAX that knows nothing of hierfl: precision, keyed random numbers, callbacks to the host, cheap and early
compilation, what must keep one thread, threads, the rewriting of traced products.
"""
