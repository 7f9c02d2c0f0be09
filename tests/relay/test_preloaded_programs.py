"""Networks whose weights are held within a budget, compiled: outputs, bytes, faces, errors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import tvm
from numpy_relay import run_by_numpy
from relay_models import cpu_cluster, random_inputs
from routed_models import Shape, costs_by_capacity, routed_solution, switch_layer, whole_branches
from tvm import relay

import heteroplace
from heteroplace.errors import InfeasibleError, RoutingError, SolverError
from heteroplace.files.route_profile_file import save_route_profile
from heteroplace.lower.compile import CompiledKernels, CompiledNetwork
from heteroplace.lower.executable import Executable, write_programs
from heteroplace.model.cluster import Cluster, Link, Memory
from heteroplace.model.memory_use.weight_room import held_weights
from heteroplace.model.routed.route_profile import RouteProfile, RouterShape
from heteroplace.model.solution import Solution
from heteroplace.parts.routing.dynamic.recorded_routes import ProfileBuilder
from heteroplace.parts.routing.dynamic.traces import TraceOptions, synthesise
from heteroplace.parts.routing.lower.loaded_weights import weight_sizes
from heteroplace.parts.routing.relay.branches.branch_weights import (
    BranchWeights,
    read_branch_weights,
)
from heteroplace.parts.routing.relay.rewrite import model_digest, named_routers, routers_of
from heteroplace.parts.routing.solve.preloaded import Preloading, preloaded
from heteroplace.parts.routing.weights_file import FILE_BYTES, with_weights_file
from heteroplace.relay.tasks.network import cut_network
from heteroplace.run.executor import Executor

Predicted = Mapping[str, Collection[int]]


def with_file(cluster: Cluster) -> Cluster:
    """A memory that only keeps weights."""
    link = Link("file->ram", 1, 0, 10**10, 0, "file")
    return replace(cluster, memories=(*cluster.memories, Memory("file", 10**9)), links=(link,))


class Built:
    """A network on two cores, compiled once, and programs of it under budgets."""

    def __init__(self, mod: tvm.IRModule, seed: int) -> None:
        self.mod = mod
        network = cut_network(mod)
        cluster = with_file(cpu_cluster())
        random, count = Random(seed), len(network.graph.tasks)
        placement = [random.randrange(2) for _ in range(count)]
        self.solution: Solution = routed_solution(network, cluster, placement)
        compiled = CompiledNetwork.of(network)
        self.sizes = weight_sizes(compiled, cluster)
        self.kernels: CompiledKernels = compiled.kernels(cluster, placement)
        self.inputs = [random_inputs(mod, number) for number in range(4)]
        self.expected = self.outputs(write_programs(self.kernels, [self.solution])[0])

    @property
    def branch_bytes(self) -> list[int]:
        graph = self.solution.graph
        return [
            sum(
                size
                for task, size in enumerate(self.sizes)
                if graph.tasks[task].branch == (router.name, branch)
            )
            for router in graph.routers
            for branch in range(router.num_branches)
        ]

    def under(self, budget: int, kept: Collection[int], ahead: Collection[int]) -> Executable:
        """The program under a budget; branches of the first router."""
        asked = Preloading(
            budget, tuple((0, b) for b in kept), tuple((0, b) for b in ahead), self.sizes
        )
        made = self.solution
        plan = preloaded(made.graph, made.cluster, made.plan, asked)
        return write_programs(self.kernels, [replace(made, plan=plan)])[0]

    def outputs(self, executable: Executable, predicted: Predicted | None = None) -> list[bytes]:
        executor = Executor(executable, max_in_flight=2)
        if predicted is not None:
            executor.predict(predicted)
        found = [executor.run(inputs) for inputs in self.inputs]
        executor.close()
        return [array.tobytes() for arrays in found for array in arrays]


def room_bytes(executable: Executable) -> int:
    """What loads of weights write to, from the first byte of any to the last, by the program."""
    tensors, spans = executable.lowered.program.tensors, []
    for queue in executable.lowered.program.queues:
        for instruction in queue.instructions:
            if instruction.kind == "branch_copy":
                source, target = (int(t.rstrip("@")) for t in instruction.fields[-2:])
                if tensors[source].storage == "constant":
                    size = int(np.prod(tensors[target].shape)) * 4
                    spans.append((tensors[target].place, tensors[target].place + size))
    return max(end for _, end in spans) - min(begin for begin, _ in spans) if spans else 0


@pytest.mark.costly
@pytest.mark.parametrize("model", ["rows", "whole"])
def test_outputs_are_equal_under_any_budget_and_prediction(model: str) -> None:
    shape = Shape(cells=8, branches=3, capacities=(2, 8))
    built = Built(switch_layer(shape) if model == "rows" else whole_branches(), 3)
    name, largest = built.solution.graph.routers[0].name, max(built.branch_bytes)
    total = sum(built.branch_bytes)
    count = len(built.branch_bytes)
    for budget in (largest, (largest + total) // 2, total - 64):
        for ahead in ((), (0,), tuple(range(count))):
            executable = built.under(budget, (count - 1,), ahead)
            plan = executable.solution.plan
            assert plan.loads
            (held,) = held_weights(built.solution.graph, built.solution.cluster, plan)
            assert held.total_bytes <= budget
            assert room_bytes(executable) <= held.room_bytes
            for predicted in ({name: ()}, {name: (0,)}, {name: tuple(range(count))}):
                if predicted[name] and not ahead:
                    continue
                assert built.outputs(executable, predicted if ahead else None) == built.expected


def profile_of(mod: tvm.IRModule) -> RouteProfile:
    shapes = tuple(
        RouterShape(each.options.name, each.num_cells, each.options.num_branches)
        for each in routers_of(mod)
    )
    builder = ProfileBuilder(model_digest(mod), shapes)
    for record in synthesise(shapes, TraceOptions(num_runs=40)):
        builder.add(record)
    return builder.profile()


@pytest.mark.costly
def test_the_pass_and_the_option_build_the_same(tmp_path: object) -> None:
    mod = relay.transform.InferType()(named_routers(whole_branches()))
    profile, path = profile_of(mod), f"{tmp_path}/routes.json"
    save_route_profile(profile, path)
    inputs, budget, cluster = random_inputs(mod, 1), 2048, cpu_cluster()
    made = relay.transform.PreloadWeights(profile, budget)(mod)
    option = {"routes": path, "weights_budget": "2 KiB"}
    outputs = []
    for executable in (
        heteroplace.build(made, cluster, costs=costs_by_capacity),
        heteroplace.build(mod, cluster, costs=costs_by_capacity, **option),
    ):
        solution = executable.solution
        assert solution.plan.weights_budget == budget
        (held,) = held_weights(solution.graph, solution.cluster, solution.plan)
        assert held.total_bytes <= budget
        assert "of a budget of 2.0 KiB (" in executable.summary()
        outputs.append(Executor(executable).run(inputs))
    for one, other, want in zip(*outputs, run_by_numpy(mod, inputs), strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one, want, rtol=1e-4, atol=1e-5)


def test_wrong_budgets_are_told(tmp_path: object) -> None:
    mod = relay.transform.InferType()(named_routers(whole_branches()))
    path = f"{tmp_path}/routes.json"
    save_route_profile(profile_of(mod), path)
    with pytest.raises(InfeasibleError, match=r"a budget of 1000 B .*'choice/1', 1.6 KiB"):
        relay.transform.PreloadWeights(path, 1000)(mod)
    with pytest.raises(SolverError, match="without routes"):
        heteroplace.build(mod, cpu_cluster(), weights_budget=10_000)
    with pytest.raises(SolverError, match="weights_budget='lots'"):
        heteroplace.build(mod, cpu_cluster(), routes=path, weights_budget="lots")


@pytest.mark.parametrize(
    "text",
    [
        "0,3",
        "budget 4; keep 0:10",
        "budget 4; keep 0:10; ahead 4:9",
        "budget 4; keep 0:1; ahead 0:1",
    ],
)
def test_a_wrong_attribute_is_told(text: str) -> None:
    with pytest.raises(RoutingError, match="router 'r': preload is"):
        read_branch_weights("r", text, 4)


def test_the_attribute_is_read_as_written() -> None:
    for weights in (BranchWeights(400, ((0, 1000), (2, 5)), ()), BranchWeights(0, (), ((3, 7),))):
        assert read_branch_weights("r", weights.text(), 4) == weights


def test_the_file_keeps_weights_where_no_other_memory_does() -> None:
    found = with_weights_file(cpu_cluster())
    assert found.memories[1] == Memory("file", FILE_BYTES)
    assert [(link.src, link.dst) for link in found.links] == [(1, 0)]
    assert found.links[0].bytes_per_second > 10**8
    assert with_weights_file(found) == found
