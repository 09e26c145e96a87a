"""What a shared group costs does not grow with its members or what they hold, and no turn is long for it.

In a build that counts the steps of turns the numbers are those of the limits, and a turn that takes too many
ends the process; in any other build the reactors' CPU time says so.
"""

from __future__ import annotations

import statistics
import struct
import time
from typing import Any

import pytest
from adversity.conftest import EngineUnderTest, StartEngine
from conformance.kit import Client, kept
from conformance.packets import PUBLISH, publish

from tidemq.engine.base.asserting import checks_invariants

FILTER = "$share/g/t"
MANY = 100_000 if checks_invariants() else 10_000
BATCH = 500


def reactors_s() -> float:
    """CPU seconds of all threads but this one."""
    return time.process_time() - time.thread_time()


def client(engine: EngineUnderTest, **settings: Any) -> Client:
    made = Client(engine.port, 4 if not settings else 5)
    made.connect(**settings)
    return made


def take(member: Client, payloads: list[int], count: int, wait_s: float = 20) -> bytes:
    """Reads PUBLISH packets of 11 bytes (3.1.1) up to a count; returns their acknowledgements."""
    first, deadline = len(payloads), time.monotonic() + wait_s
    acks = []
    while len(payloads) - first < count:
        assert time.monotonic() < deadline, f"{len(payloads) - first} of {count} messages came"
        member.socket.settimeout(wait_s)
        data = member.buffer if len(member.buffer) >= 11 else member.buffer + member.socket.recv(1 << 18)
        whole = min(len(data) // 11, count - len(payloads) + first)
        for at in range(0, 11 * whole, 11):
            assert data[at] & 0xF6 == 0x32
            payloads.append(int.from_bytes(data[at + 7 : at + 11]))
            acks.append(b"\x40\x02" + data[at + 5 : at + 7])
        member.buffer = data[11 * whole :]
    return b"".join(acks)


def feed(sender: Client, numbers: range, members: list[Client] = []) -> None:  # noqa: B006
    """Publishes numbers at QoS 1; the members' sockets are emptied meanwhile, into their buffers."""
    for first in range(numbers.start, numbers.stop, BATCH):
        part = range(first, min(first + BATCH, numbers.stop))
        sender.send(*(publish("t", struct.pack(">I", number), 1, 1, 4) for number in part))
        left = 4 * len(part)
        while left:
            left -= len(sender.socket.recv(left))
        for member in members:
            drain(member)


def drain(member: Client) -> None:
    member.socket.settimeout(0)
    try:
        while piece := member.socket.recv(1 << 18):
            member.buffer += piece
    except BlockingIOError:
        pass


def leave(engine: EngineUnderTest, *clients: Client) -> None:
    """Their connections end at once, and the engine knows it."""
    closed = engine.count("connections_closed")
    for each in clients:
        each.drop()
    engine.wait_for("connections_closed", closed + len(clients))


def acks_s(engine: EngineUnderTest, members: int, acks: int) -> float:
    """What so many PUBACKs cost beside so many members that are full, while messages wait."""
    others = [client(engine, receive_max=1) for _ in range(members)]
    for other in others:
        other.subscribe(FILTER, 1)
    worker, sender = client(engine), client(engine)
    worker.subscribe(FILTER, 1)
    feed(sender, range(members + 100 + acks))
    got: list[int] = []
    began = reactors_s()
    while len(got) < acks:
        worker.send(take(worker, got, min(100, acks - len(got))))
    spent = reactors_s() - began
    leave(engine, *others, worker)
    return spent


def test_an_acknowledgement_costs_the_same_beside_many_members(start_engine: StartEngine) -> None:
    engine = start_engine(1, inflight_max=100)
    few = acks_s(engine, 10, 5000)
    assert acks_s(engine, 600, 5000) < 4 * few


def test_a_message_costs_the_same_for_a_group_of_very_many_members(start_engine: StartEngine) -> None:
    """Also when somebody subscribes before each message, so that the receivers are looked up again."""
    engine = start_engine(1)
    sender, restless = client(engine), client(engine)

    def rounds_s(first: int) -> float:
        """Of thirty rounds: the median, for what is done once for many members is none of a message's."""
        took_s = []
        for start in range(first, first + 300, 30):
            began = reactors_s()
            for number in range(start, start + 30):
                restless.subscribe(f"x/{number}")
                sender.publish("t", b"x", 1)
            took_s.append(reactors_s() - began)
        return statistics.median(took_s)

    engine.engine.subscribe(FILTER, 1)
    few = rounds_s(0)
    receivers = [engine.engine.subscribe(FILTER, 1) for _ in range(max(MANY, 50_000))]
    sender.ping()  # after the mail with the receivers
    assert rounds_s(300) < 4 * few
    assert engine.count("dropped_no_group_member") == 0
    for receiver in receivers:
        engine.engine.unsubscribe(receiver)


def handed_back(engine: EngineUnderTest, held: int, waiting: int) -> tuple[float, list[int]]:
    """Two members that hold so many each go while so many wait: what it costs, and what a third gets then."""
    stays = client(engine, receive_max=1)
    stays.subscribe(FILTER, 1)
    members = [client(engine) for _ in range(2)]
    for member in members:
        member.subscribe(FILTER, 1)
    sender = client(engine)
    total = 1 + 2 * held + waiting
    feed(sender, range(total), members)
    first = stays.expect(PUBLISH)
    began = reactors_s()
    leave(engine, *members)
    worker = client(engine)
    worker.subscribe(FILTER, 1)
    got: list[int] = []
    acks = take(worker, got, 1)
    spent = reactors_s() - began
    worker.send(acks)
    while len(got) < total - 1:
        worker.send(take(worker, got, min(len(worker.buffer) // 11 or 1, total - 1 - len(got))))
    assert sorted([*got, int.from_bytes(first.payload)]) == list(range(total))
    leave(engine, stays, worker)
    return spent, got


def test_what_members_held_goes_back_in_order_and_at_once(start_engine: StartEngine) -> None:
    """What each held comes in its order and before what waited; the cost does not grow with what waits."""
    held, waiting = (MANY // 2, MANY) if checks_invariants() else (2_000, 30_000)
    engine = start_engine(1, inflight_max=held, queued_messages_max=10 * MANY)
    alone, _ = handed_back(engine, held, 0)
    beside, got = handed_back(engine, held, waiting)
    assert beside < 4 * alone + 0.02  # the ring may have grown once
    runs = [0] + [at for at in range(1, len(got)) if got[at] < got[at - 1]]
    assert len(runs) <= 2, "more than two members' messages, each in order"
    assert got[2 * held :] == list(range(1 + 2 * held, 1 + 2 * held + waiting))


def test_many_acknowledgements_while_another_member_takes_much(start_engine: StartEngine) -> None:
    """Each makes room for one, and finds another that takes all: what goes out in a turn is bounded."""
    held = 2_000
    engine = start_engine(1, inflight_max=50_000, queued_messages_max=10 * MANY)
    member = client(engine, receive_max=held)
    member.subscribe(FILTER, 1)
    sender = client(engine)
    feed(sender, range(held + MANY), [member])
    taken: list[int | None] = []
    while len(taken) < held:
        taken.append(member.expect(PUBLISH).packet_id)
    other = client(engine)
    other.subscribe(FILTER, 1)
    member.send(*(b"\x40\x02" + struct.pack(">H", each) for each in taken))
    sender.ping()
    got: list[int] = []
    take(other, got, MANY // 4)
    assert sorted(got) == got


@pytest.mark.parametrize("clean", [False, True], ids=["its session goes on", "a new session"])
def test_a_member_that_comes_back_while_its_messages_go_back(start_engine: StartEngine, clean: bool) -> None:
    """Nothing is lost, and nothing is left of it."""
    engine = start_engine(1, inflight_max=min(MANY, 65_535), queued_messages_max=10 * MANY)
    count = min(MANY, 60_000)
    member = client(engine, client_id="m", **kept(5))
    member.subscribe(FILTER, 1)
    sender = client(engine)
    feed(sender, range(count), [member])
    other = client(engine)
    other.subscribe(FILTER, 1)
    member.drop()
    member = Client(engine.port)
    member.connect("m", clean=clean, session_expiry=0)
    seen: set[int] = set()
    deadline = time.monotonic() + 30
    while len(seen) < count:
        assert time.monotonic() < deadline, f"{len(seen)} of {count}"
        for each in (member, other):
            head = 12 if each is member else 11  # 5.0 has a length of properties
            drain(each)
            whole = len(each.buffer) // head
            at = range(0, whole * head, head)
            seen.update(int.from_bytes(each.buffer[start + head - 4 : start + head]) for start in at)
            each.send(*(b"\x40\x02" + each.buffer[start + 5 : start + 7] for start in at))
            each.buffer = each.buffer[whole * head :]
        time.sleep(0.001)
    assert seen == set(range(count))


def test_the_end_of_a_session_that_holds_very_many(start_engine: StartEngine) -> None:
    """Its messages are let go of over some turns, and all are counted."""
    engine = start_engine(1, queued_messages_max=10 * MANY)
    member = client(engine, client_id="m", **kept(5))
    member.subscribe("t", 1)
    member.disconnect()
    feed(client(engine), range(MANY))
    member = Client(engine.port)
    member.connect("m")
    engine.wait_for("dropped_session_ended", MANY)
    assert engine.count("dropped_session_ended") == MANY


def test_all_members_of_a_group_go_at_once(start_engine: StartEngine) -> None:
    members = 400
    engine = start_engine(1, inflight_max=MANY // members + 1)
    socks = [client(engine) for _ in range(members)]
    for sock in socks:
        sock.subscribe(FILTER, 1)
    feed(client(engine), range(MANY), socks)
    leave(engine, *socks)
    engine.wait_for("dropped_no_group_member", MANY)
    assert engine.count("dropped_no_group_member") + engine.count("dropped_session_ended") == MANY
