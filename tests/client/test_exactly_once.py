"""Each message of an `ExactlyOncePublisher` comes once: publisher and broker are killed at any moment, and
what cannot be known is an error."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from client.servers import Server

from tidemq.client import (
    ConnectError,
    DisconnectedError,
    Message,
    PublishError,
    ServerRefusedError,
    SubscribeError,
    sync,
)
from tidemq.client.exactly_once import (
    CHUNK_MESSAGES,
    TOPIC,
    ExactlyOncePublisher,
    ProgressError,
    _Session,
)
from tidemq.errors import UsageError
from tidemq.wire import Pubcomp, Pubrec

pytestmark = pytest.mark.timeout(120)
BATCHES = 30
KILLS = 4  # at most, of the publisher and of the broker each
FOREVER = {"clean_start": False, "session_expiry_s": 0xFFFFFFFF}

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
def durable(tmp_path) -> Iterator[Server]:
    """A broker that keeps all of it over its end."""
    server = Server("tidemq", tmp_path, store="sqlite").start()
    yield server
    server.kill()


@pytest.fixture
def received(durable) -> Callable[[], list[bytes]]:
    """`received()`: payloads of what came to `killed/#` since, by a session of QoS 2 that was away."""
    with sync.Client(durable.url, client_id="watching", **FOREVER) as client:
        client.subscribe("killed/#", qos=2)

    def take() -> list[bytes]:
        with sync.Client(durable.url, client_id="watching", **FOREVER) as client:
            return [message.payload for message in client.messages.each(1.0)]

    return take


def test_each_message_comes_once_whoever_is_killed(durable, received):
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


def test_whichever_request_was_its_last_the_next_one_goes_on(durable, received, monkeypatch):
    """The request is let out, and its answers are lost."""
    left = 0
    ask = _Session.ask

    async def ask_and_die(self, data, kind, topics):
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
    durable, received, monkeypatch, between
):
    """The program goes on behind an error: the end of a batch was announced, and its release got lost."""
    ask = _Session.ask

    async def cut(self, data, kind, topics):
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


def test_what_is_not_the_same_again_is_refused(durable, received, monkeypatch):
    with ExactlyOncePublisher(durable.url, "changes") as publisher:
        publisher.publish(5, messages(10))
        for other in (messages(9), messages(11)):
            with pytest.raises(ProgressError, match="batch 5 of the publisher changes-0 has come again"):
                publisher.publish(5, other)
        with pytest.raises(ProgressError, match="is at batch 5, and this is batch 4"):
            publisher.publish(4, messages(10))

    ask = _Session.ask

    async def die(self, data, kind, topics):
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


def test_a_session_that_was_forgotten_between_two_batches_is_not_missed(durable, received):
    with ExactlyOncePublisher(durable.url, "forgotten", 3) as publisher:
        publisher.publish(0, messages(10))
    forget(durable, "forgotten-3")
    with ExactlyOncePublisher(durable.url, "forgotten", 3) as publisher:
        publisher.publish(0, messages(10))
        publisher.publish(1, messages(5))
    assert received() == [message.payload for message in [*messages(10), *messages(5)]]


def test_what_a_session_knows_beyond_an_announcement_is_forgotten(durable, received):
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


async def advance_and_die(self, old, now, chunk):
    await _advance(self, old, now, chunk)
    raise KilledError


@pytest.mark.parametrize(
    "error", [SubscribeError("reading", (0x80,)), KeyboardInterrupt(), RuntimeError("!")]
)
def test_an_error_before_the_progress_was_read_repeats_nothing(durable, received, monkeypatch, error):
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
def test_whichever_request_is_interrupted_the_next_call_goes_on(durable, received, monkeypatch, step):
    """Its answer, which comes later, is taken for no other's."""
    messages = [Message("killed/x", b"%d" % n) for n in range(5)]
    ask, asked = _Session.ask, []

    async def interrupted(session: _Session, *arguments: object) -> object:
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


def test_a_forgotten_session_is_an_error_every_time(durable, received, monkeypatch):
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


def test_a_closed_publisher_says_so(durable):
    publisher = ExactlyOncePublisher(durable.url, "closed")
    publisher.publish(1, [])
    publisher.close()
    publisher.close()
    with pytest.raises(UsageError, match="closed"):
        publisher.publish(2, [])


def test_who_is_taken_over_stops(durable, received):
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


def test_a_refused_message_is_named(durable):
    with ExactlyOncePublisher(durable.url, "refused") as publisher:
        large = [*messages(3), Message("killed/large", bytes(2 << 20))]
        with pytest.raises(PublishError, match="publishing to 'killed/large': packet too large"):
            publisher.publish(0, large)
    with sync.Client(durable.url) as client:
        client.subscribe("#", qos=1)
        assert not list(client.messages.each(0.2))  # neither retained announcement nor message


@pytest.mark.parametrize("name", ["", "a/b", "a+", "#"])
def test_a_wrong_publisher_is_refused(name):
    with pytest.raises(UsageError, match="accepted: letters, digits"):
        ExactlyOncePublisher("mqtt://localhost", name)


def test_a_broker_that_is_not_there_is_named(unused_tcp_port):
    with (
        ExactlyOncePublisher(f"mqtt://127.0.0.1:{unused_tcp_port}", "alone", retry_s=0.3) as publisher,
        pytest.raises(ConnectError, match=f"cannot connect to mqtt://127.0.0.1:{unused_tcp_port}"),
    ):
        publisher.publish(0, messages(1))
