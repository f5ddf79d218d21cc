"""Measuring: candidates compiled and timed in a worker process, in common rounds."""
