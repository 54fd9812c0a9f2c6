"""The exact methods for a lower level, and the mathematics that they share."""
