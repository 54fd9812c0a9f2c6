"""Heterogeneous classification, [HFL] §IV: Table I, Figure 2, and a server with few samples."""
