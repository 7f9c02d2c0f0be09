"""Cases of mutated JSON files: clusters, graphs, costs, plans, solutions, compiled models, exports,
route decisions and their profiles.

What is read without a fault must be written and read again as the same value, and `heteroplace
check`, `show` and `place` must go on with it or end with their codes for faults.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import msgspec

import heteroplace.cli.main as command_line
from heteroplace.costs.store_file import load_rows, rows_to_json
from heteroplace.files.cluster_file import cluster_from_json, cluster_to_json, load_cluster
from heteroplace.files.costs_file import costs_from_json, costs_to_json, load_costs
from heteroplace.files.graph_file import graph_from_json, graph_to_json, load_graph
from heteroplace.files.manifest import Manifest
from heteroplace.files.placement import Placement
from heteroplace.files.plan_file import load_plan, plan_from_json, plan_to_json
from heteroplace.files.route_profile_file import route_profile_from_json, route_profile_to_json
from heteroplace.files.routes_file import RoutesWriter
from heteroplace.files.solution_file import load_solution, solution_from_json, solution_to_json
from heteroplace.model.memory_use.memory import MemoryUse
from heteroplace.model.plan import Plan, Run
from heteroplace.model.routed.route_profile import RouteRecord, RouterShape
from heteroplace.model.solution import RunTime, Solution
from heteroplace.native.compiled_file import read_manifest
from heteroplace.parts.routing.dynamic.recorded_routes import ProfileBuilder, read_profile
from heteroplace.parts.routing.dynamic.traces import TraceOptions, synthesise
from tests.compiled_files import NEEDS, PROGRAM, Parts, empty_library
from tests.fuzz.json_mutations import mutate_bytes, mutate_json
from tests.instances import instance
from tests.measurements import note, row
from tests.strategies import Instance

KINDS = (
    *("cluster", "graph", "costs", "plan", "solution", "model", "measurements"),
    *("routes", "records"),
)
_CODES = {0, 2, 3, 4, 6}
_make_parser = cache(command_line.make_parser)
_type_info = cache(msgspec.inspect.type_info)
_CLUSTER: dict[str, Any] = {
    "schema_version": 1,
    "name": "box",
    "host": "ram",
    "defaults": {"memory_reserve": "1 MiB"},
    "memories": [{"name": "ram", "size": "2 GiB"}],
    "devices": [
        {"name": "cpu.0", "target": "llvm", "device": "cpu:0", "memory": "ram", "cores": [0]},
        {"name": "cpu.all", "target": "llvm", "device": "cpu:0", "memory": "ram", "cores": [0, 1]},
        {
            "name": "gpu0",
            "target": {"kind": "cuda", "arch": "sm_75"},
            "device": "cuda:0",
            "memory": "1 GiB",
            "part": 1,
            "copy_engines": 1,
            "batch_sizes": [1, 2],
            "launch": "5 us",
            "flops_per_second": "8 TFLOP/s",
            "memory_bandwidth": "300 GB/s",
        },
    ],
    "links": [
        {
            "src": "ram",
            "dst": "gpu0",
            "bandwidth": "12 GB/s",
            "latency": "10 us",
            "bidirectional": True,
            "measured": [["1 MiB", "90 us"], ["2 MiB", "170 us"]],
        }
    ],
}
_ROUTERS = (RouterShape("a", 3, 2), RouterShape("exit", 1, 2), RouterShape("b", 3, 3))
_TIMES = {"a": (4, 3, 2), "b": (6, 4, None), "c": (5, 3, 1), "d": (1, 1, 1)}
_EDGES = [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]


@cache
def _solution() -> Solution:
    """A diamond on two cores and a GPU."""
    made: Instance = instance(_EDGES, _TIMES, cluster_from_json(_CLUSTER), 1000, weight_bytes=8)
    steps = tuple(Run(task, 1) for task in range(4))
    plan = Plan(made.graph.digest(), made.cluster.digest(), steps, "by hand", ("because",) * 4)
    candidates = (("heft", 11), ("cpsat", None))
    return Solution(
        *(made.graph, made.cluster, made.costs, plan, 11, 5, candidates, (("cpu.all", 11),)),
        RunTime(10, 11, 12),
    )


@cache
def _good(kind: str) -> Any:
    """What a faultless file of the kind holds."""
    made = _solution()
    if kind == "cluster":
        return _CLUSTER
    if kind == "graph":
        names = [device.name for device in made.cluster.devices]
        times = {task: dict(zip(names, row, strict=True)) for task, row in _TIMES.items()}
        return graph_to_json(made.graph, times)
    if kind == "costs":
        return costs_to_json(made.costs, made.graph, made.cluster)
    if kind == "plan":
        return plan_to_json(made.plan, made.graph, made.cluster)
    if kind == "measurements":
        return rows_to_json([row(), row(1), row(2, site=3)], [note()])
    if kind == "solution":
        return json.loads(solution_to_json(made))
    if kind == "routes":
        builder = ProfileBuilder("m", _ROUTERS)
        for record in _records():
            builder.add(record)
        return route_profile_to_json(builder.profile())
    ports = (("x", (1, 2), "float32"),)
    manifest = Manifest(
        "0.17.dev0", PROGRAM, Placement.of(made, (MemoryUse(1, 2, 3),) * 2), ports, ports
    )
    value = json.loads(manifest.to_json())
    value["placement"] = json.loads(value["placement"])
    return value


def run_case(seed: str, number: int, folder: Path) -> str:
    """Read one damaged file; returns "right", or raises the typed error that refuses it."""
    kind = KINDS[number % len(KINDS)]
    random = Random(f"{seed} json {number}")
    path = folder / {"model": "model.so", "records": "damaged.jsonl"}.get(kind, "damaged.json")
    if kind == "model":
        path.write_bytes(_compiled(random))
    elif kind == "records":
        path.write_bytes(_recording(random, folder))
    else:
        path.write_bytes(mutate_json(_good(kind), random))
    with _made_once():
        _run_commands(kind, path, folder)
        _check_round_trip(kind, path)
    return "right"


@contextlib.contextmanager
def _made_once() -> Iterator[None]:
    """Keep what depends on no file and takes most of a case: the parser, the types of structs."""
    with (
        patch.object(command_line, "make_parser", _make_parser),
        patch.object(msgspec.inspect, "type_info", _type_info),
    ):
        yield


def _compiled(random: Random) -> bytes:
    """A compiled model whose footer is right for what it holds, mostly."""
    value = dict(_good("model"))
    placement = value["placement"]
    if random.random() < 0.5:
        value["placement"] = mutate_json(placement, random).decode("utf-8", "replace")
        text = json.dumps(value).encode()
    else:
        value["placement"] = json.dumps(placement)
        text = mutate_json(value, random)
    data = Parts(empty_library(), b"", NEEDS, PROGRAM.encode(), text).sealed().to_bytes()
    return mutate_bytes(data, random) if random.random() < 0.2 else data


def _records() -> list[RouteRecord]:
    return list(synthesise(_ROUTERS, TraceOptions(3, top_k=2)))


def _recording(random: Random, folder: Path) -> bytes:
    """A recording of which a line, or some bytes, are wrong, mostly."""
    path = folder / "good.jsonl"
    with RoutesWriter(path, "m", 2, _ROUTERS) as writer:
        for record in _records():
            writer.write(record)
    lines = path.read_bytes().splitlines()
    chosen = random.randrange(len(lines))
    lines[chosen] = mutate_json(json.loads(lines[chosen]), random).replace(b"\n", b" ")
    data = b"".join(line + b"\n" for line in lines)
    return mutate_bytes(data, random) if random.random() < 0.2 else data


def _run_commands(kind: str, path: Path, folder: Path) -> None:
    good = {}
    for name in ("graph", "cluster"):
        good[name] = str(folder / f"{name}.json")
        Path(good[name]).write_text(json.dumps(_good(name)))
    problem = ["--graph", good["graph"], "--cluster", good["cluster"]]
    commands = [["check", str(path), *problem], ["show", str(path), *problem]]
    if kind in ("graph", "cluster", "costs"):
        option = {f"--{name}": value for name, value in good.items()} | {f"--{kind}": str(path)}
        given = [text for pair in option.items() for text in pair]
        commands.append(["place", "--solver", "heft", *given, "-o", str(folder / "out.json")])
    if kind == "measurements":
        commands = [["costs", "import", str(path), "--store", str(folder / "store.sqlite")]]
    if kind == "records":
        commands = [["routes", "check", str(path)], ["routes", "show", str(path)]]
    for command in commands:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            code = command_line.main(command)
        assert code in _CODES, f"{command}: {code}"
        odd = [c for c in printed.getvalue() if not c.isprintable() and c != "\n"]
        assert not odd, f"{command} printed {odd!r}"


def _check_round_trip(kind: str, path: Path) -> None:
    made = _solution()
    graph, cluster = made.graph, made.cluster
    if kind == "cluster":
        value: object = load_cluster(path)
        again: object = cluster_from_json(cluster_to_json(value))
    elif kind == "graph":
        value = load_graph(path)
        again = graph_from_json(graph_to_json(value.graph, value.times))
    elif kind == "costs":
        value = load_costs(path, graph, cluster)
        again = costs_from_json(costs_to_json(value, graph, cluster), graph, cluster)
    elif kind == "plan":
        value = load_plan(path, graph, cluster)
        again = plan_from_json(plan_to_json(value, graph, cluster), graph, cluster)
    elif kind == "solution":
        value = load_solution(path)
        again = solution_from_json(solution_to_json(value))
    elif kind == "model":
        value = read_manifest(path)
        again = Manifest.from_json(value.to_json(), value.program_text, "again")
    elif kind in ("routes", "records"):
        value = read_profile(path)
        again = route_profile_from_json(json.loads(json.dumps(route_profile_to_json(value))))
    else:
        value = load_rows(path)
        path.write_text(json.dumps(rows_to_json(*value)))
        again = load_rows(path)
    assert again == value
