"""Descriptions of machines: what their devices and links can do by data sheet."""
