"""The submodels that HETERO makes of a placed model, and what crosses between them."""

from hsdag.ir.submodels.as_it_is import automatic_submodels, placed_submodels, with_results
from hsdag.ir.submodels.collector import Crossings, SubmodelCollector

__all__ = ["Crossings", "SubmodelCollector", "automatic_submodels", "placed_submodels", "with_results"]
