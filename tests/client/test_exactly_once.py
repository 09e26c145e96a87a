"""Each message of an `ExactlyOncePublisher` comes once: publisher and broker are killed at any moment, and
what cannot be known is an error."""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from client.servers import Server

from tidemq.client import (
    ConnectError,
    DisconnectedError,
    Message,
    PublishError,
    ServerRefusedError,
    SubscribeError,
    exactly_once,
    sync,
)
from tidemq.client.exactly_once import (
    CHUNK_MESSAGES,
    TOPIC,
    Chunk,
    ExactlyOncePublisher,
    Progress,
    ProgressError,
    _Session,
)
from tidemq.errors import UsageError
from tidemq.wire import Pubcomp, Pubrec

BATCHES = 30
KILLS = 4  # at most, of the publisher and of the broker each
FOREVER: dict[str, Any] = {"clean_start": False, "session_expiry_s": 0xFFFFFFFF}

# publishes the batches from a number on, and says when one is done
PUBLISHER = """
import random, sys
from tidemq.client import Message
from tidemq.client.exactly_once import ExactlyOncePublisher

url, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with ExactlyOncePublisher(url, "killed") as publisher:
    for batch in range(first, last):
        count = random.Random(batch).randrange(2500)
        messages = [Message(f"killed/{number % 7}", b"%d %d" % (batch, number)) for number in range(count)]
        for _ in range(1 + batch % 2):  # one that was done may come again before the next
            assert publisher.publish(batch, messages) == count
        print(batch, flush=True)
"""


def wanted(batches: range) -> list[bytes]:
    counts = {batch: random.Random(batch).randrange(2500) for batch in batches}
    return [b"%d %d" % (batch, number) for batch, count in counts.items() for number in range(count)]


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[Server]:
    """A broker that keeps all of it over its end."""
    server = Server("tidemq", tmp_path, store="sqlite").start()
    yield server
    server.kill()


@pytest.fixture
def received(durable: Server) -> Callable[[], list[bytes]]:
    """`received()`: payloads of what came to `killed/#` since, by a session of QoS 2 that was away."""
    with sync.Client(durable.url, client_id="watching", **FOREVER) as client:
        client.subscribe("killed/#", qos=2)

    def take() -> list[bytes]:
        with sync.Client(durable.url, client_id="watching", **FOREVER) as client:
            return [message.payload for message in client.messages.each(1.0)]

    return take


