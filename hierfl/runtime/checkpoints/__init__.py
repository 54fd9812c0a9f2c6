"""Runs on disk: what a run is, where it stands between two blocks of rounds, and a folder that never holds half of it."""
