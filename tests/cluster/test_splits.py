"""Both sides of a split have gone on: what clients see when the nodes hear each other again."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cluster.test_keeping import Nodes, client, publish_all, receive
from cluster.test_retained import retain
from conformance.kit import Client, connected, kept
from conformance.packets import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, acknowledge
from waiting import until

from tidemq.cluster import departures
from tidemq.cluster.operations import Stamp
from tidemq.store.rows import BACKLOG

SUSPECT_S = 1.0


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with AsyncExitStack() as stack:
        yield Nodes(tmp_path, stack)


def home(nodes: Nodes, name: str) -> int:
    """Where ann's session is at home, as a node knows."""
    session = nodes.ask(name, lambda keeper: keeper.rows.sessions.get("ann", None))
    return int(session.row.home) if session is not None else 0


def queued_by(nodes: Nodes, name: str) -> int:
    """How many messages wait for shared subscriptions that this node has queued, as two knows."""
    whose = nodes.keepers[name].node.incarnation
    entries = nodes.ask("two", lambda keeper: list(keeper.rows.entries.all()))
    return sum(entry.adds[0].dot.incarnation == whose for _, _, entry in entries)


async def split(nodes: Nodes) -> None:
    """Ann is connected to one; two takes her session over; then both hear each other again."""
    one, two = (nodes.keepers[each].node.incarnation for each in ("one", "two"))
    await until(lambda: home(nodes, "two") == one)
    nodes.links.cut.add(one)
    await until(lambda: home(nodes, "two") == two, "it is taken over")
    nodes.links.cut.clear()


async def test_what_waits_for_a_shared_subscription_stays(nodes: Nodes) -> None:
    """Its only member's session is taken by another node, of which nothing else is heard: here none tells
    another what it wants. That is not the end of the group.
    """
    await nodes.meet("one", "two", suspect_s=SUSPECT_S)
    async with client(nodes.brokers["one"], "ann") as ann:
        await ann.subscribe("$share/g/b/#", qos=1)
    sent = [b"%d" % number for number in range(300)]
    await publish_all(nodes.brokers["one"], "b/1", sent)
    await until(lambda: nodes.agree("one", "two"))
    await split(nodes)
    await until(lambda: nodes.ask("one", lambda keeper: keeper.conversion.epoch("ann")) is None)
    await until(lambda: nodes.keepers["one"].shared.counts["cluster_shared_refused"] > 0)
    assert nodes.count("two", "entry") == 300
    waiting = {name: queued_by(nodes, name) for name in ("one", "two")}  # two had begun to give them
    came: Counter[bytes] = Counter()
    for name, count in waiting.items():
        async with client(nodes.brokers[name], "ann") as ann:
            came.update([await receive(ann) for _ in range(count)])
    assert came == Counter(sent)


async def test_a_shared_group_with_members_on_both_sides_gets_all_at_least_once(nodes: Nodes) -> None:
    """What waited before is given to members on either side; what each side queues, once."""
    await nodes.meet("one", "two", suspect_s=SUSPECT_S)
    sides = {"one": "ann", "two": "eve"}
    for name, member in sides.items():
        async with client(nodes.brokers[name], member) as some:
            await some.subscribe("$share/g/b/#", qos=1)
    before = [b"before %d" % number for number in range(50)]
    await publish_all(nodes.brokers["one"], "b/1", before)
    await until(lambda: nodes.agree("one", "two"))
    one, two = (nodes.keepers[name].node.incarnation for name in sides)
    nodes.links.cut.add(one)
    await until(lambda: home(nodes, "two") == two, "it is taken over")
    came: Counter[bytes] = Counter()
    later = []
    for name, member in sides.items():
        meanwhile = [b"%s %d" % (name.encode(), number) for number in range(20)]
        await publish_all(nodes.brokers[name], "b/1", meanwhile)
        later += meanwhile
        async with client(nodes.brokers[name], member) as some:
            mine: set[bytes] = set()
            while not mine.issuperset(before + meanwhile):
                payload = await receive(some)
                mine.add(payload)
                came[payload] += 1
    nodes.links.cut.clear()
    await until(lambda: nodes.agree("one", "two"))
    await until(lambda: nodes.count("one", "entry") == 0, "nothing waits any more")
    assert came == Counter({**dict.fromkeys(before, 2), **dict.fromkeys(later, 1)})


