"""Hold the version of hsdag, where all of its files can import it."""

__version__ = "0.1.0"
