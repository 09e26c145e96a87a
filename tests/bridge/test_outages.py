"""What was acknowledged crosses, whoever is away, refuses, or is killed."""

from __future__ import annotations

import asyncio
import datetime
import logging
from pathlib import Path

import pytest
import trustme
from bridge.kit import (
    bridge_to,
    broker_with,
    config_with,
    connected,
    crossed,
    figures,
    mosquitto,
    take,
    take_until,
    url_of,
)
from client.servers import Server
from waiting import until, wait_until

from tidemq import Broker
from tidemq.client import Client
from tidemq.client.sync import Client as SyncClient
from tidemq.testing import Proxy


@pytest.mark.parametrize("qos", [1, 2])
async def test_messages_wait_for_a_broker_that_is_away(own_far: Server, place: str, qos: int) -> None:
    async with Proxy(own_far.port) as proxy:
        proxy.refuse()
        bridge = bridge_to(proxy.url, {"filter": "a", "qos": 2}, client_id=place)
        async with broker_with(bridge) as broker, Client(url_of(broker)) as here:
            await until(lambda: figures(broker).status.failures > 0, "an attempt has failed")
            assert "cannot connect" in figures(broker).status.last_error
            payloads = [b"%d" % number for number in range(200)]
            await here.publish_many([("a", each) for each in payloads], qos=qos)
            await until(lambda: figures(broker).queued_messages == len(payloads), "all are queued")
            own_far.start()
            async with Client(own_far.url) as there:
                await there.subscribe("a", qos=2)
                await proxy.open()
                assert [payload for _, payload in await take(there, len(payloads))] == payloads
            await until(lambda: figures(broker).queued_messages == 0, "the queue is empty")


async def test_nothing_is_lost_where_the_other_side_is_killed(own_far: Server, place: str) -> None:
    own_far.start()
    async with Proxy(own_far.port) as proxy:
        bridge = bridge_to(proxy.url, {"filter": "a", "qos": 1}, client_id=place)
        async with broker_with(bridge) as broker, Client(url_of(broker)) as here:
            await connected(broker)
            proxy.stall()  # what goes out now is not acknowledged
            payloads = [b"%d" % number for number in range(100)]
            await here.publish_many([("a", each) for each in payloads], qos=1)
            await until(lambda: figures(broker).counts["messages_out"] == len(payloads), "all are under way")
            proxy.refuse()
            own_far.kill()
            proxy.cut()
            await until(lambda: not figures(broker).status.is_connected, "the bridge has noticed")
            proxy.resume()
            own_far.start()
            async with Client(own_far.url) as there:
                await there.subscribe("a", qos=1)
                await proxy.open()
                assert [payload for _, payload in await take(there, len(payloads))] == payloads


@pytest.mark.parametrize("qos", [1, 2])
async def test_what_was_under_way_when_the_line_broke_comes_again(far: Server, place: str, qos: int) -> None:
    """At QoS 2 once: the other side keeps the session, and knows what it has."""
    async with Proxy(far.port) as proxy, Client(far.url) as there:
        bridge = bridge_to(proxy.url, {"filter": f"{place}/#", "qos": 2}, client_id=place)
        async with broker_with(bridge) as broker, Client(url_of(broker)) as here:
            await connected(broker)
            await there.subscribe(f"{place}/#", qos=2)
            payloads = [b"%d" % number for number in range(2000)]
            publishing = asyncio.create_task(
                here.publish_many([(f"{place}/a", each) for each in payloads], qos=qos)
            )
            for _ in range(5):
                await crossed(broker, "messages_out", publishing)
                proxy.cut()
                await until(lambda: not figures(broker).status.is_connected or publishing.done())
            await publishing
            found = await take_until(there, lambda found: found[-1] == payloads[-1])
            if qos == 2:
                assert found == payloads
            else:
                assert set(found) == set(payloads)
                assert list(dict.fromkeys(found)) == payloads


