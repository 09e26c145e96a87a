"""Clients that do to a broker all that clients do, many at once: a process of its own, on plain sockets.

    python -m adversity.load DOORS --seconds 10 --seed 1

DOORS are the broker's listeners, a list of the fields of `doors.Door` as JSON; the first is a plain one.

Every actor is a thread that plays one kind of client again and again until the time is over. Connections may
end at any moment, that is the point; a packet that a broker must not send is a failure. Prints what the
actors have seen as JSON, so that the caller can tell a load that did something from one that did not.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import random
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from adversity.doors import Door, Visitor, break_in
from conformance.kit import Client, ConnectionEnded, Silence
from conformance.packets import (
    AUTH,
    CONNACK,
    DISCONNECT,
    PING,
    PUBLISH,
    PUBREC,
    PUBREL,
    Will,
    acknowledge,
    auth,
    connect,
    disconnect,
    options,
    packet,
    publish,
    subscribe,
    text,
    unsubscribe,
)

COMMUTERS = 2
READ_S = 0.3  # of silence, after which an actor goes on
PUBACK, PUBCOMP = 4, 7
TOPICS = [f"load/{room}/{kind}" for room in range(4) for kind in ("heat", "light")]
FILTERS = [*TOPICS, "load/+/heat", "load/#", "load/1/+", "+/2/light", "+/+/+/#", "retained/#", "retained/+"]
GROUPS = ["$share/a/load/+/heat", "$share/b/load/#", "$share/a/load/1/light"]


class Diary:
    """What one diarist has written into its own persistent session and has not read again."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.begun = False  # the session is known to exist
        self.written = 0  # the last number used
        self.acknowledged: set[int] = set()  # numbers that must be read, or were
        self.read = {1: 0, 2: 0}  # the last number read, by QoS
        self.read_once: set[int] = set()  # numbers read at QoS 2
        self.pending: set[int] = set()  # packet identifiers that wait for their PUBREL
        # of the writer, QoS 2: by packet identifier what waits for PUBCOMP, and of those what has its PUBREC
        self.unfinished: dict[int, int] = {}
        self.released: set[int] = set()
        self.repeated: set[int] = set()  # numbers published again: they may have been refused before


class Play:
    """What one actor needs: where, until when, its own random numbers, and what it has seen."""

    def __init__(self, doors: list[Door], end: float, seed: str, seen: collections.Counter[str]) -> None:
        self.doors, self.end, self.seen = doors, end, seen
        self.random = random.Random(seed)
        self.numbers = itertools.count(1)
        self.diary = Diary(f"diarist{seed}")

    def open(self, client_id: str, version: int, **settings: Any) -> Client:
        """A client whose CONNECT was accepted; raises ConnectionEnded where it was not."""
        client = self.visit(version)
        client.send(connect(client_id, version, **settings))
        connack = client.receive()
        if connack.kind != CONNACK or connack.reason:
            raise ConnectionEnded(f"refused: {connack}")
        client.keep_ticket()
        self.seen["resumed"] += connack.session_present
        return client

    def visit(self, version: int) -> Visitor:
        """A client that has come in at any of the doors."""
        door = self.random.choice(self.doors)
        client = Visitor(door, version, self.random)
        self.seen[f"came in by {door.name}"] += 1
        self.seen["TLS resumed"] += client.resumed
        return client

    def take(self, client: Client, wait_s: float = READ_S) -> bool:
        """Receives one packet and does what it asks for; false when none came."""
        try:
            got = client.receive(wait_s)
        except Silence:
            return False
        if got.kind == PUBLISH:
            self.seen[f"received at QoS {got.qos}"] += 1
            self.seen["retained"] += got.retain
            if got.qos:
                client.send(acknowledge(PUBACK if got.qos == 1 else PUBREC, got.packet_id))
        elif got.kind == PUBREL:
            client.send(acknowledge(PUBCOMP, got.packet_id))
        elif got.kind == PUBREC:
            client.send(acknowledge(PUBREL, got.packet_id))
        elif got.kind in (PUBACK, PUBCOMP):
            self.seen["acknowledged"] += 1
        return True

    def take_all(self, client: Client, count: int) -> None:
        while count and time.monotonic() < self.end and self.take(client):
            count -= 1

    def drop(self, client: Client) -> None:
        """The end without DISCONNECT, half the time with a reset."""
        if self.random.random() < 0.5:
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.socket.close()


