"""
One model over two hosts
========================

Two machines that stand beside each other run one network, each its own part, from one file. Here
both are this machine: each rank has one of its cores and a memory of its own, so no second machine
is needed. It takes a minute, and needs the extra ``heteroplace[mpi]``: mpi4py, and an MPI library.
"""

# %%
# Commands that probe, measure or run are those of one machine, with ``mpiexec`` in front. A rank is
# a process that runs all devices of a host.

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import heteroplace

folder = Path(tempfile.mkdtemp())
environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def shell(command):
    """Run a command in the folder and show what it prints, the first lines and the last."""
    done = subprocess.run(
        shlex.split(command), cwd=folder, env=environment, capture_output=True, text=True
    )
    lines = (done.stdout + done.stderr).rstrip().split("\n")
    shown = lines if len(lines) <= 12 else [*lines[:6], "...", *lines[-6:]]
    print("$ " + command, *(line[:110] for line in shown), sep="\n")
    done.check_returncode()


# %%
# The cluster
# -----------
# Each rank finds out what is in its machine, and messages between them are timed: small and large
# ones, one way and both ways at once. Ranks of one machine share its cores among them.

shell("mpiexec -n 2 heteroplace probe --cpu-only --quick -o cluster.json")
cluster = heteroplace.load_cluster(folder / "cluster.json")
for device in cluster.devices:
    print(f"{device.name}: host {device.host!r}, cores {device.cores}")

# %%
# The network
# -----------
# Any ONNX file will do. This one has a stem and four branches of three convolutions.

random = np.random.default_rng(0)
nodes, weights = [], []


def convolution(source, name, channels_in, channels_out):
    """Add a convolution with random weights and a relu; the result is called `name`."""
    shape = (channels_out, channels_in, 3, 3)
    values = random.standard_normal(shape) / np.sqrt(channels_in * 9)
    weights.append(numpy_helper.from_array(values.astype(np.float32), f"{name}.weight"))
    inputs = [source, f"{name}.weight"]
    nodes.append(helper.make_node("Conv", inputs, [f"{name}.conv"], name=name, pads=[1] * 4))
    nodes.append(helper.make_node("Relu", [f"{name}.conv"], [name]))


convolution("image", "stem", 3, 32)
for branch in "abcd":
    convolution("stem", f"{branch}1", 32, 32)
    convolution(f"{branch}1", f"{branch}2", 32, 32)
    convolution(f"{branch}2", f"{branch}3", 32, 32)
nodes.append(helper.make_node("Sum", [f"{branch}3" for branch in "abcd"], ["sum"]))
image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 56, 56])
result = helper.make_tensor_value_info("sum", TensorProto.FLOAT, [1, 32, 56, 56])
graph = helper.make_graph(nodes, "branches", [image], [result], weights)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
onnx.save(model, folder / "branches.onnx")

# %%
# Costs
# -----
# Every rank measures the kernels on its own devices, all at once; the first one writes the table.

shell("mpiexec -n 2 heteroplace profile branches.onnx --cluster cluster.json -o costs.json")

# %%
# Placement and compilation
# -------------------------
# They need no second machine: the table says what everything takes. On links that are too slow the
# plan keeps one host, and says so.

shell(
    "tvmc compile branches.onnx --placement cluster.json --placement-option costs=costs.json "
    "-o model.so"
)

# %%
# A run without Python
# --------------------
# Every rank gets the same command. The host of the cluster's memory ``host`` reads the inputs and
# writes the outputs; each loads the kernels and the weights of its own part, no others. A rank
# that dies ends the job with a line that names it, and so does one that is silent for longer than
# ``--timeout``.

inputs = {"image": random.standard_normal((1, 3, 56, 56)).astype(np.float32)}
np.save(folder / "image.npy", inputs["image"])
shell(
    "mpiexec -n 2 heteroplace-run model.so --input image=image.npy --output sum=sum.npy "
    "--repeat 100 --timeout 30 --trace trace.json"
)

# %%
# ``trace.json`` opens in Perfetto: the queues of both hosts on one clock, messages as arrows. It
# says how exactly the clocks are known.
#
# A run from Python
# -----------------
# The same script on every rank: one feeds the model, the others serve until it has closed.

(folder / "script.py").write_text("""
import numpy as np
import heteroplace

executor = heteroplace.load("model.so")
if executor.is_feeding:
    (output,) = executor.run(image=np.load("image.npy"))
    np.save("again.npy", output)
    print(f"{np.median(executor.benchmark(100)) / 1e6:.2f} ms, predicted", end=" ")
    print(f"{executor.solution.expected_ns / 1e6:.2f} ms")
    executor.close()
else:
    executor.serve()
""")
shell(f"mpiexec -n 2 {sys.executable} script.py")
np.testing.assert_array_equal(np.load(folder / "sum.npy"), np.load(folder / "again.npy"))

# %%
# The reference of the ONNX standard gives the same numbers.

(expected,) = ReferenceEvaluator(str(folder / "branches.onnx")).run(None, inputs)
np.testing.assert_allclose(np.load(folder / "again.npy"), expected, rtol=1e-3, atol=1e-4)
print("same numbers as the reference")

# %%
# Two machines
# ------------
# Put the package, and ``model.so``, into the same folder on both, and name them in a file ``hosts``
# of two lines. Then all commands above run on both:
#
# .. code-block:: bash
#
#    mpiexec -n 2 -f hosts heteroplace probe -o cluster.json            # MPICH, Intel MPI
#    mpiexec -n 2 --hostfile hosts heteroplace probe -o cluster.json    # Open MPI
#    srun -N 2 heteroplace probe -o cluster.json                        # Slurm
#
# Ranks take the hosts in the order of the cluster; ``--hosts b,a`` says another one.
