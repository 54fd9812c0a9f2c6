"""Convex programs in numbers: solved, polished and judged; all their solutions, and how these move. Nothing here knows a model."""
