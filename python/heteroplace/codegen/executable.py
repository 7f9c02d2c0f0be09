"""Annotated module -> executable: the heterogeneous build in one function."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import tvm

from heteroplace.codegen.artifact import Manifest, weights_blob, write_artifact
from heteroplace.codegen.compile import compile_network
from heteroplace.codegen.library import KernelLibrary
from heteroplace.codegen.lower import Lowered, lower
from heteroplace.codegen.targets import cluster_targets
from heteroplace.errors import LoweringError
from heteroplace.model.placement import Placement
from heteroplace.relay.annotate import read_placement, strip_annotations
from heteroplace.report.tables import device_table, headline, placement_table
from heteroplace.simulate.simulator import simulate


@dataclass(frozen=True)
class Executable:
    """Compiled kernels, weights and program of one placed network.

    `export_library` writes it to one file; `heteroplace.Executor` runs it, from memory or file.
    """

    library: KernelLibrary
    lowered: Lowered
    manifest: Manifest
    blob: np.ndarray
    """Weights, page aligned; uint8 [blob_bytes]."""

    @property
    def placement(self) -> Placement:
        """The plan and all it refers to."""
        return self.manifest.placement

    def summary(self, max_rows: int = 40) -> str:
        """Return the headline, the devices and the placement table with reasons, as text."""
        placement = self.placement
        graph, cluster, plan = placement.graph, placement.cluster, placement.plan
        timeline = simulate(graph, cluster, placement.costs, plan)
        return "\n\n".join(
            [
                headline(
                    cluster,
                    plan,
                    placement.predicted_ns,
                    placement.best_single,
                    placement.bound_ns,
                ),
                device_table(graph, cluster, plan, timeline),
                placement_table(graph, cluster, plan, timeline, max_rows),
            ]
        )

    def export_library(self, path: str | os.PathLike[str]) -> None:
        """Write kernels, weights, program, plan and cluster to ONE file.

        Raises
        ------
        ArtifactError
            The file cannot be written; an older file of that name is left as it was.
        """
        write_artifact(path, self.library, self.blob, self.manifest)


def build_annotated(mod: tvm.IRModule) -> Executable:
    """Compile a module that HeteroPlace has annotated.

    Raises
    ------
    LoweringError
        The module is not annotated, or was changed afterwards; an op has no implementation on the
        target of its device.
    InfeasibleError
        The compiled program does not fit in some memory.
    """
    placement = read_placement(mod)
    if placement is None:
        raise LoweringError(
            "the module carries no plan; run relay.transform.HeteroPlace(cluster) on it first"
        )
    graph, cluster, plan = placement.graph, placement.cluster, placement.plan
    targets, target_of_device = cluster_targets(cluster)
    devices = plan.placement(len(graph.tasks))
    target_of_task = {
        task.name: target_of_device[device]
        for task, device in zip(graph.tasks, devices, strict=True)
    }
    compiled = compile_network(strip_annotations(mod), targets, target_of_task)
    predicted = simulate(graph, cluster, placement.costs, plan)
    lowered = lower(compiled.rows, graph, cluster, plan, predicted)
    tensors = lowered.program.tensors
    ports = [
        tuple((name, tensors[tensor].shape, tensors[tensor].dtype) for name, tensor in named)
        for named in (lowered.program.inputs, lowered.program.outputs)
    ]
    manifest = Manifest(tvm.__version__, lowered.program.to_text(), placement, ports[0], ports[1])
    return Executable(compiled.library, lowered, manifest, weights_blob(lowered))
