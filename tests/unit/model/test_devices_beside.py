"""Which devices share memory or caches with another one."""

from heteroplace.model.cluster import Cluster, Device, Memory
from heteroplace.model.hosts import devices_beside


def test_cpus_of_a_host_are_beside_each_other_whatever_their_memory():
    memories = tuple(Memory(name, 1) for name in ("near", "other node", "gpu"))
    devices = (
        Device("cpu.0", "cpu", "", 0, 0, (0,)),
        Device("cpu.1", "cpu", "", 0, 0, (1,)),
        Device("cpu.2", "cpu", "", 0, 1, (2,)),
        Device("gpu.0", "cuda", "", 0, 2),
        Device("gpu.1", "cuda", "", 1, 2),
    )
    cluster = Cluster("box", memories, devices)
    assert devices_beside(cluster, 0) == (1, 2)
    assert devices_beside(cluster, 2) == (0, 1)
    assert devices_beside(cluster, 3) == (4,)


def test_cpus_of_other_hosts_are_not():
    memories = (Memory("a", 1), Memory("b", 1))
    devices = tuple(Device(f"cpu.{at}", "cpu", "", 0, at, (0,), host=f"host{at}") for at in (0, 1))
    assert devices_beside(Cluster("hosts", memories, devices), 0) == ()
