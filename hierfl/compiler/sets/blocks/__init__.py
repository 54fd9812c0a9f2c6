"""One projection per file, for a component of a set."""
