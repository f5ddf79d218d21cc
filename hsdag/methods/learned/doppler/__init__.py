"""Method ``doppler``: DOPPLER, in which one policy selects ops and another one places them (ICLR 2026)."""
