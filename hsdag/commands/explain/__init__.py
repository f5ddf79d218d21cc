"""Explain why a placement takes as long as it does."""
