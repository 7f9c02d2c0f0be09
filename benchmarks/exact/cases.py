"""What `exact` runs: for each table of the papers the graphs, the solvers and their numbers.

Solvers are named, whether they are registered or not; `command.py` leaves those out that are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from benchmarks.exact import paper as exact_paper
from heteroplace.solve.problem import OBJECTIVES
from zoo.graphs.catalogue import instances
from zoo.graphs.torchvision import NETWORKS
from zoo.graphs.transformer import TRANSFORMERS

LATENCY, SPLIT, THROUGHPUT = "divi-latency", "divi-split", "divi-throughput"
GPT3, COARSE, PUBLISHED = "divi-gpt3", "moirai-coarse", "published"
STEPS = "celeritas-steps"
MODULE, MODULE_ITEMS = "divi-module", "divi-module-items"
ZOO, ZOO_ITEMS, QUALITY = "divi-zoo", "divi-zoo-items", "divi-quality"
TABLES: Mapping[str, str] = {
    LATENCY: "DiviML, table I: latency over the lower bound, 10 modules",
    SPLIT: "DiviML, table III: MILP-SPLIT against one model of everything",
    THROUGHPUT: "DiviML, table IV: items per second against their bound, 10 modules",
    MODULE: "DiviML, figure 4: latency of single modules",
    MODULE_ITEMS: "DiviML, figure 6: items per second of single modules",
    ZOO: "DiviML, figure 3: latency of Torchvision's networks",
    ZOO_ITEMS: "DiviML, figure 5: items per second of Torchvision's networks",
    QUALITY: "DiviML, figure 7: items per second of the best plan until a time",
    GPT3: "DiviML: GPT-3 on six nodes",
    COARSE: "Moirai, tables IV and V: original and coarse graphs",
    STEPS: "Celeritas: training steps that no device holds",
    PUBLISHED: "published files against the programs that came with them",
}

_LATENCY_SOLVERS = (
    *("single", "met", "greedy", "heft", "ea", "sa"),
    *("cpsat", "moirai", "divi", "split", "lns", "search", "auto"),
)
_THROUGHPUT_SOLVERS = (
    *("single", "bmet", "bgreedy", "bheft", "ea", "sa"),
    *("divi", "split", "search", "auto"),
)
_QUALITY_SOLVERS = ("bheft", "ea", "sa", "divi", "split", "auto")
_SPLIT_SOLVERS = ("split", "divi", "moirai", "cpsat")
_GPT3_SOLVERS = ("single", "bheft", "divi", "split", "auto")
_COARSE_SOLVERS = ("m-sct", "getf", "moirai", "lns", "search", "auto")
_STEP_SOLVERS = ("metis", "m-topo", "m-etf", "m-sct", "order-place", "celeritas", "auto")
_PUBLISHED_SOLVERS = ("single", "heft", "cpsat", "moirai", "split", "lns", "search", "auto")
_PUBLISHED_ITEM_SOLVERS = ("single", "throughput", "auto")
_MODULES = tuple(f"rwnn/{kind}{nodes}x1" for kind in ("ws", "er", "ba") for nodes in (10, 32))
_ITEMS, _ZOO_ITEMS, _NODE_ITEMS, _NODES = 16, 128, 4, 6
"""Items of DiviML's table IV and figure 6; of its figure 5; of GPT-3 on one node (not printed); and
nodes."""
_QUALITY_GRAPHS = ("rwnn/er10x10", "rwnn/er10x10-sdep2", "rwnn/er10x10-wdep2")
SPLIT_SOLVER = "split"
SPEED_UP_BASES = ("m-sct", "getf")
"""What Moirai's speed-ups are over."""

Paper = Mapping[str, float | str]


@dataclass(frozen=True)
class Case:
    """One graph in one table."""

    table: str
    instance: str
    solvers: tuple[str, ...]
    items: int = 1
    objective: str = OBJECTIVES[0]
    replicas: int = 1
    """How many such clusters serve their share of the items."""
    paper: Mapping[str, Paper] = field(default_factory=dict)
    """What the paper prints, by solver."""
    original: str = ""
    """The instance that this one is the coarse form of."""
    is_quick: bool = False
    """It is run where nothing is chosen."""

    @property
    def name(self) -> str:
        """What `--only` is matched with."""
        return f"{self.table}/{self.instance}"


def all_cases() -> list[Case]:
    """Return the cases of all tables; published files only where they are."""
    found = [*_latency(), *_split(), *_throughput(), *_modules(), *_zoo(), *_quality()]
    return [*found, *_gpt3(), *_coarse(), *_steps(), *_published()]


def _latency() -> Iterator[Case]:
    for kind, row in exact_paper.DIVI_LATENCY.items():
        bound = row["bound"]
        paper = {
            solver: {"ms": ms, "bound_ms": bound, "vs_bound": round(ms / bound, 3)}
            for solver, ms in row.items()
            if solver != "bound"
        }
        name = f"rwnn/er10x10{kind}"
        yield Case(LATENCY, name, _LATENCY_SOLVERS, paper=paper, is_quick=not kind)


