"""Time of all-gather and reduce-scatter in the alpha-beta model.

There are n devices. Each contributes (all-gather) or gets (reduce-scatter) a part of `part` bytes,
so the whole array has n·part bytes. A step that sends m bytes takes α + m·β, and every device sends
and receives at once. The additions (the γ of the papers) are hidden behind the transfer.

    ring                  (n−1)·(α + part·β)
    recursive doubling    ⌈log₂ n⌉·α + (n−1)·part·β
    binomial tree         2·⌈log₂ n⌉·α + ((n−1) + ⌈log₂ n⌉·n)·part·β
    hierarchical          recursive doubling between nodes, then a ring inside

Ring and recursive doubling: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective
communication operations in MPICH", IJHPCA 19(1), 2005; if n is no power of two, Bruck's all-gather
has the cost of recursive doubling. Both send (n−1)/n·N of the whole array of N bytes, which is the
least possible. Binomial tree: gather to one device, then broadcast of the whole; E. Chan, M.
Heimlich, A. Purkayastha, R. van de Geijn, "Collective communication: theory, practice, and
experience", Concurrency and Computation 19(13), 2007. Reduce-scatter runs each algorithm backwards,
and costs the same.
"""

from __future__ import annotations

from collections.abc import Callable

from tools.scaling.links import NODE, NVLINK, Link


def steps_of_tree(n: int) -> int:
    """Returns ⌈log₂ n⌉."""
    return (n - 1).bit_length()


def ring(n: int, part: float, link: Link) -> float:
    """Returns seconds; see the module."""
    return (n - 1) * (link.alpha + part * link.beta)


def recursive_doubling(n: int, part: float, link: Link) -> float:
    """Returns seconds; see the module. As a reduce-scatter it is called recursive halving."""
    return steps_of_tree(n) * link.alpha + (n - 1) * part * link.beta


def binomial_tree(n: int, part: float, link: Link) -> float:
    """Returns seconds; see the module."""
    steps = steps_of_tree(n)
    return 2 * steps * link.alpha + ((n - 1) + steps * n) * part * link.beta


def hierarchical(
    n: int, part: float, between: Link, inside: Link = NVLINK, node: int = NODE
) -> float:
    """Returns seconds; devices of equal number exchange parts between nodes, then nodes share them.

    Every device has its own link to the network, so `node` exchanges between nodes run at once,
    each with n/node parts.

    Args:
      n: the number of devices: at most `node`, or a multiple of it.
    """
    if n <= node:
        return ring(n, part, inside)
    if n % node:
        raise ValueError(f"hierarchical: {n} devices do not fill nodes of {node}")
    nodes = n // node
    return recursive_doubling(nodes, part, between) + ring(node, nodes * part, inside)


ALGORITHMS: dict[str, Callable[[int, float, Link], float]] = {
    "ring": ring,
    "recursive doubling": recursive_doubling,
    "binomial tree": binomial_tree,
    "hierarchical": hierarchical,
}


def of_link(link: Link) -> dict[str, Callable[[int, float, Link], float]]:
    """Returns the algorithms that make sense on a link: a network joins nodes, not devices."""
    return {n: time for n, time in ALGORITHMS.items() if link.is_network or n != "hierarchical"}


def fastest(n: int, part: float, link: Link) -> tuple[str, float]:
    """Returns the name of the fastest algorithm, and its seconds.

    Devices of one node use the links inside it, whatever network is around them.
    """
    link = NVLINK if n <= NODE else link
    times = {name: time(n, part, link) for name, time in of_link(link).items()}
    name = min(times, key=lambda name: times[name])
    return name, times[name]
