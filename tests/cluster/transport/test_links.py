"""Who is connected with whom: found, refused, gone and back."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from pathlib import Path

import pytest
from cluster.transport.kit import (
    PASSWORD,
    PATIENCE,
    Heard,
    Node,
    await_connected,
    await_copied,
    connect,
    copies_at,
    record,
    secure,
)
from listeners.conftest import Authority
from waiting import until, wait_until

from tidemq.cluster.transport.connecting import RefusedError
from tidemq.cluster.transport.link import IdleError, Link
from tidemq.cluster.transport.server import find_program
from tidemq.cluster.transport.settings import Bounds, Patience, Security, parse_address
from tidemq.cluster.transport.transport import Transport
from tidemq.errors import ClusterError, UsageError
from tidemq.testing.ports import free_port
from tidemq.testing.proxy import Proxy


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def port_of(node: Node) -> int:
    return parse_address(node.address)[1]


def test_nodes_find_each_other_by_one_address(tmp_path: Path) -> None:
    with Node(tmp_path, 1) as one, Node(tmp_path, 2) as two:
        two.transport.join([one.address, two.address, f"127.0.0.1:{free_port()}"])
        wait_until(lambda: two.transport.connected() == {1: one.address}, "the one that it was told of")
        wait_until(lambda: one.heard.met == {2: two.address}, "who was met")
        assert two.heard.met == {1: one.address}
        one.transport.set_peers(one.heard.met)
        await_connected(one, two)
        one.transport.set_peers({})
        wait_until(lambda: one.heard.connections[-1] == ("disconnected", 2), "the end")
        assert one.transport.connected() == {}
        assert two.transport.connected() == {1: one.address}


def test_the_end_of_a_connection_is_told_however_long_it_takes(tmp_path: Path) -> None:
    """A task of it goes on when it is cancelled, as nats-py does while it flushes."""
    cancelled = 0

    async def go_on() -> None:
        nonlocal cancelled
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled += 1
                if cancelled > 5:
                    raise

    with Node(tmp_path, 1) as one, Node(tmp_path, 2) as two:
        one.transport.set_peers({2: two.address})
        wait_until(lambda: one.heard.connections == [("connected", 2)], "the connection")
        link = one.transport._links[two.address]
        one.transport.post(lambda: link.begin(go_on()))
        wait_until(lambda: len(link._tasks) > 3, "its task")
        one.transport.set_peers({})
        wait_until(lambda: one.heard.connections[-1] == ("disconnected", 2), "the end")
        assert one.transport.connected() == {}


def test_a_peer_under_two_addresses_has_one_connection(tmp_path: Path) -> None:
    with Node(tmp_path, 1) as one, Node(tmp_path, 2) as two:
        other_name = f"localhost:{port_of(two)}"
        one.transport.join([two.address, other_name])
        wait_until(lambda: one.transport.connected(), "one of them")
        wait_until(
            lambda: "twice" in {link["state"] for link in one.transport.status()["peers"]}, "the other"
        )
        assert len(one.transport.connected()) == 1
        assert one.heard.problems == []


@pytest.mark.parametrize(
    ("difference", "words"),
    [
        ({"cluster": "other"}, ("belongs to the cluster 'other'", "this node to 'test'")),
        ({"password": "anotherPassword123"}, ("refuses the cluster's password", "expected")),
        ({"certificate": "of another authority"}, ("certificate is refused", "expected")),
        ({"certificate": "none"}, ("speaks no TLS", "expected")),
    ],
)
def test_who_does_not_belong_to_the_cluster_is_refused_in_words(
    tmp_path: Path, authority: Authority, difference: dict[str, str], words: tuple[str, ...]
) -> None:
    (tmp_path / "other").mkdir()
    another = Authority(tmp_path / "other") if "another" in difference.get("certificate", "") else authority
    stranger = secure(
        tmp_path / "stranger",
        difference.get("password", PASSWORD),
        None if difference.get("certificate") == "none" else another,
    )
    ours = secure(tmp_path / "ours", authority=authority)
    cluster = difference.get("cluster", "test")
    with (
        Node(tmp_path, 1, security=ours) as one,
        Node(tmp_path, 2, security=stranger, cluster=cluster) as two,
    ):
        one.transport.join([two.address])
        two.transport.join([one.address])
        wait_until(lambda: one.heard.has_problem(*words), "what is wrong")
        wait_until(lambda: two.transport.counts["cluster_links_refused"], "it is refused")
        wait_until(
            lambda: one.transport.counts["cluster_links_refused"] > 1, "and so is the other, again and again"
        )
        assert one.transport.connected() == two.transport.connected() == {}
        assert PASSWORD not in repr(one.heard.problems + two.heard.problems)


def test_a_certificate_is_refused_by_the_server_as_well(tmp_path: Path, authority: Authority) -> None:
    """The stranger trusts everybody."""
    (tmp_path / "other").mkdir()
    foreign = secure(tmp_path / "stranger", authority=Authority(tmp_path / "other"))
    stranger = Security(
        password_file=foreign.password_file, ca=authority.ca, certificate=foreign.certificate, key=foreign.key
    )
    with Node(tmp_path, 1, security=secure(tmp_path / "ours", authority=authority)) as one:
        heard = Heard()
        transport = Transport(
            cluster="test",
            incarnation=2,
            address=f"127.0.0.1:{free_port()}",
            security=stranger,
            events=heard,
            patience=PATIENCE,
        )
        transport.start()
        try:
            transport.join([one.address])
            wait_until(lambda: heard.has_problem("accepts this node's certificate"), "what is wrong")
            assert transport.connected() == {}
            assert one.heard.met == {}
        finally:
            transport.close()


def test_nodes_with_certificates_work_together(tmp_path: Path, authority: Authority) -> None:
    security = secure(tmp_path, authority=authority)
    with Node(tmp_path, 1, security=security) as one, Node(tmp_path, 2, security=security) as two:
        connect(one, two)
        one.transport.send(2, "mail", bytes(3 << 20))
        one.append(2, range(1, 301), 10_000)
        await_copied(one, two, 300)
        wait_until(lambda: two.bodies(one) == [bytes(3 << 20)], "the message")
        assert copies_at(two, one) == [record(number, 10_000) for number in range(1, 301)]


def test_who_has_no_certificate_is_told_nothing(tmp_path: Path, authority: Authority) -> None:
    """Not even that there is a nats-server; so a client of MQTT, too."""
    connect_packet = bytes.fromhex("101000044d5154540402003c000461626364")
    with (
        Node(tmp_path, 1, security=secure(tmp_path, authority=authority)) as one,
        socket.create_connection(("127.0.0.1", port_of(one)), 30) as stranger,
    ):
        stranger.sendall(connect_packet)
        with stranger.makefile("rb") as answer:
            try:
                told = answer.read()
            except ConnectionResetError:
                told = b""
        assert b"INFO" not in told
        assert len(told) < 10  # at most an alert of TLS


def test_a_client_of_mqtt_gets_no_answer_of_its_own_without_tls_either(tmp_path: Path) -> None:
    with Node(tmp_path, 1) as one, socket.create_connection(("127.0.0.1", port_of(one)), 30) as stranger:
        stranger.sendall(b'CONNECT {"user":"tidemq","pass":"guess"}\r\nSUB > 1\r\nPING\r\n')
        with stranger.makefile("rb") as answer:
            told = answer.read()
        assert b"Authorization Violation" in told
        assert b"PONG" not in told


def test_a_second_node_of_one_incarnation_is_refused(tmp_path: Path) -> None:
    with Node(tmp_path / "a", 1) as one, Node(tmp_path / "b", 1, security=one.security) as copied:
        copied.transport.join([one.address])
        wait_until(lambda: copied.heard.has_problem("second node of this node's incarnation"), "the copy")
        wait_until(lambda: one.heard.has_problem("second node of this node's incarnation"), "the original")
        assert one.transport.connected() == copied.transport.connected() == {}


def test_two_nodes_at_one_server_are_refused(tmp_path: Path) -> None:
    with Node(tmp_path, 1) as one:
        heard = Heard()
        second = Transport(
            cluster="test",
            incarnation=2,
            address=one.address,
            security=one.security,
            events=heard,
            patience=PATIENCE,
        )
        second.start()
        wait_until(lambda: heard.has_problem("another node uses this nats-server"), "the second")
        second.close()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ('jetstream {{ store_dir: "{folder}" }}', ()),
        ("", ("has no JetStream", "expected")),
        ('jetstream {{ store_dir: "{folder}" }}\nmax_payload: 2000', ("max_payload is 2000", "expected")),
    ],
)
def test_an_operator_s_server_is_used_as_it_is(tmp_path: Path, settings: str, words: tuple[str, ...]) -> None:
    security = secure(tmp_path)
    address = f"127.0.0.1:{free_port()}"
    file = tmp_path / "operator.conf"
    text = settings.format(folder=tmp_path / "kept")
    file.write_text(f'listen: "{address}"\nauthorization {{ user: tidemq, password: {PASSWORD} }}\n{text}\n')
    heard = Heard()
    transport = Transport(
        cluster="test", incarnation=2, address=address, security=security, events=heard, patience=PATIENCE
    )
    command = [str(find_program()), "-c", str(file)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        transport.start()
        try:
            if words:
                wait_until(lambda: heard.has_problem(*words), "what is wrong")
                return
            wait_until(lambda: transport.status()["state"] == "connected", "the server")
            with Node(tmp_path, 1, security=security) as one:
                one.transport.set_peers({2: address})
                wait_until(lambda: 2 in one.transport.connected(), "the node at the operator's server")
                one.append(2, range(1, 101))
                wait_until(lambda: one.heard.copied.get(2) == 100, "copies")
                assert transport.copied_of(1).result(10) == (1, 100)
        finally:
            transport.close()
            process.terminate()


def test_another_incarnation_than_expected_is_refused(tmp_path: Path) -> None:
    with Node(tmp_path, 1) as one, Node(tmp_path, 2) as two:
        one.transport.set_peers({3: two.address})
        wait_until(lambda: one.heard.has_problem("another incarnation is there than expected"), "it is said")
        one.transport.set_peers({3: two.address, 2: two.address})
        wait_until(lambda: one.transport.connected() == {2: two.address}, "the one that is there")


def test_a_node_that_begins_anew_behind_its_server_is_reached(tmp_path: Path) -> None:
    """The server outlives it, as one of an operator's does."""
    with Node(tmp_path, 1) as one, Node(tmp_path, 2) as two:
        connect(one, two)
        two.transport.close()
        two.incarnation = 3
        two.open()
        wait_until(lambda: two.transport.status()["state"] == "connected", "its own server")
        one.transport.set_peers({3: two.address})
        two.transport.set_peers({1: one.address})
        wait_until(lambda: one.transport.connected() == {3: two.address}, "the new incarnation")
        assert one.transport.send(3, "mail", b"hello")
        wait_until(lambda: two.bodies(one) == [b"hello"], "a message")


