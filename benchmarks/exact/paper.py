"""What the papers print, for the column "paper" of `exact`: their machines, their graphs.

None of it was measured or simulated here. Keys are our solvers' names; `divi` stands for the one
model of DiviML (its "MILP"), `split` for MILP-SPLIT. Moirai's baselines of reinforcement learning
(HRL, Placeto) are left out: they need their learners.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_LATENCY_SOLVERS = ("single", "met", "greedy", "heft", "ea", "sa", "divi", "split")
_THROUGHPUT_SOLVERS = ("single", "bmet", "bgreedy", "bheft", "ea", "sa", "divi", "split")

# Milliseconds of one input, 10 modules; the last column is the lower bound.
_LATENCY_MS = {
    "": (211.7, 209.9, 104.4, 99.9, 97.5, 98.9, 80.1, 80.1, 80.1),
    "-sdep2": (234.9, 219.3, 111.8, 109.3, 103.8, 106.2, 78.9, 79.1, 73.7),
    "-sdep3": (236.5, 235.4, 114.2, 108.5, 104.7, 106.1, 79.9, 80.3, 68.1),
    "-sdep4": (250.5, 249.1, 116.3, 111.3, 107.6, 109.5, 79.1, 79.4, 61.3),
    "-wdep2": (225.2, 223.8, 103.7, 101.7, 97.3, 98.1, 74.3, 77.6, 73.3),
    "-wdep3": (229.9, 229.3, 107.4, 104.3, 100.9, 103.1, 76.6, 78.7, 71.8),
    "-wdep4": (242.9, 240.7, 106.8, 104.4, 102.0, 103.6, 71.6, 77.0, 62.1),
}
# Images per second, 10 modules; the last column is the upper bound.
_THROUGHPUT = {
    "": (54, 56, 74, 75, 84, 87, 114, 135, 164),
    "-sdep2": (48, 50, 67, 66, 75, 78, 95, 119, 180),
    "-sdep3": (49, 51, 68, 70, 78, 81, 116, 129, 196),
    "-sdep4": (47, 48, 65, 67, 76, 79, 73, 126, 209),
    "-wdep2": (51, 53, 76, 75, 86, 87, 89, 137, 182),
    "-wdep3": (49, 52, 73, 73, 82, 85, 72, 137, 181),
    "-wdep4": (47, 50, 72, 74, 82, 84, 65, 138, 207),
}

DIVI_LATENCY: Mapping[str, Mapping[str, float]] = {
    kind: dict(zip((*_LATENCY_SOLVERS, "bound"), row, strict=True))
    for kind, row in _LATENCY_MS.items()
}
"""DiviML, table I: milliseconds by kind of stack and solver, and the lower bound."""

DIVI_THROUGHPUT: Mapping[str, Mapping[str, float]] = {
    kind: dict(zip((*_THROUGHPUT_SOLVERS, "bound"), row, strict=True))
    for kind, row in _THROUGHPUT.items()
}
"""DiviML, table IV: images per second by kind of stack and solver, and the upper bound."""

DIVI_SPLIT: Mapping[tuple[str, int], Mapping[str, float]] = {
    ("-sdep2", 5): {"divi": 82.69, "split": 2.26},
    ("-sdep2", 10): {"divi": 232.24, "split": 4.83},
    ("-sdep2", 20): {"divi": 1907.12, "split": 13.49},
    ("-wdep2", 5): {"divi": 129.08, "split": 2.45},
    ("-wdep2", 10): {"divi": 271.66, "split": 5.00},
    ("-wdep2", 20): {"divi": 5850.37, "split": 14.81},
}
"""DiviML, table III: seconds to the best solution by kind of stack (channels assumed) and modules.
"""

DIVI_GPT3_ONE_NODE: Mapping[str, float] = {"divi": 4.8, "split": 5.7, "bound": 9.9}
"""DiviML: GPT-3 inputs per second of six nodes, each with a sixth of the inputs."""
DIVI_GPT3_SIX_NODES: Mapping[str, float] = {"split": 6.3, "bound": 9.9}
"""The same, one plan for all six nodes; symmetry broken by tasks or by time."""


@dataclass(frozen=True)
class PlacementTimes:
    """Seconds that placement took, of Moirai's table IV or V."""

    tasks: int
    seconds: Mapping[str, float]