def publisher(play: Play) -> None:
    """Bursts of messages, acknowledged later, some of them with an expiry; half the time in a session that
    stays.
    """
    version = play.random.choice((3, 4, 5))
    if play.random.random() < 0.5:
        named = {"session_expiry": 100} if version == 5 else {}
        client = play.open(f"author{play.random.randrange(8)}v{version}", version, clean=False, **named)
    else:
        client = play.open(f"p{play.random.random()}" if version == 3 else "", version)
    for _ in range(play.random.randrange(5, 60)):
        qos = play.random.randrange(3)
        burst = []
        for _ in range(play.random.randrange(1, 30)):
            extra: dict[str, Any] = {}
            if version == 5 and play.random.random() < 0.2:
                extra = {"user": ("k", "v"), "message_expiry": play.random.choice((1, 60))}
            elif version == 5 and play.random.random() < 0.1:
                extra = {"user": ("traceparent", f"00-{play.random.getrandbits(128) | 1:032x}-{1:016x}-01")}
            number = next(play.numbers) % 65535 + 1
            payload = bytes(play.random.randrange(1, 200))
            burst.append(publish(play.random.choice(TOPICS), payload, qos, number, version, **extra))
        play.seen["published"] += len(burst)
        client.send(*burst)
        play.take_all(client, len(burst) * qos)
        if time.monotonic() > play.end:
            break
    client.send(disconnect())


def subscriber(play: Play) -> None:
    """A persistent session that comes and goes with its messages unacknowledged."""
    version = play.random.choice((3, 4, 5))
    named = {"session_expiry": play.random.choice((1, 3600)), "receive_max": 10} if version == 5 else {}
    client = play.open(f"keeper{play.random.randrange(6)}v{version}", version, clean=False, **named)
    filters = [(name, play.random.randrange(3)) for name in play.random.sample(FILTERS + GROUPS, 3)]
    extra = {"subscription_id": play.random.randrange(1, 9)} if version == 5 else {}
    client.send(subscribe(1, *filters, version=version, **extra))
    play.take_all(client, play.random.randrange(10, 800))
    play.drop(client)


def replayer(play: Play) -> None:
    """Asks for what a stream keeps, and goes in the middle."""
    version = play.random.choice((3, 4, 5))
    named = {"session_expiry": 1, "receive_max": 10} if version == 5 else {}
    client = play.open(f"replayer{play.random.randrange(4)}", version, **named)
    client.send(subscribe(1, ("$stream/load/first/#", play.random.randrange(2)), version=version))
    play.take_all(client, play.random.randrange(3000))
    play.seen["replayed"] += 1
    if play.random.random() < 0.5:
        client.send(unsubscribe(2, "$stream/load/first/#", version=version))
        play.take_all(client, 10)
    play.drop(client)


def slow_subscriber(play: Play) -> None:
    """Does not read for longer than a publisher is made to wait, then reads all."""
    client = play.visit(5)
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    client.send(
        connect("", 5, receive_max=200), subscribe(1, ("load/#", play.random.randrange(3)), ("big/#", 1))
    )
    time.sleep(play.random.uniform(0.2, 2.5))
    play.take_all(client, 3000)
    play.drop(client)


def churner(play: Play) -> None:
    """Subscribes and unsubscribes, with retained messages coming for wildcards."""
    client = play.open("", 5, topic_alias_max=4)
    for number in range(1, play.random.randrange(10, 120)):
        name = play.random.choice(FILTERS + GROUPS)
        if play.random.random() < 0.6:
            opts = options(play.random.randrange(3), handling=play.random.randrange(3), as_published=True)
            client.send(subscribe(number, (name, opts), subscription_id=number))
        else:
            client.send(unsubscribe(number, name))
        play.take_all(client, play.random.randrange(30))
    play.drop(client)


