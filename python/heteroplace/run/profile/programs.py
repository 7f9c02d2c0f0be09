"""Kernel calls of a network -> a program that runs them one after the other on one device."""

from __future__ import annotations

from heteroplace.codegen.compile import CompiledRows
from heteroplace.codegen.kernels import Row, Rows
from heteroplace.codegen.library import KernelLibrary
from heteroplace.codegen.lower import lower
from heteroplace.errors import InfeasibleError
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.run.plan_program import PlanProgram, load_programs, serial_plan
from heteroplace.run.profile.subjects import Subject


def serial_program(
    rows: Rows, library: KernelLibrary, graph: TaskGraph, cluster: Cluster, subject: Subject
) -> PlanProgram:
    """Load `rows`, one after the other; raises InfeasibleError if they do not fit in a memory."""
    plan = serial_plan(graph, cluster, subject.placement)
    return load_programs(CompiledRows(rows, library), graph, cluster, [plan])[0]


def fits(rows: Rows, graph: TaskGraph, cluster: Cluster, subject: Subject) -> bool:
    """Say whether the whole network can run on the device."""
    try:
        lower(rows, graph, cluster, *serial_plan(graph, cluster, subject.placement))
    except InfeasibleError:
        return False
    return True


def with_own_inputs(rows: Rows, row: Row) -> Rows:
    """Return the program of a single row; what it reads are inputs."""
    values = list(rows.values)
    for value in row.reads:
        if values[value].constant is None:
            old = values[value]
            values[value] = type(old)(old.shape, old.dtype, input_name=f"value{value}")
    kept = {*row.reads, *row.writes}
    values = [
        value
        if index in kept or value.input_name is None
        else type(value)(value.shape, value.dtype)
        for index, value in enumerate(values)
    ]
    return Rows(tuple(values), (row,), (), rows.kernels)
