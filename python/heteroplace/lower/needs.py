"""Solution -> what its compiled file needs of a machine, as the text that `src/exec/file/needs.h`
describes: features of the processor, compute capability of GPUs, digests of what belongs together.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import tvm
from tvm.target import codegen

from heteroplace.errors import LoweringError
from heteroplace.model.cluster import Cluster, Device
from heteroplace.model.solution import Solution
from heteroplace.native.compiled_file import known_features, machine_name
from heteroplace.relay.targets import (
    device_target,
    has_bfloat16_kernels,
    launcher,
    multiplies_tiles,
)

_AMX_FEATURES = frozenset(("amx-tile", "amx-bf16", "amx-int8"))


def needs_text(
    solution: Solution,
    digests: Mapping[str, str],
    others: Sequence[Solution] = (),
    *,
    uses_amx: bool = False,
) -> str:
    """Return the text, with what each host needs for itself.

    Parameters
    ----------
    solution
        Of which the file has the code.
    digests
        SHA-256 of "code", "program" and "weights", hexadecimal.
    others
        Those of the other entries, on the same cluster.
    uses_amx
        Whether its code multiplies by AMX, where a target has that.

    Raises
    ------
    LoweringError
        The target of a GPU does not say its architecture.
    """
    hosts = solution.cluster.hosts
    used = {name for each in (solution, *others) for name in each.devices_used}
    lines = [f"heteroplace-needs {min(2, len(hosts))}", f"machine {machine_name()}"]
    for rank, host in enumerate(hosts):
        lines += [f"host {rank}"] if len(hosts) > 1 else []
        lines += _host_lines(solution.cluster, used, host, uses_amx=uses_amx)
    lines += [f"{part} {digest}" for part, digest in digests.items()]
    return "\n".join([*lines, "end", ""])


def _host_lines(
    cluster: Cluster, names: Collection[str], host: str, *, uses_amx: bool
) -> list[str]:
    """The features and GPUs that plans over some devices need on one host."""
    used = [device for device in cluster.devices if device.name in names]
    cpus = [device for device in used if device.kind == "cpu" and device.host == host]
    gpus = [device for device in used if device.kind == "cuda" and device.host == host]
    first = launcher(cluster, host) if gpus else None
    features: set[str] = set()
    for device in (*cpus, *([] if first is None else [first])):
        features |= cpu_features(device_target(device), uses_amx=uses_amx)
    capabilities: dict[int, int] = {}
    for device in gpus:  # the parts of a GPU may have targets of their own
        capabilities[device.index] = max(capabilities.get(device.index, 0), _capability(device))
    return [
        *(f"feature {name}" for name in sorted(features)),
        *(f"cuda {index} {value}" for index, value in sorted(capabilities.items())),
    ]


def cpu_features(target: tvm.target.Target, *, uses_amx: bool = False) -> frozenset[str]:
    """Return the features of a processor that code for a target may use, by LLVM's names.

    LLVM never turns float32 arithmetic into instructions of AVX512-BF16. It knows none of AMX:
    `uses_amx` says whether the code has some.
    """
    features = known_features() & set(codegen.llvm_get_cpu_features(target))
    if not has_bfloat16_kernels(target):
        features -= {"avx512bf16"}
    return features | _AMX_FEATURES if uses_amx and multiplies_tiles(target) else features


def _capability(device: Device) -> int:
    """The compute capability that the code for a GPU needs, as 80 for 8.0."""
    arch = str(device_target(device).attrs.get("arch", ""))
    match = re.fullmatch(r"sm_(\d+)[a-z]?", arch)
    if match is None:
        raise LoweringError(
            f"device {device.name!r}: its target {device.target!r} has the architecture {arch!r}, "
            f"expected one as 'sm_80'; say it by -arch"
        )
    return int(match[1])
