"""The cheapest division of every op at prices of devices, and the load it gives them, compiled.

Legend: M ops, D devices, G groups of inputs.
"""

from __future__ import annotations

import numpy as np

from hsdag.ir.graph import FloatArray, IntArray
from hsdag.runtime.simulator.heaps import bare


def loads_at(time_s: FloatArray, price: FloatArray) -> FloatArray:
    """[D] seconds of each device where every op is divided as it costs least; infinite where one cannot be divided.

    ``time_s`` is [M, D, G + 1] by groups, infinite where it is not allowed, and 0 for none; ``price`` is [D].
    """
    devices, groups = time_s.shape[1], time_s.shape[2] - 1
    loads, cost, chosen = np.zeros(devices), np.zeros(groups + 1), np.zeros((devices, groups + 1), dtype=np.int64)
    if not _add_cheapest(np.ascontiguousarray(time_s), price, loads, cost, chosen):
        loads[:] = np.inf
    return loads


@bare
def _add_cheapest(time_s: FloatArray, price: FloatArray, loads: FloatArray, cost: FloatArray, chosen: IntArray) -> bool:
    """Device after device: ``cost`` [G + 1] of groups on those so far, of which the last has ``chosen`` [D, G + 1]."""
    num_ops, num_devices, num_sizes = time_s.shape
    for v in range(num_ops):
        cost[:] = np.inf
        cost[0] = 0.0
        for d in range(num_devices):
            for g in range(num_sizes - 1, -1, -1):
                least, size = cost[g], 0
                for n in range(1, g + 1):
                    if cost[g - n] < np.inf and time_s[v, d, n] < np.inf:
                        other = cost[g - n] + price[d] * time_s[v, d, n]
                        if other < least:
                            least, size = other, n
                cost[g], chosen[d, g] = least, size
        if cost[num_sizes - 1] == np.inf:
            return False
        g = num_sizes - 1
        for d in range(num_devices - 1, -1, -1):
            n = chosen[d, g]
            loads[d] += time_s[v, d, n]
            g -= n
    return True
