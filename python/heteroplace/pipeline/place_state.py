"""What the stages of placing hand on: the request, and what is known of the network so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import tvm

from heteroplace.lower.compile import CompiledNetwork
from heteroplace.measure.cost_models import CostModel, CostOptions
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan
from heteroplace.model.routed.route_profile import RouteProfile
from heteroplace.model.solution import Solution
from heteroplace.pipeline.core_stages import CostedNetwork
from heteroplace.place_options import PlaceOptions
from heteroplace.relay.module_source import InputSet
from heteroplace.relay.tasks.network import Network
from heteroplace.solve.problem import SolveOptions
from heteroplace.stage_log import StageLog

if TYPE_CHECKING:
    from heteroplace.solve.plan_in import SavedPlan


@dataclass(frozen=True)
class PlaceRequest:
    """What the caller of `place` gives. No stage changes it."""

    options: PlaceOptions
    limits: SolveOptions
    """How long to solve, and for which objective."""
    log: StageLog
    cost_options: CostOptions
    """Where costs come from; it collects how busy other programs kept the machine."""


@dataclass(frozen=True)
class PlaceState:
    """The state between two stages. A field is None before the stage that sets it."""

    request: PlaceRequest
    mod: tvm.IRModule
    cluster: Cluster
    """With the limits, kernel variants and memories that the stages so far have added."""
    saved: SavedPlan | None = None
    """The plan of the option `plan_in`; None: a solver makes the plan."""
    entry_plan: Plan | None = None
    """The plan that was made for this entry of a model together with others; None: it is placed
    alone."""
    examples: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Of inputs by name, the values that kernels are measured with."""
    input_sets: tuple[InputSet, ...] = ()
    """Inputs of the option `verify_inputs`, after the stage of that name."""
    cost_model: CostModel | None = None
    profile: RouteProfile | None = None
    """How routers usually decide; None: the network has no routers, or no profile."""
    network: Network | None = None
    plain: tuple[TaskGraph, Cluster] | None = None
    """The tasks and the cluster before kernel variants were added."""
    items: int = 1
    """Number of model inputs that the plan is for."""
    compiled: CompiledNetwork | None = None
    costed: CostedNetwork | None = None
    solution: Solution | None = None

    @property
    def options(self) -> PlaceOptions:
        """Those of the request."""
        return self.request.options

    @property
    def plain_cluster(self) -> Cluster:
        """The cluster without kernel variants, after the stage `weights`."""
        assert self.plain is not None
        return self.plain[1]

    @property
    def known_network(self) -> Network:
        """The network, after the stage `prepare`."""
        assert self.network is not None
        return self.network

    @property
    def known_cost_model(self) -> CostModel:
        """The cost model, after the stage `read`."""
        assert self.cost_model is not None
        return self.cost_model

    @property
    def known_compiled(self) -> CompiledNetwork:
        """The kernels, after the stage `compile`."""
        assert self.compiled is not None
        return self.compiled

    @property
    def known_costed(self) -> CostedNetwork:
        """The costs, after the stage `cost`."""
        assert self.costed is not None
        return self.costed

    @property
    def known_solution(self) -> Solution:
        """The plan, after the stage `solve`."""
        assert self.solution is not None
        return self.solution
