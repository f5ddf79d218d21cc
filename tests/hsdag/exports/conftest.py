"""The models and placements of the tests of ir, which exports write."""

from tests.hsdag.ir.conftest import alternating, core, model, place, run

__all__ = ["alternating", "core", "model", "place", "run"]
