"""Runs without rounds, and the clock of drawn delays on which they are studied."""
