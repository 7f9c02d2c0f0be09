"""A solution -> the split points of `torch.distributed.pipelining`, and the device of each stage.

PyTorch calls modules in one order. A split point starts a stage before or after a call. So a stage
is a segment of this order, and each device gets one. Another plan becomes the nearest stages: of
all splits with the devices in the order of their weights, the one that moves the fewest bytes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from heteroplace.entries import load_entry
from heteroplace.errors import PlanError
from heteroplace.model.cluster import Device
from heteroplace.model.solution import Solution
from heteroplace.parts.exports.export_format import ExportedPlacement, ExportFormat
from heteroplace.parts.exports.module_names import scopes_of_graph
from heteroplace.parts.exports.placed_layers import lost_devices, placed_layers, shown_names

_READ_NAMES = "heteroplace.parts.exports.onnx_nodes:read_names"
_TYPES = {"cpu": "cpu", "cuda": "cuda", "rocm": "cuda"}
"""What PyTorch calls devices of each kind."""
_BEGINNING, _END = "BEGINNING", "END"
_NUMBERED = re.compile(r"_\d+$")


@dataclass(frozen=True)
class _Place:
    """Where a stage runs."""

    device: str
    """PyTorch's name: "cpu", "cuda:1"."""
    host: str
    """The computer of the device; "": the cluster has one."""

    def __str__(self) -> str:
        return f"{self.device} of {self.host}" if self.host else self.device


@dataclass
class _Call:
    """Consecutive layers of one module."""

    scopes: tuple[str, ...]
    """The modules that are running, the outermost one first; none: the model itself."""
    names: tuple[str, ...]
    """What the exporter calls them: the TorchScript exporter numbers later calls, "act_1"."""
    weight_bytes: dict[_Place, int] = field(default_factory=dict)
    """Bytes of weights of the layers that are on each device, plus one for each layer."""

    @property
    def module(self) -> str:
        """Name of the module; "": the model itself."""
        return self.scopes[-1] if self.scopes else ""


def write_pipeline_stages(solution: Solution, model: Path | None = None) -> ExportedPlacement:
    """Return the split points and the devices as JSON.

    Parameters
    ----------
    model
        The ONNX model that was placed, whose nodes are in the order of PyTorch's calls. None: the
        order of the plan's tasks counts.

    Raises
    ------
    FrontendError
        The model cannot be read.
    PlanError
        PyTorch has no device of some kind, the model is not that of the plan, or no module begins
        or ends where a stage does.
    """
    calls = _read_calls(solution, model)
    called_once = _called_once(calls)
    places, stages = _nearest_stages(calls, called_once)
    used = sorted(set(stages))
    starts = [index for index in range(1, len(calls)) if stages[index] != stages[index - 1]]
    document: dict[str, object] = {
        "split_spec": _split_points(calls, starts, called_once),
        "devices": [places[stage].device for stage in used],
    }
    hosts = [places[stage].host for stage in used]
    if len(set(hosts)) > 1:
        document["hosts"] = hosts
    warnings = [
        *lost_devices(solution, lambda device: str(_place_of(device)), is_one_host=False),
        *_warnings(calls, places, stages),
    ]
    return ExportedPlacement(json.dumps(document, indent=1) + "\n", tuple(warnings))


def _read_calls(solution: Solution, model: Path | None) -> list[_Call]:
    devices = solution.cluster.devices
    layers = placed_layers(solution, is_one_host=False)
    scopes = scopes_of_graph(solution.graph, model)
    has_numbers = any(layer.startswith("/") for layer in layers)
    names = {name for own in scopes.values() for name in own} if has_numbers else set()
    calls: list[_Call] = []
    for layer in layers if model is None else _in_order(layers, model):
        if not calls or calls[-1].names != scopes[layer]:
            own = tuple(_first_call(name, names) for name in scopes[layer])
            calls.append(_Call(own, scopes[layer]))
        place = _place_of(devices[layers[layer].devices[0]])
        own_bytes = calls[-1].weight_bytes
        own_bytes[place] = own_bytes.get(place, 0) + layers[layer].weight_bytes + 1
    return calls


def _first_call(name: str, names: Container[str]) -> str:
    """The module of a name that may be numbered."""
    first = _NUMBERED.sub("", name)
    return first if first in names else name


def _in_order(layers: Iterable[str], model: Path) -> list[str]:
    """The layers that are nodes of a model, in its order."""
    names: list[str] = load_entry(_READ_NAMES)(model)
    own = set(layers)
    ordered = [name for name in names if name in own]
    if not ordered:
        raise PlanError(
            f"{model}: none of its {len(names)} nodes is a layer of the plan, whose first layer is "
            f"{next(iter(layers))!r}; give the model that was placed"
        )
    return ordered


