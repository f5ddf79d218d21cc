"""The models and placements of the tests of ir, which exports write."""

from tests.hsdag.ir.conftest import alternating, model, place, run

__all__ = ["alternating", "model", "place", "run"]
