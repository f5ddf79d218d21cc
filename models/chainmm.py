"""ChainMM: (A B) + (C (D E)), sharded over devices (DOPPLER, App. D.1)."""

from __future__ import annotations

from dataclasses import dataclass

from hsdag.models.sharding import Sharder
from hsdag.models.workload import Workload


@dataclass(frozen=True)
class ChainSizes:
    """Five square matrices of ``size`` rows each."""

    size: int = 10_000
    element_type: str = "f32"


def chainmm(num_devices: int, sizes: ChainSizes = ChainSizes()) -> Workload:
    """The chain on k devices: 4k products per matrix product, 26k + 8 nodes in all (112 for four devices).

    D E is cut into 2 x k x 2 (rows, inner, columns), the other two products into k x 2 x 2. Raises OptionError
    where the size is not even or not a multiple of k.
    """
    k, shape = num_devices, (sizes.size, sizes.size)
    sharder = Sharder("chainmm", k)
    a, b, c, d, e = (
        sharder.input(name, shape, parts, sizes.element_type)
        for name, parts in (("A", (k, 2)), ("B", (2, 2)), ("C", (k, 2)), ("D", (2, k)), ("E", (k, 2)))
    )
    de = sharder.einsum("DE", "ij,jk->ik", {"i": 2, "j": k, "k": 2}, d, e)
    cde = sharder.einsum("CDE", "ij,jk->ik", {"i": k, "j": 2, "k": 2}, c, de)
    ab = sharder.einsum("AB", "ij,jk->ik", {"i": k, "j": 2, "k": 2}, a, b)
    return sharder.build({"result": sharder.elementwise("sum", "add", [ab, cde])})
