"""`benchmarks ranks`, plans: predicted and measured over several ranks, beside one process.

Each host has one core of this machine. The commands of a user make the costs: `mpiexec ...
heteroplace probe` and `... profile`, over the same links. Then plans are made, written over one
library of kernels, and all run in turns, in one job; so does each with its tasks on the same cores
in one process.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from benchmarks.peers.stock import in_pass_context
from benchmarks.place.command import PlaceOptions, default_solvers
from benchmarks.prediction.random_plans import random_plans
from benchmarks.ranks import plan_worker
from benchmarks.ranks.launch import command_of, module_of, run_ranks
from benchmarks.ranks.shaped import ShapedLink
from heteroplace import pipeline
from heteroplace.errors import GraphError, HeteroPlaceError
from heteroplace.files.cluster_file import load_cluster, save_cluster
from heteroplace.files.costs_file import load_costs
from heteroplace.files.graph_file import load_graph
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.lower.executable import Executable, write_programs
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable, table_from_rows
from heteroplace.model.plan import Copy, Plan, Run
from heteroplace.model.solution import Solution
from heteroplace.native.list import evaluate_order
from heteroplace.parts.hosts.machines import hosts_of_cores
from heteroplace.simulate.expect import expect_alone
from heteroplace.simulate.simulator import simulate
from heteroplace.solve.list.single import single_plan
from heteroplace.solve.problem import Problem, SolveOptions
from heteroplace.solve.solvers import get_solver
from heteroplace.stats import median
from zoo.models.catalogue import load_model

Row = dict[str, object]
Say = Callable[[str], None]

_HOSTS = ("a", "b", "c", "d")


@dataclass(frozen=True)
class PlanOptions:
    """How many plans, and how thoroughly they are measured."""

    num_random: int = 3
    solvers: tuple[str, ...] = ("auto",)
    """Empty: all that `benchmarks prediction` asks."""
    budget_s: float = 3.0
    """Of each solver."""
    num_rounds: int = 9
    turn_ns: int = 40_000_000
    is_quick: bool = False
    """Probe the links with fewer and smaller messages."""
    seed: int = 0


@dataclass(frozen=True)
class _Network:
    """A model, its costs over the hosts, and its kernels."""

    name: str
    compiled: CompiledNetwork
    cluster: Cluster
    costs: CostTable
    inputs: dict[str, np.ndarray]

    @property
    def problem(self) -> Problem:
        return Problem(self.compiled.graph, self.cluster, self.costs)


def plan_rows(
    name: str, num_ranks: int, link: ShapedLink | None, options: PlanOptions, say: Say
) -> list[Row]:
    """Measure one network over so many ranks; return a row for each plan.

    Parameters
    ----------
    name
        Of a network that there is as an ONNX model.
    link
        Between any two ranks; None: what MPI has on one machine.

    Raises
    ------
    HeteroPlaceError
        The network cannot be compiled or run.
    """
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        network = _prepare(name, num_ranks, link, options, folder, say)
        plans = _plans(network.problem, options, say)
        solutions = [_solution(network.problem, plan) for plan in plans]
        alone, places = _one_process(network)
        problem = Problem(network.compiled.graph, alone, _costs_alone(network, alone, places))
        same = [_solution(problem, _moved(problem, plan, places)) for plan in plans]
        with in_pass_context():
            kernels = network.compiled.kernels(
                network.cluster, [0] * len(network.compiled.graph.tasks)
            )
        executables = write_programs(kernels, [*solutions, *same])
        say(f"measuring {len(plans)} plans over {num_ranks} ranks and in one process")
        _write_job(folder, executables, len(plans), network.inputs, link, options)
        run_ranks(num_ranks, module_of(plan_worker.__name__, str(folder)), link)
        return _rows(network, num_ranks, link, plans, solutions, folder)


def _prepare(
    name: str,
    num_ranks: int,
    link: ShapedLink | None,
    options: PlanOptions,
    folder: Path,
    say: Say,
) -> _Network:
    model = load_model(name, options.seed)
    if model.onnx_model is None:
        raise GraphError(f"network {name!r} is written in Relay; ranks profile an ONNX model")
    files = {part: str(folder / part) for part in ("hosts", "cluster", "costs", "graph", "store")}
    onnx_file = str(folder / "model.onnx")
    onnx.save(model.onnx_model, onnx_file)
    save_cluster(hosts_of_cores(_HOSTS[:num_ranks]), files["hosts"])
    say("probing the links")
    probe = ["probe", "--cluster", files["hosts"], "-o", files["cluster"]]
    quick = ["--quick"] if options.is_quick else []
    run_ranks(num_ranks, command_of(*probe, *quick), link)
    say("measuring all kernels on all ranks")
    profile = ["profile", onnx_file, "--cluster", files["cluster"], "--store", files["store"]]
    written = ["-o", files["costs"], "--graph-out", files["graph"]]
    run_ranks(num_ranks, command_of(*profile, *written), link)
    cluster = load_cluster(files["cluster"])
    with in_pass_context():
        network = pipeline.prepare(model.mod, model.params)
    graph = load_graph(files["graph"]).graph
    compiled = CompiledNetwork.of(network).with_graph(graph)
    costs = load_costs(files["costs"], graph, cluster)
    return _Network(name, compiled, cluster, costs, dict(model.inputs))


def _plans(problem: Problem, options: PlanOptions, say: Say) -> list[Plan]:
    """Of one host, of solvers, each once, and random ones."""
    found = [single_plan(problem, 0)]
    limits = SolveOptions(time_limit_s=options.budget_s, seed=options.seed)
    for name in options.solvers or default_solvers(PlaceOptions()):
        try:
            plan = get_solver(name).solve(problem, limits).plan
        except HeteroPlaceError as refusal:
            say(f"no plan by {name}: {str(refusal).splitlines()[0]}")
        else:
            found.append(replace(plan, origin=name))
    plans = [plan for plan in found if isinstance(plan, Plan)]
    distinct = {plan.steps: plan for plan in reversed(plans)}
    return [
        *reversed(distinct.values()),
        *random_plans(problem, options.num_random, options.seed),
    ]


def _solution(problem: Problem, plan: Plan) -> Solution:
    graph, cluster, costs = problem.graph, problem.cluster, problem.costs
    predicted_ns = simulate(graph, cluster, costs, plan).makespan_ns
    expected = expect_alone(graph, cluster, costs, plan)
    return Solution(graph, cluster, costs, plan, predicted_ns, 0, expected=expected.run_time)


def _one_process(network: _Network) -> tuple[Cluster, list[int]]:
    """The cores of all hosts as devices of one memory, and which of them each device is."""
    cluster = network.cluster
    distinct = list(dict.fromkeys(device.cores for device in cluster.devices))
    ram = replace(cluster.memories[0], name="ram", host="")
    devices = tuple(
        replace(cluster.devices[0], name=f"cpu.{index}", cores=cores, host="", memory=0)
        for index, cores in enumerate(distinct)
    )
    places = [distinct.index(device.cores) for device in cluster.devices]
    return replace(cluster, memories=(ram,), devices=devices, links=(), host=0), places


def _costs_alone(network: _Network, alone: Cluster, places: Sequence[int]) -> CostTable:
    firsts = [places.index(place) for place in range(len(alone.devices))]
    rows = tuple(tuple(row[first] for first in firsts) for row in network.costs.rows)
    return table_from_rows(network.compiled.graph, alone, rows)


def _moved(problem: Problem, plan: Plan, places: Sequence[int]) -> Plan:
    """The plan with its tasks on the same cores, in its order."""
    runs = [step for step in plan.steps if isinstance(step, Run)]
    placement = [0] * len(problem.graph.tasks)
    for step in runs:
        placement[step.task] = places[step.device]
    found = evaluate_order(problem.native, placement, [step.task for step in runs])
    return problem.native.plan(found.steps, plan.origin)


def _write_job(
    folder: Path,
    executables: Sequence[Executable],
    num_plans: int,
    inputs: dict[str, np.ndarray],
    link: ShapedLink | None,
    options: PlanOptions,
) -> None:
    programs = []
    for index, executable in enumerate(executables):
        is_alone = index >= num_plans
        file = f"{'alone' if is_alone else 'hosts'}.{index % num_plans}"
        Path(folder, file).write_text(executable.lowered.text)
        programs.append((file, is_alone))
    Path(folder, plan_worker.LIBRARY).write_bytes(executables[0].library.image)
    np.save(Path(folder, plan_worker.WEIGHTS), executables[0].blob)
    plan_worker.save_arrays(Path(folder, plan_worker.INPUTS), inputs)
    plan_worker.Job(tuple(programs), options.num_rounds, options.turn_ns, link is not None).write(
        folder
    )


def _rows(
    network: _Network,
    num_ranks: int,
    link: ShapedLink | None,
    plans: Sequence[Plan],
    solutions: Sequence[Solution],
    folder: Path,
) -> list[Row]:
    result = json.loads(Path(folder, plan_worker.RESULT).read_text())
    rows = []
    with np.load(Path(folder, plan_worker.OUTPUTS)) as outputs:
        for index, (plan, solution) in enumerate(zip(plans, solutions, strict=True)):
            hosts, alone = f"hosts.{index}", f"alone.{index}"
            rows.append(
                {
                    "model": network.name,
                    "plan": plan.origin,
                    "ranks": num_ranks,
                    "transport": result["transport"],
                    "link": "one machine" if link is None else link.name,
                    "bytes": message_bytes(solution),
                    "link_bytes": result["sent_bytes"][hosts],
                    "predicted_ms": solution.expected_ns / 1e6,
                    "measured_ms": _median_ms(result["times_ns"][hosts]),
                    "one_process_ms": _median_ms(result["times_ns"][alone]),
                    "equal": _is_equal(outputs, hosts, alone),
                }
            )
    return rows


def message_bytes(solution: Solution) -> int:
    """Return how many bytes of values a plan sends from host to host in one run."""
    cluster, tensors = solution.cluster, solution.graph.tensors
    hosts = cluster.memory_hosts
    total = 0
    for step in solution.plan.steps:
        if isinstance(step, Copy):
            links = [cluster.links[link] for link in step.route]
            num_hops = sum(hosts[link.src] != hosts[link.dst] for link in links)
            total += num_hops * tensors[step.tensor].bytes
    return total


def _median_ms(rounds_ns: Sequence[Sequence[int]]) -> float:
    return median([median(times) for times in rounds_ns]) / 1e6


def _is_equal(outputs: np.lib.npyio.NpzFile, one: str, other: str) -> bool:
    """Whether both have outputs, of the same bits."""
    names = [key.split("/", 1)[1] for key in outputs.files if key.split("/", 1)[0] == one]
    return bool(names) and all(
        outputs[f"{one}/{name}"].tobytes() == outputs[f"{other}/{name}"].tobytes() for name in names
    )
