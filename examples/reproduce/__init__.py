"""The tables and figures of the papers, by name: what is run, what was printed, and both side by side."""