def _split() -> Iterator[Case]:
    for (kind, modules), row in exact_paper.DIVI_SPLIT.items():
        paper: dict[str, Paper] = {solver: {"seconds": value} for solver, value in row.items()}
        speed_up = round(row["divi"] / row["split"], 1)
        paper["divi"] = {"seconds": row["divi"], "split_speed_up": speed_up}
        name = f"rwnn/er10x{modules}{kind}"
        yield Case(SPLIT, name, _SPLIT_SOLVERS, paper=paper, is_quick=modules == 5)


def _throughput() -> Iterator[Case]:
    for kind, row in exact_paper.DIVI_THROUGHPUT.items():
        paper = _rates(row)
        name = f"rwnn/er10x10{kind}"
        yield Case(THROUGHPUT, name, _THROUGHPUT_SOLVERS, _ITEMS, paper=paper, is_quick=not kind)


def _modules() -> Iterator[Case]:
    """Of bars without numbers: twice as fast as the best device, the MILP 22 to 26 % better than
    the best heuristic."""
    for name in _MODULES:
        is_quick = name == "rwnn/er10x1"
        yield Case(MODULE, name, _LATENCY_SOLVERS, is_quick=is_quick)
        yield Case(MODULE_ITEMS, name, _THROUGHPUT_SOLVERS, _ITEMS, is_quick=is_quick)


def _zoo() -> Iterator[Case]:
    """Of bars without numbers: no gain for AlexNet, VGG and ResNet, which stay on the A100; more
    than 100 % for Inception v3, and 150 % for GoogLeNet; the split as good as the MILP."""
    for network in NETWORKS:
        is_quick = network == "googlenet"
        yield Case(ZOO, f"zoo/{network}", _LATENCY_SOLVERS, is_quick=is_quick)
        name = f"zoo-items/{network}"
        yield Case(ZOO_ITEMS, name, _THROUGHPUT_SOLVERS, _ZOO_ITEMS, is_quick=is_quick)


def _quality() -> Iterator[Case]:
    for name in _QUALITY_GRAPHS:
        is_quick = name == _QUALITY_GRAPHS[0]
        yield Case(QUALITY, name, _QUALITY_SOLVERS, _ITEMS, is_quick=is_quick)


def _rates(row: Mapping[str, float]) -> dict[str, Paper]:
    bound = row["bound"]
    return {
        solver: {"items_per_second": rate, "bound": bound, "of_bound": round(rate / bound, 3)}
        for solver, rate in row.items()
        if solver != "bound"
    }


def _gpt3() -> Iterator[Case]:
    yield Case(
        GPT3,
        "gpt3-decode/one-node",
        _GPT3_SOLVERS,
        _NODE_ITEMS,
        replicas=_NODES,
        paper=_rates(exact_paper.DIVI_GPT3_ONE_NODE),
        is_quick=True,
    )
    yield Case(
        GPT3,
        "gpt3-decode/six-nodes",
        _GPT3_SOLVERS,
        _NODE_ITEMS * _NODES,
        paper=_rates(exact_paper.DIVI_GPT3_SIX_NODES),
    )


def _coarse() -> Iterator[Case]:
    for model in sorted(TRANSFORMERS, key=lambda name: TRANSFORMERS[name].num_tasks):
        for cluster in ("inter", "intra"):
            for is_coarse in (False, True):
                yield _coarse_case(model, cluster, is_coarse)


def _coarse_case(model: str, cluster: str, is_coarse: bool) -> Case:
    times = exact_paper.MOIRAI_TIMES[model][is_coarse]
    best = exact_paper.MOIRAI_BEST_SPEED_UP[cluster, is_coarse]
    paper: dict[str, Paper] = {
        solver: {"tasks": times.tasks, "seconds": round(seconds, 2)}
        for solver, seconds in times.seconds.items()
    }
    for base, factor in best.items():
        paper["moirai"] = {**paper["moirai"], f"best_vs_{base}": factor}
    original = f"roomy/{model}/{cluster}"
    return Case(
        COARSE,
        f"coarse/{model}/{cluster}" if is_coarse else original,
        _COARSE_SOLVERS,
        paper=paper,
        original=original,
        is_quick=(model, cluster) == ("gpt3-330m", "inter"),
    )


def _steps() -> Iterator[Case]:
    for name, row in exact_paper.CELERITAS_STEPS.items():
        paper: dict[str, Paper] = {}
        for solver, (step_s, seconds) in row.items():
            said: dict[str, float | str] = {} if seconds is None else {"seconds": seconds}
            said |= {"step": "out of memory"} if step_s is None else {"ms": 1e3 * step_s}
            paper[solver] = said
        instance = f"celeritas/{name}"
        yield Case(STEPS, instance, _STEP_SOLVERS, paper=paper, is_quick=name == "holography")


def _published() -> Iterator[Case]:
    known = instances()
    for name, reference in exact_paper.PUBLISHED.items():
        instance = f"published/{name}"
        if instance not in known:
            continue
        is_item = name.endswith("-throughput")
        solvers = _PUBLISHED_ITEM_SOLVERS if is_item else _PUBLISHED_SOLVERS
        paper: Paper = {"ms": reference.ms, "what": reference.what}
        yield Case(
            PUBLISHED,
            instance,
            solvers,
            objective=OBJECTIVES[1] if is_item else OBJECTIVES[0],
            paper=dict.fromkeys(solvers, paper),
            is_quick=name == "example-1",
        )
