"""DOPPLER: one policy selects ops, another places them (ICLR 2026)."""
