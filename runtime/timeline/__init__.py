"""Timelines: what ran when, simulated or measured, and traces of it."""
