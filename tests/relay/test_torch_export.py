"""from_torch: what torch exports gives torch's numbers; without torch it is said how to get it."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import numpy as np
import pytest
from onnx_models import run_tvm

import heteroplace
from heteroplace.errors import FrontendError, MissingPackageError

HAS_TORCH = all(importlib.util.find_spec(name) for name in ("torch", "onnxscript"))
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch and onnxscript are not installed")
pytestmark = pytest.mark.filterwarnings("ignore")


def network(torch: Any) -> Any:
    """A small convolutional network, with a layer that differs in training."""
    torch.manual_seed(0)
    nn = torch.nn
    layers = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    return nn.Sequential(*layers)


@needs_torch
@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_the_numbers_are_those_of_torch(exporter: str) -> None:
    torch = importlib.import_module("torch")
    module = network(torch).train()
    example = torch.randn(2, 3, 8, 8)
    imported = heteroplace.frontend.from_torch(module, (example,), exporter=exporter)
    assert module.training
    other = torch.randn(2, 3, 8, 8)
    (name,) = imported.inputs
    (found,) = run_tvm(imported.mod, imported.params, {name: other.numpy()})
    with torch.no_grad():
        expected = module.eval()(other).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@needs_torch
def test_attention_and_integers_by_name() -> None:
    torch = importlib.import_module("torch")
    torch.manual_seed(0)
    nn = torch.nn

    class Encoder(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(50, 32)
            layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
            self.layers = nn.TransformerEncoder(layer, 2)

        def forward(self, ids: Any, scale: Any) -> Any:
            return self.layers(self.table(ids)) * scale, scale + 1

    module = Encoder()
    example = {"ids": torch.randint(0, 50, (1, 9)), "scale": torch.ones(32)}
    imported = heteroplace.frontend.from_torch(module, example)
    assert set(imported.inputs) == {"ids", "scale"}
    other = {"ids": torch.randint(0, 50, (1, 9)), "scale": torch.rand(32)}
    arrays = {name: value.numpy() for name, value in other.items()}
    found = run_tvm(imported.mod, imported.params, arrays)
    with torch.no_grad():
        expected = module.eval()(**other)
    for one, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, wanted.numpy(), rtol=1e-3, atol=1e-5)


@needs_torch
def test_a_course_that_hangs_on_values_is_refused_and_not_written_down() -> None:
    torch = importlib.import_module("torch")

    class Branching(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return x + 1 if x.sum() > 0 else x - 1

    with pytest.raises(FrontendError, match="torch cannot export Branching") as told:
        heteroplace.frontend.from_torch(Branching(), (torch.ones(2),))
    # torch's own words on why, and neither its colours nor its list of steps.
    assert "data-dependent" in str(told.value)
    assert "\x1b" not in str(told.value)
    assert "step 1" not in str(told.value)


@needs_torch
def test_what_is_no_module_is_told() -> None:
    with pytest.raises(FrontendError, match=r"takes a torch\.nn\.Module, got a str"):
        heteroplace.frontend.from_torch("model.onnx", ())


def test_an_exporter_that_there_is_not_is_told() -> None:
    with pytest.raises(FrontendError, match="expected one of 'dynamo', 'torchscript'"):
        heteroplace.frontend.from_torch(None, (), exporter="onnx")


def test_without_torch_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingPackageError, match="run: pip install torch"):
        heteroplace.frontend.from_torch(None, ())
