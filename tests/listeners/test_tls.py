"""TLS at a broker's listeners, with real certificates and real clients."""

from __future__ import annotations

import asyncio
import datetime
import os
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from listeners.conftest import Authority, BrokerAt, Files
from listeners.test_listeners import exchange, header_2
from waiting import WAIT_S, until

from tidemq.broker import Broker
from tidemq.client import Client, ConnectError
from tidemq.errors import ConfigError
from tidemq.limits import Limits

CONNECT = bytes.fromhex("100d00044d5154540402003c000161")  # 3.1.1, client "a"
CONNACK = bytes.fromhex("20020000")


def trusting(authority: Authority, **changes: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.ca))
    for name, value in changes.items():
        setattr(context, name, value)
    return context


def url_of(broker: Broker, host: str = "localhost", scheme: str = "mqtts") -> str:
    return f"{scheme}://{host}:{broker.port}"


async def s_client(broker: Broker, authority: Authority, *options: str) -> str:
    """What OpenSSL's own client says of a connection."""
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{broker.port}", "-CAfile", str(authority.ca)]
    process = await asyncio.create_subprocess_exec(
        *command, *options, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdin is not None
    assert process.stdout is not None
    said = b""
    async with asyncio.timeout(WAIT_S):
        process.stdin.write(CONNECT)
        while CONNACK not in said and (chunk := await process.stdout.read(65536)):
            said += chunk  # tickets of TLS 1.3 come before the answer
        rest, _ = await process.communicate(b"")
    return (said + rest).decode(errors="replace")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("size", [10, 16_000, 300_000])
async def test_messages_of_all_sizes_come_through(
    broker_at: BrokerAt, authority: Authority, server_files: Files, version: ssl.TLSVersion, size: int
) -> None:
    context = trusting(authority, minimum_version=version, maximum_version=version)
    async with broker_at({"tls": server_files.tls}) as broker:
        await exchange(url_of(broker), payload=os.urandom(size), count=20, tls=context)
        assert broker.counters()["handshakes"] == 1


async def test_many_clients_at_once_on_all_reactors(
    broker_at: BrokerAt, authority: Authority, server_files: Files
) -> None:
    context = trusting(authority)
    async with broker_at({"tls": server_files.tls}, reactors=4) as broker:

        async def publish(number: int) -> None:
            async with Client(url_of(broker), tls=context) as client:
                for _ in range(100):
                    await client.publish(f"many/{number}", os.urandom(500), qos=1)

        async with asyncio.timeout(WAIT_S), Client(url_of(broker), tls=context) as client:
            messages = (await client.subscribe("many/#", qos=1)).messages
            await asyncio.gather(*(publish(number) for number in range(30)))
            for _ in range(3000):
                await anext(messages)
        assert broker.counters()["handshakes"] == 31


async def test_a_slow_reader_gets_all_of_much(
    broker_at: BrokerAt, authority: Authority, server_files: Files
) -> None:
    context = trusting(authority)
    async with broker_at({"tls": server_files.tls}) as broker:
        url = url_of(broker)
        async with asyncio.timeout(WAIT_S), Client(url, tls=context, queue_messages_max=10) as slow:
            messages = (await slow.subscribe("much", qos=1)).messages
            async with Client(url, tls=context) as client:
                receipts = [client.publish_nowait("much", os.urandom(200_000), qos=1) for _ in range(60)]
                await asyncio.sleep(0.3)  # what is sent now fills the sockets
                for _ in range(60):
                    assert len((await anext(messages)).payload) == 200_000
                await until(lambda: all(receipt.done for receipt in receipts))


async def test_versions_below_are_refused(
    broker_at: BrokerAt, authority: Authority, server_files: Files
) -> None:
    async with broker_at({"tls": server_files.tls | {"version_min": "1.3"}}) as broker:
        assert "Verify return code: 0 (ok)" in await s_client(broker, authority, "-tls1_3")
        assert "alert protocol version" in await s_client(broker, authority, "-tls1_2")
    async with broker_at({"tls": server_files.tls}) as broker:
        assert "Verify return code: 0 (ok)" in await s_client(broker, authority, "-tls1_2")
        assert "Cipher is (NONE)" in await s_client(
            broker, authority, "-tls1_1", "-cipher", "ALL:@SECLEVEL=0"
        )


async def test_alpn_is_mqtt(broker_at: BrokerAt, authority: Authority, server_files: Files) -> None:
    async with broker_at({"tls": server_files.tls}) as broker:
        assert "ALPN protocol: mqtt" in await s_client(broker, authority, "-alpn", "h2,mqtt")
        assert "no application protocol" in await s_client(broker, authority, "-alpn", "h2,http/1.1")
        assert "No ALPN negotiated" in await s_client(broker, authority)


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
async def test_sessions_are_resumed(
    broker_at: BrokerAt, authority: Authority, server_files: Files, version: str, tmp_path: Path
) -> None:
    session = str(tmp_path / "session")
    async with broker_at({"tls": server_files.tls}) as broker:
        assert "New, TLS" in await s_client(broker, authority, version, "-sess_out", session)
        assert "Reused, TLS" in await s_client(broker, authority, version, "-sess_in", session)


async def test_names_choose_the_certificate(
    broker_at: BrokerAt, authority: Authority, server_files: Files
) -> None:
    other = authority.issue("other.example", "*.devices.example")
    tls = server_files.tls | {
        "certificates": [
            {"names": ["other.example", "*.devices.example"], "cert": other.cert, "key": other.key}
        ]
    }
    context = trusting(authority)
    async with broker_at({"tls": tls}) as broker:
        for name in ("localhost", "other.example", "a.devices.example"):
            _, writer = await asyncio.open_connection(
                "127.0.0.1", broker.port, ssl=context, server_hostname=name
            )
            writer.close()
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection("127.0.0.1", broker.port, ssl=context, server_hostname="b.example")


async def test_a_client_that_trusts_another_authority_is_counted(
    broker_at: BrokerAt,
    authority: Authority,
    server_files: Files,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    async with broker_at({"tls": server_files.tls}) as broker:
        with pytest.raises(ConnectError, match="certificate"):
            await exchange(url_of(broker), tls=ssl.create_default_context())
        with pytest.raises(ConnectError):
            await exchange(url_of(broker, scheme="mqtt"))  # no TLS at all
        await until(lambda: broker.counters()["handshakes_failed"] >= 2)
        said = await s_client(broker, Authority(tmp_path), "-verify_return_error")
        assert "unable to get local issuer certificate" in said
        await until(lambda: "unknown ca" in caplog.text)
        assert broker.counters()["handshakes_failed"] == 3


async def test_client_certificates(broker_at: BrokerAt, authority: Authority, server_files: Files) -> None:
    device = authority.issue("device-1.example", common_name="device-1")
    context, shown = trusting(authority), trusting(authority)
    shown.load_cert_chain(device.cert, device.key)
    tls = server_files.tls | {"client_ca": authority.ca, "client_cert": "required"}
    async with broker_at({"tls": tls}) as broker:
        await exchange(url_of(broker), tls=shown, count=1)
        with pytest.raises(ConnectError):
            await exchange(url_of(broker), tls=context, count=1)
    async with broker_at({"tls": tls | {"client_cert": "optional"}}) as broker:
        await exchange(url_of(broker), tls=shown, count=1)
        await exchange(url_of(broker), tls=context, count=1)


def revocation_list(authority: Authority, *revoked: Path) -> bytes:
    """The authority's CRL, PEM."""
    ca = authority.authority
    key = serialization.load_pem_private_key(ca.private_key_pem.bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    now = datetime.datetime.now(datetime.UTC)
    issuer = x509.load_pem_x509_certificate(ca.cert_pem.bytes()).subject
    builder = x509.CertificateRevocationListBuilder().issuer_name(issuer)
    builder = builder.last_update(now - datetime.timedelta(hours=1)).next_update(
        now + datetime.timedelta(days=1)
    )
    for cert in revoked:
        number = x509.load_pem_x509_certificate(cert.read_bytes()).serial_number
        entry = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(now)
        builder = builder.add_revoked_certificate(entry.build())
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


async def test_who_is_revoked_does_not_come_in_and_nobody_else_notices(
    broker_at: BrokerAt,
    authority: Authority,
    server_files: Files,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidemq.broker.host.watched_files.CHECK_S", 0.05)
    good, bad = authority.issue("good.example"), authority.issue("bad.example")
    contexts = {}
    for device in (good, bad):
        contexts[device] = trusting(authority)
        contexts[device].load_cert_chain(device.cert, device.key)
    crl = tmp_path / "crl.pem"
    crl.write_bytes(revocation_list(authority))
    tls = server_files.tls | {"client_ca": authority.ca, "client_cert": "required", "crl": crl}
    async with broker_at({"tls": tls}) as broker, Client(url_of(broker), tls=contexts[good]) as stays:
        await exchange(url_of(broker), tls=contexts[bad], count=1)
        crl.write_bytes(revocation_list(authority, bad.cert))
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    await exchange(url_of(broker), tls=contexts[bad], count=1)
                except ConnectError:
                    break
        await exchange(url_of(broker), tls=contexts[good], count=1)
        assert stays.is_connected


async def test_certificates_are_read_again_and_nobody_is_dropped(
    broker_at: BrokerAt,
    authority: Authority,
    server_files: Files,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("tidemq.broker.host.watched_files.CHECK_S", 0.05)
    files = authority.issue("localhost", "127.0.0.1", common_name="first")
    context = trusting(authority)

    async def served() -> str:
        _, writer = await asyncio.open_connection(
            "127.0.0.1", broker.port, ssl=context, server_hostname="localhost"
        )
        shown = writer.get_extra_info("peercert")
        writer.close()
        return str(shown["serialNumber"])

    async with broker_at({"tls": files.tls}) as broker, Client(url_of(broker), tls=context) as stays:
        messages = (await stays.subscribe("stays", qos=1)).messages
        before = await served()
        authority.issue("localhost", "127.0.0.1", common_name="second", into=files)

        async def has_changed() -> bool:
            return await served() != before

        await until(has_changed, "another certificate")
        files.cert.write_text("nonsense")
        await until(lambda: "stays in force" in caplog.text)
        assert await served() != before
        await stays.publish("stays", b"here", qos=1)
        assert (await anext(messages)).payload == b"here"


async def test_a_reload_reads_certificates_at_once(broker_at: BrokerAt, authority: Authority) -> None:
    files = authority.issue("localhost")
    context = trusting(authority)

    async def served() -> str:
        _, writer = await asyncio.open_connection(
            "127.0.0.1", broker.port, ssl=context, server_hostname="localhost"
        )
        shown = writer.get_extra_info("peercert")
        writer.close()
        return str(shown["serialNumber"])

    async with broker_at({"tls": files.tls}) as broker:
        before = await served()
        authority.issue("localhost", into=files)
        assert await broker.reload() == {"certificates": ""}
        after = await served()
        assert after != before
        files.key.write_text("nonsense")
        assert "no private key" in (await broker.reload())["certificates"]
        assert await served() == after


async def test_what_is_no_certificate_is_said_at_the_start(
    broker_at: BrokerAt, authority: Authority, server_files: Files, tmp_path: Path
) -> None:
    other = authority.issue("other.example")
    for tls, said in (
        ({"cert": tmp_path / "none.pem"}, "none.pem cannot be read"),
        ({"cert": server_files.key, "key": server_files.key}, "holds no certificate"),
        ({"cert": server_files.cert, "key": other.key}, "key"),
    ):
        with pytest.raises(ConfigError, match=said):
            async with broker_at({"tls": tls, "name": "secure"}):
                pass


async def test_tls_behind_a_proxy(broker_at: BrokerAt, authority: Authority, server_files: Files) -> None:
    async with broker_at({"tls": server_files.tls, "proxy_protocol": True}) as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        writer.write(header_2("127.0.0.7"))
        await writer.drain()
        await writer.start_tls(trusting(authority), server_hostname="localhost")
        writer.write(CONNECT)
        async with asyncio.timeout(WAIT_S):
            assert await reader.readexactly(4) == CONNACK
        writer.close()


async def test_a_handshake_that_stops_ends_at_the_connect_timeout(
    broker_at: BrokerAt, server_files: Files
) -> None:
    limits = Limits(connect_timeout_s=1)
    async with broker_at({"tls": server_files.tls}, limits=limits) as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        async with asyncio.timeout(WAIT_S):
            for byte in bytes.fromhex("16030100c8010000c40303") + bytes(8):
                writer.write(bytes([byte]))
                await asyncio.sleep(0.1)
            try:
                while await reader.read(100):
                    pass
            except ConnectionError:
                pass  # it ends either way
        assert broker.counters()["faults"] == 1
        writer.close()


async def test_tls_where_none_is_spoken_and_the_reverse_are_named_with_the_listener(
    broker_at: BrokerAt, authority: Authority, server_files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    plain, secure = {"name": "plain"}, {"name": "secure", "tls": server_files.tls}
    async with broker_at(plain, secure) as broker:
        ports = {name: address.rpartition(":")[2] for name, address in broker.addresses.items()}
        for client in (
            Client(f"mqtts://localhost:{ports['plain']}", tls=trusting(authority), reconnect=False),
            Client(f"mqtt://localhost:{ports['secure']}", reconnect=False),
        ):
            with pytest.raises(ConnectError):
                async with asyncio.timeout(WAIT_S), client:
                    pass
        await until(lambda: broker.counters()["faults"] >= 2)
        await asyncio.sleep(0.1)
    lines = [record.getMessage() for record in caplog.records if "client" in record.getMessage()]
    assert any(
        "listener 'plain'" in line and "the client speaks TLS, and this listener does not" in line
        for line in lines
    ), lines
    assert any("listener 'secure'" in line and "the client does not speak TLS" in line for line in lines), (
        lines
    )
