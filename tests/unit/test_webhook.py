"""Webhooks against a real HTTP server: what its answers mean, and what its failures cost."""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web
from conformance.kit import Client as RawClient
from conformance.packets import CONNACK, connect
from unit.auth_kit import HttpServer, answer, broker_with, enters, request
from waiting import LATE_S, until

from tidemq.broker.authenticators.webhook import (
    WebhookAuthenticator,
    WebhookOptions,
    make_webhook_authenticator,
    make_webhook_authoriser,
)
from tidemq.broker.host import watched_files
from tidemq.broker.providers import Access, Verdict
from tidemq.client import Client, PublishError, SubscribeError
from tidemq.config import Config
from tidemq.errors import ConfigError

FAILED = Verdict(0x88)


class Clock:
    """Monotonic seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def hook(server: HttpServer, **options: Any) -> WebhookAuthenticator:
    return make_webhook_authenticator(Config(), {"url": server.url, "allow_s": 0, "deny_s": 0, **options})


async def test_the_server_is_asked_as_documented() -> None:
    async with HttpServer() as server:
        provider = hook(server)
        assert await provider.authenticate(request("c", "ann", b"secret", listener="tls")) == Verdict()
        assert (
            await provider.authenticate(request("", None, b"\xff\xfe", peer="::1:77", protocol_version=4))
            == Verdict()
        )
        await provider.close()
    assert server.bodies == [
        {
            "request": "authenticate", "client_id": "c", "username": "ann", "password": "secret",
            "address": "192.0.2.7", "protocol_version": 5, "listener": "tls",
        },
        {
            "request": "authenticate", "client_id": "", "username": None, "password": None,
            "password_base64": "//4=", "address": "::1", "protocol_version": 4, "listener": "default",
        },
    ]  # fmt: skip
    assert server.headers[0]["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    ("handler", "verdict"),
    [
        (answer({"result": "allow"}), Verdict()),
        (answer({"result": "deny"}), Verdict(0x86)),
        (answer({"result": "ignore"}), Verdict(0x86, unknown=True)),
        (answer(None, 204), Verdict()),
        (answer(None, 200), Verdict()),
        (answer("no", 401), Verdict(0x86)),
        (answer(None, 403), Verdict(0x86)),
        (
            answer({"result": "allow", "client_id": "x", "username": "bob", "groups": ["a", "b"], "more": 1}),
            Verdict(client_id="x", username="bob", groups=("a", "b")),
        ),
        (answer(None, 404), FAILED),
        (answer({"result": "allow"}, 500), FAILED),
        (answer("<html>welcome</html>"), FAILED),
        (answer("{"), FAILED),
        (answer("[" * 100_000), FAILED),
        (answer({"result": "yes"}), FAILED),
        (answer(["allow"]), FAILED),
        (answer({"result": "allow", "username": 7}), FAILED),
        (answer({"result": "allow", "username": "a\nb"}), FAILED),
        (answer({"result": "allow", "username": "x" * 2000}), FAILED),
        (answer({"result": "allow", "expires_s": -1}), FAILED),
        (answer('{"result": "allow", "expires_s": Infinity}'), FAILED),
        (answer({"result": "allow", "acl": [{"permission": "allow"}]}), FAILED),
        (answer({"result": "allow", "padding": "x" * 300_000}), FAILED),
    ],
)
async def test_what_an_answer_means(handler: Any, verdict: Verdict) -> None:
    async with HttpServer(handler) as server:
        provider = hook(server)
        assert await provider.authenticate(request("c", "ann", b"secret")) == verdict
        assert provider.counts["webhook_calls"] == 1
        assert provider.counts["webhook_calls_failed"] == (verdict == FAILED)
        await provider.close()


@pytest.mark.parametrize(
    ("head", "verdict"),
    [
        ("HTTP/1.1 200 OK", FAILED),
        ("HTTP/1.0 200 OK\r\nContent-Type: application/json", FAILED),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2", FAILED),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", FAILED),
        ("HTTP/1.1 200 OK\r\nContent-Length: 0", Verdict()),
        ("HTTP/1.1 204 No Content", Verdict()),
    ],
)
async def test_a_server_that_breaks_down_before_the_body_has_allowed_nothing(
    head: str, verdict: Verdict
) -> None:
    async def break_down(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"{head}\r\n\r\n".encode())
        writer.close()

    async with await asyncio.start_server(break_down, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        provider = WebhookAuthenticator(WebhookOptions(url=url))
        assert await provider.authenticate(request("c", "ann", b"secret")) == verdict
        await provider.close()


async def test_a_defect_of_ours_closes_nobody_out_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    async with HttpServer() as server:
        provider = hook(server, failures_max=1, open_s=0.01)
        real = provider._webhook._http.call

        async def fails(*_: Any, **__: Any) -> Any:
            raise RuntimeError("nobody has thought of it")

        monkeypatch.setattr(provider._webhook._http, "call", fails)
        for _ in range(3):  # the first opens the circuit, the others are its probes
            await asyncio.sleep(0.02)
            with pytest.raises(RuntimeError):
                await provider.authenticate(request())
        monkeypatch.setattr(provider._webhook._http, "call", real)
        await asyncio.sleep(0.02)
        assert await provider.authenticate(request()) == Verdict()
        await provider.close()


async def test_a_redirection_is_not_followed() -> None:
    async def elsewhere(_: web.Request) -> web.StreamResponse:
        raise web.HTTPTemporaryRedirect("/other")

    async with HttpServer(elsewhere) as server:
        provider = hook(server)
        assert await provider.authenticate(request()) == FAILED
        assert len(server.bodies) == 1
        await provider.close()


async def test_rules_and_time_come_with_an_answer() -> None:
    rules = [{"permission": "deny", "action": "publish", "topic": "a/%c/#", "qos_max": 1}]
    async with HttpServer(answer({"result": "allow", "acl": rules, "expires_s": 100})) as server:
        provider = hook(server, allow_s=60)
        first = await provider.authenticate(request())
        assert first.rules is not None
        assert [(rule.allows, rule.action, rule.topic_filter, rule.qos_max) for rule in first.rules] == [
            (False, "publish", "a/%c/#", 1)
        ]
        await asyncio.sleep(0.05)
        second = await provider.authenticate(request())  # remembered: what is left, not what was
        assert first.expires_s is not None
        assert second.expires_s is not None
        assert 100 - LATE_S < second.expires_s <= first.expires_s - 0.05
        await provider.close()


async def test_tls_is_verified_and_the_secret_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_files, "CHECK_S", 0.0)
    authority = trustme.CA()
    ca_file, secret_file = tmp_path / "ca.pem", tmp_path / "secret"
    authority.cert_pem.write_to_path(str(ca_file))
    secret_file.write_text("Bearer one\n")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(tls)
    async with HttpServer(tls=tls) as server:
        assert server.url.startswith("https")
        provider = hook(server, ca_file=ca_file, secret_file=secret_file)
        assert await provider.authenticate(request()) == Verdict()
        secret_file.write_text("Bearer two and longer\n")
        assert await provider.authenticate(request()) == Verdict()
        assert [each["Authorization"] for each in server.headers] == ["Bearer one", "Bearer two and longer"]
        stranger = hook(server)  # the system's authorities do not have this one
        assert await stranger.authenticate(request()) == FAILED
        assert len(server.bodies) == 2
        await provider.close()
        await stranger.close()


async def test_a_secret_that_is_refused_is_no_client_s_wrong_password(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor does it open the circuit: a server that says 401 of a client's password would be shut off by it."""
    (tmp_path / "secret").write_text("Bearer old\n")
    async with HttpServer(answer("no", 401)) as server:
        provider = hook(server, secret_file=tmp_path / "secret", failures_max=2)
        for number in range(4):
            assert await provider.authenticate(request(f"c{number}")) == FAILED
        assert provider.counts["webhook_calls_failed"] == len(server.bodies) == 4
        assert len([each for each in caplog.messages if "does not take the secret" in each]) == 1
        server.handler = answer(None, 403)
        assert await provider.authenticate(request()) == Verdict(0x86)
        await provider.close()
    assert "Bearer old" not in caplog.text


