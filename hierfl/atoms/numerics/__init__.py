"""Where JAX needs rules of its own: derivatives at the edges of domains and of repeated eigenvalues; loads JAX."""
