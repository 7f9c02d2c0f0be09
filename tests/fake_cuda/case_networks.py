"""A network in Relay: placed over a core and two GPUs, built, exported, loaded and run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_end_to_end import reference

import heteroplace as hp
from heteroplace.bench.models.networks import small_cnn
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from tests.fake_cuda.control import FakeCuda

tvm = pytest.importorskip("tvm")
from tvm import relay  # noqa: E402

pytestmark = pytest.mark.timeout(120)

GIB = 1 << 30
SPEED = 12 * GIB


def two_gpus() -> Cluster:
    """The first core of this machine and two GPUs, with links between all memories."""
    core = hp.local_cluster().devices[0]
    links = [
        Link(f"{src}{dst}", src, dst, SPEED, 10_000, f"{src}{dst}")
        for src in range(3)
        for dst in range(3)
        if src != dst
    ]
    return Cluster(
        "two-gpus",
        (Memory("ram", 8 * GIB), Memory("gpu0", 4 * GIB), Memory("gpu1", 4 * GIB)),
        (
            Device("cpu.0", "cpu", core.target, 0, 0, core.cores, "", 10**11, 10**10),
            Device("gpu0", "cuda", "cuda -arch=sm_80", 0, 1, (), "", 10**13, 10**12),
            Device("gpu1", "cuda", "cuda -arch=sm_80", 1, 2, (), "", 10**13, 10**12),
        ),
        tuple(links),
        0,
    )


def test_a_network_over_a_core_and_two_gpus(fake: FakeCuda, tmp_path: Path) -> None:
    mod, params, shapes = small_cnn()
    random = np.random.default_rng(0)
    inputs = {name: random.random(shape).astype("float32") for name, shape in shapes.items()}
    pin = {"conv2d.1": "gpu0", "conv2d.2": "cpu.0", "conv2d.3": "gpu1", "conv2d.4": "gpu0"}
    options = {"params": params, "costs": "estimate", "pin": pin}
    with tvm.transform.PassContext(opt_level=3):
        placed = relay.transform.HeteroPlace(two_gpus(), **options)(mod)
        hp.build(placed).export_library(tmp_path / "model.so")
    executor = hp.load(tmp_path / "model.so")
    expected = reference(mod, params, inputs)
    for _ in range(3):
        with fake.running():
            (output,) = executor.run(**inputs)
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert fake.calls()["cuLaunchKernel"] > 0
    assert fake.has_peer(0, 1) or fake.has_peer(1, 0)