async def test_answers_are_remembered_for_a_time_by_all_that_was_asked() -> None:
    async with HttpServer() as server:
        provider, clock = hook(server, allow_s=30, deny_s=10), Clock()
        provider._webhook._remembered._clock = clock
        for _ in range(3):
            assert await provider.authenticate(request("c", "ann", b"secret")) == Verdict()
        assert await provider.authenticate(request("c", "ann", b"secret", peer="192.0.2.7:5000")) == Verdict()
        assert len(server.bodies) == 1
        assert provider.counts["webhook_answers_remembered"] == 3
        server.handler = answer({"result": "deny"})
        for other in (
            request("c", "ann", b"Secret"),
            request("d", "ann", b"secret"),
            request("c", "ann", b"secret", peer="192.0.2.8:4000"),
            request("c", "ann", b"secret", protocol_version=4),
        ):
            assert await provider.authenticate(other) == Verdict(0x86)
        assert len(server.bodies) == 5
        assert await provider.authenticate(request("c", "ann", b"secret")) == Verdict()
        clock.now += 30
        assert await provider.authenticate(request("c", "ann", b"secret")) == Verdict(0x86)
        server.handler = answer({"result": "allow"})
        clock.now += 10
        assert await provider.authenticate(request("c", "ann", b"secret")) == Verdict()
        await provider.close()


