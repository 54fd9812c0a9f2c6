"""Ready declarations, one problem per file; imported as ``hierfl.models``."""
