"""heteroplace: place one neural network over all the processors of a machine.

Importing it makes `relay.transform.HeteroPlace` exist in a TVM with Relay, which it does not load.
Without one, the planning layers (clusters, task graphs, solvers, reports) work all the same.

Every command imports this module before it can answer Ctrl-C. So it loads no other module, not even
`typing`; public names are loaded at their first use, and the hooks of TVM when TVM is imported.
"""

from __future__ import annotations

import sys
from importlib import import_module

TYPE_CHECKING = False  # as `typing` has it
if TYPE_CHECKING:  # what type checkers and editors read; each name is loaded at its first use
    from heteroplace.compiling import compile, place, place_workload
    from heteroplace.errors import HeteroPlaceError
    from heteroplace.files.cluster_file import load_cluster, save_cluster
    from heteroplace.files.solution_file import load_solution
    from heteroplace.hetero_place import HeteroPlace, build
    from heteroplace.loading import load
    from heteroplace.lower.executable import Executable
    from heteroplace.machine.local import local_cluster
    from heteroplace.model.cluster import Cluster, Device, Link, Memory
    from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
    from heteroplace.model.plan import Plan
    from heteroplace.model.solution import Solution
    from heteroplace.model.timeline import Timeline
    from heteroplace.model.workload_solution import WorkloadSolution
    from heteroplace.parts import onnx as frontend
    from heteroplace.parts.exports.exporting import export
    from heteroplace.parts.kernels.tuned.tuner import tune
    from heteroplace.parts.parallel.sharding.shard_api import Shard, shard
    from heteroplace.parts.routing.find.find_routers import FindRouters
    from heteroplace.parts.routing.relay import public as routing
    from heteroplace.parts.routing.relay.dense import DenseMasked
    from heteroplace.parts.routing.relay.passes import (
        ChooseCapacities,
        PlaceBranches,
        PreloadWeights,
        Specialise,
        SpeculateRoutes,
    )
    from heteroplace.parts.serving.inference_session import InferenceSession
    from heteroplace.parts.torch.dynamo_backend import torch_backend
    from heteroplace.relay.annotate.annotation_reader import read_solution
    from heteroplace.run.executor import Executor

__version__ = "0.1.0"

_REGISTRY, _TVM_BRIDGE = "heteroplace.registry", "heteroplace.tvm_bridge"
_TVM_HOOKS = "heteroplace.tvm_hooks"
_ENTRIES, _PIPELINE = "heteroplace.entries", "heteroplace.pipeline"
_WITHOUT_TVM = {
    **dict.fromkeys(("Cluster", "Device", "Link", "Memory"), "heteroplace.model.cluster"),
    **dict.fromkeys(("Task", "TaskGraph", "TaskGraphBuilder"), "heteroplace.model.graph"),
    "Plan": "heteroplace.model.plan",
    "Solution": "heteroplace.model.solution",
    "Timeline": "heteroplace.model.timeline",
    "WorkloadSolution": "heteroplace.model.workload_solution",
    **dict.fromkeys(("load_cluster", "save_cluster"), "heteroplace.files.cluster_file"),
    "load_solution": "heteroplace.files.solution_file",
    "local_cluster": "heteroplace.machine.local",
    "HeteroPlaceError": "heteroplace.errors",
    "Executor": "heteroplace.run.executor",
    "load": "heteroplace.loading",
}
"""Public names of the layers that plan and that run files, and the module of each."""
_NEEDS_TVM = {
    "Executable": "heteroplace.lower.executable",
    "HeteroPlace": "heteroplace.hetero_place",
    "build": "heteroplace.hetero_place",
    "compile": "heteroplace.compiling",
    "place": "heteroplace.compiling",
    "place_workload": "heteroplace.compiling",
    "read_solution": "heteroplace.relay.annotate.annotation_reader",
}
"""Public names that live in layers on top of TVM, and the module of each."""
_PASSES_OF_PARTS = (
    "ChooseCapacities",
    "DenseMasked",
    "FindRouters",
    "PlaceBranches",
    "PreloadWeights",
    "Shard",
    "Specialise",
    "SpeculateRoutes",
)
_OF_PARTS = (
    *_PASSES_OF_PARTS,
    *("InferenceSession", "export", "frontend", "routing", "shard", "torch_backend", "tune"),
)
"""Public names that parts define; the seam `public_names` of the registry has their entries."""

__all__ = [
    "ChooseCapacities",
    "Cluster",
    "DenseMasked",
    "Device",
    "Executable",
    "Executor",
    "FindRouters",
    "HeteroPlace",
    "HeteroPlaceError",
    "InferenceSession",
    "Link",
    "Memory",
    "PlaceBranches",
    "Plan",
    "PreloadWeights",
    "Shard",
    "Solution",
    "Specialise",
    "SpeculateRoutes",
    "Task",
    "TaskGraph",
    "TaskGraphBuilder",
    "Timeline",
    "WorkloadSolution",
    "build",
    "compile",
    "export",
    "frontend",
    "load",
    "load_cluster",
    "load_solution",
    "local_cluster",
    "place",
    "place_workload",
    "read_solution",
    "routing",
    "save_cluster",
    "shard",
    "torch_backend",
    "tune",
]


def _load(name: str) -> object:
    """Load a public name at its first use; say how to get TVM if it needs one and there is none."""
    if name in _WITHOUT_TVM:
        globals()[name] = getattr(import_module(_WITHOUT_TVM[name]), name)
        return globals()[name]
    if name not in (*_NEEDS_TVM, *_OF_PARTS):
        raise AttributeError(f"module 'heteroplace' has no attribute {name!r}")
    import_module(_ENTRIES).check_installed(_PIPELINE)
    import_module(_TVM_BRIDGE).require_tvm()
    if name in _OF_PARTS:
        return import_module(_REGISTRY).load_plugin("public_names", name)
    return getattr(import_module(_NEEDS_TVM[name]), name)


if not TYPE_CHECKING:  # a checker would take any name for one of the package
    __getattr__ = _load


def __dir__() -> list[str]:
    """Return the public names that can be loaded here: completion loads what it lists."""
    names = {name for name in globals() if name.startswith("__")} | set(_WITHOUT_TVM)
    if import_module(_TVM_BRIDGE).have_tvm():
        registered = import_module(_REGISTRY).plugins("public_names")
        names.update(_NEEDS_TVM, (name for name in _OF_PARTS if name in registered))
    return sorted(names)


class _TVMHooks:
    """A finder that finds nothing: it adds the hooks of `tvm_hooks.py` when TVM is imported."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "tvm":
            sys.meta_path.remove(_TVMHooks)
            _add_tvm_hooks()


def _add_tvm_hooks() -> None:
    names = ("HeteroPlace", *_PASSES_OF_PARTS)
    import_module(_TVM_HOOKS).add_tvm_hooks(names, _load)


if "tvm" in sys.modules:
    _add_tvm_hooks()
else:
    sys.meta_path.insert(0, _TVMHooks)
