"""A placed or shared module -> all that it carries in attributes, as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import tvm
from tvm import relay

from heteroplace.entries import load_entry
from heteroplace.errors import LoweringError
from heteroplace.lower.carried import carried_kernels
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.model.solution import Solution
from heteroplace.relay.annotate.annotation_reader import is_sharded
from heteroplace.relay.annotate.moved import SplitPlan, follow_annotations
from heteroplace.relay.module_source import read_verify, source_attribute
from heteroplace.relay.tasks.network import Network, network_under, sharded_network

if TYPE_CHECKING:
    from heteroplace.files.sharding import ShardingRecord

READ_SHARDED = "heteroplace.relay.annotate.sharded_attribute:read_sharded"
"""Loaded for a sharded module."""


class ShardedPlan(NamedTuple):
    """How `Shard` has divided a module."""

    record: ShardingRecord
    state: Mapping[str, np.ndarray]
    """First values of the inputs that a run replaces."""


ModulePlan = Solution | SplitPlan | ShardedPlan


def read_plan(mod: tvm.IRModule) -> ModulePlan:
    """Read the plan of a module, brought up to date with its annotations.

    Raises
    ------
    LoweringError
        The module carries no plan, or its annotations contradict each other or the plan.
    PlanError
        The plan was not written by this version.
    """
    if is_sharded(mod):
        return ShardedPlan(*load_entry(READ_SHARDED)(mod))
    plan = follow_annotations(mod)
    if plan is None:
        raise LoweringError(
            "the module carries no plan; run relay.transform.HeteroPlace(cluster) on it first, "
            "or relay.transform.Shard(cluster, batch=...)"
        )
    return plan


@dataclass(frozen=True)
class ModuleContents:
    """What `build_module` builds. Read once; no later stage looks at the attributes again."""

    solution: Solution
    """The plan, brought up to date with the annotations."""
    compiled: CompiledNetwork
    """The neutral module, with its tuned kernels, initial state and output names, and the kernels
    that are compiled already."""
    source: relay.Expr | None
    """What the part that imported the module noted of its source; None: it was not imported."""
    verify: str
    """Option of the pass: "auto", "on" or "off"; "off" without a source."""
    is_sharded: bool
    """`Shard` made it, not `HeteroPlace`."""

    @property
    def network(self) -> Network:
        """The network."""
        return self.compiled.network


def read_contents(mod: tvm.IRModule, plan: ModulePlan) -> ModuleContents:
    """Read all attributes of a module.

    Parameters
    ----------
    plan
        What `read_plan` returned, with a new plan in place of one that annotations split.
    """
    source, verify = source_attribute(mod), read_verify(mod)
    if isinstance(plan, ShardedPlan):
        record, state = plan
        network = sharded_network(mod, record.solution.graph, state)
        compiled = CompiledNetwork.of(network)
        return ModuleContents(record.solution, compiled, source, verify, is_sharded=True)
    assert isinstance(plan, Solution)  # the stage `place-again` has replaced `SplitPlan`
    network = network_under(mod, plan.graph)
    compiled = CompiledNetwork.of(network)
    kernels = carried_kernels(mod, network.digest, network.graph.routers)
    if kernels is not None:
        compiled.add(*kernels)
    return ModuleContents(plan, compiled, source, verify, is_sharded=False)