async def connect(nodes: Nodes, name: str, version: int = 5, **named: Any) -> Client:
    """Ann comes to a node."""
    more = {**kept(version), **named}
    return await asyncio.to_thread(partial(connected, nodes.brokers[name], version, client_id="ann", **more))


async def begin_split(nodes: Nodes, **named: Any) -> tuple[Client, int, int]:
    """Ann, at one, and both nodes: two knows of her session, and does not hear one any more."""
    await nodes.meet("one", "two", suspect_s=SUSPECT_S)
    one, two = (nodes.keepers[each].node.incarnation for each in ("one", "two"))
    ann = await connect(nodes, "one", **named)
    await asyncio.to_thread(ann.subscribe, "a/#", qos=1)
    await until(lambda: nodes.agree("one", "two"))
    nodes.links.cut.add(one)
    return ann, one, two


@pytest.mark.parametrize("version", [4, 5])
async def test_a_client_that_is_connected_all_the_time_stays_where_it_is(nodes: Nodes, version: int) -> None:
    """With what is in flight, and what the other side has queued for it."""
    await nodes.meet("one", "two", suspect_s=SUSPECT_S)
    one, two = (nodes.keepers[each].node.incarnation for each in ("one", "two"))
    ann = await connect(nodes, "one", version)
    await asyncio.to_thread(ann.subscribe, "a/#", qos=2)
    await publish_all(nodes.brokers["one"], "a/1", [b"released", b"flies"], qos=2)
    released, flies = [await asyncio.to_thread(ann.expect, PUBLISH) for _ in range(2)]
    await asyncio.to_thread(ann.send, acknowledge(PUBREC, released.packet_id))
    await asyncio.to_thread(partial(ann.expect, PUBREL, packet_id=released.packet_id))
    await until(lambda: nodes.agree("one", "two"))
    nodes.links.cut.add(one)
    await until(lambda: home(nodes, "two") == two, "it is taken over")
    await publish_all(nodes.brokers["two"], "a/1", [b"elsewhere"], qos=2)
    nodes.links.cut.clear()
    await until(lambda: {home(nodes, name) for name in ("one", "two")} == {one}, "it is where it was")
    assert nodes.keepers["one"].moves.contests.counts["cluster_sessions_kept"] == 1
    # else what is acknowledged here could come again by the node that has taken it
    await until(
        lambda: nodes.ask("one", lambda keeper: "ann" in keeper.node.sharing._clients), "it is shared"
    )
    elsewhere = await asyncio.to_thread(ann.expect, PUBLISH)
    assert (elsewhere.payload, elsewhere.dup) == (b"elsewhere", False)
    await asyncio.to_thread(ann.send, acknowledge(PUBCOMP, released.packet_id))
    for each in (flies, elsewhere):
        await asyncio.to_thread(ann.send, acknowledge(PUBREC, each.packet_id))
        await asyncio.to_thread(partial(ann.expect, PUBREL, packet_id=each.packet_id))
        await asyncio.to_thread(ann.send, acknowledge(PUBCOMP, each.packet_id))
    await until(lambda: nodes.keepers["two"].conversion.epoch("ann") is None, "two has forgotten it")
    await publish_all(nodes.brokers["one"], "a/1", [b"again"])
    again = await asyncio.to_thread(ann.expect, PUBLISH)
    assert again.payload == b"again"
    await asyncio.to_thread(ann.send, acknowledge(PUBACK, again.packet_id))
    await asyncio.to_thread(ann.expect_nothing)
    await until(lambda: nodes.count("one", "entry") == nodes.count("two", "entry") == 0)
    await until(lambda: nodes.agree("one", "two"))


