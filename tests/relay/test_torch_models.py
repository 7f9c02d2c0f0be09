"""Ten networks of torchvision and transformers, with random weights: as PyTorch within 1e-4."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heteroplace.machine.local import local_cluster
from tests.programs import measured_shortly

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "torch.md"
NEEDED = ("torch", "onnxscript", "torchvision", "transformers")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.relay,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]
TOLERANCE = 1e-4
VOCABULARY = 99
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": VOCABULARY,
}


def vision(name: str, **arguments: Any) -> Callable[[], Any]:
    """Return what makes a network of torchvision."""
    return lambda: getattr(importlib.import_module("torchvision.models"), name)(
        num_classes=10, **arguments
    )


def transformer(name: str, config: str, **settings: Any) -> Callable[[], Any]:
    """Return what makes a network of transformers."""

    def make() -> Any:
        transformers = importlib.import_module("transformers")
        return getattr(transformers, name)(getattr(transformers, config)(**settings))

    return make


IMAGES = {
    "resnet18": (vision("resnet18"), 64),
    "mobilenet_v3_small": (vision("mobilenet_v3_small"), 64),
    "shufflenet_v2_x0_5": (vision("shufflenet_v2_x0_5"), 64),
    "squeezenet1_1": (vision("squeezenet1_1"), 64),
    "densenet121": (vision("densenet121"), 32),
    "vision_transformer": (
        vision("VisionTransformer", image_size=32, patch_size=8, num_layers=2, num_heads=4,
               hidden_dim=32, mlp_dim=64),
        32,
    ),
}  # fmt: skip
TEXTS = {
    "bert": transformer("BertModel", "BertConfig", **SMALL),
    "gpt2": transformer(
        "GPT2LMHeadModel", "GPT2Config", n_embd=32, n_layer=2, n_head=4, vocab_size=VOCABULARY,
        use_cache=False,
    ),
    "distilbert": transformer(
        "DistilBertModel", "DistilBertConfig", dim=32, n_layers=2, n_heads=4, hidden_dim=64,
        vocab_size=VOCABULARY,
    ),
    "t5_encoder": transformer(
        "T5EncoderModel", "T5Config", d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
        vocab_size=VOCABULARY,
    ),
}  # fmt: skip


def check_network(module: Any, caplog: pytest.LogCaptureFixture, *inputs: Any) -> None:
    """Assert that a compiled network gives PyTorch's numbers, and that no graph is left to it."""
    torch = importlib.import_module("torch")
    torch._dynamo.reset()
    for parameter in module.parameters():
        if not parameter.any():  # as the head of a vision transformer, whose outputs would be 0
            torch.nn.init.normal_(parameter, std=0.02)
    caplog.set_level(logging.INFO, "heteroplace")
    options = {
        "cluster": local_cluster(has_gpus=False),
        "costs": "estimate",
        "store": "off",
        "time_limit": 1.0,
        "strict": True,
    }
    fast = torch.compile(module, backend="heteroplace", options=options)
    with torch.no_grad():
        expected, outputs = first_tensor(module(*inputs)), first_tensor(fast(*inputs))
    difference = (outputs - expected).abs().max() / expected.abs().max()
    assert difference <= TOLERANCE
    assert any("compiled a graph of torch.compile" in each.message for each in caplog.records)


def first_tensor(outputs: Any) -> Any:
    """Return the tensor of a network of torchvision, or the first one of transformers."""
    return outputs[0] if hasattr(outputs, "keys") else outputs


@pytest.mark.parametrize("name", IMAGES)
def test_a_network_of_torchvision(name: str, caplog: pytest.LogCaptureFixture) -> None:
    torch = importlib.import_module("torch")
    torch.manual_seed(0)
    make, size = IMAGES[name]
    check_network(make().eval(), caplog, torch.randn(1, 3, size, size))


@pytest.mark.parametrize("name", TEXTS)
def test_a_network_of_transformers(name: str, caplog: pytest.LogCaptureFixture) -> None:
    torch = importlib.import_module("torch")
    torch.manual_seed(0)
    check_network(TEXTS[name]().eval(), caplog, torch.randint(0, VOCABULARY, (1, 12)))


def test_the_programs_of_the_guide_run(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL)
    assert len(blocks) == 3
    call = "with torch.no_grad():\n    print(float((fast(x) - model(x)).abs().max()) < 1e-3)\n"
    program = call.join([*blocks, ""]).replace("224, 224", "64, 64")
    (tmp_path / "program.py").write_text(measured_shortly(program))
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["True"] * 3, done.stderr
    assert "PyTorch runs a graph" not in done.stderr
