"""Where the clients run."""

from hierfl.runtime.in_process.execution import InProcess

__all__ = ["InProcess"]
