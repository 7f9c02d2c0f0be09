"""The clusters of the published studies, as values, with peak speeds for estimates.

- Moirai (section V, table III): four GPUs in four servers over InfiniBand, and four GPUs of one
  server over NVLink; average bandwidths from row to column, not symmetric.
- DiviML (section V): one node with a CPU, a T4 and an A100 on PCIe 4.0 x16.
- Celeritas (section 6): four V100 of 32 GB on PCIe 3.0 x16.

Peak speeds are those of the makers' data sheets: single precision without tensor cores (PyTorch
1.12, which Moirai used, leaves TF32 off), memory bandwidth, memory size. Latencies and launch times
are in neither paper: 10 us for one transfer, 5 us for one kernel. All clusters are for planning
only: no host memory, so inputs are everywhere at time 0, and one channel per directed pair.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from heteroplace.errors import ClusterError
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.graph import TaskGraph

LATENCY_NS = 10_000
LAUNCH_NS = 5_000
_GIB = 2**30


@dataclass(frozen=True)
class _Model:
    """What a data sheet says."""

    name: str
    kind: str
    target: str
    gflops_per_second: int
    memory_gb_per_second: float
    memory_gib: int


_RTX_2080_TI = _Model("NVIDIA GeForce RTX 2080 Ti", "cuda", "cuda -arch=sm_75", 13_450, 616, 11)
_T4 = _Model("NVIDIA Tesla T4", "cuda", "cuda -arch=sm_75", 8_141, 320, 16)
_P4 = _Model("NVIDIA Tesla P4", "cuda", "cuda -arch=sm_61", 5_704, 192.3, 8)
_RTX_3060_TI = _Model("NVIDIA GeForce RTX 3060 Ti", "cuda", "cuda -arch=sm_86", 16_197, 448, 8)
_V100 = _Model("NVIDIA Tesla V100 SXM2 32 GB", "cuda", "cuda -arch=sm_70", 15_670, 900, 32)
_V100_PCIE = _Model("NVIDIA Tesla V100 PCIe 32 GB", "cuda", "cuda -arch=sm_70", 14_028, 900, 32)
_P100 = _Model("NVIDIA Tesla P100 SXM2 16 GB", "cuda", "cuda -arch=sm_60", 10_609, 732, 16)
_A100 = _Model("NVIDIA A100 40 GB", "cuda", "cuda -arch=sm_80", 19_490, 1_555, 40)
# 20 cores of 2.0 GHz with two AVX-512 units each; six channels of DDR4-2666.
_SKYLAKE = _Model("Intel Xeon (Skylake) 2.0 GHz", "cpu", "llvm", 2_560, 128, 192)

_INTER_SERVER_GBITS = (
    (None, 44.26, 32.92, 44.28),
    (42.39, None, 35.32, 44.51),
    (33.2, 35.31, None, 32.95),
    (42.08, 43.22, 33.28, None),
)
_INTRA_SERVER_GBITS = (
    (None, 1170.04, 626.10, 610.56),
    (1148.16, None, 618.98, 581.09),
    (630.43, 609.82, None, 571.96),
    (622.67, 575.08, 581.35, None),
)
# Data rates: about 80 % of PCIe 4.0 x16 (31.5 GB/s), and of 3.0 x16 (15.75 GB/s), which is all
# that a T4 has.
_PCIE_GBITS = (
    (None, 100.0, 200.0),
    (100.0, None, 100.0),
    (200.0, 100.0, None),
)

_NETWORK_GBITS = 100.0


def inter_server() -> Cluster:
    """Return Moirai's four servers with one GPU each, joined by InfiniBand."""
    models = (_RTX_2080_TI, _T4, _P4, _RTX_3060_TI)
    hosts = ("server-a", "server-b", "server-c", "server-d")
    return _cluster("moirai-inter-server", "ABCD", models, hosts, _INTER_SERVER_GBITS)


def intra_server() -> Cluster:
    """Return Moirai's four GPUs of one server, joined by NVLink."""
    models = (_V100, _V100, _P100, _P100)
    return _cluster("moirai-intra-server", "ABCD", models, ("server",) * 4, _INTRA_SERVER_GBITS)


def hub(count: int) -> Cluster:
    """Return so many T4 behind one switch, its memory the first; every link another bandwidth.

    Nobody sells it: it is what solvers meet where there are many devices and no two routes alike.
    """
    generator = random.Random(f"hub-{count}")
    rates: list[list[float | None]] = [[None] * count for _ in range(count)]
    for index in range(1, count):
        rates[0][index] = generator.uniform(64, 128)
        rates[index][0] = generator.uniform(64, 128)
    names = tuple(f"gpu{index}" for index in range(count))
    hosts = tuple(f"host{index}" for index in range(count))
    return _cluster(f"hub-{count}", names, (_T4,) * count, hosts, tuple(map(tuple, rates)))


