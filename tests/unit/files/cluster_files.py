"""A cluster file and the schema of cluster files: what their tests share."""

import json
from importlib import resources

from jsonschema import Draft202012Validator

VALIDATOR = Draft202012Validator(
    json.loads((resources.files("heteroplace") / "schemas/cluster.schema.json").read_text("utf-8"))
)


def small(**changes):
    """A small valid cluster file, with top-level keys replaced."""
    value = {
        "schema_version": 1,
        "name": "box",
        "host": "ram",
        "memories": [{"name": "ram", "size": "8 GiB"}],
        "devices": [
            {"name": "cpu", "target": "llvm", "device": "cpu:0", "memory": "ram", "cores": [0, 1]},
            {
                "name": "gpu0",
                "target": {"kind": "cuda", "arch": "sm_75"},
                "device": "cuda:1",
                "memory": "16 GiB",
            },
        ],
        "links": [
            {
                "src": "cpu",
                "dst": "gpu0",
                "bandwidth": "5.5 GB/s",
                "latency": "5 us",
                "bidirectional": True,
            }
        ],
    }
    value.update(changes)
    return {key: item for key, item in value.items() if item is not None}


def small_with(list_name, index, **changes):
    """`small()` with keys of one memory, device or link replaced (None: removed)."""
    value = small()
    item = value[list_name][index]
    item.update(changes)
    value[list_name][index] = {key: entry for key, entry in item.items() if entry is not None}
    return value
