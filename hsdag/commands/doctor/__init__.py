"""Diagnose a machine and models on it: devices, numeric errors, and what HETERO and reduced precision do to a model."""
