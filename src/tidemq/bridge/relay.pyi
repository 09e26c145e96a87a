from tidemq.errors import RefusedError
from tidemq.wire import Packet

HOPS: str

class PeerRefusedError(RefusedError):
    reason: int
    packet_id: int
    def __init__(self, reason: int, packet_id: int) -> None: ...

class Counts:
    messages_out: int
    messages_in: int
    bytes_out: int
    bytes_in: int
    dropped_hops: int
    dropped_unmatched: int
    dropped_unfit: int
    dropped_refused: int

class Half:
    version: int
    held: bool
    peer_bytes_max: int
    topic_bytes_max: int
    topic_levels_max: int
    qos_max: int
    keeps_retain: bool
    under_way: int
    answered: int
    last_id: int
    careful: int
    skip: int
    releases: int
    hops_max: int

    def __init__(self, counts: Counts, *, is_local: bool, packet_bytes_max: int) -> None: ...
    def join(self, other: Half) -> None: ...
    def part(self) -> None: ...
    def map(self, filter: bytes, strip: int, prefix: bytes) -> None: ...
    def room(self) -> memoryview: ...
    def wrote(self, size: int) -> None: ...
    def feed(self, data: bytes) -> None: ...
    def write(self, packet: bytes) -> None: ...
    def take(self) -> bytes: ...
    @property
    def output_bytes(self) -> int: ...
    def parse(self) -> Packet | None: ...