async def test_what_is_in_flight_as_a_connection_ends_goes_on_where_it_was(nodes: Nodes) -> None:
    """The other side has taken the session, and its client was not there. Found by a run of three nodes."""
    await nodes.meet("one", "two", suspect_s=SUSPECT_S)
    one, two = (nodes.keepers[each].node.incarnation for each in ("one", "two"))
    ann = await connect(nodes, "one")
    await asyncio.to_thread(ann.subscribe, "a/#", qos=2)
    await until(lambda: nodes.agree("one", "two"))
    nodes.links.cut.add(one)
    await until(lambda: home(nodes, "two") == two, "it is taken over")
    await publish_all(nodes.brokers["one"], "a/1", [b"released"], qos=2)
    released = await asyncio.to_thread(ann.expect, PUBLISH)
    await asyncio.to_thread(ann.send, acknowledge(PUBREC, released.packet_id))
    await asyncio.to_thread(partial(ann.expect, PUBREL, packet_id=released.packet_id))
    await asyncio.to_thread(ann.drop)
    await until(lambda: not nodes.keepers["one"]._access.is_online(b"ann"))
    nodes.links.cut.clear()
    await until(lambda: {home(nodes, name) for name in ("one", "two")} == {one}, "it is where it was")
    await until(lambda: nodes.agree("one", "two"))
    ann = await connect(nodes, "two")
    await asyncio.to_thread(partial(ann.expect, PUBREL, packet_id=released.packet_id))
    await asyncio.to_thread(ann.send, acknowledge(PUBCOMP, released.packet_id))
    await publish_all(nodes.brokers["one"], "a/1", [b"later"])
    assert (await asyncio.to_thread(ann.expect, PUBLISH)).payload == b"later"
    await asyncio.to_thread(ann.expect_nothing)


async def test_a_subscription_is_not_lost_to_a_later_one_of_a_session_that_has_ended(nodes: Nodes) -> None:
    """The client begins anew on one side, and is connected to the other one with its old session still."""
    await nodes.meet("one", "two", suspect_s=SUSPECT_S)
    await asyncio.to_thread((await connect(nodes, "one")).disconnect)
    await until(lambda: nodes.agree("one", "two"))
    one, two = (nodes.keepers[each].node.incarnation for each in ("one", "two"))
    nodes.links.cut.add(one)
    await until(lambda: home(nodes, "two") == two, "it is taken over")
    there = await connect(nodes, "two")
    here = await connect(nodes, "one", clean=True)
    await asyncio.to_thread(here.subscribe, "a/#", 1)
    await asyncio.to_thread(there.subscribe, "a/#", 2)
    nodes.links.cut.clear()
    await until(lambda: nodes.count("two", "subscription ann a/#") == 1, "both know it")
    await until(lambda: nodes.agree("one", "two"))
    await publish_all(nodes.brokers["one"], "a/1", [b"comes"], qos=2)
    comes = await asyncio.to_thread(here.expect, PUBLISH)
    assert (comes.payload, comes.qos) == (b"comes", 1)
    assert nodes.keepers["one"].moves.contests.counts["cluster_subscriptions_kept"] == 1


async def test_a_session_does_not_expire_where_its_client_may_be_connected_elsewhere(nodes: Nodes) -> None:
    """However long the split lasts. Its time begins when the other node, heard again, does not have it."""
    ann, one, two = await begin_split(nodes, session_expiry=1)
    await until(lambda: home(nodes, "two") == two, "it is taken over")
    await asyncio.sleep(2 * SUSPECT_S)
    assert home(nodes, "two") == two
    nodes.links.cut.clear()
    await until(lambda: {home(nodes, name) for name in ("one", "two")} == {one}, "it is where it was")
    await publish_all(nodes.brokers["one"], "a/1", [b"there"])
    assert (await asyncio.to_thread(ann.expect, PUBLISH)).payload == b"there"
    nodes.links.cut.add(one)
    await until(lambda: home(nodes, "two") == two, "it is taken over again")
    await asyncio.sleep(2 * SUSPECT_S)
    assert home(nodes, "two") == two
    await nodes.stop("one")
    nodes.links.cut.clear()
    await nodes.start("one")
    await until(lambda: home(nodes, "two") == 0, "its time is over")
    await until(lambda: nodes.agree("one", "two"))