def retainer(play: Play) -> None:
    """Retained messages set, replaced, expired and removed."""
    client = play.open("", 5)
    for _ in range(play.random.randrange(10, 100)):
        payload = b"" if play.random.random() < 0.3 else bytes(play.random.choice((10, 1000, 40_000)))
        named: dict[str, Any] = {"message_expiry": 1} if play.random.random() < 0.3 else {}
        topic = f"retained/{play.random.randrange(200)}"
        client.send(publish(topic, payload, 1, next(play.numbers) % 65535 + 1, retain=True, **named))
        play.take(client)
    client.send(disconnect(4))


def mortal(play: Play) -> None:
    """Leaves a will, at once or delayed, and dies; sometimes it is back before the will is due."""
    name = f"mortal{play.random.randrange(8)}"
    delay = play.random.choice((0, 1, 5))
    will = Will(
        "load/will", b"gone", play.random.randrange(3), play.random.random() < 0.3, [("will_delay", delay)]
    )
    client = play.open(
        name, 5, clean=play.random.random() < 0.5, will=will, session_expiry=play.random.randrange(3)
    )
    client.send(subscribe(1, ("load/will", 2)))
    play.take_all(client, 5)
    play.drop(client)


def usurper(play: Play) -> None:
    """Takes sessions over that another may hold right now, wherever it lives."""
    name = f"throne{play.random.randrange(3)}"
    version = play.random.choice((4, 5))
    named = {"session_expiry": play.random.choice((0, 100))} if version == 5 else {}
    client = play.open(name, version, clean=play.random.random() < 0.5, **named)
    client.send(
        subscribe(1, ("throne/#", 1), version=version), publish("throne/1", bytes(50), 1, 1, version), PING
    )
    play.take_all(client, play.random.randrange(8))
    if play.random.random() < 0.5:
        play.drop(client)
    else:
        time.sleep(0.01)  # long enough to be thrown out


def giant(play: Play) -> None:
    """Large payloads, in pieces, to itself and others."""
    client = play.open("", play.random.choice((4, 5)))
    client.send(subscribe(1, ("big/+", play.random.randrange(3)), version=client.version))
    for _ in range(play.random.randrange(1, 6)):
        size = play.random.choice((30_000, 40_000, 140_000, 300_000, 900_000))
        number = next(play.numbers) % 65535 + 1
        data = publish(f"big/{size}", bytes(size), play.random.randrange(3), number, client.version)
        cut = play.random.randrange(len(data))
        client.send(data[:cut])
        play.take(client, 0.01)
        client.send(data[cut:])
        play.take_all(client, 20)
    play.drop(client)


def half_speaker(play: Play) -> None:
    """Connections that end within a packet, are closed on one side only, or say what nobody may say."""
    client = Client(play.doors[0].port, 5)
    whole = connect("", 5) + subscribe(1, ("load/#", 1)) + publish("big/half", bytes(200_000), 1, 1)
    kind = play.random.randrange(4)
    if kind == 0:
        client.send(whole[: play.random.randrange(len(whole))])
        play.take_all(client, play.random.randrange(20))
    elif kind == 1:
        client.send(whole)
        client.socket.shutdown(socket.SHUT_WR)
        play.take_all(client, 50)
    elif kind == 2:
        client.send(connect("", 5), packet(0x30, text("a/#"), b"\0"))
        play.take_all(client, 50)
    else:
        client.send(play.random.randbytes(play.random.randrange(1, 400)))
        play.take_all(client, 5)
    play.drop(client)


def burglar(play: Play) -> None:
    """Many handshakes at once that come to nothing."""
    door = play.random.choice(play.doors[1:])
    links = [break_in(door, play.random) for _ in range(20)]
    time.sleep(play.random.choice((0.01, 0.1, 3)))  # longer than it may take
    for link in links:
        link.close()


def prover(play: Play) -> None:
    """Authenticates in steps, perhaps as somebody whose session is elsewhere, and again and again."""
    steps: dict[str, Any] = {"auth_method": "steps", "auth_data": b"step"}
    client = play.visit(5)
    client.send(connect(f"throne{play.random.randrange(3)}", 5, **steps))
    while (got := client.receive()).kind == AUTH:
        client.send(auth(0x18, **steps))
    if got.kind != CONNACK or got.reason:
        raise ConnectionEnded(f"refused: {got}")
    for _ in range(play.random.randrange(20)):
        client.send(auth(0x19, **steps), publish(play.random.choice(TOPICS), bytes(20), 1, 1))
        play.take_all(client, 3)
        play.seen["authenticated again"] += 1
    play.drop(client)


