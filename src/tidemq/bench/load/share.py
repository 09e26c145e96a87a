"""Which connections of a workload a generator has."""

from __future__ import annotations

from dataclasses import dataclass

from tidemq.bench.workload import Workload


@dataclass(frozen=True, slots=True)
class Share:
    """The connections that one generator has, by their numbers among those of their kind."""

    publishers: range
    subscribers: range
    idle: range

    def connections(self, workload: Workload) -> int:
        """In a mesh and where messages bounce one connection is publisher and subscriber."""
        both = workload.mesh or workload.bounce
        return len(self.publishers) + (0 if both else len(self.subscribers)) + len(self.idle)


def whole(workload: Workload) -> Share:
    """All connections."""
    return Share(range(workload.publishers), range(workload.subscribers), range(workload.idle_connections))