async def test_a_link_that_is_cut_in_one_direction_is_a_split(nodes: Nodes) -> None:
    """One hears nobody any more, and takes all sessions; two hears it, and goes on with them as well."""
    ann, one, two = await begin_split(nodes)
    nodes.links.cut.clear()
    await asyncio.to_thread(ann.disconnect)
    await publish_all(nodes.brokers["one"], "a/1", [b"waits"])
    await until(lambda: nodes.agree("one", "two"))
    nodes.links.unheard.add(one)
    await until(lambda: home(nodes, "two") == two, "it is taken over")
    ann = await connect(nodes, "two")
    waits = await asyncio.to_thread(ann.expect, PUBLISH)
    await asyncio.to_thread(ann.send, acknowledge(PUBACK, waits.packet_id))
    nodes.links.unheard.clear()
    await until(lambda: {home(nodes, name) for name in ("one", "two")} == {two})
    await until(lambda: nodes.agree("one", "two"))
    await asyncio.to_thread(ann.ping)


async def test_a_client_that_has_come_to_the_other_side_goes_on_there(nodes: Nodes) -> None:
    """Also where it is connected to both, and has come there when the session was taken already."""
    await nodes.meet("one", "two", suspect_s=SUSPECT_S)
    one, two = (nodes.keepers[each].node.incarnation for each in ("one", "two"))
    ann = await connect(nodes, "one")
    await until(lambda: home(nodes, "two") == one)
    nodes.links.cut.add(one)
    await until(lambda: home(nodes, "two") == two, "it is taken over")
    there = await connect(nodes, "two")
    nodes.links.cut.clear()
    await asyncio.to_thread(ann.expect_closed, 0x9C)
    await until(lambda: {home(nodes, name) for name in ("one", "two")} == {two})
    await asyncio.to_thread(there.ping)


async def test_a_client_that_has_come_back_to_its_side_stays_there(nodes: Nodes) -> None:
    """Although the other side has taken its session later: without the client that is no CONNECT."""
    _, one, two = await begin_split(nodes)
    ann = await connect(nodes, "one")
    await until(lambda: home(nodes, "two") == two, "it is taken over")
    await publish_all(nodes.brokers["two"], "a/1", [b"elsewhere"])
    nodes.links.cut.clear()
    await until(lambda: {home(nodes, name) for name in ("one", "two")} == {one}, "it is where its client is")
    assert (await asyncio.to_thread(ann.expect, PUBLISH)).payload == b"elsewhere"
    await until(lambda: nodes.keepers["two"].conversion.epoch("ann") is None, "two has forgotten it")
    await asyncio.to_thread(ann.ping)


@pytest.mark.parametrize("comes_to", ["", "one", "two"])
async def test_a_session_that_its_client_has_ended_does_not_come_back(nodes: Nodes, comes_to: str) -> None:
    """As the other side has taken it, nor what that queues for it; unless the client has come there, which
    does not know of the end.
    """
    ann, one, two = await begin_split(nodes)
    await until(lambda: home(nodes, "two") == two, "it is taken over")
    await asyncio.to_thread(partial(ann.disconnect, session_expiry=0))
    await until(lambda: home(nodes, "one") == 0, "it has ended")
    await publish_all(nodes.brokers["two"], "a/1", [b"elsewhere"])
    if comes_to:
        ann = await connect(nodes, comes_to)
        await until(lambda: home(nodes, comes_to) != 0)
    nodes.links.cut.clear()
    await until(lambda: nodes.agree("one", "two"))
    homes = {"": 0, "one": one, "two": two}
    await until(lambda: {home(nodes, name) for name in ("one", "two")} == {homes[comes_to]})
    filters = nodes.ask("one", lambda keeper: [each for each, _ in keeper.rows.filters("ann")])
    assert filters == (["a/#"] if comes_to == "two" else [])
    if comes_to == "two":
        assert (await asyncio.to_thread(ann.expect, PUBLISH)).payload == b"elsewhere"
        return
    assert nodes.keepers["one"].node.applier.counts["cluster_added_after_end"] == 1
    if comes_to:
        await asyncio.to_thread(ann.expect_nothing)


async def test_who_begins_anew_ends_what_the_other_side_has_from_before(nodes: Nodes) -> None:
    """There the client has connected since, of which this side has not heard; it came here later."""
    ann, _, two = await begin_split(nodes)
    await until(lambda: home(nodes, "two") == two, "it is taken over")
    await asyncio.to_thread(ann.disconnect)
    ann = await connect(nodes, "one")
    await asyncio.to_thread(ann.disconnect)
    anew = await connect(nodes, "two", clean=True, session_expiry=0)
    await asyncio.to_thread(anew.disconnect)
    nodes.links.cut.clear()
    await until(lambda: nodes.agree("one", "two"))
    await until(lambda: {home(nodes, name) for name in ("one", "two")} == {0})


