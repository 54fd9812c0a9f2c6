"""Programs that JAX has traced, run by NumPy."""