def far_receiver(play: Play) -> None:
    """The only receiver of what one commuter publishes: the commuter moves to its reactor."""
    place = play.random.randrange(COMMUTERS)
    client = play.open("", 5, keep_alive_s=1)
    client.send(subscribe(1, (f"far/{place}", 0)), PING)
    latest: dict[bytes, int] = {}
    for _ in range(play.random.randrange(100, 3000)):
        try:
            got = client.receive(READ_S)
        except Silence:
            break
        if got.kind == PUBLISH:
            play.seen["received from afar"] += 1
            sender, number = got.payload.split()[:2]
            assert latest.get(sender, 0) < int(number), f"{got} after {latest[sender]}"
            latest[sender] = int(number)
    play.drop(client)


def commuter(play: Play) -> None:
    """Publishes to one receiver only, so that it moves; others take its session over, or it dies."""
    place = play.random.randrange(COMMUTERS)
    will = Will("load/will", b"gone", 1, False, [("will_delay", play.random.randrange(2))])
    client = play.open(
        f"commuter{place}",
        5,
        clean=play.random.random() < 0.3,
        will=will,
        session_expiry=play.random.choice((0, 5)),
    )
    sender, number = play.random.randbytes(8).hex().encode(), 0
    for _ in range(play.random.randrange(1, 30)):
        burst = []
        for _ in range(100):
            number += 1
            filling = b" " * play.random.choice((1, 1, 1, 2000))
            qos = play.random.randrange(3) if number % 50 == 0 else 0
            burst.append(
                publish(f"far/{place}", b"%s %d" % (sender, number) + filling, qos, number % 65535 + 1)
            )
        data = b"".join(burst)
        cut = play.random.randrange(len(data))
        client.send(data[:cut])
        client.send(data[cut:], PING)
        play.seen["published"] += 100
        while play.take(client, 0.002):
            pass
    play.drop(client)


def diarist(play: Play) -> None:
    """Writes into its own persistent session, present or not, more than a window holds; reads some of it.

    What was acknowledged is read, in order, at QoS 2 once, though the writer, whose session stays too, breaks
    off and publishes again what it got no answer to.
    """
    diary = play.diary
    version = play.random.choice((4, 5))
    reader = play.open(diary.name, version, clean=False, **({"session_expiry": 100} if version == 5 else {}))
    if not diary.begun:
        reader.send(subscribe(1, (f"diary/{diary.name}", 2), version=version))
        if reader.receive().reasons != [2]:
            raise ConnectionEnded("refused")
        diary.begun = True
    away = play.random.random() < 0.5
    if away:
        play.drop(reader)
    writer = play.open(f"writer of {diary.name}", 5, clean=False, session_expiry=100)
    for _ in range(play.random.randrange(4)):
        if not write_entries(play, writer, play.random.choice((1, 5, 20, 100))):
            break
    play.drop(writer)
    if away:
        reader = play.open(
            diary.name, version, clean=False, **({"session_expiry": 100} if version == 5 else {})
        )
    count = play.random.randrange(600)
    while count and time.monotonic() < play.end and read_entry(play, reader):
        count -= 1
    play.drop(reader)


