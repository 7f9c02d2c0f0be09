"""heteroplace: place one neural network over all the processors of a machine.

Importing it registers `relay.transform.HeteroPlace` when a TVM with Relay is installed. Without
one, the planning layers (clusters, task graphs, solvers, reports) work all the same.
"""

from __future__ import annotations

from heteroplace.errors import HeteroPlaceError
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.cluster_file import load_cluster, save_cluster
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.model.plan import Plan
from heteroplace.model.timeline import Timeline
from heteroplace.tvm_bridge import have_tvm, require_tvm

__version__ = "0.1.0"

_NEEDS_TVM = {
    "Executable": "heteroplace.build.executable",
    "Executor": "heteroplace.run.executor",
    "HeteroPlace": "heteroplace.hetero_place",
    "build": "heteroplace.hetero_place",
    "frontend": "heteroplace.relay.frontend",
    "load": "heteroplace.run.executor",
}
"""Public names that live in layers on top of TVM, and the module of each."""
