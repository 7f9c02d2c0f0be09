"""Device of a cluster -> TVM target and DLPack device numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import tvm
from tvm.target.codegen import target_has_features
from tvm.target.x86 import get_simd_32bit_lanes

from heteroplace.errors import LoweringError, SolverError
from heteroplace.model.cluster import Cluster, Device
from heteroplace.model.graph import TaskGraph
from heteroplace.model.implementations import BFLOAT16, LIBRARY_MAKERS, MAKERS
from heteroplace.native.compiled_file import DL_DEVICE_TYPES

STOCK_KERNELS = "tvm_kernels"
"""Key of a target whose kernels are TVM's own, e.g. "llvm -keys=tvm_kernels,cpu"."""

MAKER_KEYS = {maker: f"{maker}_kernels" for maker in MAKERS}
"""Keys by the names of the other makers of kernels (`model/implementations.py`)."""

BFLOAT16_KERNELS = MAKER_KEYS[BFLOAT16]
"""Key of a target whose products are in bfloat16, with float32 sums."""

INT8_ACTIVATIONS = "int8_activations"
"""Key of a target that rounds what products with weights of 4 or 8 bits read to 8 bits."""

AMX = "amx"
"""Key of a target whose processor multiplies tiles of bfloat16 and of bytes (AMX-BF16, AMX-INT8).
LLVM 10 knows no such features."""

AMX_LOOPS = "pragma_heteroplace_amx"
"""Attribute around loops of a kernel that machine code of AMX replaces."""

USES_AMX = "heteroplace_uses_amx"
"""Symbol of a library with such code; the executor then asks the system for tiles."""

_VARIANT_KEYS = {
    key: maker for maker, key in MAKER_KEYS.items() if key not in (STOCK_KERNELS, BFLOAT16_KERNELS)
}
_LIBRARY_KEYS = {MAKER_KEYS[maker] for maker in LIBRARY_MAKERS}
"""Keys of targets of GPUs; those of the other makers are for CPUs."""

_PRODUCT_LIBRARIES = frozenset(("cblas", "mkl", "dnnl", "cublas"))

OWN_KERNELS = "heteroplace_kernels"
"""Key under which a target knows our schedules beside TVM's; only while kernels are made."""


def device_target(device: Device, host: tvm.target.Target | None = None) -> tvm.target.Target:
    """Return the TVM target of a device.

    Raises
    ------
    LoweringError
        TVM does not accept the target text, the device's kind cannot be compiled for, or a CPU
        device does not say which cores it has.
    """
    if device.kind not in DL_DEVICE_TYPES:
        kinds = ", ".join(sorted(DL_DEVICE_TYPES))
        raise LoweringError(
            f"device {device.name!r} is of kind {device.kind!r}; it can be planned for, but code "
            f"is generated only for: {kinds}"
        )
    if device.kind == "cpu" and not device.cores:
        raise LoweringError(
            f"device {device.name!r} is a CPU, but names no cores to run on; list them in 'cores'"
        )
    try:
        return tvm.target.Target(device.target, host)
    except (ValueError, RuntimeError) as err:
        reason = str(err).strip().splitlines()[-1]
        raise LoweringError(
            f"device {device.name!r}: TVM does not accept its target {device.target!r}: {reason}"
        ) from err


def with_stock_kernels(cluster: Cluster) -> Cluster:
    """Return a cluster on which the kernels are TVM's own; see `with_kernels_of`."""
    return with_kernels_of(cluster, STOCK_KERNELS)


