"""Probing a real GPU: what the driver says, and the links to host memory."""

from __future__ import annotations

import pytest
import tvm

from heteroplace.machine.cpu import read_cpus
from heteroplace.machine.fingerprint import device_fingerprint
from heteroplace.machine.gpu import read_gpus
from heteroplace.machine.probe import machine_cluster
from heteroplace.measure.transfers.link_report import with_measured_links
from heteroplace.measure.transfers.links import LinkProbeOptions, measure_links

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]

BRIEF = LinkProbeOptions((4, 4096, 1 << 20, 1 << 24), 5, 2, 1 << 24)


def test_the_driver_and_tvm_agree_on_every_gpu() -> None:
    pytest.importorskip("pynvml")
    for gpu in read_gpus():
        device = tvm.cuda(gpu.index)
        assert device.exist
        assert device.device_name == gpu.name
        assert device.compute_version == f"{gpu.capability[0]}.{gpu.capability[1]}"


def test_links_of_the_whole_machine() -> None:
    pytest.importorskip("pynvml")
    cluster = machine_cluster(read_cpus(), read_gpus(), "llvm")
    report = measure_links(cluster, options=BRIEF)
    for link in report.links:
        kinds = [
            next(device.kind for device in cluster.devices if device.memory == end)
            for end in (link.src, link.dst)
        ]
        assert (link.pageable is not None) is (len(set(kinds)) == 2)
        assert link.handed.bytes_per_second > 0
    measured = with_measured_links(cluster, report)
    assert len(measured.links) == len(cluster.links)
    assert all(device_fingerprint(device) for device in measured.devices)
