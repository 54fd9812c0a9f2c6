"""The implicit function, and the figures."""