def test_each_message_comes_once_whoever_is_killed(
    durable: Server, received: Callable[[], list[bytes]]
) -> None:
    chosen = random.Random(11)
    done, kills, crashes = -1, 0, 0
    stop = threading.Event()

    def crash() -> None:
        nonlocal crashes
        while crashes < KILLS and not stop.wait(chosen.uniform(0.3, 1.0)):
            durable.kill()
            durable.start()
            crashes += 1

    crashing = threading.Thread(target=crash)
    crashing.start()
    try:
        while done < BATCHES - 1:
            command = [sys.executable, "-c", PUBLISHER, durable.url, str(done + 1), str(BATCHES)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None
            lines = [process.stdout.readline()]
            killing = threading.Timer(chosen.uniform(0, 0.3), process.kill)
            if kills < KILLS:
                killing.start()
            lines += process.stdout.readlines()
            killing.cancel()
            kills += process.wait() == -signal.SIGKILL
            assert process.returncode in (0, -signal.SIGKILL)
            done = max([done, *(int(line) for line in lines if line)])
    finally:
        stop.set()
        crashing.join()
    assert kills >= 2
    assert crashes >= 2
    assert sorted(received()) == sorted(wanted(range(BATCHES)))


def messages(count: int, text: str = "x") -> list[Message]:
    return [Message("killed/a", f"{text} {number}") for number in range(count)]


class KilledError(Exception):
    """Of the publisher, in the middle."""


REQUESTS = (
    10  # of two chunks: CONNECT, SUBSCRIBE, PINGREQ; announcement, chunk; announcement, release, chunk; …
)


def test_whichever_request_was_its_last_the_next_one_goes_on(
    durable: Server, received: Callable[[], list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is let out, and its answers are lost."""
    left = 0
    ask = _Session.ask

    async def ask_and_die(self: Any, data: bytes, kind: type[Any], topics: Any) -> Any:
        nonlocal left
        if left == 0:
            self._link.send(data)
            raise KilledError
        left -= 1
        return await ask(self, data, kind, topics)

    expected = []
    for last in range(REQUESTS):
        whole = messages(CHUNK_MESSAGES + 10, f"{last}")
        left = last
        monkeypatch.setattr(_Session, "ask", ask_and_die)
        with ExactlyOncePublisher(durable.url, f"ends{last}") as publisher, pytest.raises(KilledError):
            publisher.publish(1, whole)
        monkeypatch.undo()
        with ExactlyOncePublisher(durable.url, f"ends{last}") as publisher:
            assert publisher.publish(1, whole) == len(whole)
            assert publisher.publish(1, whole) == len(whole)
            assert publisher.publish(2, whole[:1]) == 1
        expected += [message.payload for message in [*whole, whole[0]]]
    assert received() == expected


@pytest.mark.parametrize("between", [0, 1])
def test_a_batch_whose_end_was_not_released_swallows_nothing_of_later_ones(
    durable: Server, received: Callable[[], list[bytes]], monkeypatch: pytest.MonkeyPatch, between: int
) -> None:
    """The program goes on behind an error: the end of a batch was announced, and its release got lost."""
    ask = _Session.ask

    async def cut(self: Any, data: bytes, kind: type[Any], topics: Any) -> Any:
        if kind is Pubcomp:
            raise DisconnectedError("the line is cut")
        return await ask(self, data, kind, topics)

    with ExactlyOncePublisher(durable.url, "goes-on", retry_s=0) as publisher:
        monkeypatch.setattr(_Session, "ask", cut)
        with pytest.raises(DisconnectedError):
            publisher.publish(1, messages(3, "first"))
        monkeypatch.undo()
        for batch in range(2, 2 + between):
            assert publisher.publish(batch, []) == 0
        for batch in (10, 11, 12):  # the chunk of batch 11 has the packet identifiers of the first
            assert publisher.publish(batch, messages(3, f"{batch}")) == 3
    texts = ("first", "10", "11", "12")
    assert received() == [message.payload for text in texts for message in messages(3, text)]


SLOW_BYTES = 16_384  # at a time
SLOW_S = 0.01


@contextmanager
def slow_line(port: int) -> Iterator[str]:
    """The URL of a line to the broker that takes 1.6 MB a second; back it is fast."""
    with socket.create_server(("127.0.0.1", 0)) as front:
        front.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_BYTES)
        threading.Thread(target=take_slowly, args=(front, port), daemon=True).start()
        yield f"mqtt://127.0.0.1:{front.getsockname()[1]}"
        front.shutdown(socket.SHUT_RDWR)  # wakes the thread


def take_slowly(front: socket.socket, port: int) -> None:
    def pass_on(source: socket.socket, sink: socket.socket, pause_s: float) -> None:
        with suppress(OSError):  # the other end has gone
            while data := source.recv(SLOW_BYTES):
                time.sleep(pause_s)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    with suppress(OSError):  # the test is over
        while True:
            client, broker = front.accept()[0], socket.create_connection(("127.0.0.1", port))
            for source, sink, pause_s in ((client, broker, SLOW_S), (broker, client, 0)):
                threading.Thread(target=pass_on, args=(source, sink, pause_s), daemon=True).start()


@pytest.mark.parametrize("count", [4, 64])
def test_a_slow_line_gets_on(
    durable: Server, received: Callable[[], list[bytes]], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """A chunk takes several times as long as an answer may."""
    monkeypatch.setattr(exactly_once, "ANSWER_S", 0.5)
    size = 4_000_000 // count
    whole = [Message("killed/a", b"%02d" % number * (size // 2)) for number in range(count)]
    began = time.monotonic()
    with slow_line(durable.port) as url, ExactlyOncePublisher(url, "slow", retry_s=0) as publisher:
        assert publisher.publish(1, whole) == count
    assert time.monotonic() - began > 1.5
    assert received() == [message.payload for message in whole]


def test_an_end_in_the_middle_of_a_message_completes_none(
    durable: Server, received: Callable[[], list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the length of a goodbye, the first piece is the whole packet."""
    until = _Session._until
    overhead = len(exactly_once.Chunk(0, [Message("killed/a", bytes(1 << 16))]).packets[0]) - (1 << 16)
    message = Message("killed/a", b"x" * (exactly_once.PIECE_BYTES + 2 - overhead))

    async def die(self: Any, done: Any) -> Any:
        if self._kind is Pubrec:
            raise KilledError
        await until(self, done)

    with ExactlyOncePublisher(durable.url, "halves") as publisher:
        monkeypatch.setattr(_Session, "_until", die)
        with pytest.raises(KilledError):
            publisher.publish(1, [message])
        monkeypatch.undo()
        assert publisher.publish(1, [message]) == 1
    assert received() == [message.payload]


def test_a_step_that_took_long_is_tried_again_too(
    durable: Server, received: Callable[[], list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker has been away for as long as it cannot be reached, not since the step began."""
    calls = 0

    async def break_late(self: Any, old: Progress | None, now: Progress, chunk: Chunk) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            await asyncio.sleep(0.5)
            raise DisconnectedError("the line is cut")
        await _advance(self, old, now, chunk)

    monkeypatch.setattr(ExactlyOncePublisher, "_advance", break_late)
    with ExactlyOncePublisher(durable.url, "late", retry_s=0.3) as publisher:
        assert publisher.publish(1, messages(3)) == 3
    assert received() == [message.payload for message in messages(3)]


def test_what_is_not_the_same_again_is_refused(
    durable: Server, received: Callable[[], list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExactlyOncePublisher(durable.url, "changes") as publisher:
        publisher.publish(5, messages(10))
        for other in (messages(9), messages(11)):
            with pytest.raises(ProgressError, match="batch 5 of the publisher changes-0 has come again"):
                publisher.publish(5, other)
        with pytest.raises(ProgressError, match="is at batch 5, and this is batch 4"):
            publisher.publish(4, messages(10))

    ask = _Session.ask

    async def die(self: Any, data: bytes, kind: type[Any], topics: Any) -> Any:
        if kind is Pubrec:
            raise KilledError
        return await ask(self, data, kind, topics)

    with ExactlyOncePublisher(durable.url, "changes") as publisher:
        monkeypatch.setattr(_Session, "ask", die)
        with pytest.raises(KilledError):
            publisher.publish(6, messages(10))  # announced
        monkeypatch.undo()
        with pytest.raises(ProgressError, match="in another order"):
            publisher.publish(6, messages(10)[::-1])
        with pytest.raises(ProgressError, match="has not finished batch 6, and this is batch 7"):
            publisher.publish(7, messages(10))
    forget(durable, "changes-0")
    with (
        ExactlyOncePublisher(durable.url, "changes") as publisher,
        pytest.raises(ProgressError, match="the broker has forgotten the session changes-0"),
    ):
        publisher.publish(6, messages(10))
    assert received() == [message.payload for message in messages(10)]


def forget(server: Server, client_id: str) -> None:
    """Ends a session."""
    with sync.Client(server.url, client_id=client_id):
        pass


def test_a_session_that_was_forgotten_between_two_batches_is_not_missed(
    durable: Server, received: Callable[[], list[bytes]]
) -> None:
    with ExactlyOncePublisher(durable.url, "forgotten", 3) as publisher:
        publisher.publish(0, messages(10))
    forget(durable, "forgotten-3")
    with ExactlyOncePublisher(durable.url, "forgotten", 3) as publisher:
        publisher.publish(0, messages(10))
        publisher.publish(1, messages(5))
    assert received() == [message.payload for message in [*messages(10), *messages(5)]]


def test_what_a_session_knows_beyond_an_announcement_is_forgotten(
    durable: Server, received: Callable[[], list[bytes]]
) -> None:
    """Somebody removes the announcement of a publisher that is in the middle."""
    with ExactlyOncePublisher(durable.url, "removed") as publisher, pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExactlyOncePublisher, "_advance", advance_and_die)
        with pytest.raises(KilledError):
            publisher.publish(0, messages(10, "first"))
    with sync.Client(durable.url) as client:
        client.publish(f"{TOPIC}/removed/0", b"", qos=1, retain=True)
    with ExactlyOncePublisher(durable.url, "removed") as publisher:
        publisher.publish(0, messages(10, "second"))
    assert received() == [message.payload for text in ("first", "second") for message in messages(10, text)]


_advance = ExactlyOncePublisher._advance


async def advance_and_die(self: Any, old: Progress | None, now: Progress, chunk: Chunk) -> None:
    await _advance(self, old, now, chunk)
    raise KilledError


@pytest.mark.parametrize(
    "error", [SubscribeError("reading", (0x80,)), KeyboardInterrupt(), RuntimeError("!")]
)
def test_an_error_before_the_progress_was_read_repeats_nothing(
    durable: Server,
    received: Callable[[], list[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    error: KeyboardInterrupt | RuntimeError | SubscribeError,
) -> None:
    messages = [Message("killed/x", b"%d" % n) for n in range(5)]
    with ExactlyOncePublisher(durable.url, "fails") as publisher:
        assert publisher.publish(1, messages) == 5
    retained = _Session.retained

    async def fail(session: _Session, topic: str) -> bytes:
        monkeypatch.setattr(_Session, "retained", retained)
        raise error

    with ExactlyOncePublisher(durable.url, "fails") as publisher:
        monkeypatch.setattr(_Session, "retained", fail)
        with pytest.raises(type(error)):
            publisher.publish(1, messages)
        assert publisher.publish(1, messages) == 5
    assert received() == [each.payload for each in messages]


@pytest.mark.parametrize("step", range(6))
def test_whichever_request_is_interrupted_the_next_call_goes_on(
    durable: Server, received: Callable[[], list[bytes]], monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Its answer, which comes later, is taken for no other's."""
    messages = [Message("killed/x", b"%d" % n) for n in range(5)]
    ask, asked = _Session.ask, []

    async def interrupted(session: _Session, *arguments: Any) -> object:
        asked.append(arguments)
        if len(asked) == step + 1:
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().call_soon(task.cancel)
        return await ask(session, *arguments)

    with ExactlyOncePublisher(durable.url, "fails") as publisher:
        monkeypatch.setattr(_Session, "ask", interrupted)
        with pytest.raises(asyncio.CancelledError):
            publisher.publish(1, messages)
        assert publisher.publish(1, messages) == 5
        assert publisher.publish(2, messages) == 5
    assert received() == [each.payload for each in messages] * 2


def test_a_forgotten_session_is_an_error_every_time(
    durable: Server, received: Callable[[], list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [Message("killed/x", b"%d" % n) for n in range(5)]
    ask = _Session.ask

    async def interrupted(session: _Session, data: bytes, kind: type, topics: dict[int, str]) -> object:
        answer = await ask(session, data, kind, topics)
        if kind is Pubrec:
            raise RuntimeError("in the middle of a batch")
        return answer

    monkeypatch.setattr(_Session, "ask", interrupted)
    with ExactlyOncePublisher(durable.url, "forgotten") as publisher, pytest.raises(RuntimeError):
        publisher.publish(1, messages)
    monkeypatch.setattr(_Session, "ask", ask)
    with sync.Client(durable.url, client_id="forgotten-0"):
        pass  # its clean start ends the session
    for _ in range(2):  # also for another process
        with ExactlyOncePublisher(durable.url, "forgotten") as publisher:
            for _ in range(3):
                with pytest.raises(ProgressError, match="has forgotten the session"):
                    publisher.publish(1, messages)
    assert received() == [each.payload for each in messages]


def test_a_closed_publisher_says_so(durable: Server) -> None:
    publisher = ExactlyOncePublisher(durable.url, "closed")
    publisher.publish(1, [])
    publisher.close()
    publisher.close()
    with pytest.raises(UsageError, match="closed"):
        publisher.publish(2, [])


def test_who_is_taken_over_stops(durable: Server, received: Callable[[], list[bytes]]) -> None:
    with (
        ExactlyOncePublisher(durable.url, "twins") as first,
        ExactlyOncePublisher(durable.url, "twins") as second,
    ):
        first.publish(0, messages(10))
        second.publish(1, messages(10))
        with pytest.raises(ServerRefusedError, match="session taken over"):
            first.publish(1, messages(10))
        assert second.publish(1, messages(10)) == 10
    assert len(received()) == 20


def test_a_refused_message_is_named(durable: Server) -> None:
    with ExactlyOncePublisher(durable.url, "refused") as publisher:
        large = [*messages(3), Message("killed/large", bytes(2 << 20))]
        with pytest.raises(PublishError, match="publishing to 'killed/large': packet too large"):
            publisher.publish(0, large)
    with sync.Client(durable.url) as client:
        client.subscribe("#", qos=1)
        assert not list(client.messages.each(0.2))  # neither retained announcement nor message


@pytest.mark.parametrize("name", ["", "a/b", "a+", "#"])
def test_a_wrong_publisher_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="accepted: letters, digits"):
        ExactlyOncePublisher("mqtt://localhost", name)


def test_a_broker_that_is_not_there_is_named(unused_tcp_port: int) -> None:
    with (
        ExactlyOncePublisher(f"mqtt://127.0.0.1:{unused_tcp_port}", "alone", retry_s=0.3) as publisher,
        pytest.raises(ConnectError, match=f"cannot connect to mqtt://127.0.0.1:{unused_tcp_port}"),
    ):
        publisher.publish(0, messages(1))
