"""Sessions that go from node to node: their messages in order, and nothing of one that has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cluster.test_keeping import Nodes, client
from cluster.test_unknown_sessions import GIVEN_UP_S, at, is_present
from waiting import WAIT_S, until

from tidemq.client import Client, ServerRefusedError
from tidemq.cluster import departures, move_states, moves
from tidemq.cluster.departures import YIELD, Departures
from tidemq.cluster.exchange import RECORDS
from tidemq.cluster.forms import encode
from tidemq.cluster.move_states import clocks_of
from tidemq.cluster.moves import ASK, DONE, SERVER_UNAVAILABLE, Moves

MANY = 200


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with AsyncExitStack() as stack:
        yield Nodes(tmp_path, stack)


async def payloads(receiver: Client, count: int) -> list[bytes]:
    """Of the next so many messages."""
    async with asyncio.timeout(WAIT_S):
        return [(await anext(receiver.messages)).payload for _ in range(count)]


def moves_of(nodes: Nodes, node: str) -> Moves:
    return nodes.keepers[node].moves


def departures_of(nodes: Nodes, node: str) -> Departures:
    return moves_of(nodes, node).departures


async def begin(nodes: Nodes, *names: str, who: str = "c", **identity: Any) -> None:
    """They meet, and know of a client's session, which is subscribed to `a/#` and at home on the first."""
    await nodes.meet(*names, **identity)
    async with at(nodes, names[0], who) as first:
        await first.subscribe("a/#", qos=1)
    await until(lambda: nodes.agree(*names))


def since(nodes: Nodes, name: str, who: str) -> tuple[int, ...]:
    """Since when a node has a session, as of `Come`."""
    return clocks_of(nodes.ask(name, lambda keeper: keeper.conversion.rank(who)))


async def test_what_the_old_home_takes_comes_before_what_is_published_later(nodes: Nodes) -> None:
    """Although its log is slow, and the new home has the later message long before."""
    await begin(nodes, "one", "two", who="ann")
    nodes.links.dropped.add(DONE)  # the old home goes on to take messages
    async with (
        client(nodes.brokers["one"], "bob") as bob,
        client(nodes.brokers["two"], "bert") as bert,
        client(nodes.brokers["two"], "ann") as ann,
    ):
        assert is_present(ann)
        nodes.links.dropped.add(RECORDS)
        nodes.links.copying = False
        bob.publish_nowait("a/1", b"first", qos=1)
        await until(lambda: nodes.rows_of("one", "queue") == 1)
        bert.publish_nowait("a/1", b"second", qos=1)
        await until(lambda: nodes.rows_of("two", "queue") == 1)
        nodes.links.dropped.clear()
        nodes.links.copying = True
        assert await payloads(ann, 2) == [b"first", b"second"]
        await until(lambda: not moves_of(nodes, "one").is_waiting and moves_of(nodes, "one").is_quiet)
        await bert.publish("a/1", b"third", qos=1)
        assert await payloads(ann, 1) == [b"third"]
    await until(lambda: nodes.agree("one", "two"))


async def test_what_waits_goes_out_when_the_old_home_is_dead(nodes: Nodes) -> None:
    await begin(nodes, "one", "two", who="ann", suspect_s=1.0)
    nodes.links.dropped.add(DONE)
    async with client(nodes.brokers["two"], "ann") as ann, client(nodes.brokers["two"], "bob") as bob:
        bob.publish_nowait("a/1", b"waits", qos=1)
        await until(lambda: nodes.rows_of("two", "queue") == 1)
        await nodes.stop("one")
        assert await payloads(ann, 1) == [b"waits"]


