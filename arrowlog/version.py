"""The version of this package, also written to `commitInfo.engineInfo`."""

__version__ = "0.1.0"
