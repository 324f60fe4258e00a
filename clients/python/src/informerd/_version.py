"""Version of the package, that of the server of the same release."""

__version__ = "0.1.0"