_MOIRAI_SOLVERS = ("m-sct", "getf", "moirai")
_MINUTE = 60.0
# Original tasks, seconds of m-SCT, minutes of GETF and Moirai; the same coarse.
_TIMES = {
    "swin-1.8b": ((6496, 17.63, 2, 2.15), (5204, 15.24, 1.58, 1.64)),
    "swin-6.6b": ((14352, 64.32, 12.4, 13.28), (11512, 58.57, 9.72, 10.51)),
    "swin-13b": ((22120, 148.25, 19.75, 22.54), (17947, 142.9, 14.95, 15.46)),
    "gpt3-330m": ((4872, 15.92, 1.25, 1.38), (3682, 14.4, 58.04 / _MINUTE, 1.04)),
    "gpt3-1.3b": ((9480, 39.82, 8.65, 9.02), (7308, 37.39, 5.29, 6.88)),
    "gpt3-2.7b": ((12640, 54.17, 10.82, 11.48), (9825, 51.52, 7.84, 8.51)),
    "gpt3-13b": ((19640, 125.53, 15.7, 16.5), (15283, 117.48, 10.92, 11.07)),
    "af2-87m": ((5136, 20.18, 1.78, 1.9), (3618, 18.62, 1.24, 1.38)),
    "af2-930m": ((12992, 56.62, 11.05, 12.87), (9252, 53.71, 7.95, 8.75)),
    "af2-2.4b": ((37920, 226.34, 22.5, 23.91), (26824, 215.48, 17.92, 18.02)),
    "af2-3.2b": ((50560, 507.65, 35.75, 38.42), (35096, 485.35, 21.5, 22.18)),
}


def _times(row: tuple[float, ...]) -> PlacementTimes:
    tasks, seconds, getf, moirai = row
    times = (seconds, getf * _MINUTE, moirai * _MINUTE)
    return PlacementTimes(int(tasks), dict(zip(_MOIRAI_SOLVERS, times, strict=True)))


MOIRAI_TIMES: Mapping[str, tuple[PlacementTimes, PlacementTimes]] = {
    model: (_times(original), _times(coarse)) for model, (original, coarse) in _TIMES.items()
}
"""Moirai, tables IV and V: by model, for the original and the coarse graph."""

MOIRAI_BEST_SPEED_UP: Mapping[tuple[str, bool], Mapping[str, float]] = {
    ("inter", False): {"m-sct": 1.77, "getf": 1.33},
    ("intra", False): {"m-sct": 1.70, "getf": 1.35},
    ("inter", True): {"m-sct": 1.90, "getf": 1.25},
    ("intra", True): {"m-sct": 1.74, "getf": 1.34},
}
"""Moirai: the best speed-up over each baseline, by cluster and whether the graph is coarse."""


CELERITAS_STEPS: Mapping[str, Mapping[str, tuple[float | None, float | None]]] = {
    "inception-v3": {
        "metis": (None, None),
        "m-topo": (3.1, None),
        "m-etf": (10.548, None),
        "m-sct": (7.61, 8.591),
        "order-place": (2.931, 5.439),
        "celeritas": (2.859, 7.183),
    },
    "nmt": {
        "metis": (None, None),
        "m-topo": (None, None),
        "m-etf": (None, None),
        "m-sct": (None, None),
        "order-place": (9.117, 54.695),
        "celeritas": (9.099, 59.418),
    },
    "transformer": {
        "metis": (None, None),
        "m-topo": (None, None),
        "m-etf": (8.613, None),
        "m-sct": (8.411, 129.498),
        "order-place": (6.935, 92.639),
        "celeritas": (6.536, 95.304),
    },
    "holography": {
        "metis": (6.591, None),
        "m-topo": (2.22, None),
        "m-etf": (6.376, None),
        "m-sct": (6.013, 2.968),
        "order-place": (1.52, 2.711),
        "celeritas": (1.461, 3.586),
    },
}
"""Celeritas, section 6: by network and solver, seconds of a step (None: out of memory) and seconds
until the plan was made (None: not printed)."""

CELERITAS_FUSION: Mapping[str, Mapping[str, float]] = {
    "inception-v3": {"tasks": 6332, "fused": 59, "ccr": 33.118, "fused ccr": 8.137},
    "nmt": {"tasks": 25463, "fused": 154, "ccr": 18.63, "fused ccr": 6.372},
    "transformer": {"tasks": 36352, "fused": 220, "ccr": 111.957, "fused ccr": 11.1},
    "holography": {"tasks": 3810, "fused": 37, "ccr": 49.147, "fused ccr": 7.438},
}
"""Celeritas, table 2: nodes and CCR before and after fusion."""


@dataclass(frozen=True)
class Reference:
    """What a program published with the data reached on one file."""

    ms: float
    what: str


PUBLISHED: Mapping[str, Reference] = {
    "bert24-latency": Reference(100.219, "published greedy"),
    "resnet50-latency": Reference(4197.06, "published greedy"),
    "bert_l-6-latency": Reference(494.135, "published greedy"),
    "bert24-throughput": Reference(17.7899, "contiguous optimum"),
    "gnmt-throughput": Reference(32.9107, "contiguous optimum"),
    "resnet50-throughput": Reference(33.7747, "contiguous optimum"),
    "bert_l-3-throughput": Reference(27.9186, "contiguous optimum"),
    "example-1": Reference(30.0, "published model, proven optimum"),
    "googlenet": Reference(1.353, "annealing; the published model found no plan"),
}
"""Reference values of the published files, run with the programs that came with them."""
