"""A fused function of a GPU -> the variant of its kernel that a library of NVIDIA's computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tvm
from tvm import relay

from heteroplace.measure.cost_models.cost_model import CostOptions
from heteroplace.model.cluster import Cluster
from heteroplace.model.implementations import LIBRARY_MAKERS, LibraryMaker
from heteroplace.parts.kernels.nvidia.known_library_kernels import known_library_kernels
from heteroplace.parts.kernels.nvidia.libraries import LIBRARIES
from heteroplace.relay.expr_map import ExprSet
from heteroplace.relay.tasks.network import Network


@dataclass(frozen=True)
class LibraryVariants:
    """Kernels by one library in one precision; see `SearchedVariants` for the methods."""

    maker: LibraryMaker

    @property
    def option(self) -> str:
        """The option of a placement: "cublas" or "cudnn"."""
        return self.maker.option

    @property
    def description(self) -> str:
        """What a kernel is: "product by cuBLASLt"."""
        library = LIBRARIES[self.option]
        return f"{library.kernel} by {library.name}"

    def key(self, function: relay.Function, target: tvm.target.Target) -> str | None:
        """Return `LibraryKernel.key`."""
        kernel = LIBRARIES[self.option].find(function)
        return None if kernel is None else kernel.key(self.maker.precision, target)

    def cuts(self, function: relay.Function) -> ExprSet:
        """Return the last value that the library computes of a function, if it is not the whole."""
        return LIBRARIES[self.option].cuts(function)

    def lower(
        self, function: relay.Function, target: tvm.target.Target, key: str, tuning: str
    ) -> tuple[str, tvm.IRModule | None]:
        """Return the symbol; the executor calls the library by it."""
        return tuning, None

    def find_tunings(
        self, network: Network, cluster: Cluster, options: CostOptions
    ) -> Mapping[str, str]:
        """Return the symbols with the fastest algorithms on the GPUs of the cluster."""
        return known_library_kernels(network, cluster, self.maker, options)


CUBLAS, CUBLAS_TF32, CUBLAS_HALF, CUDNN, CUDNN_TF32, CUDNN_HALF = map(
    LibraryVariants, LIBRARY_MAKERS.values()
)