@pytest.mark.parametrize("qos", [1, 2])
async def test_what_comes_in_survives_the_line_too(far: Server, place: str, qos: int) -> None:
    async with Proxy(far.port) as proxy, Client(far.url) as there:
        topic = {"filter": f"{place}/#", "direction": "in", "qos": 2}
        bridge = bridge_to(proxy.url, topic, client_id=place)
        async with broker_with(bridge) as broker, Client(url_of(broker)) as here:
            await here.subscribe(f"{place}/#", qos=2)
            await connected(broker)
            payloads = [b"%d" % number for number in range(2000)]
            publishing = asyncio.create_task(
                there.publish_many([(f"{place}/a", each) for each in payloads], qos=qos)
            )
            for _ in range(5):
                await crossed(broker, "messages_in", publishing)
                proxy.cut()
                await until(lambda: not figures(broker).status.is_connected or publishing.done())
            await publishing
            found = await take_until(here, lambda found: found[-1] == payloads[-1])
            if qos == 2:
                assert found == payloads
            else:
                assert set(found) == set(payloads)


def test_a_broker_that_is_killed_has_kept_what_it_acknowledged(
    own_far: Server, tmp_path: Path, place: str
) -> None:
    settings = f"""
    [[bridges]]
    name = "far"
    addresses = ["{own_far.url}"]
    client_id = "{place}"
    reconnect_s = 0.1
    reconnect_max_s = 0.2
    [[bridges.topics]]
    filter = "a"
    qos = 1
    """
    own = Server("tidemq", tmp_path, settings=settings, store="rocksdb").start()
    log = tmp_path / "tidemq.log"
    wait_until(lambda: "is ready on" in log.read_text(), "the bridge's queue is there")
    try:
        payloads = [b"%d" % number for number in range(100)]
        with SyncClient(own.url) as here:
            for each in payloads:
                here.publish("a", each, qos=1)
        own.kill()
        own_far.start()
        with SyncClient(own_far.url) as there:
            there.subscribe("a", qos=1)
            own.start()
            found: list[bytes] = []
            for message in there.messages:
                found.append(message.payload)
                if set(found) >= set(payloads):
                    break
        assert list(dict.fromkeys(found)) == payloads
    finally:
        own.kill()


async def test_refused_credentials_are_said(tmp_path: Path, install: object, place: str) -> None:
    passwords, secret = tmp_path / "passwords", tmp_path / "secret"
    passwords.write_text("")
    server = mosquitto(tmp_path, f"password_file {passwords}\nallow_anonymous false\n").start()
    secret.write_text("wrong\n")
    secret.chmod(0o600)
    bridge = bridge_to(server.url, username="ann", password_file=str(secret), client_id=place)
    try:
        async with broker_with(bridge) as broker:
            await until(lambda: figures(broker).status.failures >= 2, "it tries again")
            status = figures(broker).status
            assert "refuses the connection" in status.last_error
            assert not status.is_connected
    finally:
        server.kill()


async def test_an_expired_certificate_is_said(tmp_path: Path, install: object, place: str) -> None:
    authority = trustme.CA()
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    made = authority.issue_cert("127.0.0.1", not_after=yesterday)
    made.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    made.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    listener = f"certfile {tmp_path}/cert.pem\nkeyfile {tmp_path}/key.pem"
    server = mosquitto(tmp_path, listener=listener).start()
    url = f"mqtts://127.0.0.1:{server.port}"
    bridge = bridge_to(url, tls={"ca": str(tmp_path / "ca.pem")}, client_id=place)
    try:
        async with broker_with(bridge) as broker:
            await until(lambda: figures(broker).status.failures >= 2, "it tries again")
            assert "certificate has expired" in figures(broker).status.last_error
    finally:
        server.kill()


