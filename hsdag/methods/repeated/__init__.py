"""Repeated structure: one block of a deep graph is searched, and its plan is laid over all of them."""
