from asyncio import Future
from collections import deque
from collections.abc import Callable, Iterator

from tidemq.client.message import Message
from tidemq.client.receipt import Group, Receipt
from tidemq.client.settings import Payload
from tidemq.wire import Properties

FLUSH_BYTES: int

Step = tuple[str, Receipt, tuple[object, ...]]  # its name, and the values of its row

class Outgoing:
    connected: bool
    version: int
    inflight: int
    inflight_max: int
    held_messages: int
    held_bytes: int
    dropped: int
    closed_error: Exception | None
    room_waiters: deque[Future[None]]
    journal: list[Step] | None
    on_journal: Callable[[], None] | None

    def __init__(
        self,
        on_output: Callable[[], None],
        on_full: Callable[[], None],
        held_messages_max: int,
        held_bytes_max: int,
        drops_oldest: bool,
        alias_limit: int,
    ) -> None: ...
    def write(self, packet: bytes) -> None: ...
    def take(self) -> bytes: ...
    @property
    def output_bytes(self) -> int: ...
    @property
    def progress_bytes(self) -> int: ...
    def gone(self) -> None: ...
    def pause(self) -> None: ...
    def proceed(self) -> None: ...
    def publish(
        self, topic: str, payload: Payload, qos: int, retain: bool, properties: Properties | None
    ) -> Receipt: ...
    def prepare(
        self, topic: str, payload: Payload, qos: int, retain: bool, properties: Properties | None
    ) -> Receipt: ...
    def publish_some(
        self,
        messages: Iterator[tuple[str, Payload] | Message],
        qos: int,
        retain: bool,
        properties: Properties | None,
        group: Group,
    ) -> bool: ...
    def has_room(self, size: int) -> bool: ...
    def refill(self) -> None: ...
    def reserve_id(self, request: object) -> int: ...
    def release_id(self, packet_id: int) -> object | None: ...
    def connect(
        self,
        version: int,
        inflight_max: int,
        packet_bytes_max: int,
        qos_max: int,
        retain_available: bool,
        alias_max: int,
    ) -> None: ...
    def resume(self) -> None: ...
    def restart(self) -> None: ...
    def disconnect(self) -> None: ...
    def close(self, error: Exception) -> None: ...
    def take_journal(self) -> list[Step]: ...
    def stored(self, steps: list[Step]) -> None: ...
    def restore(self, rows: list[tuple[object, ...]]) -> None: ...