def divi_node() -> Cluster:
    """Return DiviML's node: a CPU, a T4 and an A100 on PCIe; as there, transfers do not contend."""
    names = ("cpu", "t4", "a100")
    models = (_SKYLAKE, _T4, _A100)
    cluster = _cluster("divi-node", names, models, ("server",) * 3, _PCIE_GBITS)
    return replace(cluster, congestion="none")


def celeritas_node() -> Cluster:
    """Return Celeritas' four V100 on PCIe 3.0; a GPU sends, and receives, one tensor at a time."""
    names = tuple(f"gpu{index}" for index in range(4))
    rows = tuple(tuple(None if src == dst else 100.0 for dst in names) for src in names)
    cluster = _cluster("celeritas-node", names, (_V100_PCIE,) * 4, ("server",) * 4, rows)
    return replace(cluster, congestion="port")


def divi_nodes(count: int) -> Cluster:
    """Return so many nodes of a CPU, two T4 and two A100, without contention.

    DiviML's study of GPT-3 has six nodes with two pairs of equal GPUs each (that is what its count
    of symmetric plans says); what joins them is not printed. Here: PCIe within a node, 100 Gbit/s
    between nodes.
    """
    kinds = (0, 1, 1, 2, 2)
    models = (_SKYLAKE, _T4, _T4, _A100, _A100)
    names, hosts = [], []
    for node in range(count):
        names += [f"{name}.{node}" for name in ("cpu", "t4a", "t4b", "a100a", "a100b")]
        hosts += [f"node{node}"] * len(kinds)
    gbits: list[tuple[float | None, ...]] = []
    for src, src_host in enumerate(hosts):
        row: list[float | None] = []
        for dst, dst_host in enumerate(hosts):
            rate = _NETWORK_GBITS
            if src_host == dst_host:
                pair = kinds[src % len(kinds)], kinds[dst % len(kinds)]
                # Between two of one kind the slower of both ways to the CPU counts.
                rate = _PCIE_GBITS[pair[0]][pair[1]] or _PCIE_GBITS[pair[0]][0] or 0.0
            row.append(None if src == dst else rate)
        gbits.append(tuple(row))
    cluster = _cluster(
        f"divi-{count}-nodes", tuple(names), models * count, tuple(hosts), tuple(gbits)
    )
    return replace(cluster, congestion="none")


def memory_need(graph: TaskGraph) -> int:
    """Return the bytes that `graph` needs at least, spread over memories in whatever way.

    All weights, every tensor that a task makes, once, and the largest workspace.
    """
    weights = sum(task.weight_bytes for task in graph.tasks)
    tensors = sum(tensor.bytes for tensor in graph.tensors if tensor.producer is not None)
    workspace = max((task.workspace_bytes for task in graph.tasks), default=0)
    return weights + tensors + workspace


def fill_memories(cluster: Cluster, graph: TaskGraph, fill: float = 0.75) -> Cluster:
    """Return `cluster` with memories scaled so that `graph` needs the part `fill` of their sum.

    The proportions of the memories stay. Scaled down, plans must spread tasks; scaled up, graphs
    fit that the real machine holds only because it frees tensors.

    Raises
    ------
    ClusterError
        `fill` is not in (0, 1], or the graph needs no memory at all.
    """
    need = memory_need(graph)
    if not 0 < fill <= 1 or need == 0:
        raise ClusterError(
            f"cannot scale the memories of {cluster.name!r}: fill must be in (0, 1] and is {fill}; "
            f"graph {graph.name!r} must need memory and needs {need} bytes"
        )
    total = sum(memory.bytes for memory in cluster.memories)
    factor = need / fill / total
    memories = tuple(
        replace(memory, bytes=max(1, round(memory.bytes * factor))) for memory in cluster.memories
    )
    return replace(cluster, name=f"{cluster.name}-{round(100 * fill)}%", memories=memories)


def _cluster(
    name: str,
    names: str | tuple[str, ...],
    models: tuple[_Model, ...],
    hosts: tuple[str, ...],
    gbits: tuple[tuple[float | None, ...], ...],
) -> Cluster:
    memories = tuple(
        Memory(f"{device}.memory", model.memory_gib * _GIB)
        for device, model in zip(names, models, strict=True)
    )
    devices = []
    next_index: dict[tuple[str, str], int] = {}
    for position, (device, model, host) in enumerate(zip(names, models, hosts, strict=True)):
        index = next_index.setdefault((host, model.kind), 0)
        next_index[host, model.kind] += 1
        devices.append(
            Device(
                name=device,
                kind=model.kind,
                target=model.target,
                index=index,
                memory=position,
                host=host,
                flops_per_second=model.gflops_per_second * 10**9,
                memory_bytes_per_second=round(model.memory_gb_per_second * 10**9),
                launch_ns=LAUNCH_NS,
                model=model.name,
            )
        )
    links = []
    for src, row in enumerate(gbits):
        for dst, rate in enumerate(row):
            if rate is not None:
                link = f"{names[src]}-{names[dst]}"
                links.append(Link(link, src, dst, round(rate * 1e9 / 8), LATENCY_NS, link))
    return Cluster(name, memories, tuple(devices), tuple(links), None)
