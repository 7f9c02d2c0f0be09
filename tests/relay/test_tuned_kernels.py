"""Tuned kernels: schedules that are drawn, kept in a store, found again, and placed as a twin's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tvm
from relay_models import cpu_cluster, module, random_inputs, stock_outputs, var
from tvm import relay

import heteroplace as hp
from heteroplace import pipeline
from heteroplace.costs.store import CostStore
from heteroplace.costs.tunings import TunedPlace, Tuning, add_trials, keep_schedule
from heteroplace.errors import LoweringError, SolverError
from heteroplace.lower.compile import CompiledNetwork, lower_network
from heteroplace.lower.kernels import Kernel
from heteroplace.machine.fingerprint import device_fingerprint
from heteroplace.measure.cost_models.cost_model import CostOptions
from heteroplace.measure.kernel_variants import with_makers
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost, CostTable, allowed_devices, build_table
from heteroplace.model.graph import TaskGraph
from heteroplace.model.implementations import implementation_gains, twin_name
from heteroplace.parts.kernels.tuned.tuned_kernels import tuned_functions, tuning_digest
from heteroplace.parts.kernels.tuned.tuned_schedules import Schedules, trace_text
from heteroplace.pipeline import CostedNetwork
from heteroplace.place_options import PlaceOptions
from heteroplace.relay.annotate.tunings_attribute import TUNINGS_ATTRIBUTE
from heteroplace.relay.targets import MAKER_KEYS
from heteroplace.relay.tasks.network import Network
from heteroplace.solve import SolveOptions

pytestmark = pytest.mark.relay

DATE = "2026-01-31T12:00:00+00:00"
QUICK_NS, SLOW_NS = 1_000, 1_000_000
ALL = twin_name("cpu.all", "tuned")


def pooled_softmax() -> tvm.IRModule:
    """A pool and a logarithm of a softmax, which is tuned here: TVM schedules it for any CPU."""
    x = var("x", (1, 4, 16, 16))
    pooled = relay.nn.max_pool2d(x, (2, 2), strides=(2, 2))
    return module([x], relay.nn.log_softmax(relay.reshape(pooled, (32, 8))))


@pytest.fixture(autouse=True)
def opt_level() -> Iterator[None]:
    with tvm.transform.PassContext(opt_level=3):
        yield


@pytest.fixture
def network() -> Network:
    return pipeline.prepare(pooled_softmax())


def kernel_of(network: Network, op: str) -> Kernel:
    """The kernel of an op, as ours."""
    cluster = cpu_cluster()
    calls = CompiledNetwork.of(network).calls(cluster, [0] * len(network.graph.tasks))
    (found,) = [kernel for kernel in calls.kernels.values() if op in kernel.op]
    return found


def drawn(kernel: Kernel, seed: int = 1) -> tvm.tir.Schedule:
    """A schedule of a kernel's function."""
    assert kernel.function is not None
    schedules = Schedules.of(kernel.function, kernel.target, 2)
    assert schedules is not None
    return next(schedules.draw(seed))


def keep(path: Path, kernel: Kernel, trace: str, cluster: Cluster) -> None:
    """Put a trace into a store as if it had been found here."""
    assert kernel.function is not None
    device = cluster.devices[0]
    place = TunedPlace(device.target, device_fingerprint(device))
    digest = tuning_digest(kernel.function)
    with CostStore(path) as store:
        add_trials(store, place, Tuning(digest, kernel.op, "", 1, trace, 10, "", 0, 0, DATE))
        keep_schedule(store, place, digest, trace, 20, 10)


@pytest.fixture
def store(tmp_path: Path, network: Network) -> Path:
    """A store that keeps a schedule of the softmax."""
    kernel = kernel_of(network, "softmax")
    path = tmp_path / "costs.sqlite"
    keep(path, kernel, trace_text(drawn(kernel)), cpu_cluster())
    return path


def planted(graph: TaskGraph, cluster: Cluster) -> CostTable:
    """Costs by which tuned kernels, and all cores, are quick."""
    allowed = allowed_devices(graph, cluster)

    def cost(task: int, device: int) -> Cost:
        if device not in allowed[task]:
            return Cost.excluded("by the graph")
        name = cluster.devices[device].name
        is_quick = name == (ALL if "softmax" in graph.tasks[task].op else "cpu.all")
        return Cost.given(QUICK_NS if is_quick else SLOW_NS)

    return build_table(graph, cluster, cost)


def placed(network: Network, path: Path) -> tvm.IRModule:
    """The module, its softmax on the twin."""
    both, cluster = with_makers(network, cpu_cluster(), ["tuned"], CostOptions(path))
    compiled = CompiledNetwork.of(both)
    costed = CostedNetwork(compiled, cluster, planted(both.graph, cluster), None)
    solution = pipeline.solve(costed, SolveOptions(), "heft")
    gains = implementation_gains(cluster, solution.costs, solution.plan)
    assert gains == {ALL: (1, SLOW_NS - QUICK_NS)}
    return pipeline.annotate(compiled, solution)


