"""Routed networks, compiled: outputs, guards, and what only the compiler can get wrong."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import tvm
from item_plans import with_second_memory
from relay_models import cpu_cluster, module, random_inputs, stock_outputs, var
from routed_batches import check_near
from routed_models import (
    Branch,
    Shape,
    costs_by_capacity,
    loaded_executable,
    routed_executable,
    routed_solution,
    switch_layer,
    whole_branches,
)
from tvm import relay

import heteroplace
from benchmarks.peers.stock import in_pass_context
from heteroplace import pipeline, routing
from heteroplace.errors import ArtifactError, LoweringError, RoutingError, UnsupportedRelayError
from heteroplace.files.routes_file import RoutesReader
from heteroplace.lower.carried import carried_kernels
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.lower.executable import Executable, write_programs
from heteroplace.lower.kernels import KernelCall, KernelCalls, Value
from heteroplace.lower.lower import lower
from heteroplace.lower.order.instructions import root
from heteroplace.lower.segment_calls import NetworkPart
from heteroplace.lower.segments import ValueName
from heteroplace.measure.batches import of_batch
from heteroplace.measure.plan_program import serial_plan
from heteroplace.model.cost import batches_of
from heteroplace.native.execute import Executor as NativeExecutor
from heteroplace.parts.routing.dynamic.recorded_routes import read_profile
from heteroplace.parts.routing.lower.paired_calls import Version, paired_calls
from heteroplace.parts.routing.relay.branch_sizes import resize_branches
from heteroplace.parts.routing.relay.rewrite import model_digest, update_routers
from heteroplace.relay.tasks.network import cut_network
from heteroplace.run.executor import Executor
from heteroplace.simulate.decisions import decisions_of_records, load_shares
from heteroplace.tvm_bridge import library_path
from zoo.models.routed_vision import msdnet

Inputs = dict[str, np.ndarray]


def outputs(executable: Executable, inputs: Sequence[Inputs], slots: int = 1) -> list[list[bytes]]:
    """The outputs of some runs, to the last bit."""
    executor = Executor(executable, max_in_flight=slots)
    with ThreadPoolExecutor(slots) as threads:
        found = list(threads.map(executor.run, inputs))
    return [[array.tobytes() for array in arrays] for arrays in found]


@pytest.mark.costly
def test_a_switch_layer_is_the_same_wherever_its_branches_are() -> None:
    shape = Shape(top_k=2, capacities=(1, 4), has_residual=True)
    mod, cluster = switch_layer(shape), with_second_memory(cpu_cluster())
    inputs = [random_inputs(mod, seed) for seed in range(4)]
    (expected,) = stock_outputs(mod, inputs[0])
    alone = routed_executable(mod)
    found = outputs(alone, inputs)
    check_near([np.frombuffer(found[0][0], "float32").reshape(expected.shape)], [expected])
    random = Random(3)
    devices = [random.randrange(3) for _ in alone.solution.graph.tasks]
    spread = routed_executable(mod, cluster, devices)
    assert "branch_copy" in spread.manifest.program_text
    assert outputs(spread, inputs) == found
    # Whichever core the plan has them on, both take what is active.
    cores = [task.branch is not None and task.branch[1] % 2 for task in alone.solution.graph.tasks]
    shared = routed_executable(mod, cpu_cluster(), cores)
    (group,) = [x for x in shared.manifest.program_text.splitlines() if x.startswith("group")]
    assert group.split()[3:5] == ["2", "8"]
    assert outputs(shared, inputs, slots=2) == found
    assert outputs(alone, inputs, slots=3) == found


@pytest.mark.costly
def test_branches_are_compiled_at_their_capacities_and_alike_ones_once() -> None:
    executable = routed_executable(switch_layer())
    text = executable.manifest.program_text
    calls = [line.split() for line in text.splitlines() if line.startswith("branch_call")]
    assert len(calls) == 8
    capacities = [[each.partition("=")[0] for each in call[7].split(";")] for call in calls]
    assert capacities == [["1", "4", "16"]] * 8
    kernels = {each.partition("=")[2].partition("(")[0] for c in calls for each in c[7].split(";")}
    assert len(kernels) == 6  # two layers at three capacities, for all four experts


@pytest.mark.costly
def test_a_branch_that_does_not_pass_what_its_kernel_takes_is_refused() -> None:
    executable = routed_executable(switch_layer())
    text, code = executable.manifest.program_text, executable.library.sealed()
    turned = re.sub(r"(branch_call .*?=\d+\()(\d+@?),(\d+@?)", r"\1\3,\2", text, count=1)
    assert turned != text
    with pytest.raises(ArtifactError, match=r"kernel '\w+' takes \(cpu; .*\), got \(cpu; "):
        NativeExecutor(str(library_path()), code.path, turned, blob=executable.lowered.make_blob())


@pytest.mark.costly
def test_an_annotated_module_carries_the_kernels_of_branches() -> None:
    network, cluster = cut_network(switch_layer(Shape(has_residual=True))), cpu_cluster()
    placement = [0] * len(network.graph.tasks)
    compiled = CompiledNetwork.of(network)
    kernels = compiled.kernels(cluster, placement)
    assert any(call.kernel_in_place for call in kernels.calls.calls)
    solution = routed_solution(network, cluster, placement)
    mod = pipeline.annotate(compiled, solution)
    found = carried_kernels(mod, network.digest, network.graph.routers)
    assert found is not None
    assert found[1].library.files() == kernels.library.files()
    assert found[1].calls.calls == kernels.calls.calls
    assert found[1].calls.routers == kernels.calls.routers
    for read, value in zip(found[1].calls.values, kernels.calls.values, strict=True):
        assert (read.shape, read.alias_of, read.rows) == (value.shape, value.alias_of, value.rows)
    (direct,) = write_programs(kernels, [solution])
    again = pipeline.build_module(mod)
    assert again.manifest.program_text == direct.manifest.program_text


@pytest.mark.costly
def test_whole_tensors_are_chosen_and_predicted() -> None:
    mod = whole_branches()
    inputs = [{"x": np.full((1, 8), value, "float32")} for value in (-1.0, 0.5, 2.0)]
    expected = [stock_outputs(mod, each) for each in inputs]
    cluster = cpu_cluster()
    plain = heteroplace.build(mod, cluster, costs=costs_by_capacity)
    assert " 0=" in plain.manifest.program_text
    predicted = heteroplace.build(
        update_routers(mod, {"choice": {"predict": "1"}}), cluster, costs=costs_by_capacity
    )
    assert " predicted " in predicted.manifest.program_text
    assert " missed " in predicted.manifest.program_text
    for executable in (plain, predicted):
        executor = Executor(executable)
        for branches in ([], [0], [1], [0, 1]):
            if executable is predicted:
                executor.predict({"choice": branches})
            for each, want in zip(inputs, expected, strict=True):
                check_near(executor.run(each), want)


@pytest.mark.costly
def test_a_capacity_is_measured_as_a_network_without_branches() -> None:
    network, cluster = cut_network(switch_layer()), cpu_cluster()
    assert batches_of(cluster, 1, network.graph) == [1, 4, 16]
    compiled = CompiledNetwork.of(network)
    placement = [0] * len(network.graph.tasks)
    whole = compiled.calls(cluster, placement)
    for capacity in (1, 4, 16):
        calls = of_batch(compiled, capacity).calls(cluster, placement)
        assert all(call.branch is None and not call.variants for call in calls.calls)
        assert len(calls.calls) == len(whole.calls)
        rows = {
            calls.values[call.writes[0]].shape[0]
            for call, routed in zip(calls.calls, whole.calls, strict=True)
            if routed.branch is not None
        }
        assert rows == {capacity}


def test_rows_of_any_width_begin_where_kernels_take_them() -> None:
    network = cut_network(switch_layer(Shape(width=3, hidden=5, capacities=(1, 5))))
    (router,) = network.graph.routers
    assert router.quantum == 16
    # Rounds of five rows would begin anywhere: there is a capacity for all cells.
    assert router.capacities == ((1, 5, 16),) * 4


@pytest.mark.costly
@pytest.mark.parametrize("overflow", ["rounds", "drop", "error"])
def test_of_capacities_for_all_cells_one_is_compiled(overflow: str) -> None:
    mod = switch_layer(Shape(cells=4, capacities=(1, 3, 6, 16), overflow=overflow))
    sizes = ((1, 3, 6),) * 4
    assert cut_network(mod).graph.routers[0].capacities == sizes
    assert model_digest(update_routers(mod, {"switch": {"capacities": sizes}})) == model_digest(mod)


def given_filters(cells: int, capacities: tuple[int, ...]) -> tvm.IRModule:
    """Convolutions to a byte for each cell, whose filters the model is given."""
    shape = (16, 3, 3, 3)
    x, ids = var("x", (cells, *shape[1:])), var("ids", (cells,), "int32")
    filters = [var(f"w{number}", shape) for number in range(2)]

    def of(each: relay.Var) -> Branch:
        def branch(rows: relay.Expr) -> relay.Expr:
            made = relay.nn.conv2d(rows, each, channels=shape[0], kernel_size=shape[2:])
            return relay.cast(relay.sum(made, axis=1, keepdims=True), "int8")

        return branch

    cell = routing.annotate_cell(x, (0,), (1, *shape[1:]))
    branches = [of(each) for each in filters]
    y = routing.route(cell, routing.label(ids, 2), branches, capacities=capacities, name="r")
    return module([x, ids, *filters], y)


@pytest.mark.costly
def test_another_layout_of_weights_is_no_rows() -> None:
    """The filters are brought into blocks, in each of two rounds: 1728 bytes, 27 for each row."""
    mod, cluster = given_filters(80, (64,)), cpu_cluster()
    network = cut_network(mod)
    placement = [0] * len(network.graph.tasks)
    with tvm.transform.PassContext(opt_level=3):
        kernels = CompiledNetwork.of(network).kernels(cluster, placement)
    (executable,) = write_programs(kernels, [routed_solution(network, cluster, placement)])
    inputs = random_inputs(mod) | {"ids": (np.arange(80) % 10 == 0).astype("int32")}
    check_near(Executor(executable).run(inputs), stock_outputs(mod, inputs))
    calls, whole = kernels.calls, 0
    for call in calls.calls:
        for capacity, value in ((v.capacity, each) for v in call.variants for each in v.writes):
            made, there = calls.values[value], calls.values[root(calls, value)]
            rows, taken = (1, 1) if there.rows is None else (there.shape[0], capacity)
            whole += there.rows is None
            assert made.bytes * rows == there.bytes * taken
    assert whole == 2


@pytest.mark.parametrize(("shape", "row_bytes"), [((3,), None), ((8,), 8), ((2, 3), None)])
def test_rows_are_of_whole_elements(shape: tuple[int, ...], row_bytes: int | None) -> None:
    """Of four rows; the 12 and 24 bytes of the others would be 3 and 6 for each."""
    graph = cut_network(switch_layer()).graph
    task = next(task for task in graph.tasks if task.branch is not None)
    values = (Value((4,), "float32"), Value(shape, "float32"))
    calls = KernelCalls(values, (KernelCall("k", 0, task.name, (0,), (1,)),), (), {})
    part = NetworkPart(calls, {ValueName("rows"): 0}, ())
    (found,) = paired_calls(graph, [Version(part, {task.branch: 4})], (), ["rows"])
    assert (found.row_bytes, found.is_fixed) == ((row_bytes,), False)


def test_a_branch_that_mixes_rows_is_refused() -> None:
    rows = var("rows", (4, 8))
    mixed = relay.nn.softmax(rows, axis=0)
    mod = module([rows], relay.Tuple([mixed]))
    with pytest.raises(UnsupportedRelayError, match="softmax"):
        resize_branches(mod, {"rows": ("r", 0)}, {("r", 0): 2})


def test_a_plan_of_several_items_of_a_routed_network_is_refused() -> None:
    with pytest.raises(UnsupportedRelayError, match="router"):
        heteroplace.build(switch_layer(), cpu_cluster(), costs=costs_by_capacity, items=2)


def test_routes_for_a_model_without_routers_are_refused() -> None:
    x = var("x")
    with pytest.raises(RoutingError, match="no routers"):
        heteroplace.build(module([x], relay.nn.relu(x)), cpu_cluster(), routes="routes.json")


@pytest.mark.costly
def test_weights_are_loaded_before_their_branch_runs() -> None:
    mod, cluster = switch_layer(), with_second_memory(cpu_cluster())
    network = cut_network(mod)
    graph = network.graph
    apart = len(cluster.devices) - 1
    devices = [apart if task.branch else 0 for task in graph.tasks]
    resident = routed_executable(mod, cluster, devices)
    expected = outputs(resident, inputs := [random_inputs(mod, seed) for seed in range(4)])
    plan = resident.solution.plan
    for when in (("active",), ("predicted", "missed"), (None,)):
        loaded = loaded_executable(resident, network, [0, 2], when)
        text = loaded.manifest.program_text
        copies = [line for line in text.splitlines() if line.startswith("branch_copy")]
        assert any("@" not in copy for copy in copies) == (when != (None,))
        executor = Executor(loaded)
        for branches in ([], [0, 1], [2]):
            executor.predict({"switch": branches} if "predicted" in when else {})
            assert [[y.tobytes() for y in executor.run(each)] for each in inputs] == expected
        assert len(loaded.solution.plan.steps) > len(plan.steps)
    # Two experts of four have their weights in one memory, and the others in the other.
    constants = [line.split() for line in text.splitlines() if line.startswith("constant")]
    assert {constant[2] for constant in constants} == {"0", "1"}


@pytest.mark.costly
def test_a_routed_network_on_several_hosts_is_refused() -> None:
    mod, cluster = switch_layer(), with_second_memory(cpu_cluster())
    *near, last = cluster.devices
    hosts = replace(cluster, devices=(*near, replace(last, host="far")))
    network = cut_network(mod)
    placement = [0] * len(network.graph.tasks)
    calls = CompiledNetwork.of(network).calls(hosts, placement)
    assert len(hosts.hosts) == 2
    with pytest.raises(LoweringError, match="hosts"):
        lower(calls, network.graph, hosts, serial_plan(network.graph, hosts, placement), None)


def halves_of_rows() -> tvm.IRModule:
    """Rows of one branch are two cells each of a router in it; `ids` and `inner` name branches."""
    x, ids = var("x", (4, 2, 3)), var("ids", (4,), "int32")

    def twice(rows: relay.Expr) -> relay.Expr:
        return relay.multiply(rows, relay.const(2.0))

    def nested(rows: relay.Expr) -> relay.Expr:
        by_sum = routing.hashed(relay.cast(relay.sum(rows, axis=2), "int32"), 2)
        cells = routing.annotate_cell(rows, (0, 1), (1, 1, 3))
        return routing.route(cells, by_sum, [twice, relay.negative], name="inner")

    cells = routing.annotate_cell(x, (0,), (1, 2, 3))
    y = routing.route(cells, routing.label(ids, 2), [nested, twice], name="outer")
    return module([x, ids], y)


@pytest.mark.costly
def test_a_nested_router_is_recorded_in_its_turn_with_all_cells(tmp_path: Path) -> None:
    executable = routed_executable(halves_of_rows())
    executor, path = Executor(executable), tmp_path / "routes.jsonl"
    x = np.ones((4, 2, 3), "float32")
    x[:, 1, 1] = 2  # of each row the second cell goes to branch 1
    executor.predict({"inner": [0, 1]})
    with executor.record(path, level=2):
        for ids in ([1, 1, 1, 1], [0, 1, 0, 0], [1, -1, 1, -1]):
            executor.run({"x": x, "ids": np.array(ids, "int32")})
    records = list(RoutesReader(path).records())
    assert [(each.run, each.router) for each in records] == [
        *((0, "outer"), (1, "outer"), (1, "inner"), (2, "outer"))
    ]
    assert records[2].loads == (3, 3)
    assert records[2].cells == ((0,), (1,)) * 3 + ((),) * 2
    # What is not reached counts in no mean, and not twice.
    graph, profile = executable.solution.graph, read_profile(path)
    assert profile.router("inner").active_sets == (((0, 1), 1),)
    counts = executor.prediction_counts()["inner"]
    assert counts.num_calls == profile.router("inner").num_runs
    assert counts.hit_rate == profile.router("inner").set_probability([0, 1])
    inner = graph.router_ids["inner"]
    decided = [one.loads[inner] for one in decisions_of_records(graph, records)]
    assert decided == [(0, 0), (3, 3), (0, 0)]
    assert load_shares(graph, profile)["inner", 0] == ((3, pytest.approx(1 / 3)),)


def is_layout(kernel: str) -> bool:
    return re.fullmatch(r"layout_transform_[0-9a-f]{16}", kernel) is not None


@pytest.mark.costly(13)
def test_layouts_for_what_is_behind_an_exit_are_made_behind_it() -> None:
    network = msdnet((2, 2), size=8, width=16, classes=3)
    cluster = cpu_cluster()
    options = {"params": network.params, "costs": costs_by_capacity}
    with in_pass_context():
        executable = heteroplace.build(network.mod, cluster, **options)
    lines = [line.split() for line in executable.manifest.program_text.splitlines()]
    kernels = [fields[2] for fields in lines if fields[0] == "kernel"]
    before = [kernels[int(fields[3])] for fields in lines if fields[0] == "call"]
    behind = [
        kernels[int(fields[7].partition("=")[2].partition("(")[0])]
        for fields in lines
        if fields[0] == "branch_call" and fields[3:5] == ["0", "1"]
    ]
    # Before the exit that of the input; behind it back from the first block, and to the second.
    assert [sum(map(is_layout, names)) for names in (before, behind)] == [1, 2]
    assert is_layout(behind[0])
    executor = Executor(executable)
    for leaves in (False, True):
        inputs = network.inputs(3)
        inputs["steer.exit0"][0, 0] = 1000.0 if leaves else -1000.0
        (found,) = executor.run(inputs)
        params = {name: value.numpy() for name, value in network.params.items()}
        (expected,) = stock_outputs(network.mod, inputs | params)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
