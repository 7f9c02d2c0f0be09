"""The seam `remote_hosts`: another machine, on which kernels are measured.

A part registers how one is reached in the group `heteroplace.remote_hosts`; ours is `rpc`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from heteroplace.costs.measurement import Measurement
from heteroplace.errors import MissingPackageError
from heteroplace.files.measurements import KernelKey
from heteroplace.measure.profiler import Profiler
from heteroplace.measure.requests import MeasurementRequest
from heteroplace.model.cluster import Device
from heteroplace.registry import load_plugins


class RemoteHost(Protocol):
    """Another machine, which can be reached from here."""

    @property
    def host(self) -> str:
        """Name that devices of the cluster have as `host`."""

    def fingerprint(self, device: Device) -> str:
        """Return what stands for a device of that machine in the store.

        Raises
        ------
        ExecutionError
            The machine does not answer.
        ClusterError
            The device cannot be measured, or does not exist there.
        """

    def measure(
        self,
        request: MeasurementRequest,
        stored: Mapping[KernelKey, Measurement],
        profiler: Profiler,
    ) -> None:
        """Measure what the request has and `stored` lacks; `profiler` keeps it.

        Raises
        ------
        ExecutionError
            The machine does not answer, or a kernel failed there.
        LoweringError
            A kernel cannot be compiled.
        """


def remote_host(host: str, address: str, port: int) -> RemoteHost:
    """Return a machine at an address, by the first way to reach it that is registered.

    Raises
    ------
    MissingPackageError
        None is registered.
    """
    for reach in load_plugins("remote_hosts").values():
        reached: RemoteHost = reach(host, address, port)
        return reached
    raise MissingPackageError(
        "no installed package measures kernels on another machine: none registers in the group "
        "'heteroplace.remote_hosts'; install heteroplace with its part `hosts`"
    )
