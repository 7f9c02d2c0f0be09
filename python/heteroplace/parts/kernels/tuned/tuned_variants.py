"""A fused function of a CPU -> the variant of its kernel that `heteroplace tune` has found."""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import relay

from heteroplace.measure.cost_models.cost_model import CostOptions
from heteroplace.model.cluster import Cluster
from heteroplace.parts.kernels.tuned.known_tunings import known_tunings
from heteroplace.parts.kernels.tuned.tuned_kernels import (
    tuned_functions,
    tuned_symbol,
    tuning_digest,
)
from heteroplace.relay.expr_map import ExprSet
from heteroplace.relay.tasks.network import Network


class TunedVariants:
    """Kernels from traces of TVM's MetaSchedule; see `SearchedVariants` for the methods."""

    option = "tuned"
    description = "tuned kernel"

    def key(self, function: relay.Function, target: tvm.target.Target) -> str | None:
        """Return `tuning_digest`."""
        return tuning_digest(function)

    def cuts(self, function: relay.Function) -> ExprSet:
        """Return none."""
        return ExprSet()

    def lower(
        self, function: relay.Function, target: tvm.target.Target, key: str, tuning: str
    ) -> tuple[str, tvm.IRModule | None]:
        """Apply a trace to the function."""
        symbol = tuned_symbol(key, target)
        return symbol, tuned_functions(function, target, tuning, symbol)

    def find_tunings(
        self, network: Network, cluster: Cluster, options: CostOptions
    ) -> Mapping[str, str]:
        """Return the traces that the store keeps for the CPUs of the cluster."""
        return known_tunings(options, cluster)


TUNED = TunedVariants()
