"""Search parts of a graph by themselves: a block of those that repeat, or the few heavy ops."""
