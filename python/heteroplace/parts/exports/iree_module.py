"""A solution and its ONNX model -> a module in MLIR that IREE compiles for the plan's devices.

IREE's own importer makes the module. A `flow.tensor.transfer` is inserted where a node reads a
tensor of another device; IREE then keeps each op on the device of its operands. Weights are
constants, which follow the ops that read them.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heteroplace.entries import load_entry
from heteroplace.errors import FrontendError, MissingPackageError, PlanError
from heteroplace.model.cluster import Device
from heteroplace.model.solution import Solution
from heteroplace.parts.exports.export_format import (
    READ_PLACED_MODEL,
    ExportedPlacement,
    ExportFormat,
)
from heteroplace.parts.exports.placed_layers import lost_devices

_TARGETS = {"cpu": "local", "cuda": "cuda", "rocm": "hip", "vulkan": "vulkan"}
"""How IREE calls devices of each kind."""
_STANDARD, _OPSET = ("", "ai.onnx"), 17
_NODE = re.compile(r'loc\("node_(\d+)"\)')
_TENSOR = re.compile(r"!torch\.vtensor<\[([\d,?]*)\],(\w+)>")


def write_iree(solution: Solution, path: Path | None) -> ExportedPlacement:
    """Return the module. Its first lines say how it is compiled.

    Raises
    ------
    MissingPackageError
        IREE's compiler is not installed.
    FrontendError
        The model cannot be read, or IREE's importer refuses it.
    PlanError
        The model is not that of the plan, or IREE has no device of some kind.
    """
    importer, ir = _load_iree()
    _, placed = load_entry(READ_PLACED_MODEL)(path, solution)
    used = sorted(set(placed))
    header = _header([solution.cluster.devices[index] for index in used])
    model = _typed_model(path)
    try:
        info = importer.ModelInfo(model)
        module = info.create_module().operation
        importer.NodeImporter.define_function(info.main_graph, module).import_all()
    except importer.OnnxImportError as err:
        raise FrontendError(
            f"{path}: IREE cannot import it: {err}. Export the model without that operator."
        ) from err
    function = module.regions[0].blocks[0].operations[0]
    with module.context, ir.Location.unknown():
        _Transfers(ir, [used.index(device) for device in placed]).insert(
            function.regions[0].blocks[0]
        )
    module.verify()
    warnings = lost_devices(solution, lambda device: device.name)
    return ExportedPlacement(f"{header}{module.get_asm()}", warnings)


def _typed_model(path: Path | None) -> Any:
    """The model with the types of all values; a node's name, its location in IREE, is its number.

    IREE reads few operators of older opsets. Nodes that replace one of them have no number.
    """
    model = load_entry("onnx:load")(str(path))
    for index, node in enumerate(model.graph.node):
        node.name = f"node_{index}"
    opset = next((each.version for each in model.opset_import if each.domain in _STANDARD), 0)
    if opset < _OPSET:
        try:
            model = load_entry("onnx.version_converter:convert_version")(model, _OPSET)
        except RuntimeError as err:
            raise FrontendError(
                f"{path}: IREE needs opset {_OPSET}, and onnx cannot convert the model from "
                f"{opset} ({err}); export it with opset {_OPSET}"
            ) from err
    return load_entry("onnx.shape_inference:infer_shapes")(model, data_prop=True)


def _load_iree() -> tuple[Any, Any]:
    try:
        importlib.import_module("iree.compiler.dialects.flow")
        importer = importlib.import_module("iree.compiler.extras.onnx_importer")
        return importer, importlib.import_module("iree.compiler.ir")
    except ModuleNotFoundError as err:
        raise MissingPackageError(
            f"the format iree needs {err.name}, which is not installed; run: pip install "
            f"iree-base-compiler"
        ) from err


def _header(devices: Sequence[Device]) -> str:
    """Comments with the name of each device, and with the options of `iree-compile`."""
    others = sorted({device.kind for device in devices} - _TARGETS.keys())
    if others:
        raise PlanError(
            f"the plan uses devices of the kind {', '.join(others)}; the format iree has "
            f"{', '.join(_TARGETS)}"
        )
    names = [f"// device_{number} is {device.name}\n" for number, device in enumerate(devices)]
    options = ["--iree-input-type=onnx"]
    num_cpus = 0
    for number, device in enumerate(devices):
        ordinal = num_cpus if device.kind == "cpu" else device.index
        num_cpus += device.kind == "cpu"
        target = f"{_TARGETS[device.kind]}[{ordinal}]"
        options.append(f"--iree-hal-target-device=device_{number}={target}")
    if num_cpus:
        options.append("--iree-hal-local-target-device-backends=llvm-cpu")
        options.append("--iree-llvmcpu-target-cpu=host")
    return f"// iree-compile {' '.join(options)}\n{''.join(names)}"


class _Transfers:
    """Inserts transfers into the body of a function."""

    def __init__(self, ir: Any, devices: Sequence[int]) -> None:
        """`devices`: number of the device of each node, by the number in its location."""
        self._ir = ir
        self._devices = devices
        self._device_of: dict[Any, int] = {}
        self._moved: dict[tuple[Any, int], Any] = {}

    def insert(self, block: Any) -> None:
        """Move each operand to the device of the node that reads it."""
        for entry in list(block.operations):
            operation = entry.operation
            match = _NODE.fullmatch(str(operation.location))
            if match is None:
                continue
            device = self._devices[int(match[1])]
            self._device_of.update(dict.fromkeys(operation.results, device))
            for index, value in enumerate(operation.operands):
                if self._is_elsewhere(value, device):
                    operation.operands[index] = self._on(device, value, operation)

    def _is_elsewhere(self, value: Any, device: int) -> bool:
        """Whether a value is an input of the model or made on another device; no constant is."""
        if isinstance(value.owner, self._ir.Block):
            return _TENSOR.fullmatch(str(value.type)) is not None
        return self._device_of.get(value, device) != device

    def _on(self, device: int, value: Any, reader: Any) -> Any:
        key = (value, device)
        if key not in self._moved:
            with self._ir.InsertionPoint(reader):
                self._moved[key] = self._transfer(device, value)
        return self._moved[key]

    def _transfer(self, device: int, value: Any) -> Any:
        ir = self._ir
        match = _TENSOR.fullmatch(str(value.type))
        if match is None:
            raise FrontendError(
                f"IREE cannot transfer a value of the type {value.type}, whose rank is not known; "
                f"export the model with fixed sizes of its inputs"
            )
        sizes = [size for size in match[1].split(",") if size]
        # Torch's integers say their sign, those of the other dialects do not.
        dtype = re.sub(r"^[su]i", "i", match[2])
        tensor = ir.Type.parse(f"tensor<{''.join(f'{size}x' for size in sizes)}{dtype}>")
        local = self._create("torch_c.to_builtin_tensor", tensor, [value])
        free = [self._size(local, axis) for axis, size in enumerate(sizes) if size == "?"]
        target = {"target": ir.Attribute.parse(f"#hal.device.promise<@device_{device}>")}
        moved = self._create("flow.tensor.transfer", tensor, [local, *free], target)
        return self._create("torch_c.from_builtin_tensor", value.type, [moved])

    def _size(self, tensor: Any, axis: int) -> Any:
        index = self._ir.IndexType.get()
        value = {"value": self._ir.IntegerAttr.get(index, axis)}
        return self._create(
            "tensor.dim", index, [tensor, self._create("arith.constant", index, [], value)]
        )

    def _create(
        self,
        name: str,
        result: Any,
        operands: Sequence[Any],
        attributes: Mapping[str, Any] | None = None,
    ) -> Any:
        return self._ir.Operation.create(
            name, results=[result], operands=operands, attributes=dict(attributes or {})
        ).result


IREE = ExportFormat(write_iree, needs_model=True)
