"""Who is at an address: what two nodes say to each other first."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tidemq.cluster.transport.settings import parse_address
from tidemq.errors import ClusterError

FORMAT = 1  # of this exchange and of what is sent afterwards
SUBJECT = "tidemq.hello"
HELLO_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Hello:
    """A node, as it introduces itself. `process`: drawn at its start, to tell a node from a copy of it."""

    cluster: str
    incarnation: int
    address: str
    process: str
    format: int = FORMAT

    def encode(self) -> bytes:
        fields = {
            "cluster": self.cluster,
            "incarnation": f"{self.incarnation:016x}",
            "address": self.address,
            "process": self.process,
            "format": self.format,
        }
        return json.dumps(fields).encode()

    def refusal(self, other: Hello) -> str:
        """Why the two cannot work together; empty where they can."""
        if other.format != self.format:
            return f"it speaks format {other.format}, this node {self.format}"
        if other.cluster != self.cluster:
            return f"it belongs to the cluster {other.cluster!r}, this node to {self.cluster!r}"
        return ""


def parse_hello(text: bytes) -> Hello:
    """ClusterError where it is none."""
    try:
        fields: Any = json.loads(text if len(text) <= HELLO_BYTES_MAX else b"")
        form, cluster, process = fields["format"], fields["cluster"], fields["process"]
        address, incarnation = fields["address"], int(fields["incarnation"], 16)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ClusterError(f"no hello of a node came, but {text[:80]!r}") from error
    words = all(isinstance(each, str) and len(each) <= 256 for each in (cluster, process, address))
    if not (words and isinstance(form, int) and 0 < incarnation < 1 << 64):
        raise ClusterError(f"no hello of a node came, but {text[:80]!r}")
    parse_address(address)
    return Hello(cluster, incarnation, address, process, form)
