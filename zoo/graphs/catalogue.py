"""The instances of `benchmarks place`, by name; each is made when it is asked for.

| family | names | cluster |
|---|---|---|
| `moirai/` | 11 transformers, inter-server and intra-server | memory 75 % full |
| `rwnn/` | single modules and stacks of DiviML | its node |
| `layered/` | layered random DAGs of 1,000 to 50,000 tasks | inter-server, memory 75 % full |
| `hub/` | layered random DAGs of up to 100,000 tasks | up to 300 devices around a hub |
| `published/` | profiled networks from files, if they are there | from the file |

Only `exact` runs `roomy/` (the transformers with room for all of it on each device, since
some baselines ignore memory, and in Moirai's congestion, `port`), `coarse/` (the same after
Moirai's coarsening), `gpt3-decode/` (a decoding step on one and on six of DiviML's nodes), `zoo/`
(Torchvision's classifiers on its node, and with times of batches as `zoo-items/`) and `celeritas/`
(training steps that no GPU of its node holds): `exact_instances`.

The files are those of the public artefacts of the two papers; the folder that holds
`dnn-partitioning/` and `moirai/` is named by the environment variable HETEROPLACE_GRAPHS.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from heteroplace.argument_checks import did_you_mean
from heteroplace.errors import GraphError
from heteroplace.files.fields.kind_keys import GRAPH_FORMS
from heteroplace.files.published.published_graph import load_published
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.solve.problem import Problem
from zoo.graphs.clusters import (
    celeritas_node,
    divi_node,
    fill_memories,
    hub,
    inter_server,
    intra_server,
)
from zoo.graphs.coarse import coarse_problem
from zoo.graphs.decoder import decoding
from zoo.graphs.layered import Layered, layered_costs, layered_graph
from zoo.graphs.rwnn import RwnnStack, rwnn_costs, rwnn_graph
from zoo.graphs.torchvision import BATCH_SIZES, NETWORKS, torchvision
from zoo.graphs.training import training_costs
from zoo.graphs.training_networks import TRAINED
from zoo.graphs.transformer import (
    TRANSFORMERS,
    Transformer,
    transformer_costs,
    transformer_graph,
)

GRAPHS_VARIABLE = "HETEROPLACE_GRAPHS"
"""Environment variable with the folder of the published graphs."""

QUICK = (
    "moirai/gpt3-330m/inter",
    "moirai/gpt3-330m/intra",
    "rwnn/er32x1",
    "rwnn/er10x10",
    "rwnn/er10x10-sdep2",
    "rwnn/er10x10-wdep2",
    "layered/1000",
    "hub/40x500",
)
"""Instances of a run without `--only`: each family, small."""

ROOMY_FILL = 0.16
"""Part of the memories that a graph needs where each of them must hold all of it."""
_CLUSTERS: Mapping[str, Callable[[], Cluster]] = {"inter": inter_server, "intra": intra_server}
_LAYERED_SIZES = (1_000, 5_000, 20_000, 50_000)
_HUBS = ((40, 500), (300, 500), (300, 20_000), (8, 100_000))
"""Devices and tasks."""
PUBLISHED_FILES = (
    "dnn-partitioning/latency-inputs/LayerGraphs/bert24_inference",
    "dnn-partitioning/latency-inputs/LayerGraphs/resnet50_inference",
    "dnn-partitioning/latency-inputs/OperatorGraphs/bert_l-6_inference",
    "dnn-partitioning/throughput-inputs/LayerGraphs/bert24_inference",
    "dnn-partitioning/throughput-inputs/LayerGraphs/gnmt_inference",
    "dnn-partitioning/throughput-inputs/LayerGraphs/resnet50_inference",
    "dnn-partitioning/throughput-inputs/OperatorGraphs/bert_l-3_inference",
    "moirai/example-1",
    "moirai/GoogLeNet",
)
"""Of the folder of the published graphs, without their ending."""


@dataclass(frozen=True)
class Instance:
    """One named problem; `build()` makes it, the same each time."""

    name: str
    build: Callable[[], Problem]


def select(only: str | None) -> list[Instance]:
    """Return the instances whose name matches the regular expression; None: those of QUICK."""
    found = instances()
    if only is None:
        return [found[name] for name in QUICK]
    pattern = re.compile(only)
    return [instance for name, instance in found.items() if pattern.search(name)]


def instances() -> dict[str, Instance]:
    """Return all instances by name, in a fixed order; nothing is built."""
    builds: dict[str, Callable[[], Problem]] = {}
    for model in sorted(TRANSFORMERS.values(), key=lambda model: (model.num_tasks, model.name)):
        for cluster in _CLUSTERS:
            builds[f"moirai/{model.name}/{cluster}"] = partial(transformer, model, cluster)
    for stack in _stacks():
        builds[f"rwnn/{stack.name}"] = partial(rwnn, stack)
    for size in _LAYERED_SIZES:
        builds[f"layered/{size}"] = partial(layered, Layered(size))
    for devices, size in _HUBS:
        builds[f"hub/{devices}x{size}"] = partial(on_hub, devices, size)
    folder = published_folder()
    if folder is not None:
        paths = {_short(file): folder / f"{file}.json" for file in PUBLISHED_FILES}
        for name, path in paths.items():
            if path.is_file():
                builds[f"published/{name}"] = partial(published, path)
    return {name: Instance(name, build) for name, build in builds.items()}


def exact_instances() -> dict[str, Instance]:
    """Return what only `benchmarks exact` runs, by name; nothing is built."""
    builds: dict[str, Callable[[], Problem]] = {}
    for model in TRANSFORMERS.values():
        for cluster in _CLUSTERS:
            name = f"{model.name}/{cluster}"
            builds[f"roomy/{name}"] = partial(roomy, model, cluster)
            builds[f"coarse/{name}"] = partial(coarse, model, cluster)
    for nodes, name in ((1, "one-node"), (6, "six-nodes")):
        builds[f"gpt3-decode/{name}"] = partial(decoding, nodes)
    for name in NETWORKS:
        builds[f"zoo/{name}"] = partial(torchvision, name)
        builds[f"zoo-items/{name}"] = partial(torchvision, name, BATCH_SIZES)
    for name, network in TRAINED.items():
        builds[f"celeritas/{name}"] = partial(training, network)
    return {name: Instance(name, build) for name, build in builds.items()}


def get_instance(name: str) -> Instance:
    """Return the instance called `name`.

    Raises
    ------
    GraphError
        There is none.
    """
    found = instances() | exact_instances()
    if name not in found:
        raise GraphError(
            f"no instance is called {name!r}{did_you_mean(name, found)}; expected one of "
            f"{len(found)} names, such as {next(iter(found))!r}"
        )
    return found[name]


def published_folder() -> Path | None:
    """Return the folder of the published graphs, or None if the variable is not set.

    Raises
    ------
    GraphError
        The variable names no folder.
    """
    text = os.environ.get(GRAPHS_VARIABLE)
    if not text:
        return None
    if not Path(text).is_dir():
        raise GraphError(f"{GRAPHS_VARIABLE}={text!r} is no folder; name the one of the graphs")
    return Path(text)


def transformer(model: Transformer, cluster: str, fill: float = 0.75) -> Problem:
    """Return a transformer on Moirai's cluster "inter" or "intra", memories filled to `fill`."""
    graph = transformer_graph(model)
    sized = fill_memories(_CLUSTERS[cluster](), graph, fill)
    return Problem(graph, sized, transformer_costs(graph, sized))


