"""Cases of damaged compiled files: any byte, or texts and tables whose digests are right again.

Each is refused with a typed error, or what is loaded of it is run, in this process.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
import tvm
from tvm import relay

from heteroplace.errors import HeteroPlaceError
from heteroplace.hetero_place import build
from heteroplace.loading import load
from heteroplace.lower.executable import Executable
from heteroplace.machine.local import local_cluster
from heteroplace.model.cluster import Cluster
from tests.compiled_files import PARTS, ROW, TAIL, Parts, read_parts, read_rows, table_and_tail
from tests.fuzz.json_mutations import mutate_bytes, mutate_json

_NUMBERS = (0, 1, 2, 3, 7, 8, 24, 63, 64, 4095, 4096, 2**16, 2**31 - 1, 2**31, 2**32 - 1)
_LARGE = (2**32, 2**60, 2**62, 2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1)
_NEAR = (-4096, -24, -16, -8, -1, 1, 4, 8, 16, 24, 64, 4096)
_INPUT = np.linspace(-1, 1, 64, dtype="float32").reshape(1, 64)


def network() -> Executable:
    """A small network with calls into the C library, parallel loops and a weight."""
    x = relay.var("x", shape=(1, 64), dtype="float32")
    weight = relay.const(np.random.default_rng(0).random((64, 64), dtype="float32"))
    body = relay.nn.softmax(relay.tanh(relay.nn.dense(x, weight)))
    mod = tvm.IRModule.from_expr(relay.Function([x], relay.exp(body)))
    with tvm.transform.PassContext(opt_level=3):
        options = {"solver": "heft", "costs": "estimate", "verify": "off", "store": "off"}
        return build(relay.transform.HeteroPlace(_cluster(), **options)(mod))


def _cluster() -> Cluster:
    """This machine's cores, with figures to estimate by."""
    found = local_cluster()
    figures = {"flops_per_second": 10**10, "memory_bytes_per_second": 10**10}
    cpus = [device for device in found.devices if device.kind == "cpu"]
    devices = tuple(replace(device, **figures) for device in cpus)
    return replace(found, devices=devices, memories=found.memories[:1], links=())


@cache
def _good() -> Parts:
    try:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "model.so"
            network().export_library(path)
            return read_parts(path)
    except HeteroPlaceError as fault:  # which would count as a case that is refused
        raise AssertionError("the network cannot be built") from fault


def run_case(seed: str, number: int, folder: Path) -> str:
    """Load one damaged file and run it; returns "right", or raises the error that refuses it."""
    random = Random(f"{seed} compiled {number}")
    path = folder / "model.so"
    path.write_bytes(KINDS[number % len(KINDS)](_good(), random))
    executor = load(path)
    inputs = {name: _INPUT for name, _, _ in executor.inputs}
    (output,) = executor.run(**inputs)
    assert output.shape == executor.outputs[0][1]
    return "right"


def _number(old: int, size: int, random: Random) -> int:
    kind = random.randrange(5)
    if kind == 0:
        return old + random.choice(_NEAR)
    if kind == 1:
        return old ^ (1 << random.randrange(64))
    if kind == 2:
        return random.randrange(size)
    return random.choice(_NUMBERS if kind == 3 else _LARGE)


def _table(parts: Parts, random: Random) -> bytes:
    """A number of the file's own table, or of its tail."""
    data = parts.to_bytes()
    body = data[: -TAIL.size - len(PARTS) * ROW.size]
    rows = [list(row) for row in read_rows(data)]
    row = random.choice(rows)
    column = random.randrange(3)
    row[column] = _number(int(row[column]), len(data), random) % 2**64
    if random.random() < 0.3:
        other = random.choice(rows)
        other[random.randrange(4)] = random.choice(rows)[random.randrange(3)]
    packed = [
        ROW.pack(*row[:3], row[3] if isinstance(row[3], bytes) else bytes(32)) for row in rows
    ]
    tail = bytearray(table_and_tail(packed, len(body)))
    if random.random() < 0.3:
        at = len(tail) - TAIL.size + random.choice((12, 16, 24))
        struct.pack_into("<I", tail, at, _number(4, len(data), random) % 2**32)
    return body + bytes(tail)


def _program(parts: Parts, random: Random) -> bytes:
    """Numbers, words and lines of the program."""
    lines = parts.program.decode().splitlines()
    for _ in range(random.choice((1, 1, 2, 3))):
        at = random.randrange(len(lines))
        words = lines[at].split(" ")
        word = random.randrange(len(words))
        kind = random.randrange(6)
        if kind == 0:
            del lines[at]
        elif kind == 1:
            lines.insert(random.randrange(len(lines)), lines[at])
        elif kind == 2:
            other = random.choice(lines).split(" ")
            words[word] = random.choice(other)
        elif kind == 3:
            words[word] = str(random.choice((*_NUMBERS, *_LARGE, -1, -64)))
        elif kind == 4:
            words[word] = ",".join(str(random.randrange(12)) for _ in range(random.randrange(1, 5)))
        else:
            number = random.randrange(4)
            words[word] = random.choice(
                ("-", "", "0:1", f"{number}:{number}", '"', "é", "external")
            )
        if kind >= 2:
            lines[at] = " ".join(words)
        lines = lines or [""]
    program = "\n".join([*lines, ""]).encode()
    return replace(parts, program=program).sealed().to_bytes()


def _needs(parts: Parts, random: Random) -> bytes:
    return replace(parts.sealed(), needs=mutate_bytes(parts.needs, random)).to_bytes()


def _manifest(parts: Parts, random: Random) -> bytes:
    manifest = mutate_json(json.loads(parts.manifest), random)
    return replace(parts, manifest=manifest).to_bytes()


def _bytes(parts: Parts, random: Random) -> bytes:
    return mutate_bytes(parts.to_bytes(), random)


KINDS: tuple[Callable[[Parts, Random], bytes], ...] = (
    *(_table, _program, _program, _program, _needs, _manifest, _bytes),
)
"""What is damaged, as often as it stands here."""
