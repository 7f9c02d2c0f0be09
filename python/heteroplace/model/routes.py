"""Links -> the way that a copy takes between each two memories.

Moirai, section III-C, DOI 10.48550/arXiv.2312.04025: the widest path stands for a missing link.
Between two memories: the direct link if there is one (the widest, then the lowest id); else the
widest path, then the fewest hops, then the lowest link ids, compared from the first on.

What is asked from one memory is found for all others at once. A search for the widest paths cannot
settle hops on its way (a wide path of many hops and a narrow one of few end alike behind a narrow
link), so the widths come first, and then breadth-first searches over links that are wide enough.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

_Ways = dict[int, tuple[int, ...]]
"""Link ids of the route to each memory that is reached."""


@dataclass
class Routes:
    """The routes of a cluster, found when they are asked for. Not thread-safe while it finds one,
    but two threads find the same."""

    num_memories: int
    links: Sequence[tuple[int, int, int]]
    """For each link the memory it reads, the one it writes, and its width in bytes per second."""
    _out: list[list[tuple[int, int, int]]] = field(init=False)
    """For each memory (link id, memory it leads to, width), ascending by link id."""
    _next: list[set[int]] = field(init=False)
    """For each memory those that links lead to."""
    _from: dict[int, _Ways] = field(default_factory=dict, init=False)
    _reached: dict[int, set[int]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._out = [[] for _ in range(self.num_memories)]
        for index, (src, dst, width) in enumerate(self.links):
            self._out[src].append((index, dst, width))
        self._next = [{dst for _, dst, _ in links} for links in self._out]

    def is_reachable(self, src: int, dst: int) -> bool:
        """Say whether there is a path. O(links) once for each `src`."""
        if src not in self._reached:
            reached, waiting = {src}, [src]
            while waiting and len(reached) < self.num_memories:
                new = self._next[waiting.pop()] - reached
                reached |= new
                waiting.extend(new)
            self._reached[src] = reached
        return dst in self._reached[src]

    def ways(self, src: int) -> _Ways:
        """Return the link ids of the route to every other memory that is reached from `src`.

        Complexity: O(links * (log(memories) + distinct widths)) once for each `src`; where all are
        neighbours O(links of `src`).
        """
        if src not in self._from:
            self._from[src] = self._find(src)
        return self._from[src]

    def _find(self, src: int) -> _Ways:
        direct: dict[int, tuple[int, int]] = {}
        for index, memory, width in self._out[src]:
            if memory not in direct or width > direct[memory][0]:
                direct[memory] = (width, index)
        ways: _Ways = {memory: (index,) for memory, (_, index) in direct.items()}
        if len(ways) < self.num_memories - 1:
            left = {
                memory: width for memory, width in self._widths(src).items() if memory not in ways
            }
            while left:
                shortest = self._shortest(src, left)
                ways |= shortest
                left = {memory: width for memory, width in left.items() if memory not in shortest}
        return ways

    def _widths(self, src: int) -> dict[int, int]:
        """The width of the widest path to each memory that is reached (Dijkstra)."""
        settled: dict[int, int] = {}
        widest = max((width for _, _, width in self._out[src]), default=0)
        waiting = [(-widest, src)]
        while waiting:
            negative_width, memory = heapq.heappop(waiting)
            if memory in settled:
                continue
            settled[memory] = -negative_width
            for _, after, width in self._out[memory]:
                if after not in settled:
                    heapq.heappush(waiting, (max(negative_width, -width), after))
        del settled[src]
        return settled

    def _shortest(self, src: int, left: dict[int, int]) -> _Ways:
        """The shortest paths over links that are as wide as the least width of those left.

        Memories of one distance are visited in the order of their paths, and their links by id, so
        the first path that reaches a memory is the least of its length. Where it is as wide as the
        widest, it is the route: no narrower choice of links has a better one. That is so for all of
        the least width.

        Parameters
        ----------
        left
            The largest width of a path to each memory that has no route yet; one of them at least
            gets it.
        """
        least = min(left.values())
        paths: dict[int, tuple[int, tuple[int, ...]]] = {src: (max(left.values()), ())}
        level, num_open = [src], len(left)
        while num_open:
            after: list[int] = []
            for memory in level:
                width, path = paths[memory]
                for index, dst, link_width in self._out[memory]:
                    if link_width >= least and dst not in paths:
                        paths[dst] = (min(width, link_width), (*path, index))
                        after.append(dst)
                        num_open -= dst in left
            level = after
        return {
            memory: paths[memory][1] for memory, width in left.items() if paths[memory][0] == width
        }