def roomy(model: Transformer, cluster: str) -> Problem:
    """Return a transformer with room for all of it everywhere, in Moirai's congestion: a GPU sends,
    and receives, one tensor at a time."""
    roomy = transformer(model, cluster, ROOMY_FILL)
    sized = replace(roomy.cluster, congestion="port")
    return Problem(roomy.graph, sized, roomy.costs)


def coarse(model: Transformer, cluster: str) -> Problem:
    """Return a transformer with fused tasks, on the cluster that the whole one has room on."""
    return coarse_problem(roomy(model, cluster))


def rwnn(stack: RwnnStack) -> Problem:
    """Return a stack of randomly wired modules on DiviML's node."""
    graph, cluster = rwnn_graph(stack), divi_node()
    return Problem(graph, cluster, rwnn_costs(graph, cluster, stack.seed))


def training(network: Callable[[], TaskGraph]) -> Problem:
    """Return a training step on Celeritas' node."""
    graph, cluster = network(), celeritas_node()
    return Problem(graph, cluster, training_costs(graph, cluster))


def on_hub(num_devices: int, num_tasks: int) -> Problem:
    """Return a layered random DAG on so many devices around a hub, with room to spare."""
    return layered(Layered(num_tasks), 0.1, hub(num_devices))


def layered(parameters: Layered, fill: float = 0.75, cluster: Cluster | None = None) -> Problem:
    """Return a layered random DAG, memories filled to `fill`; on inter-server if not told."""
    cluster = cluster or inter_server()
    graph = layered_graph(parameters, cluster)
    sized = fill_memories(cluster, graph, fill)
    return Problem(graph, sized, layered_costs(parameters, graph, sized))


def published(path: Path) -> Problem:
    """Return the instance in a published file; one of throughput says so by its folder."""
    found = load_published(path, is_steady="throughput-inputs" in path.parts)
    if found is None:
        raise GraphError(f"{path}: is no published task graph; expected one of {GRAPH_FORMS}")
    return Problem(found.graph, found.cluster, found.costs)


def _stacks() -> list[RwnnStack]:
    """DiviML's workloads: six single modules; stacks of 5, 10, 20 with 1 to 4 channels."""
    stacks = [RwnnStack(kind, nodes) for kind in ("ws", "er", "ba") for nodes in (10, 32)]
    for modules in (5, 10, 20):
        stacks.append(RwnnStack("er", 10, modules))
        for is_strong in (True, False):
            for channels in (2, 3, 4):
                stacks.append(RwnnStack("er", 10, modules, channels, is_strong))
    stacks += [RwnnStack(kind, 32, 10) for kind in ("ws", "er", "ba")]
    return stacks


def _short(file: str) -> str:
    """E.g. "bert24-latency" for a file of the first paper, "googlenet" for one of Moirai's."""
    parts = file.split("/")
    name = parts[-1].removesuffix("_inference").lower()
    return name if parts[0] == "moirai" else f"{name}-{parts[1].removesuffix('-inputs')}"
