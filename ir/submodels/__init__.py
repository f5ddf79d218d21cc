"""The submodels that HETERO makes of a placed model, and what crosses between them."""

from hsdag.ir.submodels.collector import Crossings, SubmodelCollector

__all__ = ["Crossings", "SubmodelCollector"]