async def test_a_bridge_by_tls_crosses(tmp_path: Path, install: object, place: str) -> None:
    authority = trustme.CA()
    made = authority.issue_cert("127.0.0.1")
    made.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    made.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    listener = f"certfile {tmp_path}/cert.pem\nkeyfile {tmp_path}/key.pem\n"
    listener += f"cafile {tmp_path}/ca.pem\nrequire_certificate true"
    server = mosquitto(tmp_path, listener=listener).start()
    tls = {"ca": tmp_path / "ca.pem", "certificate": tmp_path / "cert.pem", "key": tmp_path / "key.pem"}
    bridge = bridge_to(f"mqtts://127.0.0.1:{server.port}", tls=tls, client_id=place)
    try:
        async with broker_with(bridge) as broker:
            await connected(broker)
            async with Client(url_of(broker)) as here:
                payloads = [bytes([number % 256]) * 10_000 for number in range(300)]
                await here.publish_many([("a", each) for each in payloads], qos=1)
                await until(lambda: figures(broker).counts["messages_out"] == len(payloads))
            await until(lambda: figures(broker).queued_messages == 0)
    finally:
        server.kill()


async def test_a_side_that_has_no_room_gets_the_message_later(place: str) -> None:
    """Quota exceeded (0x97): the other broker's queue is full, and refuses."""
    full = config_with(queue_full="reject", limits={"queued_messages_max": 1})
    async with Broker(full) as other:
        async with Client(url_of(other), client_id="slow", clean_start=False) as slow:
            await slow.subscribe("a", qos=1)
        bridge = bridge_to(url_of(other), {"filter": "a", "qos": 1}, client_id=place)
        async with broker_with(bridge) as broker, Client(url_of(broker)) as here:
            await connected(broker)
            await here.publish_many([("a", b"1"), ("a", b"2"), ("a", b"3")], qos=1)
            await until(lambda: "quota exceeded" in figures(broker).status.last_error, "it is refused")
            async with Client(
                url_of(other), client_id="slow", clean_start=False, session_expiry_s=1000
            ) as slow:
                found = await take_until(slow, lambda found: found[-1] == b"3")
            assert list(dict.fromkeys(found)) == [b"1", b"2", b"3"]
            await until(lambda: figures(broker).queued_messages == 0)


async def test_the_next_address_is_tried(own_far: Server, far: Server, place: str) -> None:
    bridge = bridge_to(own_far.url, client_id=place) | {"addresses": [own_far.url, far.url]}
    async with broker_with(bridge) as broker:
        await connected(broker)
        assert figures(broker).status.address == far.url


async def test_a_password_that_changes_counts_at_the_next_connection(tmp_path: Path, place: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("wrong\n")
    users = {"ann": "right"}
    other = config_with(authenticator="static", authenticator_options={"users": users})
    async with Broker(other.model_copy(update={"failed_login_delay_s": 0.0})) as far:
        bridge = bridge_to(url_of(far), username="ann", password_file=str(secret), client_id=place)
        async with broker_with(bridge) as broker:
            await until(lambda: "bad user name" in figures(broker).status.last_error)
            secret.write_text("right\n")
            await connected(broker)


async def test_what_lasts_is_not_said_again_and_again(
    own_far: Server, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "tidemq.bridges"):
        async with broker_with(bridge_to(own_far.url, client_id=place)) as broker:
            await until(lambda: figures(broker).status.failures >= 4)
        lines = [each for each in caplog.messages if "Connection refused" in each]
    assert len(lines) == 1


def test_a_bridge_that_is_wrong_in_the_file_ends_the_start(tmp_path: Path) -> None:
    settings = '[[bridges]]\nname = "far"\naddresses = ["mqtt://h"]\n[[bridges.topics]]\nfilter = "a#"\n'
    own = Server("tidemq", tmp_path, settings=settings)
    with pytest.raises(AssertionError, match=r"bridges\.0\.topics\.0\.filter: 'a#' is refused"):
        own.start()
    wait_until(lambda: own.process is None)