def test_equal_seeds_draw_equal_schedules(network: Network) -> None:
    kernel = kernel_of(network, "softmax")
    assert trace_text(drawn(kernel, 1)) == trace_text(drawn(kernel, 1))
    assert trace_text(drawn(kernel, 1)) != trace_text(drawn(kernel, 2))


def test_a_trace_makes_the_kernel_that_was_drawn(network: Network) -> None:
    kernel = kernel_of(network, "softmax")
    schedule = drawn(kernel)
    again = tuned_functions(kernel.function, kernel.target, trace_text(schedule), "one")
    assert again["one"].attrs["global_symbol"] == "one"
    other = kernel_of(network, "max_pool")
    with pytest.raises(LoweringError, match="its trace does not fit the function"):
        tuned_functions(other.function, other.target, trace_text(schedule), "two")


def test_a_kernel_without_schedules_is_known() -> None:
    x = var("x", (4, 16))
    kernel = kernel_of(pipeline.prepare(module([x], relay.argsort(x))), "argsort")
    assert Schedules.of(kernel.function, kernel.target, 2) is None


def test_a_tuned_kernel_is_placed_and_built_without_the_store(
    network: Network, store: Path
) -> None:
    mod = placed(network, store)
    store.unlink()
    built = pipeline.build_module(mod)
    inputs = random_inputs(pooled_softmax())
    (found,) = hp.Executor(built).run(**inputs)
    (expected,) = stock_outputs(pooled_softmax(), inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    digest = tuning_digest(kernel_of(network, "softmax").function)
    assert f"tuned_{digest}".encode() in built.library.image


def test_each_target_has_a_tuned_kernel_of_its_own(network: Network) -> None:
    kernel = kernel_of(network, "softmax")
    x, y = var("x", (32, 8)), var("y", (32, 8))
    both = pipeline.prepare(
        module([x, y], relay.Tuple([relay.nn.log_softmax(x), relay.nn.log_softmax(y)]))
    )
    plain, tuned = (
        [tvm.target.Target(f"llvm -keys={keys} -mcpu={each}") for each in ("haswell", "core2")]
        for keys in ("cpu", f"{MAKER_KEYS['tuned']},cpu")
    )
    at = dict(zip((task.name for task in both.graph.tasks), (2, 3), strict=True))
    tunings = {tuning_digest(kernel.function): trace_text(drawn(kernel))}
    calls = lower_network(both.mod, (*plain, *tuned), at, tunings)
    names = [call.kernel for call in calls.calls]
    assert all(name.startswith("tuned_") for name in names)
    assert [calls.kernels[name].target.mcpu for name in names] == ["haswell", "core2"]


def test_a_plan_with_a_tuned_kernel_that_is_lost_is_refused(network: Network, store: Path) -> None:
    mod = placed(network, store)
    main = mod["main"].without_attr(TUNINGS_ATTRIBUTE)
    with pytest.raises(LoweringError, match=r"was placed with a tuned kernel.*tuned='off'"):
        pipeline.build_module(tvm.IRModule.from_expr(main))


def test_only_tasks_that_were_tuned_may_be_on_the_twin(network: Network, store: Path) -> None:
    both, cluster = with_makers(network, cpu_cluster(), ["tuned"], CostOptions(store))
    names = [device.name for device in cluster.devices]
    assert names[3:] == [twin_name(device.name, "tuned") for device in cpu_cluster().devices]
    on_twin = [task.op for task in both.graph.tasks if ALL in task.devices]
    assert on_twin == ["nn.log_softmax"]


def test_without_tuned_kernels_nothing_changes(network: Network, tmp_path: Path) -> None:
    empty = CostOptions(tmp_path / "costs.sqlite")
    assert with_makers(network, cpu_cluster(), ["tuned"], empty) == (network, cpu_cluster())
    assert with_makers(network, cpu_cluster(), ["tuned"], CostOptions("off")) == (
        network,
        cpu_cluster(),
    )


def test_a_damaged_trace_is_told(network: Network, tmp_path: Path) -> None:
    path = tmp_path / "costs.sqlite"
    keep(path, kernel_of(network, "softmax"), "[[], [", cpu_cluster())
    with pytest.raises(LoweringError, match=r"costs forget --tuned\), or give tuned='off'"):
        pipeline.build_module(placed(network, path))


@pytest.mark.parametrize(
    ("keywords", "is_looked_up"),
    [
        ({}, True),
        ({"tuned": "off"}, False),
        ({"kernels": "tvm"}, False),
        ({"kernels": "best"}, True),
        ({"store": "off"}, False),
        ({"costs": "estimate"}, False),
        ({"costs": "isolated"}, True),
    ],
)
def test_when_tuned_kernels_are_looked_up(keywords: dict[str, str], is_looked_up: bool) -> None:
    assert PlaceOptions(**keywords).may_be_tuned == is_looked_up


def test_another_value_of_the_option_is_refused() -> None:
    with pytest.raises(SolverError, match=r"tuned='maybe'; expected one of on, off"):
        PlaceOptions(tuned="maybe")
