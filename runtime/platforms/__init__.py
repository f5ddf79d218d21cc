"""Descriptions of machines: what their devices and links could do by data sheet."""
