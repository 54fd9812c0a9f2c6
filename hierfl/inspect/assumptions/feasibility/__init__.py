"""The sets X and Y(x): nonempty, closed and convex, bounded, alike; and whether the lower level attains its minimum."""
