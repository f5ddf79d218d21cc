"""MEtfPlacer: ETF that counts results as well as weights (Baechi, Jeon et al. 2020)."""

from __future__ import annotations

from hsdag.placers.lists.etf import EtfPlacer


class MEtfPlacer(EtfPlacer):
    """ETF with the memory that inference needs; for throughput, weights count here and results in the repair."""

    name = "m-etf"
    with_results = True


PLACER = MEtfPlacer
