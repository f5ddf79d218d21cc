"""Learned placers."""
