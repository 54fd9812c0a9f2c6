"""Where the clients run."""

from hierfl.runtime.in_process import InProcess

__all__ = ["InProcess"]
