"""Compile a model of PyTorch by `torch.compile`; needs `pip install "heteroplace[torch]"`."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5)).eval()
options = {"costs": "isolated", "strict": True}  # an error for a graph that cannot be compiled
fast = torch.compile(model, backend="heteroplace", options=options)
image = torch.randn(1, 3, 8, 8)
with torch.no_grad():
    print("largest difference", float((fast(image) - model(image)).abs().max()))
    model[3].weight.mul_(2)  # as training would; the next call compiles again
    print("largest difference", float((fast(image) - model(image)).abs().max()))
