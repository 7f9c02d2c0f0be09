"""A workload and a memory of another size -> what all its entries would take, placed again.

The costs stay as they are, so nothing is measured again.
"""

from __future__ import annotations

from dataclasses import replace

from heteroplace.argument_checks import did_you_mean
from heteroplace.errors import ClusterError, SolverError
from heteroplace.model.answers import MoreMemory
from heteroplace.model.cluster import Cluster
from heteroplace.model.units import format_bytes, parse_bytes
from heteroplace.model.workload_solution import WorkloadSolution
from heteroplace.solve.workload.solve_workload import SolvedWorkload, solve_workload


def more_memory(
    solution: WorkloadSolution, memory: str, more: str | int, *, time_limit: float | None = None
) -> MoreMemory:
    """Place the workload again; see `WorkloadSolution.more_memory`.

    Raises
    ------
    SolverError
        Also: the workload was not solved here, or lies in one memory.
    """
    solved = solution.solved
    if not isinstance(solved, SolvedWorkload):
        raise SolverError(
            "this workload lies in one memory, or has lost what it was solved from; place it over "
            "several memories by place_workload, and ask what that returns"
        )
    workload, before = solved.workload, solved.result
    index = _memory_index(workload.cluster, memory)
    was = workload.cluster.memories[index].bytes
    change = _change(memory, more)
    if was + change < 1:
        raise ClusterError(
            f"more_memory: {memory!r} has {format_bytes(was)}, and {more} would leave nothing; "
            f"take away less"
        )
    options = replace(solved.options, progress=None)
    if time_limit is not None:
        options = replace(options, time_limit_s=time_limit)
    changed = workload.with_memory(index, was + change)
    after = solve_workload(changed, options, solver=solved.solver, earlier=before)
    bound_ns = after.bound_ns
    if change < 0:  # what fits the smaller memory fits the larger one, and takes as long there
        bound_ns = max(bound_ns, before.bound_ns)
    names = [each.name for each in workload.cluster.memories]
    return MoreMemory(
        names[index],
        was,
        was + change,
        before.objective_ns,
        before.bound_ns,
        after.objective_ns,
        bound_ns,
        dict(zip(names, after.weight_bytes, strict=True)),
        dict(zip(names, after.value_bytes, strict=True)),
    )


def _memory_index(cluster: Cluster, name: str) -> int:
    """The memory of a name, or that of the device of the name."""
    indices = {device.name: device.memory for device in cluster.devices}
    indices |= {memory.name: index for index, memory in enumerate(cluster.memories)}
    if name not in indices:
        near = did_you_mean(name, indices)
        listed = ", ".join(memory.name for memory in cluster.memories)
        raise ClusterError(
            f"more_memory: cluster {cluster.name!r} has no memory or device {name!r}{near or '.'} "
            f"Its memories are {listed}"
        )
    return indices[name]


def _change(memory: str, more: str | int) -> int:
    """The bytes of a size that may have a sign."""
    sign, size = 1, more
    if isinstance(size, str):
        sign, size = (-1 if size.startswith("-") else 1), size.lstrip("+-")
        size = int(size) if size.isdecimal() else size
    elif isinstance(size, int) and size < 0:
        sign, size = -1, -size
    try:
        return sign * parse_bytes(size)
    except ValueError as err:
        raise ClusterError(f"more_memory: {memory}={more}; expected {err}") from err
