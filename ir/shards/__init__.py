"""Shards: one op computed by several devices, each a range of an axis (docs/shards.md)."""
