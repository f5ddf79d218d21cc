"""Shards: one op computed by several devices, a range of an axis each (SHARDING)."""
