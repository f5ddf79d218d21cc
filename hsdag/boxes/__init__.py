"""Boxes: machines of one kind that measure candidates of a search, each against itself."""
