"""The ``hierfl`` command."""
