"""Run times of devices, parts of tasks -> groups of similar speed, and a group for each task: GETF.

Su, Ren, Vardi, Wierman, "Communication-Aware Scheduling of Precedence-Constrained Tasks on Related
Machines", 2020 (arXiv 2004.14639): the rules for the groups and for the group of a task, both from
Chudak, Shmoys, "Approximation Algorithms for Precedence-Constrained Scheduling Problems on Parallel
Machines That Run at Different Speeds", 1999, section 3 (10.1006/jagm.1998.0987), and Li,
"Scheduling to Minimize Total Weighted Completion Time via Time-Indexed Linear Programming
Relaxations", 2017 (arXiv 1707.08039).

Choices that the papers leave open:

- The base of the logarithm in log m / log log m is 2. With base e four devices always share a
  group, even if the slowest one takes four times as long.
- Groups count from the fastest device, as in the rounding of Chudak and Shmoys.

Unlike the papers:

- Devices are unrelated, so a device has no speed. Its speed here is the share of its total run time
  that the tasks would need if each ran on its fastest device.
- Memories bound the groups. Tasks take their groups in the order of the graph, and a group
  that is full leaves the rest to the next one. Consecutive tasks therefore stay together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from heteroplace.native.core_arrays import IMPOSSIBLE, IntArray
from heteroplace.native.core_graph import BoolArray
from heteroplace.solve.lp.linear_program import FloatArray

_ENOUGH = 0.5 - 1e-6
"""Part of a task on fast groups that rules out the slower ones (1/2), less rounding errors."""


def device_speeds(run_ns: IntArray) -> FloatArray:
    """Return the speed of each device, [num_devices], between 0 and 1.

    Parameters
    ----------
    run_ns
        [num_tasks, num_devices]; IMPOSSIBLE where a device cannot run a task.

    Returns
    -------
    FloatArray
        1 for a device on which no task takes longer than on any other; 0 where no task can run.
        Related devices have speeds in proportion to the paper's.
    """
    is_possible = run_ns != IMPOSSIBLE
    fastest_ns = np.where(is_possible, run_ns, np.iinfo(np.int64).max).min(axis=1)
    ideal_ns = np.where(is_possible, fastest_ns[:, None], 0).sum(axis=0, dtype=np.float64)
    total_ns = np.where(is_possible, run_ns, 0).sum(axis=0, dtype=np.float64)
    speeds = np.divide(ideal_ns, total_ns, out=np.ones_like(total_ns), where=total_ns > 0)
    return np.where(is_possible.any(axis=0), speeds, 0.0)


def group_ratio(num_devices: int) -> float:
    """Return log m / log log m of m devices, to base 2: speeds of a group differ by less.

    Infinite for one or two devices, where log log m is not positive: they share a group.
    """
    if num_devices <= 2:
        return math.inf
    return math.log2(num_devices) / math.log2(math.log2(num_devices))


def speed_groups(speeds: FloatArray, ratio: float) -> list[list[int]]:
    """Return the devices in groups, the fastest group first, by device id within a group.

    Group k has the speeds in (s / ratio^(k+1), s / ratio^k], where s is the largest speed.
    Devices of speed 0 are in no group, unless all are.
    """
    fastest = float(speeds.max())
    if fastest == 0:
        return [list(range(len(speeds)))]
    groups: dict[int, list[int]] = {}
    for device, speed in enumerate(speeds.tolist()):
        if speed > 0:
            # Speeds that differ by `ratio` exactly belong to different groups.
            level = math.floor(math.log(fastest / speed) / math.log(ratio) + 1e-9)
            groups.setdefault(level, []).append(device)
    return [groups[level] for level in sorted(groups)]


def without_slow(speeds: FloatArray) -> FloatArray:
    """Return the speeds, with 0 for devices slower than 1/m of the fastest of m devices."""
    return np.where(speeds * len(speeds) < speeds.max() * (1 - 1e-9), 0.0, speeds)


def choose_groups(
    parts: FloatArray,
    is_allowed: BoolArray,
    group_speed: Sequence[float],
    num_bytes: IntArray,
    room_bytes: Sequence[float],
) -> list[int]:
    """Return the group of each task by the rule of the paper, as far as there is room.

    Let l be the fastest group such that at least half of the task is on groups 0 to l. The task
    takes the group of the largest total speed among 0 to l; equal ones: the faster one.

    Parameters
    ----------
    parts
        [num_tasks, num_groups], what the linear programme puts on each group; rows add up to 1.
    is_allowed
        [num_tasks, num_groups], each task has a group.
    group_speed
        [num_groups], total speed of the devices.
    num_bytes
        [num_tasks]
    room_bytes
        [num_groups]; a group without room is left out, and slower groups follow.
    """
    slowest = (parts.cumsum(axis=1) >= _ENOUGH).argmax(axis=1).tolist()
    num_groups = len(group_speed)
    orders = [
        sorted(range(last + 1), key=lambda group: (-group_speed[group], group))
        + list(range(last + 1, num_groups))
        for last in range(num_groups)
    ]
    room = list(room_bytes)
    chosen = []
    for task, size in enumerate(num_bytes.tolist()):
        allowed = [group for group in orders[slowest[task]] if is_allowed[task, group]]
        group = next((group for group in allowed if size <= room[group]), allowed[0])
        room[group] -= size
        chosen.append(group)
    return chosen