def with_kernels_of(cluster: Cluster, maker: str) -> Cluster:
    """Return a cluster in which the targets of a maker's kind of devices have its key first.

    Raises as `device_target`; other devices stay as they are, and so do CPUs that lack the
    instructions of the maker's kernels.

    Parameters
    ----------
    maker
        Of the values of MAKER_KEYS, or INT8_ACTIVATIONS.
    """
    devices = []
    for device in cluster.devices:
        if device.kind == ("cuda" if maker in _LIBRARY_KEYS else "cpu"):
            if not _has_instructions(device_target(device), maker):
                devices.append(device)
                continue
            exported = dict(device_target(device).export())
            exported["keys"] = [maker, *(key for key in exported["keys"] if key != maker)]
            device = replace(device, target=str(tvm.target.Target(exported)))
        devices.append(device)
    return replace(cluster, devices=tuple(devices))


def _has_instructions(target: tvm.target.Target, maker: str) -> bool:
    """Tell whether a target has what the kernels of a maker need."""
    if maker == BFLOAT16_KERNELS:
        return multiplies_bfloat16(target)
    return maker != INT8_ACTIVATIONS or (multiplies_integers(target) and float_lanes(target) == 16)


def multiplies_bfloat16(target: tvm.target.Target) -> bool:
    """Say whether a target multiplies bfloat16 by an instruction of whole vectors (AVX512-BF16)."""
    is_cpu = target.kind.name == "llvm"
    return (
        is_cpu and bool(target_has_features(["avx512bf16"], target)) and float_lanes(target) == 16
    )


def multiplies_tiles(target: tvm.target.Target) -> bool:
    """Say whether a target multiplies tiles of bfloat16 and of bytes by an instruction (AMX)."""
    return AMX in target.keys


def has_bfloat16_kernels(target: tvm.target.Target) -> bool:
    """Say whether products on a target are computed in bfloat16."""
    return BFLOAT16_KERNELS in target.keys


def rounds_for_tiles(target: tvm.target.Target) -> bool:
    """Say whether products of many rows are rounded to bfloat16 for AMX, as the precisions "bf16"
    and "int8" ask."""
    is_low = has_bfloat16_kernels(target) or has_int8_activations(target)
    return multiplies_tiles(target) and is_low


def multiplies_integers(target: tvm.target.Target) -> bool:
    """Tell whether a target sums products of 8 bits in 32 bits by one instruction (AVX512-VNNI).

    Others that TVM uses saturate sums of two in 16 bits, which is another number.
    """
    return target.kind.name == "llvm" and bool(target_has_features("avx512vnni", target))


def multiplies_words(target: tvm.target.Target) -> bool:
    """Tell whether a target has AVX2, and with it the instruction for words of `relay/vnni.py`.

    Every processor with AVX512-VNNI has it.
    """
    return target.kind.name == "llvm" and bool(target_has_features("avx2", target))


def has_int8_activations(target: tvm.target.Target) -> bool:
    """Say whether products with weights of 4 or 8 bits round what they read to 8 bits."""
    return INT8_ACTIVATIONS in target.keys


class _Instructions(NamedTuple):
    """What a precision of a whole network needs."""

    key: str
    """Of the targets of CPUs that have them."""
    name: str
    processor: str
    """A target that has them."""


_INSTRUCTIONS = {
    "bf16": _Instructions(BFLOAT16_KERNELS, "AVX512-BF16", "llvm -mcpu=cooperlake"),
    "int8": _Instructions(INT8_ACTIVATIONS, "AVX512-VNNI", "llvm -mcpu=cascadelake"),
}


def with_precision(cluster: Cluster, precision: str) -> Cluster:
    """Return a cluster whose CPUs multiply in "bf16" or "int8", as far as they have instructions.

    Raises
    ------
    SolverError
        None of them has these.
    """
    needed = _INSTRUCTIONS[precision]
    changed = with_kernels_of(cluster, needed.key)
    if changed.devices == cluster.devices:
        targets = ", ".join(sorted({repr(device.target) for device in cluster.devices}))
        raise SolverError(
            f"precision={precision!r}: no device of cluster {cluster.name!r} can multiply so; "
            f"expected a CPU whose target has {needed.name}, such as {needed.processor!r}, found "
            f"{targets}; give precision='float32', or `heteroplace probe` a processor that has it"
        )
    return changed


