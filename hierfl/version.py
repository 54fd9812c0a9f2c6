"""The version of hierfl."""

VERSION = "0.1.0"