async def test_a_new_home_that_started_again_before_it_had_told_the_old_one_tells_it_then(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the old home would take messages for the session for ever."""
    monkeypatch.setattr(departures, "REMIND_S", 0.2)
    await begin(nodes, "one", "two", who="ann", suspect_s=1000.0)
    nodes.links.dropped.add(DONE)
    async with client(nodes.brokers["two"], "ann") as ann:
        assert is_present(ann)
    await nodes.stop("two")
    await nodes.start("two", suspect_s=1000.0)
    nodes.links.dropped.clear()
    await until(lambda: moves_of(nodes, "one").is_quiet)
    async with client(nodes.brokers["two"], "ann") as ann, client(nodes.brokers["two"], "bob") as bob:
        await bob.publish("a/1", b"later", qos=1)
        assert await payloads(ann, 1) == [b"later"]
    await until(lambda: nodes.agree("one", "two"))


async def test_who_takes_the_sessions_of_a_dead_new_home_tells_the_old_one(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(departures, "REMIND_S", 0.2)
    await nodes.meet("one", "two", "three", suspect_s=1.0)
    # in the order of the ring, so that not the old home itself takes the sessions of the new one
    old, new, heir = sorted(nodes.keepers, key=lambda name: nodes.keepers[name].node.incarnation)
    async with client(nodes.brokers[old], "ann") as ann:
        await ann.subscribe("a/#", qos=1)
    await until(lambda: nodes.agree("one", "two", "three"))
    nodes.links.dropped.add(DONE)
    async with client(nodes.brokers[new], "ann") as ann:
        assert is_present(ann)
    await until(lambda: "ann" in departures_of(nodes, old)._handed)
    await nodes.stop(new)
    nodes.links.dropped.clear()
    await until(lambda: moves_of(nodes, old).is_quiet)
    async with client(nodes.brokers[heir], "ann") as ann, client(nodes.brokers[heir], "bob") as bob:
        assert is_present(ann)
        await bob.publish("a/1", b"later", qos=1)
        assert await payloads(ann, 1) == [b"later"]


async def test_a_session_goes_on_here_at_once_where_the_node_that_had_asked_for_it_is_dead(
    nodes: Nodes,
) -> None:
    await begin(nodes, "one", "two", suspect_s=1.0)
    nodes.links.dropped.add(YIELD)
    coming = asyncio.create_task(at(nodes, "two", "c").connect())
    await until(lambda: "c" in departures_of(nodes, "one")._handed)
    await nodes.stop("two")
    coming.cancel()
    async with at(nodes, "one", "c") as back:
        assert is_present(back)


async def test_a_session_that_goes_on_and_on_keeps_the_order(nodes: Nodes) -> None:
    await nodes.meet("one", "two", "three")
    expected = []
    for number, node in enumerate(["one", "two", "three", "one", "three", "two", "one"]):
        async with client(nodes.brokers[node], "ann") as ann, client(nodes.brokers[node], "bob") as bob:
            if number == 0:
                await ann.subscribe("a/#", qos=1)
            expected.append(b"%d" % number)
            await bob.publish("a/1", expected[-1], qos=1)
    async with client(nodes.brokers["two"], "ann") as ann, asyncio.timeout(WAIT_S):
        seen: list[bytes] = []
        while not seen or seen[-1] != expected[-1]:
            seen.append((await anext(ann.messages)).payload)
    assert seen == sorted(set(seen))  # what was in flight as it left comes again, and only that
    for name in ("one", "two", "three"):
        await until(lambda name=name: moves_of(nodes, name).is_quiet)  # type: ignore[misc]
    await until(lambda: nodes.agree("one", "two", "three"))


class SlowAccess:
    """As an engine in which a session that is to leave still has something open."""

    def __init__(self, access: Any) -> None:
        self._access = access
        self.asked: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._access, name)

    def release(self, client_id: bytes, *, keep: bool = False) -> bool:
        if keep:
            return bool(self._access.release(client_id, keep=True))
        self.asked.append(client_id)
        return True

    def go_on(self) -> None:
        """Nothing is open any more."""
        for each in self.asked:
            self._access.release(each)


class HastyAccess(SlowAccess):
    """As an engine that has forgotten a session, twice, before the keeper hears of it."""

    def release(self, client_id: bytes, *, keep: bool = False) -> bool:
        if not keep:
            while self._access.release(client_id):
                time.sleep(0.01)
        return bool(self._access.release(client_id, keep=keep))


async def test_a_session_that_is_back_does_not_begin_anew_because_it_has_left_before(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken for one that left again, and its next row for a new session: what waited was lost."""
    await begin(nodes, "one", "two", who="ann")
    nodes.links.dropped.add(DONE)  # so that the old home has it still when its client comes back
    async with at(nodes, "two", "ann"), client(nodes.brokers["two"], "bob") as bob:
        pass
    async with client(nodes.brokers["two"], "bob") as bob:
        await bob.publish("a/1", b"waits", qos=1)
    of_one = moves_of(nodes, "one")
    monkeypatch.setattr(of_one, "_access", HastyAccess(of_one._access))
    ann = at(nodes, "one", "ann")
    coming = asyncio.create_task(ann.connect())
    done, _ = await asyncio.wait([coming], timeout=1.0)
    assert not done  # what is published elsewhere may come to this node alone still
    nodes.links.dropped.clear()
    await coming
    assert await payloads(ann, 1) == [b"waits"]
    assert "ann" not in of_one.departures._handed
    await ann.disconnect()
    await until(lambda: nodes.agree("one", "two"))
    assert nodes.count("one", "subscription") == 1


async def begin_unmet(nodes: Nodes, patch: pytest.MonkeyPatch) -> tuple[int, list[int]]:
    """Ann's session is on the first of three nodes; the second one has not met the third, which is named.
    Gives also those with whom the first one parts from now on.
    """
    await begin(nodes, "one", "two", "three", who="ann")
    three = nodes.keepers["three"].node.incarnation
    parted: list[int] = []
    patch.setattr(departures_of(nodes, "one")._links, "part", parted.append)
    reunions = moves_of(nodes, "two").reunions
    patch.setattr(reunions, "meeting", lambda: {three})
    patch.setattr(reunions, "passed_over", lambda: [three])
    return three, parted


async def test_an_old_home_parts_with_nobody_who_is_about_to_know(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else parting would go from node to node, for as long as sessions move."""
    _, parted = await begin_unmet(nodes, monkeypatch)
    reunions = moves_of(nodes, "two").reunions
    async with at(nodes, "two", "ann"):
        await asyncio.sleep(2 * moves.AGAIN_S + departures.LINGER_S)
        assert nodes.ask("one", lambda _: departures_of(nodes, "one").still_takes("ann"))
        monkeypatch.setattr(reunions, "meeting", lambda: set())
        monkeypatch.setattr(reunions, "passed_over", list)
        await until(lambda: not departures_of(nodes, "one").still_takes("ann"))
        assert parted == []


async def test_an_old_home_takes_messages_until_what_is_published_there_goes_to_the_new_one(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a split, when the new one has met all, and the old one has not."""
    await begin(nodes, "one", "two", who="ann")
    two = nodes.keepers["two"].node.incarnation
    links = departures_of(nodes, "one")._links
    monkeypatch.setattr(links, "apart", lambda: {two})
    async with at(nodes, "two", "ann"):
        await until(lambda: "ann" in departures_of(nodes, "one")._lingering)
        await asyncio.sleep(2 * departures.LINGER_S)
        assert nodes.ask("one", lambda _: departures_of(nodes, "one").still_takes("ann"))
        monkeypatch.setattr(links, "apart", lambda: set())
        await until(lambda: not departures_of(nodes, "one").still_takes("ann"))


async def test_an_old_home_takes_messages_until_its_engine_has_acted_on_all_that_came(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long that takes: what came for a session that is forgotten would be for nobody."""
    await begin(nodes, "one", "two", who="ann")
    links, marks = departures_of(nodes, "one")._links, list[Sequence[int]]()
    acted = False

    def has_acted_on(given: Sequence[int]) -> bool:
        marks.append(given)
        return acted

    monkeypatch.setattr(links, "given_so_far", lambda: [7])
    monkeypatch.setattr(links, "has_acted_on", has_acted_on)
    async with at(nodes, "two", "ann"):
        await until(lambda: len(marks) > 1)
        await asyncio.sleep(2 * departures.LINGER_S)
        assert nodes.ask("one", lambda _: departures_of(nodes, "one").still_takes("ann"))
        acted = True
        await until(lambda: not departures_of(nodes, "one").still_takes("ann"))
    assert set(map(tuple, marks)) == {(7,)}


async def test_an_old_home_parts_with_who_does_not_hear_of_it_for_long(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    three, parted = await begin_unmet(nodes, monkeypatch)
    monkeypatch.setattr(move_states, "MEET_S", 0.5)
    async with at(nodes, "two", "ann"):
        await until(lambda: not departures_of(nodes, "one").still_takes("ann"))
        assert set(parted) == {three}


async def test_the_engine_is_told_once_to_forget_a_session(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begin(nodes, "one", "two", who="ann")
    slow = SlowAccess(departures_of(nodes, "one")._access)
    monkeypatch.setattr(departures_of(nodes, "one"), "_access", slow)
    async with at(nodes, "two", "ann"):
        await until(lambda: slow.asked == [b"ann"])
        await asyncio.sleep(3 * moves.AGAIN_S)  # the new home says it again and again
        assert slow.asked == [b"ann"]
        slow.go_on()
        await until(lambda: moves_of(nodes, "one").is_quiet)


async def test_a_word_of_an_earlier_move_ends_no_later_one(nodes: Nodes) -> None:
    await begin(nodes, "one", "two", "three", who="ann")
    two, three = (nodes.keepers[name].node.incarnation for name in ("two", "three"))
    async with at(nodes, "two", "ann"):
        before = since(nodes, "two", "ann")
    async with at(nodes, "one", "ann"):
        nodes.links.dropped.add(DONE)
    async with at(nodes, "three", "ann") as ann:
        assert is_present(ann)
    of_one = moves_of(nodes, "one")
    nodes.ask("one", lambda keeper: keeper.moves.hear(DONE, two, encode("text Q* Q*", "ann", before, [])))
    assert "ann" not in of_one.departures._lingering
    now = since(nodes, "three", "ann")
    nodes.ask("one", lambda keeper: keeper.moves.hear(DONE, three, encode("text Q* Q*", "ann", now, [])))
    assert "ann" in of_one.departures._lingering
    nodes.links.dropped.clear()
    await until(lambda: all(moves_of(nodes, name).is_quiet for name in nodes.keepers))


async def test_what_is_left_of_a_session_that_ended_elsewhere_is_nobodys(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begin(nodes, "one", "two")
    of_one = departures_of(nodes, "one")
    slow = SlowAccess(of_one._access)
    monkeypatch.setattr(of_one, "_access", slow)
    async with at(nodes, "two", "c", 0, clean=True):
        pass
    await until(lambda: slow.asked == [b"c"])
    again = at(nodes, "one", "c")
    coming = asyncio.create_task(again.connect())
    done, _ = await asyncio.wait([coming], timeout=1.0)
    assert not done
    slow.go_on()
    await coming
    assert not is_present(again)
    await again.disconnect()
    await until(lambda: nodes.agree("one", "two"))
    assert nodes.count("two", "subscription") == 0


async def test_a_session_that_nobody_came_for_goes_on_where_it_was(nodes: Nodes) -> None:
    """The node that has asked for it does not take it, and its client is back; nothing is lost meanwhile."""
    await begin(nodes, "one", "two")
    expected: list[bytes] = []
    async with client(nodes.brokers["one"], "bob") as bob:
        nodes.links.dropped.add(YIELD)
        away = at(nodes, "two", "c")
        coming = asyncio.create_task(away.connect())
        await until(lambda: "c" in departures_of(nodes, "one")._handed)
        coming.cancel()
        returning = asyncio.create_task(at(nodes, "one", "c").connect())
        await until(lambda: "c" not in moves_of(nodes, "two")._coming, "it has come later to the other one")
        nodes.links.dropped.clear()
        while not returning.done():
            expected.append(b"%d" % len(expected))
            await bob.publish("a/1", expected[-1], qos=1)
    back = at(nodes, "one", "c")
    await back.connect()
    assert is_present(back)
    assert await payloads(back, len(expected)) == expected
    await back.disconnect()


@pytest.mark.parametrize("dead", [False, True])
async def test_a_session_that_nobody_came_for_ends_when_it_is_due(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, dead: bool
) -> None:
    """Where the client that had asked for it has gone, or its node; its old home takes it back for that."""
    monkeypatch.setattr(departures, "REMIND_S", 0.2)
    await nodes.meet("one", "two", suspect_s=1.0)
    async with at(nodes, "one", "c", 1):
        pass
    await until(lambda: nodes.agree("one", "two"))
    nodes.links.dropped.add(YIELD)
    coming = asyncio.create_task(at(nodes, "two", "c", 1).connect())
    await until(lambda: "c" in departures_of(nodes, "one")._handed)
    await asyncio.sleep(1.5)
    assert nodes.count("one", "session") == 1, "its client waits for it"
    coming.cancel()
    if dead:
        await nodes.stop("two")
    nodes.links.dropped.clear()
    await until(lambda: nodes.count("one", "session") == 0)
    await until(lambda: moves_of(nodes, "one").is_quiet)


async def test_a_session_that_is_waited_for_does_not_end_meanwhile(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where it was nor where it comes to; and its old home, which asks, does not take it back."""
    monkeypatch.setattr(departures, "REMIND_S", 0.2)
    await nodes.meet("one", "two")
    async with at(nodes, "one", "c", 1) as first:
        await first.subscribe("a/#", qos=1)
    await until(lambda: nodes.agree("one", "two"))
    async with client(nodes.brokers["one"], "bob") as bob:
        nodes.links.dropped.add(YIELD)
        there = at(nodes, "two", "c", 1)
        coming = asyncio.create_task(there.connect())
        await until(lambda: "c" in departures_of(nodes, "one")._handed)
        await bob.publish("a/1", b"kept", qos=1)
    await asyncio.sleep(1.5)
    assert "c" in departures_of(nodes, "one")._handed
    nodes.links.dropped.clear()
    await coming
    assert is_present(there)
    assert await payloads(there, 1) == [b"kept"]
    await there.disconnect()


async def test_a_session_is_not_taken_for_a_client_that_has_gone(nodes: Nodes) -> None:
    """Which may be on a third node by then, and would be disconnected there."""
    nodes.decision_s = GIVEN_UP_S
    await begin(nodes, "one", "two", "three")
    nodes.links.dropped.add(YIELD)
    coming = asyncio.create_task(at(nodes, "two", "c").connect())
    await until(lambda: "c" in departures_of(nodes, "one")._handed)
    coming.cancel()
    await until(lambda: "c" not in moves_of(nodes, "two")._coming)
    nodes.links.dropped.clear()
    async with at(nodes, "three", "c") as there:
        assert is_present(there)
        await asyncio.sleep(2 * moves.AGAIN_S)
        assert there.is_connected
    assert moves_of(nodes, "two").counts["cluster_sessions_taken"] == 0


async def test_a_client_that_is_where_it_was_is_not_driven_away(nodes: Nodes) -> None:
    """By a CONNECT that it has given up, and of which its home hears later."""
    await begin(nodes, "one", "two")
    nodes.links.dropped.add(ASK)
    given_up = asyncio.create_task(at(nodes, "two", "c").connect())
    await until(lambda: "c" in moves_of(nodes, "two")._coming)
    async with at(nodes, "one", "c") as there:
        nodes.links.dropped.clear()
        with pytest.raises(ServerRefusedError) as refused:
            await given_up
        assert refused.value.reason == SERVER_UNAVAILABLE
        assert there.is_connected
        async with at(nodes, "two", "c") as here:  # this one comes later
            assert is_present(here)
            await until(lambda: not there.is_connected)


async def test_a_client_is_not_driven_away_because_its_node_was_not_heard_for_a_moment(nodes: Nodes) -> None:
    """Another node took it for dead, hears it again, and has not taken the session yet."""
    await begin(nodes, "one", "two")
    async with at(nodes, "one", "c") as there:
        await until(lambda: nodes.agree("one", "two"))
        nodes.ask("two", lambda keeper: keeper.moves.orphans._bring("c"))
        await until(lambda: "c" not in moves_of(nodes, "two")._coming)
        assert there.is_connected
    assert moves_of(nodes, "two").counts["cluster_sessions_asked"] == 0


async def test_a_client_that_wanted_a_new_session_and_has_gone_ends_none(nodes: Nodes) -> None:
    """It may be on another node by then, and go on with its session there."""
    await begin(nodes, "one", "two")
    assert await asyncio.wrap_future(nodes.keepers["two"].connect("c", clean=True)) == 0
    async with at(nodes, "one", "c") as again:
        assert is_present(again)
    await until(lambda: nodes.agree("one", "two"))
    assert nodes.count("one", "subscription") == 1


async def test_who_wants_a_new_session_gets_one_where_the_old_one_cannot_be_read(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begin(nodes, "one", "two")
    monkeypatch.setattr(moves_of(nodes, "two")._adoption, "adopt", lambda *_, **__: False)
    with pytest.raises(ServerRefusedError) as refused:
        await at(nodes, "two", "c").connect()
    assert refused.value.reason == SERVER_UNAVAILABLE
    async with at(nodes, "two", "c", clean=True) as again:
        assert not is_present(again)
    await until(lambda: nodes.agree("one", "two"))
    assert nodes.count("one", "subscription") == 0
    await until(lambda: all(moves_of(nodes, name).is_quiet for name in nodes.keepers))


async def test_a_node_that_ends_gives_no_session_any_more(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await nodes.meet("one", "two")
    async with at(nodes, "one", "c"):
        pass
    of_one = departures_of(nodes, "one")
    monkeypatch.setattr(of_one._links, "taken_so_far", lambda: None)
    coming = asyncio.create_task(at(nodes, "two", "c").connect())
    await until(lambda: bool(of_one._yields))
    done, _ = await asyncio.wait([coming], timeout=2 * moves.AGAIN_S)
    assert not done
    monkeypatch.undo()
    await coming
    assert "the keeper failed" not in caplog.text


async def test_a_new_session_has_no_subscription_of_the_one_before_after_a_restart(nodes: Nodes) -> None:
    """Which is remembered until all members know of its end."""
    await begin(nodes, "one", "two", who="ann", suspect_s=1000.0)
    nodes.links.dropped.add(RECORDS)
    first = at(nodes, "one", "ann", clean=True)
    await first.connect()
    await first.subscribe("b/#", qos=1)
    async with at(nodes, "one", "ann") as ann:  # without an end: who began clean ends clean
        assert is_present(ann)
    await nodes.stop("one")
    await nodes.start("one", suspect_s=1000.0)
    async with at(nodes, "one", "ann") as ann, client(nodes.brokers["one"], "bob") as bob:
        assert is_present(ann)
        await bob.publish("a/1", b"of before", qos=1)
        await bob.publish("b/1", b"mine", qos=1)
        assert await payloads(ann, 1) == [b"mine"]


async def test_many_that_come_at_once_are_few_batches(nodes: Nodes) -> None:
    """A node that dies may have had fifty thousand."""
    await nodes.meet("one", "two")
    clients = [at(nodes, "one", f"c{number}") for number in range(MANY)]
    for each in clients:
        await each.connect()
    for each in clients:
        await each.disconnect()
    await until(lambda: nodes.agree("one", "two"))
    before = records_of(nodes, "two")
    await nodes.stop("one")
    await until(partial(is_home_of_all, nodes, "two"))
    assert 0 < records_of(nodes, "two") - before < MANY / 4


def records_of(nodes: Nodes, node: str) -> int:
    """How many batches it has written."""
    last: int = nodes.ask(node, lambda keeper: keeper.node.last)
    return last


def is_home_of_all(nodes: Nodes, node: str) -> bool:
    own = nodes.keepers[node].node.incarnation
    homes: list[int] = nodes.ask(
        node, lambda keeper: [session.row.home for _, _, session in keeper.rows.sessions.all()]
    )
    return homes == [own] * MANY
