"""A target -> the kernels that installed packages add to TVM's own, by two seams of the registry.

`kernel_providers` are kernels in place of TVM's own, for all tasks of a target. `kernel_variants`
are kernels for a second device on the same cores or GPU, chosen by cost; an entry has the name of
their maker (`model/implementations.py`).

A maker of variants is loaded only where a target asks for it. Without any package, TVM's own
kernels stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import tvm
from tvm import relay

from heteroplace.model.cluster import Cluster
from heteroplace.registry import load_plugin, load_plugins
from heteroplace.relay.expr_map import ExprSet
from heteroplace.relay.tasks.network import Network

SharedForms = dict[str, dict[Any, Any]]
"""Forms of the weights that several modules share, as branches do: by provider, for its own use."""

Tunings = Mapping[str, str]
"""The results of searches for kernel variants, by `KernelVariants.key`."""


@dataclass(frozen=True)
class SegmentPasses:
    """The Relay passes that a provider adds to the optimisation of one segment, by place."""

    before_legalize: tuple[tvm.transform.Pass, ...] = ()
    """Before ops are legalised."""
    before_layouts: tuple[tvm.transform.Pass, ...] = ()
    """After ops are legalised, before TVM's AlterOpLayout."""
    after_layouts: tuple[tvm.transform.Pass, ...] = ()
    """After all passes of TVM, before FuseOps."""
    as_stock: Callable[[relay.Call], relay.Call] | None = None
    """Returns a call of a fused function without the provider's ops, for tasks of the segment that
    are placed with TVM's own kernels. None: the passes add no such ops."""


class KernelProvider(Protocol):
    """Kernels in place of TVM's own; an entry of the seam `kernel_providers`."""

    def register(self) -> None:
        """Register ops, strategies and schedules with TVM; again changes nothing."""

    def segment_passes(
        self,
        target: tvm.target.Target,
        shared: dict[Any, Any] | None,
        own_targets: Mapping[str, tvm.target.Target],
    ) -> SegmentPasses:
        """Return the passes for one segment.

        Parameters
        ----------
        target
            With the key `heteroplace_kernels`, if its kernels need not be TVM's own.
        shared
            Forms of weights that the modules of one network share; the passes add theirs. None:
            there is one module.
        own_targets
            Of tasks of the segment that have the key of another maker: their own targets, by name.
        """

    def finish(self, functions: tvm.IRModule, function: relay.Function) -> tvm.IRModule:
        """Return the lowered functions of one kernel for a CPU, with the provider's rewrites.

        It may run in a fork of the process. Whatever else it changes is then lost.

        Parameters
        ----------
        function
            The fused Relay function that they were lowered from.
        """

    def with_held_weights(self, network: Network, cluster: Cluster) -> Network:
        """Return the network with the bytes of weights that its kernels hold on a cluster."""


class KernelVariants(Protocol):
    """Kernels of one maker beside those of a device; an entry of the seam `kernel_variants`."""

    @property
    def option(self) -> str:
        """The option of a placement that asks for them: "tuned"."""

    @property
    def description(self) -> str:
        """What one of them is: "tuned kernel"."""

    def key(self, function: relay.Function, target: tvm.target.Target) -> str | None:
        """Return the name of a fused function among `Tunings`; None: there is no variant of it."""

    def cuts(self, function: relay.Function) -> ExprSet:
        """Return the values of a fused function behind which another kernel goes on, so that there
        may be a variant of the first; none: it stays whole."""

    def lower(
        self, function: relay.Function, target: tvm.target.Target, key: str, tuning: str
    ) -> tuple[str, tvm.IRModule | None]:
        """Return the symbol of a kernel with its lowered functions.

        The functions are None where the executor calls a library by the symbol.

        Raises
        ------
        LoweringError
            The tuning does not fit the function.
        """


def kernel_providers() -> Mapping[str, KernelProvider]:
    """Return the installed providers by name.

    Raises
    ------
    PluginError
        See `load_plugins`.
    """
    return load_plugins("kernel_providers")


def kernel_variants(maker: str) -> KernelVariants:
    """Return the kernel variants of a maker.

    Raises
    ------
    PluginError
        No installed package has them.
    """
    variants: KernelVariants = load_plugin("kernel_variants", maker)
    return variants


def with_held_weights(network: Network, cluster: Cluster) -> Network:
    """Return the network with the bytes of weights that kernels of all providers hold."""
    for provider in kernel_providers().values():
        network = provider.with_held_weights(network, cluster)
    return network
