"""Which sizes to measure, so that fits find every constant of DistIR's cost functions.

DistIR, section 4, fits the cost of products of matrices and of all-reduces to measured runs. On its
sizes (products of m, k, n in {4096, 8192}, all-reduces of 8 to 128 MiB) computing and moving hide
the launch and the bandwidth of the memory: with 2 % of noise these come out 53 % and 100 % wrong.
Here each constant decides the time of some sizes: the launch that of tiny ones, the bandwidth that
of flat products, the peak that of large ones. With relative errors (`prediction/op_regression.py`,
`link_fit.py`) all constants are then within 2 % in 95 of 100 calibrations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from heteroplace.costs.link_fit import collective_from_samples
from heteroplace.costs.work import TaskWork
from heteroplace.model.collectives import CollectiveCosts

_ROWS = (1, 16, 256, 4096)
_SIDES = (256, 4096, 8192)
PRODUCT_SHAPES: tuple[tuple[int, int, int], ...] = tuple(product(_ROWS, _SIDES, _SIDES))
"""(m, k, n) of the products (m, k) x (k, n) to measure, once each."""

_TINY_BYTES = (2**8, 2**9, 2**10, 2**11)
_LARGE_BYTES = (2**25, 2**26, 2**27, 2**28)
TRANSFER_REPEATS = 3
"""How often each of TRANSFER_BYTES is measured."""
TRANSFER_BYTES: tuple[int, ...] = (*_TINY_BYTES, *_LARGE_BYTES)
"""Sizes of the copies over a link, and of the collectives of each kind and number of members."""


def product_work(m: int, k: int, n: int, element_bytes: int) -> TaskWork:
    """Return the work of a product (m, k) x (k, n) as the cost functions count it.

    >>> product_work(2, 3, 4, element_bytes=2)
    TaskWork(flops=48, bytes=36)
    """
    return TaskWork(2 * m * k * n, element_bytes * (m * k + k * n))


def fit_collectives(
    samples: Mapping[tuple[str, int], Sequence[tuple[int, int]]],
) -> CollectiveCosts:
    """Return what collectives take by measured runs: a line in bytes for each kind and group size.

    Parameters
    ----------
    samples : mapping of (kind, number of members) to sequence of (bytes, ns)
        Bytes of the whole tensor, the largest that is read or made, and durations > 0.

    Raises
    ------
    ClusterError
        A kind and number of members has too few sizes, or a duration that is not positive.
    """
    fits = []
    for (kind, num_devices), runs in sorted(samples.items()):
        per_byte_ns, launch_ns = collective_from_samples(runs)
        fits.append((kind, num_devices, per_byte_ns, launch_ns))
    return CollectiveCosts(tuple(fits))
