"""A graph file, the schemas, and any graph: what the tests of graph, cost and plan files share."""

import json
from importlib import resources

from jsonschema import Draft202012Validator

from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.graph import Task, TaskGraphBuilder
from tests.corpus import corpus


def schema(name):
    folder = resources.files("heteroplace") / "schemas"
    return json.loads((folder / f"{name}.schema.json").read_text("utf-8"))


VALIDATORS = {name: Draft202012Validator(schema(name)) for name in ("graph", "costs", "plan")}

CLUSTER = Cluster(
    "pair",
    (Memory("ram", 1000), Memory("gram", 1000)),
    (Device("cpu", "cpu", "llvm", 0, 0), Device("gpu", "cuda", "cuda", 0, 1)),
    (Link("up", 0, 1, 10**9, 100, "pcie"), Link("down", 1, 0, 10**9, 100, "pcie")),
    0,
)


def diamond(**changes):
    """A graph file of three tasks, with top-level keys replaced."""
    value = {
        "schema_version": 1,
        "name": "diamond",
        "tasks": [
            {"name": "a", "op": "conv", "weight_bytes": "1 KiB", "times_ns": {"cpu": 5, "gpu": 2}},
            {"name": "b", "together": "bc", "times_ns": {"cpu": 7, "gpu": None}},
            {"name": "c", "together": "bc", "devices": ["cpu"], "times_ms": {"cpu": 0.001}},
        ],
        "tensors": [
            {"name": "x", "consumers": ["a"], "shape": [2, 3], "dtype": "float32"},
            {"producer": "a", "consumers": ["b", "c"], "bytes": 4096},
            {"producer": "b", "consumers": ["c"], "bytes": "1 KiB"},
            {"producer": "c", "name": "y", "bytes": 8},
        ],
        "outputs": ["y"],
    }
    value.update(changes)
    return value


def diamond_with(list_name, index, **changes):
    value = diamond()
    item = value[list_name][index]
    item.update(changes)
    value[list_name][index] = {key: entry for key, entry in item.items() if entry != "REMOVE"}
    return value


def random_name(random):
    """Of letters, quotes, spaces, control characters and what needs two or four bytes."""
    return "".join(
        random.choices("ab0 .\"'\\/\n\t\x00\x7fé漢\ud7ff\ufffe😀", k=random.randint(1, 5))
    )


@corpus
def graphs(random):
    """Any graph made by the builder: tasks in any order of adding, several outputs per task."""

    def size():
        return random.choice([0, 1, random.randint(0, 99), random.randint(0, 2**40), 2**40])

    builder = TaskGraphBuilder(random_name(random))
    names = list(dict.fromkeys(random_name(random) for _ in range(random.randint(0, 6))))
    tensors = [builder.add_input(f"in{i}", num_bytes=size()) for i in range(random.randint(0, 2))]
    tasks = []
    for name in names:
        reads = random.choices(tensors, k=random.randint(0, 3)) if tensors else []
        words = ["", *(random_name(random) for _ in range(2))]
        task = Task(
            name,
            random.choice(words),
            tuple(random.choices(words, k=random.randint(0, 2))),
            size(),
            size(),
            size(),
            random.choice([None, tuple(words[1 : random.randint(1, 3)])]),
            random.choice([None, words[1]]),
        )
        tasks.append((task, reads))
        for index in range(random.randint(0, 2)):
            shape = tuple(random.randint(0, 9) for _ in range(random.randint(0, 3)))
            label = f"{name}/{index}"
            size_or_none = random.choice([None, size()])
            tensors.append(builder.add_tensor(name, shape, "float32", size_or_none, label))
    for task, reads in random.sample(tasks, len(tasks)):
        builder.add_task(task, reads)
    return builder.finalize(random.choices(tensors, k=random.randint(0, 3)) if tensors else [])
