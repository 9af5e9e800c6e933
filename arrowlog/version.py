"""The version of this package, for the package itself and for what it writes."""

__version__ = "0.1.0"
