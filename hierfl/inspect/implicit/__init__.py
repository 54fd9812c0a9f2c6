"""The implicit function: its values, its smoothing, its stationary points, and a trustworthy minimum to compare with."""
