"""A solution of a decoder -> the arguments of llama.cpp that put its tensors on the same devices.

All blocks start on the GPUs (`-ngl`, shared by `-ts`), and `-ot` moves tensors elsewhere. `-ngl`
with fewer blocks is not used: whether it counts the output differs between versions of llama.cpp.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from heteroplace.errors import PlanError
from heteroplace.model.demands import layers_of
from heteroplace.model.solution import Solution
from heteroplace.parts.exports.export_format import ExportedPlacement, ExportFormat
from heteroplace.parts.exports.gguf_tensors import EXPERTS, INPUTS, GGUFTensor, gguf_tensor
from heteroplace.parts.exports.module_names import modules_of_graph
from heteroplace.parts.exports.placed_layers import (
    SMALL_RATIO,
    gpu_indices,
    placed_layers,
    shown_names,
)

_CPU = "CPU"
BUFFERS = {"cuda": "CUDA", "rocm": "ROCm", "vulkan": "Vulkan"}
"""How llama.cpp calls the memory of a GPU of each kind, before its number."""
_ALL_BLOCKS, _DIGITS = "999", "0123456789"


@dataclass(frozen=True)
class _Decoder:
    """The weights of a decoder: for each tensor the buffer of its device."""

    blocks: tuple[Mapping[str, str], ...]
    """By block: tensor -> buffer, such as "attn_q" -> "CUDA0"."""
    outside: Mapping[str, str]
    """The same for tensors outside of the blocks."""
    block_bytes: tuple[Counter[str], ...]
    """By block: bytes of weights in each buffer."""
    split: tuple[str, ...]
    """Tensors whose weights the plan has on several devices."""
    unknown: tuple[str, ...]
    """Modules with a notable part of the weights whose tensor is not known."""


def write_llama(solution: Solution, model: Path | None = None) -> ExportedPlacement:
    """Return the arguments in one line, quoted for a shell.

    Parameters
    ----------
    model
        An ONNX model whose nodes name their modules in metadata; None: names of nodes say them.

    Raises
    ------
    PlanError
        No layer has the name of a decoder's block, or a device is of a kind that llama.cpp lacks.
    """
    decoder = _read_decoder(solution, model)
    num_gpus = len(gpu_indices(solution.cluster))
    arguments = list(_arguments(decoder, num_gpus))
    return ExportedPlacement(shlex.join(arguments) + "\n", tuple(_warnings(decoder)))


def _read_decoder(solution: Solution, model: Path | None) -> _Decoder:
    sizes: dict[GGUFTensor, Counter[str]] = {}
    unknown: Counter[str] = Counter()
    layers = placed_layers(solution)
    modules = modules_of_graph(solution.graph, model)
    explained = _layers_of_known_tensors(solution, modules)
    for layer, placed in layers.items():
        module = modules[layer]
        buffer = _buffer_of(solution, placed.devices[0])
        tensor = gguf_tensor(module)
        if tensor is None:
            unknown[module] += 0 if layer in explained else placed.weight_bytes
        else:
            own = sizes.setdefault(tensor, Counter())
            own[buffer] += placed.weight_bytes
            own.update(_buffer_of(solution, device) for device in placed.devices)
    numbers = sorted({tensor.block for tensor in sizes if tensor.block is not None})
    if not numbers or numbers != list(range(len(numbers))):
        raise PlanError(
            f"{solution.graph.name!r} is no decoder whose blocks can be told by their names; "
            f"expected layers such as model.layers.0.self_attn.q_proj for every block, got blocks "
            f"{numbers or 'none'}. Export the model with the names of its modules, or give "
            f"--model if its nodes name them in metadata"
        )
    least_bytes = SMALL_RATIO * (unknown.total() + sum(own.total() for own in sizes.values()))
    buffers = {tensor: own.most_common(1)[0][0] for tensor, own in sizes.items()}
    blocks: list[dict[str, str]] = [{} for _ in numbers]
    block_bytes: list[Counter[str]] = [Counter() for _ in numbers]
    for tensor, own in sizes.items():
        if tensor.block is not None:
            blocks[tensor.block][tensor.name] = buffers[tensor]
            block_bytes[tensor.block].update(own)
    return _Decoder(
        tuple(blocks),
        {tensor.name: buffer for tensor, buffer in buffers.items() if tensor.block is None},
        tuple(block_bytes),
        tuple(str(tensor) for tensor, own in sizes.items() if len(own) > 1),
        tuple(name for name, size in unknown.items() if size > least_bytes),
    )


def _layers_of_known_tensors(solution: Solution, modules: Mapping[str, str]) -> set[str]:
    """The layers whose tasks have a known tensor, which may hold all weights of the task."""
    layers = [layers_of(task) for task in solution.graph.tasks]
    return {
        layer for own in layers if any(gguf_tensor(modules[each]) for each in own) for layer in own
    }


def _buffer_of(solution: Solution, index: int) -> str:
    device = solution.cluster.devices[index]
    if device.kind == "cpu":
        return _CPU
    if device.kind not in BUFFERS:
        raise PlanError(
            f"device {device.name!r} is of the kind {device.kind!r}, which llama.cpp has no buffer "
            f"of; expected cpu, {', '.join(BUFFERS)}"
        )
    return f"{BUFFERS[device.kind]}{device.index}"


def _arguments(decoder: _Decoder, num_gpus: int) -> Iterator[str]:
    buffers = [buffer for block in decoder.blocks for buffer in block.values()]
    used = {buffer for buffer in (*buffers, *decoder.outside.values()) if buffer != _CPU}
    if not used:
        yield from ("-ngl", "0")
        return
    gpus = sorted(used, key=_number)
    kinds = sorted({gpu.rstrip(_DIGITS) for gpu in gpus})
    if len(kinds) > 1:
        raise PlanError(
            f"the plan uses GPUs of the kinds {' and '.join(kinds)}, and this format is for one; "
            f"place the model with --exclude for the devices of all others"
        )
    yield from ("-ngl", _ALL_BLOCKS)
    homes = _homes(decoder, gpus)
    shares = _shares(homes, gpus)
    if len(shares) > 1:
        yield from ("-ts", ",".join(map(str, shares)))
    else:
        if num_gpus > 1:  # without it llama.cpp would share the blocks among all GPUs
            yield from ("-ts", "1")
        if _cpu_expert_blocks(decoder) is not None:
            yield from ("--n-cpu-moe", str(_cpu_expert_blocks(decoder)))
            return
    if homes != sorted(homes, key=_number):  # `-ts` cannot say it
        homes = [""] * len(homes)
    yield from _overrides(decoder, homes, gpus[-1])


def _homes(decoder: _Decoder, gpus: Sequence[str]) -> list[str]:
    """The GPU of each block: that of most of its weights; a block on the CPU is with the one
    before it."""
    homes: list[str] = []
    for sizes in decoder.block_bytes:
        own = [(size, buffer) for buffer, size in sizes.items() if buffer != _CPU]
        homes.append(max(own)[1] if own else homes[-1] if homes else gpus[0])
    return homes


def _shares(homes: Sequence[str], gpus: Sequence[str]) -> list[int]:
    """How many blocks each GPU has, from number 0 on; the output counts as one of the last GPU."""
    counts = Counter({**Counter(homes), gpus[-1]: homes.count(gpus[-1]) + 1})
    kind = gpus[0].rstrip(_DIGITS)
    return [counts[f"{kind}{number}"] for number in range(_number(gpus[-1]) + 1)]


def _number(gpu: str) -> int:
    return int(gpu.removeprefix(gpu.rstrip(_DIGITS)))


def _cpu_expert_blocks(decoder: _Decoder) -> int | None:
    """How many blocks have their experts on the CPU, if these are the first ones and all else is on
    one GPU; None: it is otherwise."""
    on_cpu = [
        [name for name, buffer in block.items() if buffer == _CPU] for block in decoder.blocks
    ]
    count = sum(map(bool, on_cpu))
    first = decoder.blocks[:count]
    is_shape = all(
        names and set(names) == set(EXPERTS) & set(block)
        for names, block in zip(on_cpu[:count], first, strict=True)
    )
    is_output_on_cpu = any(
        buffer == _CPU for name, buffer in decoder.outside.items() if name not in INPUTS
    )
    return count if count and is_shape and not is_output_on_cpu else None


def _overrides(decoder: _Decoder, homes: Sequence[str], last_gpu: str) -> Iterator[str]:
    """`-ot` for each set of tensors that is elsewhere than its block, or than the output."""
    groups: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for number, (block, home) in enumerate(zip(decoder.blocks, homes, strict=True)):
        for buffer in dict.fromkeys(block.values()):
            names = tuple(sorted(name for name, of in block.items() if of == buffer))
            if buffer != home:
                whole = () if len(names) == len(block) else names
                groups.setdefault((buffer, whole), []).append(number)
    for (buffer, names), numbers in groups.items():
        tensors = rf"({'|'.join(names)})\." if names else ""
        yield from ("-ot", rf"blk\.({'|'.join(map(str, numbers))})\.{tensors}={buffer}")
    of_output: dict[str, list[str]] = {}
    for name, buffer in decoder.outside.items():
        if name not in INPUTS and buffer != last_gpu:
            of_output.setdefault(buffer, []).append(name)
    for buffer, names_of_output in of_output.items():
        yield from ("-ot", rf"^({'|'.join(sorted(names_of_output))})\.={buffer}")


def _warnings(decoder: _Decoder) -> Iterator[str]:
    inputs = [name for name in INPUTS if decoder.outside.get(name, _CPU) != _CPU]
    if inputs:
        yield f"llama.cpp keeps the tables of its inputs ({', '.join(inputs)}) on the CPU"
    if decoder.split:
        yield (
            f"the weights of {shown_names(list(decoder.split))} are on several devices, and each "
            f"is one tensor in GGUF; it goes to the device of most of its weights"
        )
    if decoder.unknown:
        yield (
            f"{shown_names(list(decoder.unknown))} hold weights whose tensor in GGUF is not known; "
            f"they follow their block"
        )


LLAMA = ExportFormat(write_llama)