async def test_an_answer_is_not_remembered_beyond_its_own_end() -> None:
    async with HttpServer(answer({"result": "allow", "expires_s": 0.3})) as server:
        provider = hook(server, allow_s=60)
        await provider.authenticate(request())
        await asyncio.sleep(0.4)
        verdict = await provider.authenticate(request())
        assert len(server.bodies) == 2
        assert verdict.expires_s is not None
        assert verdict.expires_s <= 0.3
        await provider.close()


async def test_what_is_remembered_is_bounded_and_holds_no_password() -> None:
    async with HttpServer() as server:
        provider = hook(server, allow_s=60, remembered_max=2)
        for number in range(5):
            await provider.authenticate(request(f"c{number}", "ann", b"open-sesame"))
        webhook = provider._webhook
        assert len(webhook._remembered) == 2
        assert provider.counts["webhook_answers_evicted"] == 3
        assert "open-sesame" not in repr(vars(webhook)) + repr(vars(webhook._remembered))
        await provider.close()


async def test_the_same_question_is_asked_once_at_a_time() -> None:
    async with HttpServer(answer({"result": "allow"}, after_s=0.2)) as server:
        provider = hook(server)
        asking = [asyncio.create_task(provider.authenticate(request("c", "ann", b"x"))) for _ in range(20)]
        await asyncio.sleep(0.05)
        asking[0].cancel()  # whoever asked first may go
        assert await asyncio.gather(*asking[1:]) == [Verdict()] * 19
        assert len(server.bodies) == 1
        assert provider.counts["webhook_answers_shared"] == 19
        await provider.close()


async def test_those_who_wait_for_the_same_answer_are_bounded_too() -> None:
    async with HttpServer(answer({"result": "allow"}, after_s=0.1)) as server:
        provider = hook(server, questions_max=3)
        verdicts = await asyncio.gather(*(provider.authenticate(request()) for _ in range(5)))
        assert verdicts == [Verdict()] * 3 + [FAILED] * 2
        assert len(server.bodies) == 1
        assert provider.counts["webhook_refused_over_quota"] == 2
        await provider.close()


async def test_connections_and_questions_are_bounded() -> None:
    async with HttpServer(answer({"result": "allow"}, after_s=0.1)) as server:
        provider = hook(server, connections_max=2, questions_max=4)
        verdicts = await asyncio.gather(*(provider.authenticate(request(f"c{n}")) for n in range(6)))
        assert verdicts == [Verdict()] * 4 + [FAILED] * 2
        assert server.at_a_time_most == 2
        assert provider.counts["webhook_refused_over_quota"] == 2
        assert await provider.authenticate(request("later")) == Verdict()
        await provider.close()


