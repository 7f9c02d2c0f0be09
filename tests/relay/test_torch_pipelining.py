"""Plans of PyTorch models become stages of `torch.distributed.pipelining`, which splits them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import heteroplace

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "export.md"
FIRST_STAGE = {"stem.0", "layers.0.norm", "layers.0.up", "layers.0.down"}
SECOND_STAGE = {"layers.1.norm", "layers.1.up", "layers.1.down", "body.0.0", "head"}


def network(torch: Any) -> Any:
    """Two blocks with residual additions between sequences of modules."""
    nn = torch.nn
    torch.manual_seed(0)

    class Block(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.act = nn.LayerNorm(16), nn.GELU()
            self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

        def forward(self, x: Any) -> Any:
            return x + self.down(self.act(self.up(self.norm(x))))

    class Network(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
            self.layers = nn.ModuleList(Block() for _ in range(2))
            self.body = nn.Sequential(nn.Sequential(nn.Linear(16, 16), nn.Tanh()))
            self.head = nn.Linear(16, 4)

        def forward(self, x: Any) -> Any:
            x = self.stem(x)
            for layer in self.layers:
                x = layer(x)
            return self.head(self.body(x))

    return Network().eval()


def guide_program() -> str:
    """The program of the guide that splits a model."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL)
    (code,) = (block for block in blocks if "torch.distributed.pipelining" in block)
    return str(code)


def place_half(path: Path, first_on_gpu: str) -> heteroplace.Solution:
    """The model with its layers on the CPU, and from one of them on on the GPU."""
    free = heteroplace.place(path, "cpu-one-gpu", costs="estimate", solver="heft")
    layers = list(free.layers())
    start = layers.index(first_on_gpu)
    pin = {layer: "cpu" if index < start else "gpu0" for index, layer in enumerate(layers)}
    return heteroplace.place(path, "cpu-one-gpu", costs="estimate", solver="heft", pin=pin)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("is_dynamo", "first_on_gpu"),
    [(False, "/layers.1/norm/LayerNormalization"), (True, "node_layer_norm_1")],
)
def test_pytorch_runs_the_stages_of_a_plan(
    is_dynamo: bool, first_on_gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch", exc_type=ImportError)
    pytest.importorskip("onnxscript", exc_type=ImportError)
    monkeypatch.chdir(tmp_path)
    model = network(torch)
    x = torch.randn(2, 8)
    expected = model(x)
    torch.onnx.export(model, (x,), "model.onnx", dynamo=is_dynamo, verbose=False)
    solution = place_half(Path("model.onnx"), first_on_gpu)
    assert set(solution.devices_used) == {"cpu", "gpu0"}
    text = heteroplace.export(solution, "torch-pipelining", "stages.json", model="model.onnx")
    assert json.loads(text) == {
        "split_spec": {"layers.1": "BEGINNING"},
        "devices": ["cpu", "cuda:0"],
    }
    names: dict[str, Any] = {"model": model, "x": x}
    exec(guide_program(), names)
    pipe = names["pipe"]
    stages = [pipe.get_stage_module(index) for index in range(pipe.num_stages)]
    modules = [
        {name.rpartition(".")[0] for name, _ in stage.named_parameters()} for stage in stages
    ]
    assert modules == [FIRST_STAGE, SECOND_STAGE]
    value = x
    for stage in stages:
        value = stage(value)
    torch.testing.assert_close(value, expected)
