"""Propose regions of a model that several devices compute together."""
