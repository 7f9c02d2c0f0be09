"""A random graph by random options: a cluster, a placement, and ways to run what was built.

Whatever is chosen, the numbers are those of onnxruntime; of one build they are the same to the bit
in each run, however it is run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import tvm
from c_programs import run_program, save_inputs
from random_onnx_graphs import Graph
from random_onnx_runs import Arrays, fault, nearby, reference
from relay_models import cpu_cluster

import heteroplace as hp
from benchmarks.conformance.worker import two_memories
from heteroplace.errors import HeteroPlaceError, InfeasibleError, UnsupportedRelayError
from heteroplace.files.plan_file import save_plan
from heteroplace.lower.executable import Executable
from heteroplace.model.cluster import Cluster, Link, Memory
from heteroplace.model.cost import Cost, CostTable, table_from_rows
from heteroplace.model.graph import TaskGraph
from heteroplace.model.memory_use.memory import MemoryUse
from heteroplace.parts.onnx.imported_model import ImportedModel
from heteroplace.parts.onnx.importer import from_onnx

Inputs = Mapping[str, np.ndarray]

SOLVERS = (
    *("auto", "search", "single", "heft", "list", "cpsat", "celeritas", "m-etf", "getf", "metis"),
    *("moirai", "lns", "sa", "divi", "split"),
)
_OF_ITEMS = ("auto", "auto", "divi", "split", "bheft", "bgreedy", "bmet")
_OF_THROUGHPUT = ("auto", "throughput", "pipeline")


@dataclass(frozen=True)
class Way:
    """How a graph is placed."""

    cluster: Cluster
    options: Mapping[str, Any]

    @property
    def items(self) -> int:
        """How many sets of inputs run together."""
        return int(self.options.get("items", 1))


def draw(random: Random) -> Way:
    """Options that go with each other and with any network of one item."""
    cluster = random.choice((_cores, _cores, two_memories, two_memories, _in_a_row))()
    devices = [replace(device, batch_sizes=(1, 2)) for device in cluster.devices]
    cluster = replace(cluster, devices=tuple(devices))
    options: dict[str, Any] = {"costs": costs_by(random.random())}
    options |= {"iterations": 20, "time_limit": 5, "threads": 1, "seed": random.randrange(9)}
    options["kernels"] = random.choice(("auto", "auto", "tvm"))
    kind = random.choice(("one", "one", "one", "items", "throughput"))
    if kind == "one":
        options["solver"] = random.choice(SOLVERS)
        options["coarsening"] = random.choice(("fuse-ops", "fuse-ops", "moirai", "breakpoints"))
    elif kind == "items":
        options |= {"items": 2, "solver": random.choice(_OF_ITEMS)}
    else:
        options |= {"objective": "throughput", "solver": random.choice(_OF_THROUGHPUT)}
    if random.random() < 0.2:
        options["exclude"] = [random.choice(cluster.devices).name]
    if random.random() < 0.2:
        options["no_split"] = ["*"]
    return Way(cluster, options)


def _cores() -> Cluster:
    return cpu_cluster()


def _in_a_row() -> Cluster:
    """Three devices with a memory each; from the first to the last it is two links."""
    cluster = two_memories()
    devices = (*cluster.devices, replace(cluster.devices[0], name="cpu.2", memory=2))
    ways = ((0, 1), (1, 0), (1, 2), (2, 1))
    links = tuple(Link(f"{a}{b}", a, b, 10**9, 1000, f"{a}{b}") for a, b in ways)
    memories = tuple(Memory(f"ram.{n}", 2**32) for n in range(3))
    return replace(cluster, name="row", devices=devices, links=links, memories=memories)


def costs_by(seed: float) -> Callable[[TaskGraph, Cluster], CostTable]:
    """Random costs, of two items together too."""

    def costs(graph: TaskGraph, cluster: Cluster) -> CostTable:
        random = Random(seed)
        ns = [[random.randint(10**3, 10**6) for _ in cluster.devices] for _ in graph.tasks]
        one = tuple(tuple(map(Cost.given, row)) for row in ns)
        two = tuple(tuple(Cost.given(3 * each // 2) for each in row) for row in ns)
        return table_from_rows(graph, cluster, one, {2: two})

    return costs


class Trial:
    """A graph, by one way."""

    def __init__(self, graph: Graph, way: Way, folder: Path) -> None:
        self.graph, self.way, self.folder = graph, way, folder
        self.model = graph.model()
        self.items = [_item(graph.inputs(), number) for number in range(way.items)]
        self.has_spare_memory = self.runs_in_less_memory = False
        """Whether a memory without inputs was used, and a plan for less found; by `check`."""

    def check(self) -> str:
        """Raise what is wrong, or return why it says nothing."""
        expected, rounded = self._references(lambda item: item), self._references(nearby)
        shapes = {name: array.shape for name, array in self.items[0].items()}
        try:
            imported = from_onnx(self.model, input_shapes=shapes)
        except HeteroPlaceError:
            return "not imported"  # test_random_onnx.py says whether it should be
        if expected is None or rounded is None:
            return "no reference"
        try:
            executable = self.built(imported, self.way.options)
        except InfeasibleError as err:
            return f"infeasible: {err}"
        except UnsupportedRelayError as err:
            if self.way.items == 1:
                raise
            return f"no batch: {err}"
        outputs = hp.Executor(executable).run(self.inputs)
        faults = _faults(self.graph.outputs, outputs, expected, rounded)
        assert not faults, faults
        for name, run in self.runs(executable, imported):
            _same(name, run(), outputs)
        others = self.in_less_memory(executable, imported)
        if others is not None:
            faults = _faults(self.graph.outputs, others, expected, rounded)
            assert not faults, f"in less memory: {faults}"
            self.runs_in_less_memory = True
        return ""

    def _references(
        self, change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]
    ) -> list[Arrays] | None:
        """What onnxruntime makes of each item; None where it has no kernel."""
        found = [reference(self.model, change(item)) for item in self.items]
        arrays = [each for each in found if each is not None]
        return arrays if len(arrays) == len(found) else None

    def in_less_memory(self, executable: Executable, imported: ImportedModel) -> Arrays | None:
        """The outputs of a plan for less memory than a first one took; None: there is none."""
        for limits in self._less_memory(hp.Executor(executable).memory()):
            try:
                smaller = self.built(imported, {**self.way.options, "max_memory": limits})
            except InfeasibleError:
                continue
            executor = hp.Executor(smaller)
            outputs = executor.run(self.inputs)
            for name, use in executor.memory().items():
                assert use.total_bytes <= limits.get(name, 2**40), (name, use, limits)
            return outputs
        return None

    def _less_memory(self, held: Mapping[str, MemoryUse]) -> Iterator[dict[str, int]]:
        """Nine tenths of the fullest memory; or, as values take whole pages, none of one that does
        not hold the inputs."""
        fullest = max(held, key=lambda name: held[name].total_bytes)
        yield {fullest: 9 * held[fullest].total_bytes // 10}
        assert self.way.cluster.host is not None
        host = self.way.cluster.memories[self.way.cluster.host].name
        for name, use in held.items():
            if name != host and use.total_bytes:
                self.has_spare_memory = True
                yield {name: 1}

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        """Of all items together."""
        first, *others = self.items
        if not others:
            return first
        return {name: np.concatenate([item[name] for item in self.items]) for name in first}

    def built(self, imported: ImportedModel, options: Mapping[str, Any]) -> Executable:
        """Place and build."""
        with tvm.transform.PassContext(opt_level=3):
            place = hp.HeteroPlace(
                self.way.cluster, params=imported.params, verify="off", store="off", **options
            )
            return hp.build(place(imported.mod))

    def runs(
        self, executable: Executable, imported: ImportedModel
    ) -> Iterator[tuple[str, Callable[[], Arrays]]]:
        """Other ways to run what was built."""
        yield "helping", lambda: hp.Executor(executable, helping=True).run(self.inputs)
        yield "alone", lambda: hp.Executor(executable, helping=False).run(self.inputs)
        yield "several calls", lambda: _several_calls(executable, self.inputs)
        yield "with clocks", lambda: _with_clocks(executable, self.inputs)
        file = self.folder / "model.so"
        executable.export_library(file)
        yield "a file", lambda: hp.load(file).run(self.inputs)
        yield "the program", lambda: self._by_program(file)
        yield "its plan again", lambda: self._by_plan(executable, imported)

    def _by_program(self, file: Path) -> Arrays:
        names = [name for name, _, _ in hp.load(file).outputs]
        files = [self.folder / f"out{number}.npy" for number, _ in enumerate(names)]
        pairs = zip(names, files, strict=True)
        told = [part for name, path in pairs for part in ("--output", f"{name}={path}")]
        done = run_program(file, *save_inputs(self.folder, self.inputs), *told)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return [np.load(path) for path in files]

    def _by_plan(self, executable: Executable, imported: ImportedModel) -> Arrays:
        solution = executable.solution
        path = self.folder / "plan.json"
        save_plan(solution.plan, solution.graph, solution.cluster, path)
        names = ("costs", "kernels", "items")
        options = {name: self.way.options[name] for name in names if name in self.way.options}
        again = self.built(imported, {**options, "plan_in": path})
        return hp.Executor(again).run(self.inputs)


def _item(inputs: Inputs, number: int) -> dict[str, np.ndarray]:
    """The inputs, or others of the same values."""
    if not number:
        return dict(inputs)
    return {name: np.roll(array, number) for name, array in inputs.items()}


def _joined(items: Sequence[Arrays], outputs: Arrays) -> Arrays:
    """The outputs of all items together, along the axis that holds them in what was computed."""
    if len(items) == 1:
        return items[0]
    pairs = zip(outputs, zip(*items, strict=True), strict=True)
    return [np.concatenate(arrays, _axis(arrays[0], found)) for found, arrays in pairs]


def _axis(one: np.ndarray, all_: np.ndarray) -> int:
    """The axis along which a result of all items is longer than that of one, or else the first."""
    sizes = zip(one.shape, all_.shape, strict=False)
    return next((axis for axis, (few, many) in enumerate(sizes) if few < many), 0)


def _faults(
    names: list[str], outputs: Arrays, expected: Sequence[Arrays], rounded: Sequence[Arrays]
) -> list[str]:
    found = zip(names, outputs, _joined(expected, outputs), _joined(rounded, outputs), strict=True)
    return [f"{name}: {text}" for name, *arrays in found if (text := fault(*arrays))]


def _several_calls(executable: Executable, inputs: Inputs) -> Arrays:
    executor = hp.Executor(executable, max_in_flight=3)
    others = {name: np.roll(array, 1) for name, array in inputs.items()}
    calls = [executor.run_async(each) for each in (inputs, others, inputs, others, inputs)]
    first, *_, last = (call.result() for call in calls)
    _same("the first call", first, last)
    return last


def _with_clocks(executable: Executable, inputs: Inputs) -> Arrays:
    executor = hp.Executor(executable)
    for name, array in inputs.items():
        executor.set_input(name, array)
    executor.timeline(3)
    return executor.run()


def _same(name: str, found: Arrays, outputs: Arrays) -> None:
    for place, (one, other) in enumerate(zip(found, outputs, strict=True)):
        assert one.dtype == other.dtype, f"{name}: output {place} is {one.dtype}"
        assert one.shape == other.shape, f"{name}: output {place} is of {one.shape}"
        assert one.tobytes() == other.tobytes(), f"{name}: output {place} has other bits"
