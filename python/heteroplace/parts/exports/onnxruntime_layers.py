"""A solution and its ONNX model -> the model with ONNX Runtime's layer annotations, and settings.

ONNX Runtime reads the annotation `layer_ann` of each node, and the session's entry
`session.layer_assignment_settings` says which annotations go to which kind of device. Here each
annotation is the name of a device of the plan.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heteroplace.entries import load_entry
from heteroplace.errors import PlanError
from heteroplace.model.cluster import Device
from heteroplace.model.solution import Solution
from heteroplace.parts.exports.export_format import (
    READ_PLACED_MODEL,
    ExportedPlacement,
    ExportFormat,
)
from heteroplace.parts.exports.placed_layers import lost_devices

ANNOTATION = "layer_ann"
"""Key of the metadata of a node."""
SETTING = "session.layer_assignment_settings"
"""Entry of a session that says which annotations go to which kind of device."""
PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
"""Kinds of devices, which ONNX Runtime calls the same in the setting, and their providers."""
_IR_VERSION = 10
"""The first version of the format whose nodes have metadata."""


def write_onnxruntime(solution: Solution, path: Path | None) -> ExportedPlacement:
    """Return the annotated model, and the settings of the session as JSON.

    Raises
    ------
    FrontendError
        The model cannot be read.
    PlanError
        The model is not that of the plan, or the plan uses two GPUs or another kind of device.
    """
    model, placed = load_entry(READ_PLACED_MODEL)(path, solution)
    all_devices = solution.cluster.devices
    used = {index: all_devices[index] for index in sorted(set(placed))}
    _check_devices(used)
    for node, device in zip(model.graph.node, placed, strict=True):
        others = [each for each in node.metadata_props if each.key != ANNOTATION]
        del node.metadata_props[:]
        node.metadata_props.extend(others)
        node.metadata_props.add(key=ANNOTATION, value=annotation_of(used[device]))
    model.ir_version = max(model.ir_version, _IR_VERSION)
    text = json.dumps(_settings(used), indent=1) + "\n"
    warnings = lost_devices(solution, lambda device: device.kind)
    return ExportedPlacement(text, warnings, model.SerializeToString())


def _check_devices(used: Mapping[int, Device]) -> None:
    others = sorted({device.kind for device in used.values()} - PROVIDERS.keys())
    if others:
        raise PlanError(
            f"the plan uses devices of the kind {', '.join(others)}; the format onnxruntime has "
            f"{' and '.join(PROVIDERS)}"
        )
    gpus = [device.name for device in used.values() if device.kind == "cuda"]
    if len(gpus) > 1:
        raise PlanError(
            f"the plan uses the GPUs {', '.join(gpus)}, and a session of ONNX Runtime has one; "
            f"place the model with --exclude {gpus[-1]}"
        )


def annotation_of(device: Device) -> str:
    """Return the device's name without characters that have a meaning in the setting."""
    return re.sub(r"[^\w.-]", "_", device.name)


def _settings(used: Mapping[int, Device]) -> dict[str, Any]:
    rules, providers, options = [], [], []
    for kind in reversed(PROVIDERS):  # a session prefers its first provider
        devices = [device for device in used.values() if device.kind == kind]
        if devices:
            rules.append(f"{kind}({', '.join(f'={annotation_of(device)}' for device in devices)})")
        if devices or kind == "cpu":
            providers.append(PROVIDERS[kind])
            options.append({} if kind == "cpu" else {"device_id": str(devices[0].index)})
    return {
        "session_config": {SETTING: "; ".join(rules)},
        "providers": providers,
        "provider_options": options,
    }


ONNXRUNTIME = ExportFormat(write_onnxruntime, needs_model=True, writes_model=True)