async def test_the_circuit_opens_is_tried_once_and_closes(caplog: pytest.LogCaptureFixture) -> None:
    async with HttpServer(answer(None, 500)) as server:
        provider = hook(server, failures_max=3, open_s=10, url=f"{server.url}?key=open-sesame")
        clock = Clock()
        provider._webhook._circuit._clock = clock
        for number in range(6):
            assert await provider.authenticate(request(f"c{number}", "ann", b"open-sesame")) == FAILED
        assert len(server.bodies) == 3
        assert provider.counts["webhook_circuit_opened"] == 1
        assert provider.counts["webhook_refused_circuit_open"] == 3
        clock.now += 10
        assert await provider.authenticate(request("probe")) == FAILED
        assert await provider.authenticate(request("c")) == FAILED  # open again at once
        assert len(server.bodies) == 4
        server.handler = answer({"result": "allow"}, after_s=0.1)
        clock.now += 10
        verdicts = await asyncio.gather(*(provider.authenticate(request(f"p{n}")) for n in range(3)))
        assert verdicts == [Verdict(), FAILED, FAILED]  # one is let through
        assert await provider.authenticate(request("c")) == Verdict()
        await provider.close()
    assert "failed 3 times in a row" in caplog.text
    assert "open-sesame" not in caplog.text


async def test_the_circuit_opens_once_for_many_failures_and_not_for_odd_questions() -> None:
    async with HttpServer(answer(None, 400)) as server:
        provider = hook(server, failures_max=2)
        for number in range(5):
            assert await provider.authenticate(request(f"odd{number}")) == FAILED
        assert provider.counts["webhook_calls_failed"] == 5
        server.handler = answer(None, 429, after_s=0.05)
        await asyncio.gather(*(provider.authenticate(request(f"c{number}")) for number in range(5)))
        assert len(server.bodies) == 10
        assert provider.counts["webhook_circuit_opened"] == 1
        assert await provider.authenticate(request()) == FAILED
        assert len(server.bodies) == 10
        await provider.close()


async def test_a_server_that_is_not_there_is_a_failure() -> None:
    async with HttpServer() as server:
        provider = hook(server, timeout_s=0.2)
    assert await provider.authenticate(request()) == FAILED
    await provider.close()


async def test_a_slow_server_stalls_nobody_else_and_its_waiting_is_bounded() -> None:
    """Three clients wait for it at most, each for `timeout_s`; one whom the chain knows without it is let in
    meanwhile, though a single decision may be under way at a time."""
    options: dict[str, Any] = {
        "of": [
            {"authenticator": "static", "users": {"ann": "pw"}},
            {"authenticator": "webhook", "timeout_s": 4, "questions_max": 3},
        ]
    }
    async with HttpServer(answer({"result": "allow"}, after_s=60)) as server:
        options["of"][1]["url"] = server.url
        async with broker_with("chain", options, decisions_max=1) as broker:
            began = time.monotonic()
            waiting = [asyncio.create_task(enters(broker, f"user{number}", "x")) for number in range(4)]
            await until(
                lambda: broker.counters()["webhook_calls"] >= 3 and any(each.done() for each in waiting)
            )
            for _ in range(5):
                assert await enters(broker, "ann", "pw") == 0
            assert sum(each.done() for each in waiting) == 1  # the one too many
            assert await asyncio.gather(*waiting) == [0x88] * 4
            assert time.monotonic() - began < LATE_S
            counters = broker.counters()
    assert counters["webhook_refused_over_quota"] == 1
    assert counters["webhook_calls_failed"] == 3
    assert "decisions_late" not in counters