async def test_a_peer_that_is_away_is_tried_until_it_is_back(tmp_path: Path) -> None:
    with Node(tmp_path, 1) as one, Node(tmp_path, 2) as two:
        async with Proxy(port_of(two)) as proxy:
            proxy.refuse()
            one.transport.set_peers({2: f"127.0.0.1:{proxy.port}"})
            await until(lambda: one.transport.counts["cluster_links_failed"] > 3, "attempts")
            assert not one.transport.send(2, "mail", b"too early")
            for _ in range(3):
                await proxy.open()
                await until(lambda: 2 in one.transport.connected(), "it is back")
                assert one.transport.send(2, "mail", b"there")
                await until(lambda: two.bodies(one), "the message")
                two.heard.messages.clear()
                proxy.refuse()
                proxy.cut()
                await until(lambda: 2 not in one.transport.connected(), "it is away")
        assert one.heard.connections == [("connected", 2), ("disconnected", 2)] * 3


async def test_a_peer_that_falls_silent_delays_nobody(tmp_path: Path) -> None:
    """What waits for it is bounded and dropped; nothing of it comes later."""
    bounds = Bounds(waiting_bytes_max=1 << 20)
    with (
        Node(tmp_path, 1, bounds=bounds) as one,
        Node(tmp_path, 2) as two,
        Node(tmp_path, 3) as three,
    ):
        async with Proxy(port_of(two)) as proxy:
            one.transport.set_peers({2: f"127.0.0.1:{proxy.port}", 3: three.address})
            await until(lambda: len(one.transport.connected()) == 2, "both")
            proxy.stall()
            accepted = 0
            while one.transport.send(2, "mail", bytes(100_000)):
                accepted += 1
                assert accepted < 1000  # its bound, nats-py's, and the system's buffers
                await asyncio.sleep(0.001)
            assert one.transport.counts["cluster_messages_dropped"] == 1
            assert one.transport.send(3, "mail", b"to another")
            await until(lambda: three.bodies(one), "the other one's")
            await until(lambda: 2 not in one.transport.connected(), "it is given up")
            await until(lambda: one.transport.counts["cluster_messages_dropped"] > 5, "what waited goes")
            proxy.cut()  # or the proxy would pass on what it holds
            proxy.resume()
            await until(lambda: 2 in one.transport.connected(), "it is back")
            two.heard.messages.clear()
            one.transport.send(2, "mail", b"new")
            await until(lambda: two.bodies(one), "a message")
            assert two.bodies(one) == [b"new"]


