"""Route of a copy -> its legs: copies within a host, and messages from one host to another.

Messages go between memories of CPUs. What a GPU holds is copied to such a memory of its own host
first, and what it shall have is copied on from there. A route through a third host relays there.
"""

from __future__ import annotations

from dataclasses import dataclass

from heteroplace.errors import LoweringError
from heteroplace.model.cluster import Cluster


@dataclass(frozen=True)
class Leg:
    """A part of a route that one copy or one message takes."""

    route: tuple[int, ...]
    """Links: those of a copy within a host, or the one to another host that calls for it."""
    src: int
    dst: int
    is_message: bool


class Legs:
    """Cuts the routes of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[tuple[int, ...], tuple[Leg, ...]] = {}

    def of(self, route: tuple[int, ...]) -> tuple[Leg, ...]:
        """Return the legs of a route, in order; one of a single copy where it stays on a host.

        Raises
        ------
        LoweringError
            A message would need memory of a CPU on a host that has none.
        """
        if route not in self._known:
            self._known[route] = self._cut(route)
        return self._known[route]

    def _cut(self, route: tuple[int, ...]) -> tuple[Leg, ...]:
        hosts = self._cluster.memory_hosts
        legs: list[Leg] = []
        for link in route:
            src, dst = self._cluster.links[link].src, self._cluster.links[link].dst
            if hosts[src] != hosts[dst]:
                legs += self._over_hosts(link, src, dst)
            elif legs and not legs[-1].is_message:
                legs[-1] = Leg((*legs[-1].route, link), legs[-1].src, dst, is_message=False)
            else:
                legs.append(Leg((link,), src, dst, is_message=False))
        return tuple(_without_loops(legs))

    def _over_hosts(self, link: int, src: int, dst: int) -> list[Leg]:
        near, far = self._port(src, link), self._port(dst, link)
        legs = [Leg((link,), near, far, is_message=True)]
        if near != src:
            legs.insert(0, Leg(self._staging(src, near, link), src, near, is_message=False))
        if far != dst:
            legs.append(Leg(self._staging(far, dst, link), far, dst, is_message=False))
        return legs

    def _port(self, memory: int, link: int) -> int:
        """The memory of the same host that messages are sent from and received in."""
        cluster = self._cluster
        kinds = [device.kind for device in cluster.devices if device.memory == memory]
        if "cuda" not in kinds:
            return memory
        host = cluster.memory_hosts[memory]
        for device in cluster.devices:
            if device.host == host and device.kind == "cpu":
                return device.memory
        raise LoweringError(
            f"link {cluster.links[link].name!r} leads to or from memory "
            f"{cluster.memories[memory].name!r} of a GPU on host {host!r}, which has no cpu "
            f"device; messages go through the memory of one, so add one on that host"
        )

    def _staging(self, src: int, dst: int, link: int) -> tuple[int, ...]:
        """The route within a host; where it has none, `link` names the channel of the copy."""
        hosts = self._cluster.memory_hosts
        if self._cluster.is_reachable(src, dst):
            route = self._cluster.route(src, dst)
            ends = (self._cluster.links[each].dst for each in route)
            if all(hosts[end] == hosts[src] for end in ends):
                return route
        return (link,)


def _without_loops(legs: list[Leg]) -> list[Leg]:
    """The legs but those that lead back to where the value has been: staging may do that."""
    shorter: list[Leg] = []
    for leg in legs:
        shorter.append(leg)
        for index, earlier in enumerate(shorter):
            if earlier.src == leg.dst:
                del shorter[index:]
                break
    return shorter