async def test_a_connect_of_each_version_is_decided() -> None:
    async def judge(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        good = (body["username"], body["password"]) == ("ann", "pw")
        return web.json_response({"result": "allow" if good else "deny"})

    async with HttpServer(judge) as server, broker_with("webhook", {"url": server.url}) as broker:
        for version in (3, 4, 5):
            assert await enters(broker, "ann", "pw", version=version) == 0
            assert await enters(broker, "ann", "no", version=version) == 0x86
        versions = {body["protocol_version"] for body in server.bodies}
        assert versions == {3, 4, 5}
        assert {body["address"] for body in server.bodies} == {"127.0.0.1"}


async def test_an_identifier_and_a_name_take_the_place_of_the_clients_own() -> None:
    async def judge(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if body["request"] == "authenticate":
            text = {"result": "allow", "client_id": "real", "username": "bob", "groups": ["g"]}
            return web.json_response(text)
        return web.json_response({"result": "allow"})

    async with HttpServer(judge) as server:
        options = {"url": server.url}
        async with broker_with(
            "webhook", options, authoriser="webhook", authoriser_options=options
        ) as broker:
            raw = await asyncio.to_thread(RawClient, broker.port)
            raw.send(connect("own", username="ann", password=b"x"))
            await asyncio.to_thread(raw.expect, CONNACK, reason=0)
            async with Client(f"mqtt://127.0.0.1:{broker.port}", username="ann") as client:
                await client.subscribe("a/#", qos=1)
    assert server.bodies[-1] == {
        "request": "authorise", "action": "subscribe", "client_id": "real", "username": "bob", "topic": "a/#",
        "qos": 1, "retain": False, "share_name": None, "stream_name": None, "groups": ["g"],
    }  # fmt: skip


async def test_an_authoriser_decides_topics_and_is_asked_once_about_each() -> None:
    async def judge(request: web.Request) -> web.StreamResponse:
        topic = (await request.json())["topic"]
        return web.json_response({"result": "deny" if topic.startswith("secret") else "allow"})

    async with HttpServer(judge) as server:
        given = {"authoriser": "webhook", "authoriser_options": {"url": server.url}}
        async with (
            broker_with("anonymous", {}, **given) as broker,
            Client(f"mqtt://127.0.0.1:{broker.port}") as client,
        ):
            for _ in range(3):
                await client.publish("open", b"x", qos=1)
            assert len(server.bodies) == 1
            with pytest.raises(PublishError):
                await client.publish("secret/a", b"x", qos=1)
            with pytest.raises(SubscribeError):
                await client.subscribe("secret/#")
            await client.subscribe("open")


@pytest.mark.parametrize("reply", [{"result": "ignore"}, {"result": "maybe"}])
async def test_an_authoriser_refuses_what_it_is_not_told_to_allow(reply: dict[str, str]) -> None:
    async with HttpServer(answer(reply)) as server:
        provider = make_webhook_authoriser(Config(), {"url": server.url, "on_failure": "ignore"})
        assert not await provider.authorise(Access("publish", "c", "u", "t", 0))
        await provider.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "options of webhook.url: it is missing"),
        ({"url": "ftp://x/"}, "options of webhook.url"),
        ({"url": "http://ann:secret@x/"}, "options of webhook.url"),
        ({"url": "http://x/", "timeout": 1}, "did you mean timeout_s"),
        ({"url": "http://x/", "timeout_s": 0}, "options of webhook.timeout_s"),
        ({"url": "http://x/", "on_failure": "allow"}, "options of webhook.on_failure"),
        ({"url": "http://x/", "secret_header": "A: b\r\n"}, "options of webhook.secret_header"),
        ({"url": "http://x/", "secret_file": "/nowhere"}, "/nowhere: the file"),
        ({"url": "https://x/", "ca_file": "/nowhere"}, "/nowhere: the file"),
    ],
)
def test_wrong_options_are_named_and_no_secret_is_shown(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_webhook_authenticator(Config(), options)
    assert said in str(caught.value)
    assert "secret@" not in str(caught.value)


def test_a_file_without_a_secret_is_refused(tmp_path: Path) -> None:
    for text in (b"", b"\n", b"two\nlines", b"\xff"):
        (tmp_path / "secret").write_bytes(text)
        with pytest.raises(ConfigError, match="secret"):
            make_webhook_authenticator(Config(), {"url": "http://x/", "secret_file": tmp_path / "secret"})


def test_defaults_are_as_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    section = text.split("\n## Webhook\n")[1].split("\n## ")[0]
    for name, field in WebhookOptions.model_fields.items():
        assert f"| `{name}` | " in section, name
        if isinstance(field.default, (int, float)):
            assert f"| `{name}` | `{field.default}` |" in section, name


async def test_a_reload_forgets_answers_and_reads_the_secret(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("first")
    async with HttpServer() as server:
        options = {"url": server.url, "secret_file": str(secret), "allow_s": 3600}
        async with broker_with("webhook", options, failed_login_delay_s=0) as broker:
            assert await enters(broker, "ann", b"pw", client_id="c") == 0
            server.handler = answer({"result": "deny"})
            assert await enters(broker, "ann", b"pw", client_id="c") == 0
            secret.write_text("second")
            assert (await broker.reload())["authenticator webhook"] == ""
            assert await enters(broker, "ann", b"pw", client_id="c") == 0x86
        assert [headers["Authorization"] for headers in server.headers] == ["first", "second"]