async def test_nothing_is_lost_or_repeated_behind_a_proxy_that_cuts(tmp_path: Path) -> None:
    """Of copies. Messages may be lost with a connection, but come in order, and once."""
    with Node(tmp_path, 1) as one, Node(tmp_path, 2) as two:
        async with Proxy(port_of(two)) as proxy:
            proxy.cut_after_bytes = 700_000
            one.transport.set_peers({2: f"127.0.0.1:{proxy.port}"})
            for first in range(1, 5001, 50):
                one.append(2, range(first, first + 50), 1000)
                for number in range(first, first + 50):
                    one.transport.send(2, "mail", number.to_bytes(8, "big") + bytes(100))
                await asyncio.sleep(0.01)
            await until(lambda: one.heard.copied.get(2, 0) == 5000, "all copies")
            assert proxy.connections > 5
            proxy.cut_after_bytes = None
            found = await asyncio.to_thread(copies_at, two, one)
            assert found == [record(number, 1000) for number in range(1, 5001)]
            numbers = [int.from_bytes(body[:8], "big") for body in two.bodies(one)]
            assert numbers == sorted(set(numbers))
            assert numbers


async def test_a_message_cut_in_the_middle_is_no_message(tmp_path: Path) -> None:
    with Node(tmp_path, 1) as one, Node(tmp_path, 2) as two:
        async with Proxy(port_of(two)) as proxy:
            one.transport.set_peers({2: f"127.0.0.1:{proxy.port}"})
            await until(lambda: 2 in one.transport.connected(), "the peer")
            proxy.cut_after_bytes = 5 << 20
            one.transport.send(2, "mail", bytes(8 << 20))
            await until(lambda: one.transport.counts["cluster_links_lost"] == 1, "it is cut")
            proxy.cut_after_bytes = None
            await until(lambda: 2 in one.transport.connected(), "the peer again")
            one.transport.send(2, "mail", b"small")
            await until(lambda: two.bodies(one), "a message")
            assert two.bodies(one) == [b"small"]


