"""Random graphs as wirings: Watts-Strogatz, Erdos-Renyi and Barabasi-Albert, directed by node index.

The construction and the orientation are those of randomly wired networks (Xie et al. 2019, §3.2 and §3.3).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hsdag.ir.errors import OptionError

Edges = list[tuple[int, int]]

MAX_DRAWS = 10_000
"""After so many unconnected graphs a size is given up."""

WS_DEGREE, WS_REWIRED = 4, 0.75
ER_PROBABILITY = 0.2
BA_ATTACHED = 5


def watts_strogatz(num_nodes: int, degree: int, rewired: float, rng: np.random.Generator) -> Edges:
    """WS(degree, rewired): a ring in which each node knows ``degree`` neighbours, each edge rewired by chance.

    Always num_nodes * degree / 2 edges. Raises OptionError unless num_nodes is above an even degree.
    """
    if degree % 2 or num_nodes <= degree:
        raise OptionError(f"WS({degree}, {rewired:g}) needs an even degree and more than {degree} nodes")
    neighbours = [set[int]() for _ in range(num_nodes)]
    ring = [(u, (u + step) % num_nodes) for step in range(1, degree // 2 + 1) for u in range(num_nodes)]
    for u, v in ring:
        neighbours[u].add(v)
        neighbours[v].add(u)
    for u, v in ring:
        free = [w for w in range(num_nodes) if w != u and w not in neighbours[u]]
        if free and rng.random() < rewired:
            w = free[int(rng.integers(len(free)))]
            neighbours[u].remove(v)
            neighbours[v].remove(u)
            neighbours[u].add(w)
            neighbours[w].add(u)
    return sorted((u, v) for u in range(num_nodes) for v in neighbours[u] if u < v)


def erdos_renyi(num_nodes: int, probability: float, rng: np.random.Generator) -> Edges:
    """ER(probability): each pair of nodes is an edge by chance."""
    pairs = [(u, v) for u in range(num_nodes) for v in range(u + 1, num_nodes)]
    drawn = rng.random(len(pairs)) < probability
    return [pair for pair, kept in zip(pairs, drawn, strict=True) if kept]


def barabasi_albert(num_nodes: int, attached: int, rng: np.random.Generator) -> Edges:
    """BA(attached): every node after the first ``attached`` joins that many, in proportion to their degree.

    Always attached * (num_nodes - attached) edges. Raises OptionError unless num_nodes is above ``attached``.
    """
    if num_nodes <= attached:
        raise OptionError(f"BA({attached}) needs more than {attached} nodes, not {num_nodes}")
    edges: Edges = []
    ends: list[int] = []  # every node as often as it has edges
    for v in range(attached, num_nodes):
        known = set(range(attached)) if v == attached else set[int]()
        while len(known) < attached:
            known.add(ends[int(rng.integers(len(ends)))])
        edges += [(u, v) for u in sorted(known)]
        ends += [*sorted(known), *[v] * attached]
    return sorted(edges)


FAMILIES: dict[str, Callable[[int, np.random.Generator], Edges]] = {
    "ws": lambda n, rng: watts_strogatz(n, WS_DEGREE, WS_REWIRED, rng),
    "er": lambda n, rng: erdos_renyi(n, ER_PROBABILITY, rng),
    "ba": lambda n, rng: barabasi_albert(n, BA_ATTACHED, rng),
}
"""DiviML's families (§V) with their parameters, by name."""


def connected_graph(family: str, num_nodes: int, rng: np.random.Generator) -> Edges:
    """A connected graph of a family, drawn again until it is; every edge leads to the larger index.

    Raises OptionError for an unknown family, or a size for which no connected graph turns up.
    """
    if family not in FAMILIES:
        raise OptionError(f"unknown family {family!r}; choose one of {', '.join(FAMILIES)}")
    for _ in range(MAX_DRAWS):
        edges = FAMILIES[family](num_nodes, rng)
        if _is_connected(num_nodes, edges):
            return edges
    raise OptionError(f"no connected graph of family {family} with {num_nodes} nodes was drawn; choose another size")


def _is_connected(num_nodes: int, edges: Edges) -> bool:
    leader = list(range(num_nodes))

    def find(v: int) -> int:
        while leader[v] != v:
            leader[v] = leader[leader[v]]
            v = leader[v]
        return v

    for u, v in edges:
        leader[find(u)] = find(v)
    return len({find(v) for v in range(num_nodes)}) == 1
