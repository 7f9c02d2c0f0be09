"""
Your cluster
============

What may run something, in which memory it finds its tensors, and what joins the memories: a cluster
says so. Here this machine is probed, its links are timed, and a file is written by hand, with a
fault. It takes half a minute and needs no GPU.
"""

# %%
# This machine
# ------------
# ``heteroplace.local_cluster()`` asks the system what there is and runs nothing. Each core is a
# device, and all cores together are one more; they share a memory, so nothing is copied between
# them. Devices that share cores never run at once.

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import heteroplace
from heteroplace.errors import ClusterError

cluster = heteroplace.local_cluster(has_gpus=False)
for device in cluster.devices:
    memory = cluster.memories[device.memory]
    print(f"{device.name}: cores {device.cores}, memory {memory.name!r}, {device.target[:40]}")

# %%
# Probing
# -------
# The command ``heteroplace probe`` looks closer: it takes one hardware thread of each core, makes
# a memory of each NUMA node, and runs copies to time the links, in both directions at once, so that
# it finds links that share a channel. ``--quick`` takes fewer samples.
# With GPUs, each is a device with a memory of its own. What it writes can be edited.

folder = Path(tempfile.mkdtemp())
bin_folder = Path(sys.executable).parent


def shell(command):
    """Run a command in the folder and show what it prints."""
    program, *arguments = shlex.split(command)
    done = subprocess.run(
        [bin_folder / program, *arguments], cwd=folder, capture_output=True, text=True
    )
    print("$ " + command, done.stdout.rstrip(), done.stderr.rstrip(), sep="\n")
    return done.returncode


shell("heteroplace probe --cpu-only --quick -o cluster.json")
shell("heteroplace show cluster.json")

# %%
# Machines that are not here
# --------------------------
# Some are ready-made; their names stand where a file may stand. The two of Moirai's paper have
# directed links: the way back may be slower.

shell("heteroplace clusters")
inter_server = heteroplace.load_cluster("moirai-inter-server")
for link in inter_server.links[:4]:
    src, dst = inter_server.memories[link.src].name, inter_server.memories[link.dst].name
    print(f"{src} -> {dst}: {link.bytes_per_second / 1e9:.2f} GB/s")

# %%
# By hand
# -------
# Units are part of every value, since bits and bytes are easily mixed up. All faults of a file are
# told at once, with their place and what was meant.

(folder / "mine.json").write_text("""{
 "schema_version": 1, "name": "mine", "host": "ram",
 "memories": [{"name": "ram", "size": "32 GiB"}],
 "devices": [
  {"name": "cpu", "target": "llvm", "device": "cpu:0", "memory": "ram", "cores": [0, 1]},
  {"name": "gpu0", "target": {"kind": "cuda"}, "device": "cuda:0", "memry": "16 GiB"}
 ],
 "links": [{"src": "ram", "dst": "gpu0", "bandwidth": "12", "latency": "10 us",
   "bidirectional": true}]
}""")
try:
    heteroplace.load_cluster(folder / "mine.json")
except ClusterError as fault:
    print(fault)

# %%
# With both mended, it is a cluster like any other.

text = (folder / "mine.json").read_text().replace("memry", "memory").replace('"12"', '"12 GB/s"')
(folder / "mine.json").write_text(text)
assert shell("heteroplace check mine.json") == 0
