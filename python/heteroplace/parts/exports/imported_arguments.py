"""A command line of llama.cpp -> the devices of layers.

The rules are those of `llama_model::load_tensors` and of the argument parser of llama.cpp. The
first override whose pattern is in the name of a tensor counts. Other tensors are on the device of
their block: `-ngl` counts the output and then blocks from the last one, and `-ts` shares them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from heteroplace.errors import PlanError
from heteroplace.model.cluster import Cluster
from heteroplace.model.solution import Solution
from heteroplace.parts.exports.gguf_tensors import INPUTS, GGUFTensor, gguf_tensor
from heteroplace.parts.exports.import_format import (
    ImportedPlacement,
    ImportFormat,
    named_devices,
)
from heteroplace.parts.exports.llama_arguments import BUFFERS
from heteroplace.parts.exports.llama_options import LlamaOptions, read_options
from heteroplace.parts.exports.module_names import modules_of_graph
from heteroplace.parts.exports.placed_layers import gpu_indices

_CPU_BUFFER = re.compile(r"CPU\w*|\w+_Host")
"""Memory of the CPU; some of it is pinned for a GPU, or has the weights in another layout."""


def read_arguments(path: Path, solution: Solution, model: Path | None) -> ImportedPlacement:
    """Return the devices of the layers of a decoder.

    A layer without weights may run where the tensors of the innermost module around it are.

    Parameters
    ----------
    model
        An ONNX model whose nodes name their modules in metadata; None: names of nodes say them.

    Raises
    ------
    FrontendError
        The model cannot be read.
    PlanError
        The file has no such arguments, the network is no decoder, or the cluster lacks a device.
    """
    options = read_options(path)
    modules = modules_of_graph(solution.graph, model)
    tensors = {module: gguf_tensor(module) for module in dict.fromkeys(modules.values())}
    blocks = [each.block for each in tensors.values() if each and each.block is not None]
    if not blocks:
        raise PlanError(
            f"{path}: {solution.graph.name!r} is no decoder whose blocks can be told by their "
            f"names; expected layers such as model.layers.0.self_attn.q_proj. If the nodes of the "
            f"model name their modules in metadata, give --model"
        )
    homes = _homes(path, options, solution.cluster, max(blocks) + 1)
    devices = {
        module: _devices(path, options, solution.cluster, homes, tensor)
        for module, tensor in tensors.items()
        if tensor is not None
    }
    placed = {layer: _around(module, devices) for layer, module in modules.items()}
    return ImportedPlacement(
        {layer: names for layer, names in placed.items() if names},
        tuple(_warnings(options, solution.cluster, max(blocks) + 1)),
    )


def _homes(
    path: Path, options: LlamaOptions, cluster: Cluster, num_blocks: int
) -> list[tuple[str, ...]]:
    """The devices of each block, and at the end of the output."""
    cpu = named_devices(cluster, None)
    gpus = gpu_indices(cluster)
    num_layers = min(options.gpu_layers or 0, num_blocks + 1)
    homes = [cpu] * (num_blocks + 1)
    if not num_layers:
        return homes
    if not gpus:
        raise PlanError(
            f"{path}: -ngl {options.gpu_layers} puts layers on GPUs, and the cluster "
            f"{cluster.name!r} has none; expected -ngl 0"
        )
    if options.is_one_gpu:
        main = _gpu(path, cluster, f"-mg puts layers on GPU {options.main_gpu}", options.main_gpu)
        return homes[:-num_layers] + [main] * num_layers
    shares = list(options.shares) if any(options.shares) else _shares_of_memory(cluster, gpus)
    # As llama.cpp does it, in single precision: ties are at the first layer of the next GPU.
    ends = np.cumsum(np.asarray(shares, np.float32), dtype=np.float32)
    ends /= ends[-1]
    first = num_blocks + 1 - num_layers
    for layer in range(num_layers):
        position = np.float32(layer) / np.float32(num_layers)
        gpu = int(np.searchsorted(ends, position, side="right"))
        homes[first + layer] = _gpu(path, cluster, f"-ts puts layers on GPU {gpu}", gpu)
    return homes


def _shares_of_memory(cluster: Cluster, gpus: Sequence[int]) -> list[float]:
    """The memory of each GPU from number 0 on."""
    shares = [0.0] * (gpus[-1] + 1)
    for device in cluster.devices:
        if device.kind != "cpu":
            shares[device.index] = float(cluster.memories[device.memory].bytes)
    return shares


def _gpu(path: Path, cluster: Cluster, claim: str, index: int) -> tuple[str, ...]:
    if index in gpu_indices(cluster):
        return named_devices(cluster, index)
    raise PlanError(
        f"{path}: {claim}; expected one of the GPUs "
        f"{', '.join(map(str, gpu_indices(cluster))) or '(none)'} of cluster {cluster.name!r}"
    )


def _devices(
    path: Path,
    options: LlamaOptions,
    cluster: Cluster,
    homes: Sequence[tuple[str, ...]],
    tensor: GGUFTensor,
) -> tuple[str, ...]:
    """The devices of a tensor."""
    name = f"{tensor}.weight"
    buffer = next((buffer for pattern, buffer in options.overrides if pattern.search(name)), None)
    if buffer is not None:
        return _devices_of_buffer(path, cluster, name, buffer)
    if tensor.block is not None:
        return homes[tensor.block]
    return named_devices(cluster, None) if tensor.name in INPUTS else homes[-1]


def _devices_of_buffer(path: Path, cluster: Cluster, name: str, buffer: str) -> tuple[str, ...]:
    if _CPU_BUFFER.fullmatch(buffer):
        return named_devices(cluster, None)
    buffers = {
        each.name: f"{BUFFERS[each.kind]}{each.index}"
        for each in cluster.devices
        if each.kind in BUFFERS
    }
    names = tuple(device for device, own in buffers.items() if own == buffer)
    if not names:
        raise PlanError(
            f"{path}: -ot puts {name} on {buffer!r}; expected "
            f"{', '.join(dict.fromkeys(['CPU', *buffers.values()]))}, the devices of cluster "
            f"{cluster.name!r}"
        )
    return names


def _around(module: str, devices: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The devices of a module, or else of all tensors in the innermost module around it."""
    if module in devices:
        return devices[module]
    steps = module.split(".") if module else []
    for length in range(len(steps), -1, -1):
        prefix = "".join(f"{step}." for step in steps[:length])
        own = [names for each, names in devices.items() if each.startswith(prefix)]
        if own:
            return tuple(dict.fromkeys(name for names in own for name in names))
    return ()


def _warnings(options: LlamaOptions, cluster: Cluster, num_blocks: int) -> list[str]:
    warnings = []
    gpu_layers = options.gpu_layers or 0
    if 0 < gpu_layers <= num_blocks:
        warnings.append(
            f"-ngl {gpu_layers} is read as the output and {gpu_layers - 1} of {num_blocks} blocks; "
            f"older versions of llama.cpp leave the output on the CPU and take {gpu_layers} blocks"
        )
    is_shared = gpu_layers > 0 and not options.is_one_gpu and len(gpu_indices(cluster)) > 1
    if is_shared and not any(options.shares):
        warnings.append(
            "without -ts llama.cpp shares layers by the free memory of the GPUs; here all of their "
            "memory counts"
        )
    return warnings


LLAMA_ARGUMENTS = ImportFormat(read_arguments)