@pytest.mark.parametrize("goes_on_at", ["one", "two"])
async def test_what_is_published_as_nodes_hear_of_each_other_reaches_who_began_anew(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, goes_on_at: str
) -> None:
    """Neither side knew the session of the other. That which gives way takes messages for it until what is
    published there reaches its home.
    """
    await nodes.meet("one", "two", suspect_s=SUSPECT_S)
    gives_way = {"one": "two", "two": "one"}[goes_on_at]
    there = nodes.keepers[goes_on_at].node.incarnation
    nodes.links.cut.add(nodes.keepers["one"].node.incarnation)
    ann = await connect(nodes, gives_way)
    await asyncio.to_thread(ann.subscribe, "a/#", qos=1)
    await publish_all(nodes.brokers[gives_way], "a/1", [b"before"])
    ann = await connect(nodes, goes_on_at)
    moves = nodes.keepers[gives_way].moves
    monkeypatch.setattr(moves.departures._links, "apart", lambda: {there})
    nodes.links.cut.clear()
    await until(lambda: {home(nodes, name) for name in ("one", "two")} == {there}, "it goes on there")
    assert (await asyncio.to_thread(ann.expect, PUBLISH)).payload == b"before"
    await asyncio.sleep(2 * departures.LINGER_S)
    await publish_all(nodes.brokers[gives_way], "a/1", [b"meanwhile"])
    assert (await asyncio.to_thread(ann.expect, PUBLISH)).payload == b"meanwhile"
    monkeypatch.undo()
    await until(lambda: not moves.departures.still_takes("ann"))
    await until(lambda: nodes.agree("one", "two"))


async def go_elsewhere(nodes: Nodes) -> None:
    """As `split`, and another connection of ann's comes and goes on two."""
    one, two = (nodes.keepers[each].node.incarnation for each in ("one", "two"))
    await until(lambda: home(nodes, "two") == one)
    nodes.links.cut.add(one)
    await until(lambda: home(nodes, "two") == two, "it is taken over")
    there = await connect(nodes, "two")
    await asyncio.to_thread(there.disconnect)
    nodes.links.cut.clear()


@pytest.mark.parametrize("version", [4, 5])
async def test_a_client_is_told_to_come_again_not_that_it_came_elsewhere(nodes: Nodes, version: int) -> None:
    await nodes.meet("one", "two", suspect_s=SUSPECT_S)
    ann = await connect(nodes, "one", version)
    await asyncio.to_thread(ann.subscribe, "a/#", qos=1)
    await go_elsewhere(nodes)
    await asyncio.to_thread(ann.expect_closed, *([0x9C] if version == 5 else []))


async def test_our_own_client_comes_back_by_itself(nodes: Nodes) -> None:
    await nodes.meet("one", "two", suspect_s=SUSPECT_S)
    one = nodes.brokers["one"]
    async with client(one, "ann") as ann:
        await ann.subscribe("a/#", qos=1)
        await go_elsewhere(nodes)
        await until(lambda: home(nodes, "one") == nodes.keepers["one"].node.incarnation)
        await until(lambda: nodes.keepers["one"].moves.counts["cluster_sessions_taken"] == 1, "it came back")
        async with client(one, "bob") as bob:
            await bob.publish("a/1", b"x", qos=1)
        assert await receive(ann) == b"x"


async def test_what_was_subscribed_on_one_side_counts_where_the_session_goes_on(nodes: Nodes) -> None:
    """And what was unsubscribed there does not any more; also without another CONNECT."""
    await nodes.meet("one", "two", suspect_s=SUSPECT_S)
    one, two = (nodes.keepers[each].node.incarnation for each in ("one", "two"))
    async with client(nodes.brokers["one"], "ann") as ann:
        await ann.subscribe("gone/#", qos=1)
        await ann.subscribe("stays/#", qos=1)
        await until(lambda: home(nodes, "two") == one)
        await until(lambda: nodes.agree("one", "two"))
        nodes.links.cut.add(one)
        await until(lambda: home(nodes, "two") == two, "it is taken over")
        await ann.subscribe("new/#", qos=2)
        await ann.unsubscribe("gone/#")
    nodes.links.cut.clear()
    await until(lambda: nodes.agree("one", "two"))

    def is_there(name: str) -> bool:
        return nodes.brokers[name].counters()["subscriptions"] == 2

    await until(lambda: is_there("two"), "the engine of two knows")
    async with client(nodes.brokers["two"], "bob") as bob:
        for topic in ("gone/1", "stays/1", "new/1"):
            await bob.publish(topic, topic.encode(), qos=1)
    await until(lambda: nodes.count("two", "entry") == 2)
    assert home(nodes, "two") == two
    async with client(nodes.brokers["one"], "ann") as ann:
        assert {await receive(ann), await receive(ann)} == {b"stays/1", b"new/1"}


