"""Small task graphs in the formats of the published ones, which are not on every machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from zoo.graphs.catalogue import PUBLISHED_FILES

# a -> b, a -> c: both copies of one tensor of 2 ms; c is for CPUs; b and d are together.
DNN: dict[str, Any] = {
    "maxSizePerFPGA": 1e6,
    "maxFPGAs": 2,
    "maxCPUs": 1,
    "nodes": [
        {"id": i, "name": name, "cpuLatency": 10.0, "fpgaLatency": 1.0, "size": 1000.0 * (i + 1),
         "colorClass": color, "supportedOnFpga": name != "c", "isBackwardNode": False}
        for i, (name, color) in enumerate(zip("abcd", (0, 1, 2, 1), strict=True))
    ],
    "edges": [
        {"sourceId": 0, "destId": 1, "cost": 2.0, "size": 0},
        {"sourceId": 0, "destId": 2, "cost": 2.0, "size": 0},
        {"sourceId": 1, "destId": 3, "cost": 0.5, "size": 0},
    ],
}  # fmt: skip

# Transfers are 1, 2 and 3 times one matrix.
MATRIX = [[0.0, 0.5], [1.0, 0.0]]
MOIRAI: dict[str, Any] = {
    "name": "chain",
    "source": "made here",
    "devices": 2,
    "device_memory": [10.0, 6.0],
    "tasks": [{"id": i, "time_ms": [1.0, 2.5], "memory": 4.0} for i in range(4)],
    "edges": [
        {"src": src, "dst": dst, "transfer_ms": [[t * factor for t in row] for row in MATRIX]}
        for src, dst, factor in ((0, 1, 1), (0, 2, 2), (1, 3, 3))
    ],
}


def write(folder: Path, value: object) -> Path:
    path = folder / "graph.json"
    path.write_text(json.dumps(value))
    return path


def write_stand_ins(folder: Path) -> Path:
    """Write a small graph under the name of each published file; return the folder."""
    for name in PUBLISHED_FILES:
        path = folder / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        value = MOIRAI | {"device_memory": [10.0, 10.0]} if name.startswith("moirai/") else DNN
        path.write_text(json.dumps(value))
    return folder
