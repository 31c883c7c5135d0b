"""The version of the package: the one place, read by the build too."""

__version__ = "0.1.0"
