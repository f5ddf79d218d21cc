"""Profiling: times of ops, launches and transfers on live devices, and the cache that keeps them."""
