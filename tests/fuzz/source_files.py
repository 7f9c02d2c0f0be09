"""Cases of damaged Relay modules, as compiled files carry them: a typed error, or a module."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import tvm
from tvm import relay

from heteroplace.errors import ArtifactError
from heteroplace.relay.source import Source, source_from_json, source_to_json
from heteroplace.relay.source_child import check_ends_nothing
from tests.fuzz.child import REFUSED
from tests.fuzz.json_mutations import mutate_json

_WEIGHTS = np.zeros(4096, "uint8")


@cache
def _good() -> Any:
    """A network with attributes of many types."""
    x = relay.var("x", shape=(1, 4, 8, 8), dtype="float32")
    weight = relay.const(np.ones((4, 4, 3, 3), "float32"))
    body = relay.nn.conv2d(x, weight, padding=(1, 1), channels=4, kernel_size=(3, 3))
    body = relay.nn.pad(relay.clip(body, -1.5, 6.0), ((0, 0), (0, 0), (1, 1), (1, 1)))
    parts = relay.split(relay.strided_slice(body, [0, 0, 0, 0], [1, 4, 9, 9]), 2, axis=1)
    both = relay.concatenate([parts[0], relay.cast(relay.cast(parts[1], "int8"), "float32")], 1)
    mean = relay.mean(relay.reshape(both, (1, 4, -1)), axis=[2], keepdims=True)
    mod = tvm.IRModule.from_expr(relay.Function([x], relay.Tuple([both, mean])))
    source = Source(relay.transform.InferType()(mod), 3)
    offsets = iter(range(0, len(_WEIGHTS), 1024))
    return json.loads(source_to_json(source, lambda _: next(offsets)))


def _read(offset: int, num_bytes: int) -> np.ndarray:
    if offset + num_bytes > len(_WEIGHTS):
        raise ValueError("behind the weights")
    return _WEIGHTS[offset : offset + num_bytes]


def _damaged(seed: str, number: int) -> bytes:
    return mutate_json(_good(), Random(f"{seed} source {number}"))


def after_death(seed: str, number: int) -> str:
    """Say what becomes of a case that ends the process: the product lets another one read first."""
    try:
        check_ends_nothing(_damaged(seed, number), "case")
    except ArtifactError:
        return REFUSED
    raise AssertionError(f"case {number} ended a process once, and then none")


def run_case(seed: str, number: int, folder: Path) -> str:
    """Read one damaged module; returns "right", or raises the error that refuses it."""
    del folder
    found = source_from_json(_damaged(seed, number), _read)
    assert isinstance(found.mod["main"].checked_type, relay.FuncType)
    return "right"