def has_stock_kernels(target: tvm.target.Target) -> bool:
    """Tell whether the kernels of a target have TVM's own schedules."""
    return target.kind.name != "llvm" or STOCK_KERNELS in target.keys


def variant_maker(target: tvm.target.Target) -> str | None:
    """Return the maker of the kernel variants that a target asks for; None: it asks for none."""
    return next((_VARIANT_KEYS[key] for key in target.keys if key in _VARIANT_KEYS), None)


def has_product_library(target: tvm.target.Target) -> bool:
    """Tell whether a target names a library for TVM to compute products by."""
    return not _PRODUCT_LIBRARIES.isdisjoint(str(library) for library in target.libs)


def kernel_target(target: tvm.target.Target) -> tvm.target.Target:
    """Return the target under which the kernels of a device are made: it knows our schedules.

    A target whose kernels are TVM's own is returned as it is.
    """
    if has_stock_kernels(target) or OWN_KERNELS in target.keys:
        return target
    exported = dict(target.export())
    exported["keys"] = [OWN_KERNELS, *exported["keys"]]
    return tvm.target.Target(exported, target.host)


def float_lanes(target: tvm.target.Target) -> int:
    """Return how many float32 numbers a vector of a CPU target holds."""
    with target:
        return int(get_simd_32bit_lanes())


def sharing_layouts(targets: Sequence[tvm.target.Target]) -> list[int]:
    """Return for each target the position of the one whose layouts it has.

    That of the same without the key of another maker, if it is there; else its own.
    """
    plain = [_without_maker(target) for target in targets]
    texts = [f"{target} host {target.host}" for target in targets]
    return [texts.index(text) if text in texts else position for position, text in enumerate(plain)]


def _without_maker(target: tvm.target.Target) -> str:
    """The text of a target and its host, the first without the keys of other makers."""
    makers = set(MAKER_KEYS.values())
    if makers & set(target.keys):
        exported = dict(target.export())
        exported["keys"] = [key for key in exported["keys"] if key not in makers]
        exported.pop("host", None)
        target = tvm.target.Target(tvm.target.Target(exported), target.host)
    return f"{target} host {target.host}"


def cluster_targets(cluster: Cluster) -> tuple[tuple[tvm.target.Target, ...], tuple[int, ...]]:
    """Return the distinct targets of a cluster, and for each device the position of its own.

    The target of the first CPU device of a host is, for TVM, the host of all others there.
    """
    launchers = [launcher(cluster, device.host) for device in cluster.devices]
    keys = [
        (device.target, None if first is None else first.target)
        for device, first in zip(cluster.devices, launchers, strict=True)
    ]
    distinct = list(dict.fromkeys(keys))
    by_key = {
        key: device_target(device, None if first is None else device_target(first))
        for key, device, first in zip(keys, cluster.devices, launchers, strict=True)
    }
    return tuple(by_key[key] for key in distinct), tuple(map(distinct.index, keys))


def launcher(cluster: Cluster, host: str) -> Device | None:
    """Return the CPU device whose code launches the kernels of all devices of a host.

    The first one there; of the whole cluster if there is none. None: there is none at all.
    """
    cpus = [device for device in cluster.devices if device.kind == "cpu"]
    return next((device for device in cpus if device.host == host), next(iter(cpus), None))


def placed_targets(
    graph: TaskGraph, cluster: Cluster, placement: Sequence[int]
) -> tuple[tuple[tvm.target.Target, ...], dict[str, int]]:
    """Return the cluster's targets, and by task name the position of that of its device.

    Parameters
    ----------
    placement
        Device id of each task.
    """
    targets, target_of_device = cluster_targets(cluster)
    pairs = zip(graph.tasks, placement, strict=True)
    return targets, {task.name: target_of_device[device] for task, device in pairs}
