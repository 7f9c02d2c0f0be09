"""The ONNX model behind a Relay module <-> an attribute of its `main`.

So that what is compiled can be compared with the model that it came from, however many passes lie
between. A model in a file is named by its path, and by the SHA-256 of that file and of those with
its weights: a file that has changed since is not taken for the one that was imported. A model that
was in memory travels whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import tvm
from onnx import ModelProto
from tvm import relay

from heteroplace.errors import FrontendError
from heteroplace.files.digest import file_digest
from heteroplace.parts.onnx.prepare.onnx_load import model_structure
from heteroplace.parts.onnx.prepare.onnx_tensors import all_tensors, external_location, serialised
from heteroplace.relay.module_source import source_attribute, with_source_attribute

MAX_BYTES = 2**31 - 1
"""No larger model can be serialised by protobuf."""


@dataclass(frozen=True)
class OnnxSource:
    """Where a module came from."""

    path: str
    """Absolute path of the file; empty: the model was in memory."""
    data: tvm.nd.NDArray | None
    """The serialised model, uint8 [num_bytes], if it was in memory, and not too large."""
    digests: Mapping[str, str]
    """SHA-256 of each file, in hex, by its absolute path; external weights are among them."""
    input_shapes: Mapping[str, tuple[int, ...]]
    """Sizes that were given for free ones."""
    simplify: bool
    """As given to `from_onnx`."""

    @classmethod
    def of(
        cls,
        path_or_model: str | os.PathLike[str] | ModelProto,
        input_shapes: Mapping[str, Sequence[int]],
        simplify: bool,
    ) -> OnnxSource:
        """Describe a model that can be read; parameters as of `from_onnx`."""
        shapes = {name: tuple(int(size) for size in shape) for name, shape in input_shapes.items()}
        if isinstance(path_or_model, ModelProto):
            content = serialised(path_or_model, MAX_BYTES)
            if content is None:
                return cls("", None, {}, shapes, simplify)
            return cls("", tvm.nd.array(np.frombuffer(content, "uint8")), {}, shapes, simplify)
        path = Path(path_or_model).absolute()
        files = [path, *(path.parent / location for location in external_locations(path))]
        digests = {str(file): file_digest(file) for file in files}
        return cls(str(path), None, digests, shapes, simplify)

    @property
    def is_known(self) -> bool:
        """Say whether the model can be read again: it is in a file, or travels along."""
        return bool(self.path) or self.data is not None

    @property
    def path_or_bytes(self) -> str | bytes:
        """What a reader of ONNX models takes."""
        content: bytes | str = self.path if self.data is None else self.data.numpy().tobytes()
        return content

    def changed_files(self) -> list[str]:
        """Return the files that are gone, or are not what was imported."""
        return [
            path
            for path, digest in self.digests.items()
            if not Path(path).is_file() or file_digest(path) != digest
        ]

    def load(self) -> ModelProto:
        """Read the model, with all its weights.

        Raises
        ------
        FrontendError
            A file has changed since it was imported.
        """
        changed = self.changed_files()
        if changed:
            raise FrontendError(f"{', '.join(changed)} changed since it was imported")
        # In memory, it has all its weights.
        return onnx.load(self.path, format="protobuf") if self.path else self.graph_only()

    def graph_only(self) -> ModelProto:
        """Read the model; large initialisers may lack their elements."""
        content = self.path_or_bytes
        return model_structure(
            content if isinstance(content, str) else ModelProto.FromString(content)
        )


def with_source(mod: tvm.IRModule, source: OnnxSource | None) -> tvm.IRModule:
    """Return a module that says where it came from; None: that says it no longer."""
    if source is None:
        return with_source_attribute(mod, None)
    table = {
        "path": source.path,
        "digests": dict(source.digests),
        "input_shapes": {name: list(shape) for name, shape in source.input_shapes.items()},
        "simplify": source.simplify,
    }
    text = relay.const(np.frombuffer(json.dumps(table).encode(), dtype="uint8"))
    data = [] if source.data is None else [relay.Constant(source.data)]
    return with_source_attribute(mod, relay.Tuple([text, *data]))


def read_source(mod: tvm.IRModule) -> OnnxSource | None:
    """Return where a module with a function `main` came from; None: it does not say."""
    return parse_source(source_attribute(mod))


def parse_source(attribute: relay.Expr | None) -> OnnxSource | None:
    """Return the source that an attribute of a module describes."""
    if attribute is None:
        return None
    text, *content = (field.data for field in attribute.fields)
    table = json.loads(text.numpy().tobytes())
    shapes = {name: tuple(shape) for name, shape in table.pop("input_shapes").items()}
    return OnnxSource(data=content[0] if content else None, input_shapes=shapes, **table)


def external_locations(path: Path) -> list[str]:
    """Return the files with weights that a model file refers to, as it names them.

    Raises
    ------
    FrontendError
        The file cannot be read, or is no ONNX model.
    """
    model = model_structure(path)
    return sorted({external_location(tensor) for tensor in all_tensors(model)} - {""})