def _place_of(device: Device) -> _Place:
    if device.kind not in _TYPES:
        raise PlanError(
            f"device {device.name!r} is of the kind {device.kind!r}, which PyTorch has no device "
            f"of; expected {', '.join(_TYPES)}. Place the model with --exclude {device.name}"
        )
    name = _TYPES[device.kind]
    return _Place(name if device.kind == "cpu" else f"{name}:{device.index}", device.host)


def _nearest_stages(
    calls: Sequence[_Call], called_once: Container[str]
) -> tuple[list[_Place], list[int]]:
    """Return places in the order of stages, and for each call the place of its stage.

    Some places may have no stage. Takes O(len(calls) * len(places)^2) time.
    """
    places = _ordered_places(calls)
    sizes = [sum(call.weight_bytes.values()) for call in calls]
    moved_bytes = [
        [size - call.weight_bytes.get(place, 0) for place in places]
        for size, call in zip(sizes, calls, strict=True)
    ]
    least_bytes, all_origins = list(moved_bytes[0]), []
    for index in range(1, len(calls)):
        can_split = bool(_candidates(calls, index, called_once))
        origins = [
            min(range(stage, -1 if can_split else stage - 1, -1), key=least_bytes.__getitem__)
            for stage in range(len(places))
        ]
        least_bytes = [
            least_bytes[origin] + size
            for origin, size in zip(origins, moved_bytes[index], strict=True)
        ]
        all_origins.append(origins)
    stages = [min(range(len(places)), key=least_bytes.__getitem__)]
    for origins in reversed(all_origins):
        stages.append(origins[stages[-1]])
    return places, stages[::-1]


def _ordered_places(calls: Sequence[_Call]) -> list[_Place]:
    """The places by the mean position of their weights."""
    totals: dict[_Place, tuple[int, int]] = {}
    for index, call in enumerate(calls):
        for place, size in call.weight_bytes.items():
            moment, total = totals.get(place, (0, 0))
            totals[place] = (moment + index * size, total + size)
    return sorted(totals, key=lambda place: totals[place][0] / totals[place][1])


def _candidates(
    calls: Sequence[_Call], index: int, called_once: Container[str]
) -> list[tuple[str, str]]:
    """The split points between the call before `index` and that at `index`, outer modules first.

    PyTorch splits at every call of a module, so a module with several calls is none.
    """
    before, after = calls[index - 1].scopes, calls[index].scopes
    begin = [(name, _BEGINNING) for name in after if name not in before]
    end = [(name, _END) for name in before if name not in after]
    return [(name, point) for name, point in (*begin, *end) if name in called_once]


def _called_once(calls: Sequence[_Call]) -> set[str]:
    """The modules with one call.

    Nothing else runs between the calls inside such a module, and one of these is the only one of
    its module: with two calls of the outer module there would be two of each inner one.
    """
    counts = Counter(call.module for call in calls)
    inside: dict[str, list[int]] = {}
    numbered: set[str] = set()
    for index, call in enumerate(calls):
        for name, own in zip(call.scopes, call.names, strict=True):
            inside.setdefault(name, []).append(index)
            if name != own:
                numbered.add(name)
    once = set()
    for name, indices in inside.items():
        scopes = calls[indices[0]].scopes
        around = scopes[: scopes.index(name) + 1]
        has_gap = indices[-1] - indices[0] >= len(indices)
        has_one = min(counts[calls[index].module] for index in indices) == 1
        if has_one and not has_gap and numbered.isdisjoint(around):
            once.add(name)
    return once


def _split_points(
    calls: Sequence[_Call], starts: Sequence[int], called_once: Container[str]
) -> dict[str, str]:
    """The split point at each start of a stage; a module has one."""
    points: dict[str, str] = {}
    # A split after a module has no alternative, a split before it may have one: so the former, at
    # the later start, is chosen first.
    for index in reversed(starts):
        candidates = _candidates(calls, index, called_once)
        free = [each for each in candidates if each[0] not in points]
        if not free:
            raise PlanError(
                f"one stage would be {calls[index - 1].module or calls[index].module!r} alone, and "
                f"PyTorch splits before or after a module, not both. Place it together with its "
                f"neighbours (--no-split)"
            )
        points[free[0][0]] = free[0][1]
    return dict(reversed(points.items()))


def _warnings(
    calls: Sequence[_Call], places: Sequence[_Place], stages: Sequence[int]
) -> Iterator[str]:
    moved = {
        call.module or "operations between modules": None
        for call, stage in zip(calls, stages, strict=True)
        if set(call.weight_bytes) != {places[stage]}
    }
    if moved:
        yield (
            f"{shown_names(list(moved))} go to another device than in the plan: each device has "
            f"one stage, and stages begin and end with modules, in the order of their calls"
        )
    unused = [str(place) for stage, place in enumerate(places) if stage not in stages]
    if unused:
        yield f"no stage for {', '.join(unused)}"
    if len(set(stages)) == 1:
        yield f"all modules are in one stage, on {places[stages[0]]}"


TORCH_PIPELINING = ExportFormat(write_pipeline_stages)
