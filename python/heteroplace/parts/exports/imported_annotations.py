"""An ONNX model with ONNX Runtime's layer annotations, and its settings -> the devices of layers.

The settings lie next to the model, as the export format `onnxruntime` writes them. A rule such as
`cuda(encoder, =head)` is for the annotation "head", and for those that begin with "encoder".
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heteroplace.entries import load_entry
from heteroplace.errors import PlanError
from heteroplace.files.reader import read_json
from heteroplace.frontends import frontend_of
from heteroplace.model.cluster import Cluster, Device
from heteroplace.model.demands import layers_of
from heteroplace.model.solution import Solution
from heteroplace.parts.exports.exporting import settings_path
from heteroplace.parts.exports.import_format import ImportedPlacement, ImportFormat
from heteroplace.parts.exports.onnxruntime_layers import PROVIDERS, SETTING, annotation_of
from heteroplace.parts.exports.placed_layers import gpu_index, shown_names

_READ_ANNOTATIONS = "heteroplace.parts.exports.onnx_nodes:read_annotations"
_RULE = re.compile(r"\s*(\w+)\s*\(([^()]+)\)\s*")
_KINDS = ("cpu", "cuda", "gpu")
"""What rules call devices; "gpu" is a GPU of any kind."""


@dataclass(frozen=True)
class _Rule:
    """The annotations that one device runs."""

    kind: str
    """One of _KINDS."""
    text: str
    """An annotation, or its beginning."""
    is_exact: bool
    """The text is the whole annotation."""

    def covers(self, annotation: str) -> bool:
        """Say whether a node with an annotation goes to this device."""
        return annotation == self.text if self.is_exact else annotation.startswith(self.text)

    def __str__(self) -> str:
        """Return the rule as it is in the settings."""
        return f"{self.kind}({'=' if self.is_exact else ''}{self.text})"


def read_annotated_model(path: Path, solution: Solution, model: Path | None) -> ImportedPlacement:
    """Return the devices of the annotated nodes. A node that no rule covers is free.

    An annotation that is the name of a device means this device; otherwise all of its kind.

    Parameters
    ----------
    model
        Not read.

    Raises
    ------
    MissingPackageError
        The package onnx is not installed.
    FrontendError
        The model cannot be read.
    PlanError
        The settings are missing or wrong, no layer of the plan is annotated, or the cluster lacks
        a device.
    """
    frontend_of(os.fspath(path)).check_installed()
    annotations: dict[str, str] = load_entry(_READ_ANNOTATIONS)(path)
    layers = {layer for task in solution.graph.tasks for layer in layers_of(task)}
    if layers.isdisjoint(annotations):
        raise PlanError(
            f"{path}: none of its {len(annotations)} annotated nodes is a layer of the plan, whose "
            f"first layer is {next(iter(solution.layers()), None)!r}; give the annotated model of "
            f"this network"
        )
    settings = Path(settings_path(path))
    rules, gpu = _read_settings(settings)
    devices, free = {}, []
    for name, annotation in annotations.items():
        rule = _rule_of(settings, rules, annotation)
        if rule is None:
            free.append(annotation)
        else:
            devices[name] = _devices(settings, solution.cluster, rule, annotation, gpu)
    warnings = (
        (
            f"no rule of {settings} covers {shown_names(list(dict.fromkeys(free)))}; a solver "
            f"places these nodes",
        )
        if free
        else ()
    )
    return ImportedPlacement(devices, warnings)


def _read_settings(path: Path) -> tuple[list[_Rule], int]:
    """The rules, and the ordinal of the session's GPU."""
    settings = read_json(path, PlanError)
    config = settings.get("session_config") if isinstance(settings, dict) else None
    text = config.get(SETTING) if isinstance(config, dict) else None
    if not isinstance(settings, dict) or not isinstance(text, str):
        raise PlanError(
            f'{path}: expected {{"session_config": {{"{SETTING}": "cuda(=gpu0); cpu(=cpu)"}}}}, '
            f"the settings of the session; write them next to the model"
        )
    rules = [rule for part in text.split(";") if part.strip() for rule in _rules(path, part)]
    return rules, _session_gpu(path, settings)


def _rules(path: Path, part: str) -> list[_Rule]:
    match = _RULE.fullmatch(part)
    if match is None or match[1] not in _KINDS:
        raise PlanError(
            f"{path}: {SETTING} has the rule {part.strip()!r}; expected DEVICE(ANNOTATION, ...) "
            f"with a device of {', '.join(_KINDS)}"
        )
    words = [word.strip() for word in match[2].split(",")]
    return [_Rule(match[1], word.lstrip("="), word.startswith("=")) for word in words if word]


def _rule_of(path: Path, rules: Sequence[_Rule], annotation: str) -> _Rule | None:
    """The rule that covers an annotation; None: there is none."""
    own = [rule for rule in rules if rule.covers(annotation)]
    if len({rule.kind for rule in own}) > 1:
        raise PlanError(
            f"{path}: the annotation {annotation!r} has rules for {' and '.join(map(str, own))}; "
            f"expected one device. Leave out the others"
        )
    return own[0] if own else None


def _session_gpu(path: Path, settings: Mapping[str, Any]) -> int:
    """The ordinal of the GPU in the options of the provider of GPUs; 0: they name none."""
    providers, options = settings.get("providers"), settings.get("provider_options")
    if not isinstance(providers, list) or PROVIDERS["cuda"] not in providers:
        return 0
    position = providers.index(PROVIDERS["cuda"])
    try:
        own: Sequence[Any] = options if isinstance(options, list) else []
        return int(own[position].get("device_id", 0)) if position < len(own) else 0
    except (AttributeError, TypeError, ValueError) as err:
        raise PlanError(
            f"{path}: provider_options[{position}] is {own[position]!r}; expected an "
            f'object such as {{"device_id": "0"}}'
        ) from err


def _devices(
    path: Path, cluster: Cluster, rule: _Rule, annotation: str, gpu: int
) -> tuple[str, ...]:
    def is_meant(device: Device) -> bool:
        if rule.kind == "cpu":
            return gpu_index(device) is None
        return gpu_index(device) == gpu and rule.kind in ("gpu", device.kind)

    names = tuple(each.name for each in cluster.devices if is_meant(each))
    if not names:
        kinds = dict.fromkeys(f"{each.kind} {each.index}" for each in cluster.devices)
        raise PlanError(
            f"{path}: the annotation {annotation!r} is for the device {rule.kind} {gpu}; expected "
            f"one of {', '.join(kinds)}, the devices of cluster {cluster.name!r}"
        )
    own = tuple(
        each.name
        for each in cluster.devices
        if each.name in names and annotation_of(each) == annotation
    )
    return own or names


ONNXRUNTIME_MODEL = ImportFormat(read_annotated_model, has_settings=True)
