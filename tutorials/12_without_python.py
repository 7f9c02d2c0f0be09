"""
Deploying without Python
========================

What is compiled is one file, and a program of one megabyte runs it: no interpreter, no compiler.
Here a network is compiled, described, run and traced by ``heteroplace-run``, and the bytes of
its outputs are those of the package. It takes half a minute and needs no GPU.
"""

# %%
# A compiled file
# ---------------
# It holds kernels, weights, program and plan, and says which devices and which features of the
# processor it needs.

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import tvm

import heteroplace
from heteroplace.demo.networks import small_cnn

folder = Path(tempfile.mkdtemp())
mod, params, shapes = small_cnn()
cluster = heteroplace.local_cluster(has_gpus=False)
with tvm.transform.PassContext(opt_level=3):
    executable = heteroplace.build(mod, cluster, params=params, costs="isolated")
executable.export_library(folder / "model.so")
print(f"{(folder / 'model.so').stat().st_size / 1024:.0f} KiB")

# %%
# By a program
# ------------
# ``make setup``, or the wheel, puts ``heteroplace-run`` beside Python; it needs TVM's library and
# nothing else of it. ``--describe`` says what goes in and what comes out.

programs = Path(sys.executable).parent
library = Path(tvm.__file__).parent / "libtvm.so"


def shell(command):
    """Run a command in the folder and show what it prints."""
    program, *arguments = shlex.split(command)
    arguments += ["--tvm-library", library] if program == "heteroplace-run" else []
    done = subprocess.run(
        [programs / program, *arguments], cwd=folder, capture_output=True, text=True
    )
    print("$ " + command, (done.stdout + done.stderr).rstrip(), "", sep="\n")
    return done.returncode


shell("heteroplace-run model.so --describe")

# %%
# Inputs and outputs are files of numpy. The bytes are those of the package.

(name, shape), *_ = shapes.items()
data = np.random.default_rng(0).standard_normal(shape).astype("float32")
np.save(folder / "x.npy", data)
(expected, *_) = heteroplace.load(folder / "model.so").run(**{name: data})
assert shell(f"heteroplace-run model.so --input {name}=x.npy --output output0=y.npy") == 0
assert np.load(folder / "y.npy").tobytes() == expected.tobytes()

# %%
# How fast, with several requests at work at a time, and what the devices did: the trace opens at
# https://ui.perfetto.dev.

shell(
    f"heteroplace-run model.so --input {name}=x.npy --repeat 200 --requests-in-flight 2 "
    "--trace trace.json"
)

# %%
# What goes wrong is one line
# ---------------------------
# The exit code says of which kind it is; ``--help`` lists them.

print("exit code", shell("heteroplace-run model.so --input nothing=x.npy"))
damaged = bytearray((folder / "model.so").read_bytes())
damaged[len(damaged) // 2] ^= 1
(folder / "damaged.so").write_bytes(damaged)
print("exit code", shell(f"heteroplace-run damaged.so --input {name}=x.npy"))