async def test_what_was_unsubscribed_where_nobody_knew_of_it_is_gone(nodes: Nodes) -> None:
    ann, _, two = await begin_split(nodes)
    await until(lambda: home(nodes, "two") == two, "it is taken over")
    await asyncio.to_thread(partial(ann.subscribe, "b/#", qos=1))
    there = await connect(nodes, "two")
    reasons = (await asyncio.to_thread(there.unsubscribe, "b/#")).reasons
    assert reasons == [0x11]
    nodes.links.cut.clear()
    await until(lambda: {home(nodes, name) for name in ("one", "two")} == {two})
    await until(lambda: nodes.agree("one", "two"))
    for name in ("one", "two"):
        filters = nodes.ask(name, lambda keeper: [each for each, _ in keeper.rows.filters("ann")])
        assert filters == ["a/#"]


async def test_what_was_unsubscribed_does_not_come_back_as_the_other_side_sends_what_is_retained(
    nodes: Nodes,
) -> None:
    """There the session goes on with a subscription to which not all that is retained has been sent."""
    await nodes.meet("one", "two", suspect_s=SUSPECT_S)
    one, two = (nodes.keepers[each].node.incarnation for each in ("one", "two"))
    nodes.ask("one", lambda keeper: keeper.conversion._acts.update(serve=lambda *_: iter(())))
    await retain(nodes, "one", b"kept")
    ann = await connect(nodes, "one")
    await asyncio.to_thread(partial(ann.subscribe, "a/#", qos=1))
    await asyncio.to_thread(ann.expect, PUBLISH)
    await until(lambda: nodes.agree("one", "two"))
    nodes.links.cut.add(one)
    await until(lambda: home(nodes, "two") == two, "it is taken over")
    await asyncio.to_thread(ann.unsubscribe, "a/#")
    there = await connect(nodes, "two")
    await asyncio.to_thread(there.expect, PUBLISH)

    def is_served() -> bool:
        row = nodes.ask("two", lambda keeper: keeper.rows.subscription("ann", "a/#"))
        return row is not None and not row.options & BACKLOG

    await until(is_served, "all has been sent")
    nodes.links.cut.clear()
    await until(lambda: nodes.agree("one", "two"))
    for name in ("one", "two"):
        assert nodes.ask(name, lambda keeper: keeper.rows.filters("ann")) == []


async def test_what_its_client_does_afterwards_counts_more(nodes: Nodes) -> None:
    """The engine is told once more how it is in the store, when its client has changed it meanwhile."""
    await nodes.meet("one", "two", suspect_s=SUSPECT_S)
    one = nodes.keepers["one"].node.incarnation
    told: list[int | None] = []
    access = nodes.keepers["two"].telling._access
    note = access.note_subscription

    def listen(queue: int, topic_filter: bytes, options: int | None, identifier: int) -> None:
        told.append(options)
        note(queue, topic_filter, options, identifier)

    nodes.keepers["two"].telling._access = type("Access", (), {"note_subscription": staticmethod(listen)})()
    for name in ("note_added", "note_removed", "retain"):
        setattr(nodes.keepers["two"].telling._access, name, getattr(access, name))
    async with client(nodes.brokers["one"], "ann") as ann:
        await until(lambda: home(nodes, "two") == one)
        nodes.links.cut.add(one)
        await until(lambda: home(nodes, "two") != one, "it is taken over")
        await ann.subscribe("a/#", qos=1)
    nodes.links.cut.clear()
    await until(lambda: told == [1])
    async with client(nodes.brokers["two"], "ann") as ann:
        await ann.unsubscribe("a/#")
        await until(lambda: told == [1, None])
        await ann.subscribe("a/#", qos=0)
        await until(lambda: told == [1, None, 0])
        await ann.unsubscribe("b/#")
    assert told == [1, None, 0]


