"""
From PyTorch
============

A module of PyTorch is imported without a file, placed over the cores of this machine, and compared
with PyTorch. It takes a minute, needs no GPU, and needs ``pip install torch onnxscript``.
"""

# %%
# A module
# --------
# Two towers that do not need each other, so that two cores can work at once. A module with trained
# weights is imported in the same way.

import numpy as np
import torch

import heteroplace


class Towers(torch.nn.Module):
    """Two towers of convolutions over one image; their features are joined."""

    def __init__(self):
        super().__init__()

        def tower(kernel):
            return torch.nn.Sequential(
                torch.nn.Conv2d(3, 32, kernel, padding=kernel // 2),
                torch.nn.ReLU(),
                torch.nn.Conv2d(32, 32, kernel, padding=kernel // 2),
                torch.nn.ReLU(),
                torch.nn.AdaptiveAvgPool2d(1),
                torch.nn.Flatten(),
            )

        self.fine, self.coarse = tower(3), tower(5)
        self.head = torch.nn.Linear(64, 10)

    def forward(self, image):
        """Return ten scores for each image."""
        return self.head(torch.cat([self.fine(image), self.coarse(image)], dim=1))


torch.manual_seed(0)
module = Towers().eval()
image = torch.randn(1, 3, 32, 32)

# %%
# Import
# ------
# ``from_torch`` exports the module with ``torch.export``. The example input gives names and shapes.

model = heteroplace.frontend.from_torch(module, (image,))
print("\n".join(model.report))

# %%
# Place and compile
# -----------------
# The exporter names the layers. ``placement`` lists them, and pins take these names.

cluster = heteroplace.local_cluster(has_gpus=False)
executable = heteroplace.compile(model, cluster, time_limit=5.0)
print(executable.solution)
for layer, device in executable.solution.placement.items():
    print(f"{layer}: {device}")

# %%
# The same numbers
# ----------------
# An executor takes tensors of PyTorch as they are.

with torch.no_grad():
    expected = module(image).numpy()
with heteroplace.Executor(executable) as executor:
    (scores,) = executor.run(image=image)
np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)
print("equal to PyTorch within 1e-4")

# %%
# When each device works, by the plan:

executable.solution.plot().savefig("from_torch.png", dpi=110)