def write_entries(play: Play, writer: Client, count: int) -> bool:
    """What an earlier connection had not finished, then messages in one burst; each is known to be kept once
    it is acknowledged with success. Half the time it breaks off before all are, and returns false.
    """
    diary = play.diary
    topic = f"diary/{diary.name}"
    waiting = dict(diary.unfinished)  # number by packet identifier
    burst = []
    for packet_id, number in waiting.items():
        if packet_id in diary.released:
            burst.append(acknowledge(PUBREL, packet_id))
        else:
            diary.repeated.add(number)
            burst.append(publish(topic, b"%d" % number, 2, packet_id, dup=True))
    for _ in range(count):
        diary.written += 1
        packet_id = diary.written % 65535 + 1
        waiting[packet_id] = diary.written
        qos = play.random.choice((1, 2))
        if qos == 2:
            diary.unfinished[packet_id] = diary.written
        burst.append(publish(topic, b"%d" % diary.written, qos, packet_id))
    writer.send(*burst)
    answers = play.random.randrange(2 * len(waiting))
    while waiting:
        if answers == 0:
            play.seen["broke off"] += 1
            return False
        answers -= 1
        got = writer.receive()
        if got.kind == DISCONNECT:
            raise ConnectionEnded(str(got))
        number = waiting[got.packet_id]
        if got.kind != PUBCOMP and got.reason < 0x80 and number not in diary.repeated:
            diary.acknowledged.add(number)
        if got.kind == PUBREC and got.reason < 0x80:
            diary.released.add(got.packet_id)
            writer.send(acknowledge(PUBREL, got.packet_id))
        else:
            del waiting[got.packet_id]
            diary.unfinished.pop(got.packet_id, None)
            diary.released.discard(got.packet_id)
    return True


def read_entry(play: Play, reader: Client) -> bool:
    """Takes one packet; what it holds is the next number of its QoS, or one that may come again."""
    diary = play.diary
    try:
        got = reader.receive(READ_S)
    except Silence:
        return False
    if got.kind == PUBREL:
        diary.pending.discard(got.packet_id)
        reader.send(acknowledge(PUBCOMP, got.packet_id))
    elif got.kind == PUBLISH:
        number, last = int(got.payload), diary.read[got.qos]
        if got.qos == 2 and got.packet_id in diary.pending:
            assert got.dup, f"packet identifier of {got} is in use"
        else:
            may_be_late = number in diary.repeated or (got.qos == 1 and got.dup)
            assert number > last or may_be_late, f"{got} after {last}"
            assert number not in diary.read_once, f"{got} came before"
            diary.read[got.qos] = max(number, last)
            play.seen["read from a diary"] += 1
        if got.qos == 2:
            diary.read_once.add(number)
            diary.pending.add(got.packet_id)
        diary.acknowledged.discard(number)
        lost = [each for each in diary.acknowledged if each < min(diary.read.values())]
        assert not lost, f"{lost} never came, {got} did"
        reader.send(acknowledge(PUBACK if got.qos == 1 else PUBREC, got.packet_id))
    return True


ACTORS: list[Callable[[Play], None]] = [
    *(publisher,) * 6,
    *(subscriber,) * 6,
    *(slow_subscriber,) * 2,
    *(replayer,) * 2,
    *(churner,) * 3,
    *(usurper,) * 4,
    *(giant,) * 2,
    *(half_speaker,) * 2,
    *(far_receiver,) * 3,
    *(commuter,) * 3,
    *(diarist,) * 4,
    *(burglar,) * 2,
    *(prover,) * 2,
    retainer,
    mortal,
]


def play_on(actor: Callable[[Play], None], play: Play, failures: list[str]) -> None:
    """Plays one actor until the time is over."""
    while time.monotonic() < play.end and not failures:
        play.seen[f"played {actor.__name__}"] += 1
        try:
            actor(play)
        except (OSError, ConnectionEnded, Silence):
            play.seen["ended by the broker"] += 1
            time.sleep(0.002)
        except Exception:  # noqa: BLE001 (whatever an actor fails with is reported)
            failures.append(f"{actor.__name__}:\n{traceback.format_exc()}")


def run(doors: list[Door], seconds: float, seed: int) -> tuple[collections.Counter[str], list[str]]:
    """Plays all actors; returns what they have seen and what failed."""
    end = time.monotonic() + seconds
    failures: list[str] = []
    plays = [Play(doors, end, f"{seed}.{index}", collections.Counter()) for index in range(len(ACTORS))]
    threads = [
        threading.Thread(target=play_on, args=(actor, play, failures))
        for actor, play in zip(ACTORS, plays, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum((play.seen for play in plays), collections.Counter()), failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("doors", type=lambda text: [Door(**each) for each in json.loads(text)])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args()
    seen, failures = run(wanted.doors, wanted.seconds, wanted.seed)
    print(json.dumps(seen))
    print("\n".join(failures), file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