async def test_what_is_left_of_a_session_goes_when_what_is_published_waits(nodes: Nodes) -> None:
    """Two takes ann's session again, which one has had meanwhile, and does not reach one. What came between
    was nobody's.
    """
    _, one, two = await begin_split(nodes)
    await until(lambda: home(nodes, "two") == two, "it is taken over")
    ann = await connect(nodes, "one")
    moves = nodes.keepers["two"].moves
    asked: list[tuple[str, int, list[str]]] = []
    let_go: list[str] = []

    def hold(client: str, node: int, filters: list[str]) -> bool:
        assert moves.departures.still_takes("ann")
        asked.append((client, node, filters))
        return len(asked) > 2

    links: Any = moves._links
    links.hold, links.let_go = hold, let_go.append
    nodes.links.dropped.add("done")
    nodes.links.cut.clear()
    await until(lambda: home(nodes, "two") == one, "two has heard of it")
    nodes.links.cut.add(one)
    await asyncio.to_thread(ann.disconnect)
    await until(
        lambda: one not in nodes.ask("two", lambda keeper: keeper.node.members.live(time.monotonic()))
    )
    there = await connect(nodes, "two")
    assert asked == [("ann", one, ["a/#"])] * 3
    assert moves.counts["cluster_sessions_held"] == 1
    await until(lambda: let_go == ["ann"])
    await publish_all(nodes.brokers["two"], "a/1", [b"there"])
    assert (await asyncio.to_thread(there.expect, PUBLISH)).payload == b"there"


async def test_what_waits_is_sent_although_more_has_come_and_gone_on_the_other_side(nodes: Nodes) -> None:
    """The engine counts what waits: what it has never heard of is not taken off."""
    await nodes.meet("one", "two", suspect_s=SUSPECT_S)
    one, two = (nodes.keepers[each].node.incarnation for each in ("one", "two"))
    async with client(nodes.brokers["one"], "ann") as ann:
        await ann.subscribe("a/#", qos=1)
        await until(lambda: home(nodes, "two") == one)
        nodes.links.cut.add(one)
        await until(lambda: home(nodes, "two") == two, "it is taken over")
        await publish_all(nodes.brokers["two"], "a/1", [b"waits"])
        here = [b"%d" % number for number in range(5)]
        await publish_all(nodes.brokers["one"], "a/1", here)
        assert [await receive(ann) for _ in here] == here
        await until(lambda: nodes.count("one", "entry") <= 1, "all but the last are acknowledged")
    nodes.links.cut.clear()
    await until(lambda: nodes.agree("one", "two"))
    async with client(nodes.brokers["two"], "ann") as ann:
        assert await receive(ann) == b"waits"


def last_connect(nodes: Nodes, name: str) -> Stamp:
    """That of ann's session, as a node knows."""
    session = nodes.ask(name, lambda keeper: keeper.rows.sessions.get("ann", None))
    return session.row.connected if session is not None else Stamp(0, 0)


async def test_a_session_is_taken_again_as_its_dead_home_is_heard_to_have_had_its_client_later(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its last records are read when its sessions have been taken already; nothing is searched for."""
    ann, one, two = await begin_split(nodes)
    await asyncio.to_thread(ann.disconnect)
    await until(lambda: home(nodes, "two") == two, "it is taken over")
    await connect(nodes, "one")
    await until(lambda: last_connect(nodes, "one") > last_connect(nodes, "two"))
    monkeypatch.setattr(nodes.keepers["two"].moves.orphans, "advance", lambda *_, **__: None)
    record = nodes.keepers["one"].node.record
    texts = nodes.ask("one", lambda keeper: [record(one, each) for each in range(1, keeper.node.durable + 1)])
    nodes.keepers["two"].inbox.take_fetched(two, [each for each in texts if each is not None])
    await until(lambda: last_connect(nodes, "one") == last_connect(nodes, "two"))
    await until(lambda: home(nodes, "two") == two, "it is taken again")
