"""The options of a placement as a table: values of each, and what any two of them mean together.

An option is a dimension with a few values; the first is what the others are tried with. A pair of
two values works, unless a rule of `REFUSED` names what it holds. A new option is a new dimension
(or a word in `WITHOUT_PAIRS` why it needs none); `test_option_pairs.py` tries all pairs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx_models import make_model, node
from relay_models import cpu_cluster, random_costs

import heteroplace as hp
from heteroplace.errors import (
    HeteroPlaceError,
    InfeasibleError,
    MissingCostError,
    PlanError,
    SolverError,
    VerificationError,
)
from heteroplace.files.costs_file import save_costs
from heteroplace.files.plan_file import save_plan
from heteroplace.model.cluster import Cluster, Device
from heteroplace.model.cost import Cost, CostTable, table_from_rows
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan
from heteroplace.pipeline import prepare
from heteroplace.solve import Problem, SolveOptions, get_solver

FLOPS = 10**10


@dataclass(frozen=True)
class Setup:
    """Files that options name, in one folder."""

    folder: Path

    @property
    def model(self) -> Path:
        """An ONNX model: two convolutions that do not need each other, and their sum."""
        return self.folder / "net.onnx"


Keywords = Callable[[Setup], Mapping[str, Any]]


@dataclass(frozen=True)
class Value:
    """One value of a dimension."""

    name: str
    keywords: Keywords = lambda setup: {}
    """What is given to HeteroPlace; nothing where the dimension is not an option."""
    is_slow: bool = False
    """Kernels are compiled or measured before a plan is known."""


def given(**keywords: Any) -> Keywords:
    """Keywords that need no file."""
    return lambda setup: keywords


def in_folder(**names: str) -> Keywords:
    """Keywords that are paths of files in the folder."""
    return lambda setup: {key: setup.folder / name for key, name in names.items()}


def costs_of(graph: TaskGraph, cluster: Cluster) -> CostTable:
    """Costs by a function; those of a device that is not here, and of two items together, too."""
    one = random_costs(graph, cluster)
    two = tuple(tuple(Cost.given(2 * (cost.ns or 0)) for cost in row) for row in one.rows)
    return table_from_rows(graph, cluster, one.rows, {2: two})


DIMENSIONS: Mapping[str, tuple[Value, ...]] = {
    "costs": (
        Value("function", given(costs=costs_of)),
        Value("file", in_folder(costs="costs.json"), is_slow=True),
        Value("estimate", given(costs="estimate"), is_slow=True),
        Value("predict", given(costs="predict"), is_slow=True),
        Value("isolated", given(costs="isolated"), is_slow=True),
        Value("measure", given(costs="measure"), is_slow=True),
    ),
    "missing": (
        Value("refuse"),
        Value("measure", given(missing="measure"), is_slow=True),
        Value("predict", given(missing="predict")),
        Value("estimate", given(missing="estimate")),
    ),
    "store": (
        Value("off", given(store="off")),
        Value("file", in_folder(store="costs.sqlite")),
    ),
    "kernels": (
        Value("auto"),
        Value("tvm", given(kernels="tvm")),
        Value("best", given(kernels="best")),
    ),
    "device": (Value("here"), Value("absent")),
    "pin": (
        Value("none"),
        Value("op", given(pin={"nn.conv2d": "cpu.0"})),
        Value("no task", given(pin={"nothing": "cpu.0"})),
    ),
    "exclude": (
        Value("none"),
        Value("one", given(exclude=["cpu.all"])),
        Value("pinned", given(exclude=["cpu.0"])),
    ),
    "no_split": (Value("none"), Value("all", given(no_split=["*"]))),
    "max_memory": (
        Value("none"),
        Value("ample", given(max_memory={"cpu.0": "1 GiB"})),
        Value("too small", given(max_memory={"cpu.0": "100 B"})),
    ),
    "objective": (Value("latency"), Value("throughput", given(objective="throughput"))),
    "items": (Value("one"), Value("two", given(items=2))),
    "plan_in": (Value("none"), Value("file", in_folder(plan_in="plan.json"))),
    "coarsening": (
        Value("fuse-ops"),
        Value("moirai", given(coarsening="moirai")),
        Value("breakpoints", given(coarsening="breakpoints")),
        Value("auto", given(coarsening="auto")),
    ),
    "engine": (
        Value("auto"),
        Value("highs", given(engine="highs")),
        Value("cpsat", given(engine="cpsat")),
    ),
    "solver": (
        Value("auto", given(solver="auto", iterations=50)),
        Value("search", given(solver="search", iterations=50)),
        Value("single", given(solver="single")),
        Value("cpsat", given(solver="cpsat", iterations=50)),
    ),
    "inputs": (Value("made up"), Value("file", in_folder(inputs="x.npz"))),
    "verify_inputs": (Value("none"), Value("file", in_folder(verify_inputs="x.npz"))),
    "verify": (
        Value("auto"),
        Value("on", given(verify="on")),
        Value("off", given(verify="off")),
    ),
    "model": (Value("onnx"), Value("relay")),
}

WITHOUT_PAIRS: Mapping[str, str] = {
    "effort": "stands for other options, where they are not given (unit/test_effort.py)",
    "time_limit": "a limit of any solve, by the clock",
    "cublas": "for GPUs of this machine, else refused (fake_cuda/case_library_networks.py)",
    "precision": "for processors with AVX512-BF16, else refused (test_bfloat16.py)",
    "max_error": "a number, for a precision other than float32 (test_bfloat16.py)",
    "cudnn": "for GPUs of this machine, else refused (fake_cuda/case_library_networks.py)",
    "tuned": "nothing without tuned kernels in the store (test_tuned_kernels.py)",
    "iterations": "given with the solvers here, so that plans are the same in every run",
    "seed": "a number",
    "threads": "a number",
    "routes": "for models with routers, which these have not: refused (test_routed_programs.py)",
    "weights_budget": "for models with routers: else refused (test_preloaded_programs.py)",
    "min_gain_ratio": "asked of measured costs only",
    "list_parts": "of the solver list alone, others refuse it (list/test_list_schedulers.py)",
    "state": "in one memory, as here, it names ports and changes no plan (test_sessions.py); where "
    "there are several it joins tasks as no_split does (test_resident_sessions.py)",
    "max_sessions": "a number, for models with state: else refused (test_resident_sessions.py)",
    "layers": "restricts the devices of tasks as pin does, behind it (model/test_layers.py)",
}
"""Options that mean the same whatever stands beside them, and why."""

Case = Mapping[str, Value]


@dataclass(frozen=True)
class Rule:
    """What is refused, and how."""

    held: Mapping[str, str]
    """Value of each dimension that must be there; names separated by "|" are alternatives."""
    error: type[HeteroPlaceError]
    match: str
    """Regular expression of the message."""
    unless: Mapping[str, str] = field(default_factory=dict)
    """Values with which it is not refused."""

    def holds(self, case: Case) -> bool:
        """Say whether a case is refused by this rule."""
        held = all(case[name].name in text.split("|") for name, text in self.held.items())
        return held and not any(
            case[name].name in text.split("|") for name, text in self.unless.items()
        )


_OTHERS = "moirai|breakpoints|auto"
REFUSED: tuple[Rule, ...] = (
    Rule(
        {"inputs": "file", "costs": "function|file|estimate"},
        SolverError,
        "inputs are what kernels are measured with",
        {"missing": "measure"},
    ),
    Rule({"plan_in": "file", "solver": "search|single|cpsat"}, SolverError, "leave out .*solver"),
    Rule({"plan_in": "file", "coarsening": _OTHERS}, SolverError, "leave out coarsening"),
    Rule({"plan_in": "file", "engine": "highs|cpsat"}, SolverError, "leave out engine"),
    Rule({"plan_in": "file", "kernels": "best"}, SolverError, "leave out kernels"),
    Rule({"items": "two", "kernels": "best"}, SolverError, "chooses for each task of one item"),
    Rule({"items": "two", "plan_in": "file"}, SolverError, "is for 1 items, and items is 2"),
    Rule(
        {"costs": "estimate|predict|isolated|measure", "missing": "measure|predict|estimate"},
        SolverError,
        "says what to do about what a given cost table does not know",
    ),
    Rule(
        {"objective": "throughput", "solver": "search|single|cpsat"},
        SolverError,
        "does not offer objective 'throughput'",
    ),
    Rule(
        {"items": "two", "solver": "search|single|cpsat"},
        SolverError,
        "makes plans for one item, not for 2",
    ),
    Rule(
        {"items": "two", "objective": "throughput"},
        SolverError,
        "no solver chooses batches for a steady state",
    ),
    Rule({"items": "two", "engine": "cpsat"}, SolverError, "solves no programme by"),
    Rule(
        {"engine": "highs"},
        SolverError,
        "solves no programme by engine 'highs'",
        {"objective": "throughput", "items": "two"},
    ),
    Rule({"engine": "cpsat", "solver": "search|single"}, SolverError, "solves no programme by"),
    Rule({"engine": "cpsat", "objective": "throughput"}, SolverError, "solves no programme by"),
    Rule({"verify_inputs": "file", "verify": "off"}, SolverError, "verify='off' compares none"),
    Rule({"verify": "on", "device": "absent"}, VerificationError, "far .*exclude them"),
    Rule({"verify": "on", "model": "relay"}, VerificationError, "which ONNX model it came from"),
    Rule({"verify_inputs": "file", "model": "relay"}, VerificationError, "leave verify_inputs out"),
    Rule({"pin": "op|no task", "exclude": "pinned"}, SolverError, "which is excluded; drop one"),
    Rule({"pin": "no task"}, SolverError, "no task matches nothing"),
    Rule({"max_memory": "too small"}, InfeasibleError, r"task 'conv2d\.1' needs .* has 100 B"),
    Rule({"pin": "op", "plan_in": "file"}, PlanError, "the task is allowed on cpu.0 only"),
    Rule({"exclude": "one", "plan_in": "file"}, PlanError, "allowed on cpu.0, cpu.1 only"),
    Rule({"no_split": "all", "plan_in": "file"}, PlanError, "must share a device"),
    Rule(
        {"costs": "isolated|measure", "device": "absent"},
        MissingCostError,
        "cannot measure on devices that are not in this machine: far",
    ),
    Rule({"costs": "file", "kernels": "tvm"}, MissingCostError, "does not know: .*tvm_kernels"),
    Rule(
        {"costs": "file", "kernels": "best"}, MissingCostError, "does not know: .* on 'cpu.0:tvm'"
    ),
    Rule({"costs": "file", "device": "absent"}, MissingCostError, "does not know: .* on 'far'"),
)
"""The first one that holds says why."""


def cases() -> Iterator[tuple[str, Case]]:
    """Every pair of two values of different dimensions, the others being the first ones."""
    first = {name: values[0] for name, values in DIMENSIONS.items()}
    yield "nothing", first
    for one, values in DIMENSIONS.items():
        for value in values[1:]:
            yield f"{one}={value.name}", {**first, one: value}
    for (one, ones), (two, twos) in itertools.combinations(DIMENSIONS.items(), 2):
        for a, b in itertools.product(ones[1:], twos[1:]):
            yield f"{one}={a.name} {two}={b.name}", {**first, one: a, two: b}


def is_slow(case: Case) -> bool:
    """Say whether kernels are compiled or measured before a plan is known."""
    return any(value.is_slow for value in case.values())


def refusal(case: Case) -> Rule | None:
    """The first rule that refuses a case; None: it works."""
    return next((rule for rule in REFUSED if rule.holds(case)), None)


def cluster_of(case: Case) -> Cluster:
    """Two cores and both; "absent" has a core beside them that no machine has."""
    near = cpu_cluster()
    known = tuple(
        replace(device, flops_per_second=FLOPS, memory_bytes_per_second=FLOPS, batch_sizes=(1, 2))
        for device in near.devices
    )
    if case["device"].name == "absent":
        far = Device("far", "cpu", near.devices[0].target, 0, 0, (100_000,))
        known += (
            replace(far, flops_per_second=FLOPS, memory_bytes_per_second=FLOPS, batch_sizes=(1, 2)),
        )
    return replace(near, devices=known)


def make_setup(folder: Path) -> Setup:
    """Write the files."""
    setup = Setup(folder)
    onnx.save(network(), setup.model)
    np.savez(folder / "x.npz", x=np.ones((1, 3, 8, 8), np.float32))
    mod, params = hp.frontend.from_onnx(setup.model)
    graph = prepare(mod, params).graph
    cluster = cluster_of({"device": Value("here")})
    costs = costs_of(graph, cluster)
    save_costs(costs, graph, cluster, folder / "costs.json")
    plan = get_solver("heft").solve(Problem(graph, cluster, costs), SolveOptions()).plan
    # So that it is against each demand of the table but one.
    assert {graph.tasks[0].name: "cpu.all"}.items() <= placed(graph, cluster, plan).items()
    assert len(set(placed(graph, cluster, plan).values())) == 2
    save_plan(plan, graph, cluster, folder / "plan.json")
    return setup


def placed(graph: TaskGraph, cluster: Cluster, plan: Plan) -> dict[str, str]:
    """The device of each task, by names."""
    devices = plan.placement(len(graph.tasks))
    pairs = zip(graph.tasks, devices, strict=True)
    return {task.name: cluster.devices[device].name for task, device in pairs}


def network() -> onnx.ModelProto:
    """Two convolutions that do not need each other, and their sum."""
    rng = np.random.default_rng(0)
    weights = {
        name: rng.standard_normal((4, 3, size, size), dtype=np.float32)
        for name, size in (("v", 3), ("w", 5))
    }
    nodes = [
        node("Conv", "x v", "l", pads=[1] * 4),
        node("Conv", "x w", "r", pads=[2] * 4),
        node("Softmax", "l", "s"),
        node("Add", "s r", "y"),
    ]
    return make_model(nodes, {"x": [1, 3, 8, 8]}, ["y"], weights)


def keywords_of(case: Case, setup: Setup) -> dict[str, Any]:
    """What HeteroPlace is given."""
    found: dict[str, Any] = {}
    for value in case.values():
        found |= value.keywords(setup)
    return found
