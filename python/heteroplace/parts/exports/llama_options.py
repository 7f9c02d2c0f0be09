"""The command line of a program of llama.cpp -> the options that place tensors."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from heteroplace.errors import PlanError
from heteroplace.parts.exports.import_format import read_text

_NAMES = {
    "-ngl": "-ngl",
    "--gpu-layers": "-ngl",
    "--n-gpu-layers": "-ngl",
    "-ts": "-ts",
    "--tensor-split": "-ts",
    "-ot": "-ot",
    "--override-tensor": "-ot",
    "-ncmoe": "-ncmoe",
    "--n-cpu-moe": "-ncmoe",
    "-cmoe": "-cmoe",
    "--cpu-moe": "-cmoe",
    "-sm": "-sm",
    "--split-mode": "-sm",
    "-mg": "-mg",
    "--main-gpu": "-mg",
}
"""Options that are read, by all their names. Others do not place tensors, or are in _REFUSED."""
_REFUSED = {
    "-dev": "which GPUs are used",
    "--device": "which GPUs are used",
    "--rpc": "servers that hold tensors",
    "-nkvo": "caches that stay on the CPU",
    "--no-kv-offload": "caches that stay on the CPU",
}
"""Options that change the placement and are not read, and what they say."""
_CPU, _ALL_LAYERS, _MAX_SHARE = "CPU", 1 << 30, 1e15
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"


@dataclass
class LlamaOptions:
    """What a command line says of tensors."""

    gpu_layers: int | None = None
    """Layers on GPUs: the output, and then blocks from the last one (`-ngl`). None: not given."""
    shares: tuple[float, ...] = ()
    """The share of each GPU (`-ts`). Empty: by the memory of the GPUs."""
    overrides: list[tuple[re.Pattern[str], str]] = field(default_factory=list)
    """Patterns of names of tensors, and the buffers that they go to; the first one counts."""
    is_one_gpu: bool = False
    """All is on one GPU (`-sm none`)."""
    main_gpu: int = 0
    """This GPU (`-mg`)."""


def read_options(path: Path) -> LlamaOptions:
    r"""Return the options in a file that holds a command line, or its arguments.

    A line that ends in a backslash goes on in the next one. Lines that begin with # are comments.

    Raises
    ------
    PlanError
        The file cannot be read, an option has a wrong value, or `-ngl` is missing.
    """
    lines = [line for line in read_text(path).splitlines() if not line.lstrip().startswith("#")]
    try:
        words = shlex.split("\n".join(lines).replace("\\\n", " "))
    except ValueError as err:
        raise PlanError(f"{path}: is no command line: {err}; close the quotation") from err
    options = LlamaOptions()
    rest = iter(words)
    for word in rest:
        name = word.replace("_", "-") if word.startswith("--") else word
        if name in _REFUSED:
            raise PlanError(
                f"{path}: {word} says {_REFUSED[name]}, which is not read; write the command line "
                f"without it, by -ngl, -ts and -ot"
            )
        if name not in _NAMES:
            continue
        if _NAMES[name] == "-cmoe":
            options.overrides.append((re.compile(_EXPERTS), _CPU))
            continue
        value = next(rest, None)
        if value is None:
            raise PlanError(f"{path}: {word} is the last word; give its value after it")
        _READERS[_NAMES[name]](options, value, f"{path}: {word}")
    if options.gpu_layers is None:
        raise PlanError(
            f"{path}: -ngl is missing, and its default differs between versions of llama.cpp; add "
            f"-ngl N, or -ngl 0 for the CPU alone"
        )
    return options


def _read_gpu_layers(options: LlamaOptions, value: str, where: str) -> None:
    if value == "all":
        options.gpu_layers = _ALL_LAYERS
    else:
        options.gpu_layers = _number(value, where, "a number of layers, or all")


def _read_shares(options: LlamaOptions, value: str, where: str) -> None:
    try:
        options.shares = tuple(float(share) for share in re.split("[,/]+", value))
    except ValueError:
        _refuse(where, value, "shares such as 3,1")
    if not all(0 <= share < _MAX_SHARE for share in options.shares):
        _refuse(where, value, f"shares from 0 to {_MAX_SHARE:.0e}, such as 3,1")


def _read_overrides(options: LlamaOptions, value: str, where: str) -> None:
    for override in value.split(","):
        pattern, equals, buffer = override.partition("=")
        if not (pattern and equals and buffer):
            _refuse(where, override, r"PATTERN=BUFFER, such as 'blk\.1\.=CPU'")
        try:
            options.overrides.append((re.compile(pattern), buffer))
        except re.error as err:
            _refuse(where, override, f"a regular expression ({err})")


def _read_expert_blocks(options: LlamaOptions, value: str, where: str) -> None:
    for block in range(_number(value, where, "a number of blocks", max_digits=4)):
        options.overrides.append((re.compile(rf"blk\.{block}{_EXPERTS}"), _CPU))


def _read_split_mode(options: LlamaOptions, value: str, where: str) -> None:
    if value not in ("none", "layer"):
        _refuse(where, value, "none or layer: plans have whole layers on a device")
    options.is_one_gpu = value == "none"


def _read_main_gpu(options: LlamaOptions, value: str, where: str) -> None:
    options.main_gpu = _number(value, where, "the number of a GPU")


_READERS: dict[str, Callable[[LlamaOptions, str, str], None]] = {
    "-ngl": _read_gpu_layers,
    "-ts": _read_shares,
    "-ot": _read_overrides,
    "-ncmoe": _read_expert_blocks,
    "-sm": _read_split_mode,
    "-mg": _read_main_gpu,
}


def _number(value: str, where: str, expected: str, max_digits: int = 9) -> int:
    if not re.fullmatch(f"[0-9]{{1,{max_digits}}}", value):
        _refuse(where, value, expected)
    return int(value)


def _refuse(where: str, value: str, expected: str) -> NoReturn:
    raise PlanError(f"{where}: expected {expected}, got {value!r}")