def test_what_cannot_be_is_refused_at_once(tmp_path: Path) -> None:
    security = secure(tmp_path)
    accepted: dict[str, object] = {"cluster": "x", "incarnation": 1, "address": "127.0.0.1:4222"}
    for wrong, words in (
        ({"cluster": "a.b"}, "no name of a cluster"),
        ({"address": "127.0.0.1"}, "is no address"),
        ({"address": "127.0.0.1:4222/x"}, "is no address"),
        ({"address": "192.0.2.1:4222"}, "nodes have no TLS"),
    ):
        with pytest.raises(ClusterError, match=words):
            Transport(security=security, events=Heard(), **{**accepted, **wrong})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="64 bits"):
        Transport(cluster="x", incarnation=0, address="[::1]:1", security=security, events=Heard())
    transport = Transport(security=security, events=Heard(), **accepted)  # type: ignore[arg-type]
    with pytest.raises(ClusterError, match="17 peers"):
        transport.set_peers({number: f"127.0.0.1:{number}" for number in range(2, 19)})
    with pytest.raises(ClusterError, match="is no address"):
        transport.join(["nowhere"])
    transport.close()


async def test_a_node_that_was_connected_is_sought_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it is refused: its server may be there already, and the node itself not yet."""
    pauses: list[float] = []
    security = secure(tmp_path)
    home = Transport(cluster="x", incarnation=1, address="127.0.0.1:2", security=security, events=Heard())
    link = Link("127.0.0.1:1", home)
    answers = iter([RefusedError("at first"), None, IdleError("twice"), RefusedError("still"), OSError()])

    async def live() -> None:
        answer = next(answers)
        if answer is None:
            link._connected()
            raise ClusterError("the connection ended")
        raise answer

    async def pause(pause_s: float) -> None:
        pauses.append(pause_s)
        if len(pauses) == 5:
            raise asyncio.CancelledError

    monkeypatch.setattr(link, "_live", live)
    monkeypatch.setattr(link, "_pause", pause)
    with pytest.raises(asyncio.CancelledError):
        await link.run()
    assert pauses[0] >= Patience().refused_s / 2
    assert max(pauses[1:]) <= Patience().again_s
    home.close()
