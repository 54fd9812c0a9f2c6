"""hierfl: a modeling language for hierarchical federated optimization."""
