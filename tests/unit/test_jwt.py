"""Tokens made by PyJWT: which are good, what their claims become, where keys come from, when it ends."""

from __future__ import annotations

import asyncio
import base64
import json
import queue
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import jwt
import paho.mqtt.client as paho
import pytest
from aiohttp import web
from conformance.kit import Client as RawClient
from conformance.packets import AUTH, CONNACK, DISCONNECT, auth, connect
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from paho.mqtt.enums import CallbackAPIVersion
from unit.auth_kit import HttpServer, answer, broker_with, enters, request
from waiting import WAIT_S, until

from tidemq.broker.acl_rules import AclRule
from tidemq.broker.authenticators import token_keys
from tidemq.broker.authenticators.jwt import JwtAuthenticator, JwtOptions, make_jwt
from tidemq.broker.host import watched_files
from tidemq.broker.providers import UNKNOWN, Verdict
from tidemq.client import Client, PublishError, SubscribeError
from tidemq.config import Config
from tidemq.errors import ConfigError, TideMQError

EC = ec.generate_private_key(ec.SECP256R1())
OTHER = ec.generate_private_key(ec.SECP256R1())
RSA = rsa.generate_private_key(65537, 2048)
WEAK = rsa.generate_private_key(65537, 1024)
ED = ed25519.Ed25519PrivateKey.generate()
P384 = ec.generate_private_key(ec.SECP384R1())
SECRET = b"0123456789abcdef0123456789abcdef"
BAD = Verdict(0x86)
NOT_HIS = Verdict(0x87)


def pem(key: Any) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    text: bytes = key.public_key().public_bytes(serialization.Encoding.PEM, form)
    return text


def jwk(key: Any, **more: Any) -> dict[str, Any]:
    if isinstance(key, rsa.RSAPrivateKey):
        made = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    elif isinstance(key, ed25519.Ed25519PrivateKey):
        made = OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    else:
        made = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {**made, **more}


def jwks(*keys: dict[str, Any]) -> dict[str, Any]:
    return {"keys": list(keys)}


def token(key: Any = EC, algorithm: str = "ES256", kid: str | None = None, **claims: Any) -> bytes:
    given: dict[str, Any] = {"sub": "ann", "exp": int(time.time()) + 60, **claims}
    payload = {name: value for name, value in given.items() if value is not ...}
    return jwt.encode(payload, key, algorithm, headers={"kid": kid} if kid else None).encode()


def unsigned(algorithm: str) -> bytes:
    def part(value: dict[str, Any]) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

    return (
        part({"alg": algorithm, "typ": "JWT"}) + b"." + part({"sub": "ann", "exp": time.time() + 60}) + b"."
    )


@pytest.fixture
def provider(tmp_path: Path) -> Any:
    """Makes one with the public key of EC, and more options."""

    def make(key: Any = EC, **options: Any) -> JwtAuthenticator:
        (tmp_path / "key.pem").write_bytes(pem(key))
        given: dict[str, Any] = {"algorithms": ["ES256"], "public_key_file": tmp_path / "key.pem", **options}
        return make_jwt(Config(), given)

    return make


async def judge(provider: JwtAuthenticator, password: bytes | None, **rest: Any) -> Verdict:
    return await provider.authenticate(request(password=password, **rest))


def forged(good: bytes) -> bytes:
    """The same signature under other claims."""
    head, _, signature = good.split(b".")
    return b".".join([head, token(sub="root").split(b".")[1], signature])


@pytest.mark.parametrize(
    ("password", "verdict"),
    [
        (lambda: token(OTHER), BAD),
        (lambda: forged(token()), BAD),
        (lambda: token(exp=int(time.time()) - 60), BAD),
        (lambda: token(exp=...), BAD),
        (lambda: token(exp="soon"), BAD),
        (lambda: token(exp=str(int(time.time()) + 60)), BAD),
        (lambda: token(exp=True), BAD),
        (lambda: token(nbf="7"), BAD),
        (lambda: token(iat="7"), BAD),
        (lambda: token(nbf=int(time.time()) + 60), BAD),
        (lambda: token(iat=int(time.time()) + 60), BAD),
        (lambda: token(aud="somebody else"), BAD),
        (lambda: token(RSA, "RS256"), BAD),
        (lambda: unsigned("none"), BAD),
        (lambda: unsigned("ES256"), BAD),
        (lambda: token(SECRET, "HS256"), BAD),
        (lambda: token(sub=...), NOT_HIS),
        (lambda: token(sub=""), NOT_HIS),
        (lambda: token(sub="a\x00b"), NOT_HIS),
        (lambda: token(groups=7), NOT_HIS),
        (lambda: token(groups=["a", 7]), NOT_HIS),
        (lambda: token(acl=[{"permission": "maybe", "action": "all", "topic": "#"}]), NOT_HIS),
        (lambda: token(acl="all"), NOT_HIS),
        (lambda: None, UNKNOWN),
        (lambda: b"", UNKNOWN),
        (lambda: b"secret", UNKNOWN),
        (lambda: b"a.b.c", UNKNOWN),
        (lambda: b"\xff.\xff.\xff", UNKNOWN),
        (lambda: token(padding="x" * 40_000), UNKNOWN),
    ],
)
async def test_what_is_not_good_is_refused(provider: Any, password: Any, verdict: Verdict) -> None:
    assert await judge(provider(), password()) == verdict


def test_a_public_key_is_no_secret_of_hmac(provider: Any, tmp_path: Path) -> None:
    """The old trick: HS256 with the public key, which everybody has, as the secret."""
    with pytest.raises(ConfigError, match="in algorithms with secret_file"):
        provider(algorithms=["ES256", "HS256"])
    (tmp_path / "key.pem").write_bytes(pem(EC))
    with pytest.raises(ConfigError, match="no secret for these algorithms"):
        make_jwt(Config(), {"algorithms": ["HS256"], "secret_file": tmp_path / "key.pem"})


async def test_claims_become_a_verdict(provider: Any) -> None:
    rules = [
        {"permission": "deny", "action": "publish", "topic": "a/%c/#", "retain": True},
        {"permission": "allow", "action": "all", "topic": "a/#", "qos_max": 1},
    ]
    verdict = await judge(provider(leeway_s=3), token(groups=["g", "h"], acl=rules))
    assert (verdict.reason, verdict.username, verdict.client_id, verdict.groups) == (0, "ann", "", ("g", "h"))
    assert verdict.rules == (
        AclRule(False, "publish", "a/%c/#", 2, True),
        AclRule(True, "all", "a/#", 1, None),
    )
    assert verdict.expires_s is not None
    assert 61 < verdict.expires_s <= 63
    other = provider(username_claim="name", groups_claim="roles", acl_claim="may", ends_with_token=False)
    assert await judge(other, token(name="bob", roles="one")) == Verdict(username="bob", groups=("one",))
    assert (await judge(other, token(name="bob", may=[]))).rules == ()
    forever = provider(expiry_required=False)
    assert await judge(forever, token(exp=...)) == Verdict(username="ann")
    assert (await judge(provider(), token(exp=10**30))).reason == 0


async def test_issuer_and_audience(provider: Any) -> None:
    strict = provider(issuer="https://us", audience=["mqtt", "iot"])
    good: dict[str, Any] = {"iss": "https://us", "aud": ["web", "iot"]}
    assert (await judge(strict, token(**good))).reason == 0
    assert await judge(strict, token(**good | {"iss": "https://them"})) == UNKNOWN
    assert await judge(strict, token(**good | {"iss": ...})) == UNKNOWN
    assert await judge(strict, token(**good | {"aud": "web"})) == BAD
    assert await judge(strict, token(**good | {"aud": ...})) == BAD


async def test_the_client_identifier_is_the_claims_or_replaced(provider: Any) -> None:
    equal = provider(client_id_claim="device")
    assert (await judge(equal, token(device="c1"))).client_id == "c1"
    assert await judge(equal, token(device="c2")) == NOT_HIS
    assert await judge(equal, token()) == NOT_HIS
    replace = provider(client_id_claim="device", client_id="replace")
    assert (await judge(replace, token(device="c2"))).client_id == "c2"
    assert await judge(replace, token(device=["c2"])) == NOT_HIS


async def test_a_token_may_be_the_user_name(provider: Any) -> None:
    by_name = provider(token_from="username")
    verdict = await by_name.authenticate(request(username=token().decode()))
    assert (verdict.reason, verdict.username) == (0, "ann")
    assert await judge(by_name, token()) == UNKNOWN


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [(RSA, "RS256"), (RSA, "PS512"), (P384, "ES384"), (ED, "EdDSA")],
)
async def test_other_kinds_of_keys(provider: Any, key: Any, algorithm: str) -> None:
    assert (await judge(provider(key, algorithms=[algorithm]), token(key, algorithm))).reason == 0
    assert await judge(provider(key, algorithms=[algorithm]), token(EC)) == BAD


async def test_a_secret_signs_too(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(SECRET + b"\n")
    by_secret = make_jwt(Config(), {"algorithms": ["HS256"], "secret_file": tmp_path / "secret"})
    assert (await judge(by_secret, token(SECRET, "HS256"))).reason == 0
    assert await judge(by_secret, token(b"x" * 32, "HS256")) == BAD
    assert await judge(by_secret, token(RSA, "RS256")) == BAD


async def test_a_set_of_keys_in_a_file_and_what_does_not_count_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_files, "CHECK_S", 0.0)
    file = tmp_path / "jwks.json"
    secret = {"kty": "oct", "k": base64.urlsafe_b64encode(SECRET).decode(), "kid": "s", "alg": "HS256"}
    odd: list[dict[str, Any]] = [
        {},
        {"kty": "EC"},
        {"kty": "RSA", "n": 1},
        {"kty": "EC", "crv": "P-999", "kid": "x"},
    ]
    other_use = jwk(OTHER, kid="o", use="enc")
    ours = jwk(EC, kid="a")
    file.write_text(
        json.dumps(jwks(secret, *odd, other_use, jwk(WEAK, kid="w"), ours, jwk(RSA, kid="r", alg="RS512")))
    )
    keys = make_jwt(Config(), {"algorithms": ["ES256", "RS256", "RS512"], "jwks_file": file})
    assert (await judge(keys, token(kid="a"))).reason == 0
    assert (await judge(keys, token())).reason == 0  # names none: all that fit are tried
    assert (await judge(keys, token(RSA, "RS512", "r"))).reason == 0
    assert await judge(keys, token(RSA, "RS256", "r")) == UNKNOWN  # that key is for RS512 alone
    assert await judge(keys, token(OTHER, kid="o")) == UNKNOWN
    assert await judge(keys, token(RSA, "RS256", "w")) == UNKNOWN
    assert await judge(keys, token(OTHER, kid="a")) == BAD
    file.write_text(json.dumps(jwks(jwk(OTHER, kid="b"))))
    assert (await judge(keys, token(OTHER, kid="b"))).reason == 0
    assert await judge(keys, token(kid="a")) == UNKNOWN
    file.write_text("{")
    assert (await judge(keys, token(OTHER, kid="b"))).reason == 0


async def test_keys_at_a_url_are_kept_refreshed_and_asked_for_within_measure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with HttpServer(answer(jwks(jwk(EC, kid="a")), after_s=0.05)) as server:
        keys = make_jwt(Config(), {"algorithms": ["ES256"], "jwks_url": server.url, "pause_s": 60})

        def end_the_pause() -> None:
            assert isinstance(keys._keys, token_keys.UrlKeys)
            keys._keys._tried = -float("inf")

        verdicts = await asyncio.gather(*(judge(keys, token(kid="a")) for _ in range(20)))
        assert {verdict.reason for verdict in verdicts} == {0}
        assert len(server.bodies) == 1
        for _ in range(10):
            assert await judge(keys, token(OTHER, kid="b")) == UNKNOWN
        assert (
            len(server.bodies) == 1
        )  # within the pause nobody is asked, however many unknown keys there are
        server.handler = answer(jwks(jwk(OTHER, kid="b")))
        end_the_pause()
        assert (await judge(keys, token(OTHER, kid="b"))).reason == 0
        assert await judge(keys, token(kid="a")) == UNKNOWN
        assert len(server.bodies) == 2
        server.handler = answer(None, 500)
        end_the_pause()
        assert await judge(keys, token(kid="c")) == UNKNOWN
        assert (await judge(keys, token(OTHER, kid="b"))).reason == 0
        assert keys.counts == {"jwks_calls": 3, "jwks_calls_failed": 1, "jwks_refused_over_quota": 0}
        assert "its status is 500" in caplog.text
        monkeypatch.setattr(token_keys, "KEYS_AGE_S_MAX", 0.0)
        assert await judge(keys, token(OTHER, kid="b")) == Verdict(0x88)  # too old to count
        await keys.close()


async def test_a_reload_gets_the_keys_at_once() -> None:
    """A key that was taken back counts no more; where they cannot be had, that is said, and they stay."""
    async with HttpServer(answer(jwks(jwk(EC, kid="a")))) as server:
        keys = make_jwt(Config(), {"algorithms": ["ES256"], "jwks_url": server.url, "pause_s": 60})
        assert (await judge(keys, token(kid="a"))).reason == 0
        server.handler = answer(None, 500)
        with pytest.raises(TideMQError, match="cannot be had"):
            await keys.reload()
        assert (await judge(keys, token(kid="a"))).reason == 0
        server.handler = answer(jwks(jwk(OTHER, kid="b")))
        await keys.reload()
        assert await judge(keys, token(kid="a")) == UNKNOWN
        await keys.close()


async def test_old_keys_are_refreshed_without_anybody_waiting() -> None:
    given = asyncio.Event()

    async def slow(_: web.Request) -> web.StreamResponse:
        await given.wait()
        return web.json_response(jwks(jwk(OTHER, kid="b")))

    async with HttpServer(answer(jwks(jwk(EC, kid="a")))) as server:
        options = {"algorithms": ["ES256"], "jwks_url": server.url, "refresh_s": 0.05, "pause_s": 0.01}
        keys = make_jwt(Config(), options)
        assert (await judge(keys, token(kid="a"))).reason == 0
        await asyncio.sleep(0.1)
        server.handler = slow
        assert (await judge(keys, token(kid="a"))).reason == 0  # though the server has not answered
        given.set()
        assert (await judge(keys, token(OTHER, kid="b"))).reason == 0
        await keys.close()


async def test_slow_keys_stall_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_keys, "WAITING_MAX", 2)
    async with HttpServer(answer(after_s=60)) as server:
        by_token = {"authenticator": "jwt", "algorithms": ["ES256"], "jwks_url": server.url, "timeout_s": 1}
        members = [{"authenticator": "static", "users": {"ann": "pw"}}, by_token]
        async with broker_with("chain", {"of": members}, decisions_max=1) as broker:
            waiting = [asyncio.create_task(enters(broker, "bob", token())) for _ in range(3)]
            await until(lambda: any(each.done() for each in waiting))
            assert await enters(broker, "ann", "pw") == 0
            assert sum(each.done() for each in waiting) == 1  # the one too many
            assert await asyncio.gather(*waiting) == [0x88] * 3
            assert broker.counters()["jwks_refused_over_quota"] == 1


async def test_a_url_that_gives_no_keys_is_a_refusal_for_now() -> None:
    for handler in (
        answer(None, 404),
        answer("<html>"),
        answer({"keys": []}),
        answer({"keys": [7]}),
        answer([]),
    ):
        async with HttpServer(handler) as server:
            keys = make_jwt(Config(), {"algorithms": ["ES256"], "jwks_url": server.url})
            assert await judge(keys, token()) == Verdict(0x88)
            assert keys.counts["jwks_calls_failed"] == 1
            await keys.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"public_key_file": "k"}, "options of jwt.algorithms: it is missing"),
        ({"algorithms": [], "public_key_file": "k"}, "options of jwt.algorithms"),
        ({"algorithms": ["none"], "public_key_file": "k"}, "options of jwt.algorithms.0"),
        ({"algorithms": ["ES256"]}, "exactly one of"),
        ({"algorithms": ["ES256"], "public_key_file": "k", "jwks_file": "j"}, "exactly one of"),
        ({"algorithms": ["HS256"], "jwks_url": "https://x/"}, "with secret_file"),
        ({"algorithms": ["ES256"], "jwks_url": "file:///etc/passwd"}, "options of jwt.jwks_url"),
        ({"algorithms": ["ES256"], "public_key_file": "/nowhere"}, "/nowhere"),
        ({"algorithms": ["ES256"], "jwks_file": "/nowhere"}, "/nowhere"),
        ({"algorithms": ["ES256"], "audiences": ["a"], "jwks_file": "x"}, "did you mean audience"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_jwt(Config(), options)
    assert said in str(caught.value)


def test_a_key_that_is_too_weak_or_private_is_refused(provider: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="too weak"):
        provider(WEAK, algorithms=["RS256"])
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (tmp_path / "p").write_bytes(EC.private_bytes(encoding, form, serialization.NoEncryption()))
    with pytest.raises(ConfigError, match="no public key"):
        make_jwt(Config(), {"algorithms": ["ES256"], "public_key_file": tmp_path / "p"})


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "key.pem").write_bytes(pem(EC))
    return {"algorithms": ["ES256"], "public_key_file": str(tmp_path / "key.pem"), "leeway_s": 0}


async def test_paho_enters_with_a_token(options: dict[str, Any]) -> None:
    answers: queue.Queue[Any] = queue.Queue()

    def try_to_enter(port: int, password: bytes) -> str:
        client = paho.Client(
            CallbackAPIVersion.VERSION2, "c1", protocol=paho.MQTTv311, reconnect_on_failure=False
        )
        client.on_connect = lambda client, data, flags, reason, props: answers.put(str(reason))
        client.username_pw_set("whoever", password.decode())
        client.connect("127.0.0.1", port)
        client.loop_start()
        try:
            return str(answers.get(timeout=WAIT_S))
        finally:
            client.disconnect()
            client.loop_stop()

    async with broker_with("jwt", options) as broker:
        assert await asyncio.to_thread(try_to_enter, broker.port, token()) == "Success"
        assert await asyncio.to_thread(try_to_enter, broker.port, token(OTHER)) == "Bad user name or password"
        assert await enters(broker, "x", "secret") == 0x86


async def soon() -> int:
    """A time in 0.6 to 1 s, in whole seconds of Unix time, as tokens have it."""
    if (part_s := time.time() % 1) > 0.4:
        await asyncio.sleep(1 - part_s)
    return int(time.time()) + 1


async def test_a_connection_ends_with_its_token(options: dict[str, Any]) -> None:
    async with broker_with("jwt", options, reactors=2) as broker:
        client = await asyncio.to_thread(RawClient, broker.port)
        client.send(connect("", username="u", password=token(exp=await soon())))  # named by the broker
        await asyncio.to_thread(client.expect, CONNACK, reason=0)
        lasting = Client(f"mqtt://127.0.0.1:{broker.port}", password=token(), reconnect=False)
        async with lasting:
            await asyncio.to_thread(client.expect, DISCONNECT, reason=0xA0)
            await lasting.publish("a", b"x", qos=1)
        assert broker.counters()["clients_expired"] == 1


async def test_a_token_that_has_ended_meanwhile_ends_nobody_else(options: dict[str, Any]) -> None:
    """The same client is back with a longer token when the first one ends."""
    async with broker_with("jwt", options) as broker:
        first, second = [await asyncio.to_thread(RawClient, broker.port) for _ in range(2)]
        first.send(connect("c1", username="u", password=token(exp=await soon())))
        await asyncio.to_thread(first.expect, CONNACK, reason=0)
        second.send(connect("c1", username="u", password=token()))
        await asyncio.to_thread(second.expect, CONNACK, reason=0)
        await asyncio.to_thread(first.expect, DISCONNECT, reason=0x8E)
        await asyncio.sleep(1.1)
        await asyncio.to_thread(second.ping)
        assert "clients_expired" not in broker.counters()


async def test_the_next_token_prolongs_a_connection_and_must_be_of_the_same_user(
    options: dict[str, Any],
) -> None:
    async with broker_with("jwt", options) as broker:
        client = await asyncio.to_thread(RawClient, broker.port)
        client.send(connect("c1", auth_method="JWT", auth_data=token(exp=await soon())))
        await asyncio.to_thread(client.expect, CONNACK, reason=0)
        client.send(auth(0x19, auth_method="JWT", auth_data=token()))
        await asyncio.to_thread(client.expect, AUTH, reason=0)
        await asyncio.sleep(1.1)
        await asyncio.to_thread(client.ping)
        client.send(auth(0x19, auth_method="JWT", auth_data=token(sub="bob")))
        await asyncio.to_thread(client.expect, DISCONNECT, reason=0x87)
        other = await asyncio.to_thread(RawClient, broker.port)
        other.send(connect("c2", auth_method="SCRAM-SHA-256", auth_data=token()))
        await asyncio.to_thread(other.expect, CONNACK, reason=0x8C)


async def test_our_client_shows_its_next_token(options: dict[str, Any]) -> None:
    class Tokens:
        """Shows a token that ends soon, and then one that does not."""

        method, username = "JWT", "u"

        def __init__(self, *ends: int) -> None:
            self._ends = iter(ends)

        def exchange(self) -> Generator[bytes | None, bytes | None, None]:
            yield token(exp=next(self._ends))

    tokens = Tokens(await soon(), int(time.time()) + 60)
    async with (
        broker_with("jwt", options) as broker,
        Client(f"mqtt://127.0.0.1:{broker.port}", auth=tokens, reconnect=False) as client,
    ):
        await client.reauthenticate()
        await asyncio.sleep(1.1)
        await client.publish("a", b"x", qos=1)


async def test_the_rules_of_a_token_hold_for_its_client(options: dict[str, Any]) -> None:
    rules = [
        {"permission": "deny", "action": "publish", "topic": "plant/%c/set"},
        {"permission": "allow", "action": "all", "topic": "plant/%c/#", "qos_max": 1},
    ]
    async with broker_with("jwt", options) as broker:
        url = f"mqtt://127.0.0.1:{broker.port}"
        given: dict[str, Any] = {"client_id": "pump", "username": "u", "password": token(acl=rules)}
        async with Client(url, **given) as client:
            await client.publish("plant/pump/state", b"x", qos=1)
            await client.subscribe("plant/pump/#", qos=1)
            for topic in ("plant/pump/set", "plant/other/state", "elsewhere"):
                with pytest.raises(PublishError, match="not authorized"):
                    await client.publish(topic, b"x", qos=1)
            with pytest.raises(SubscribeError, match="not authorized"):
                await client.subscribe("plant/#")
        async with Client(url, username="u", password=token()) as free:
            await free.publish("elsewhere", b"x", qos=1)


def test_defaults_are_as_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    section = text.split("\n## JWT\n")[1].split("\n## ")[0]
    for name, field in JwtOptions.model_fields.items():
        assert f"`{name}`" in section, name
        if isinstance(field.default, bool):
            assert f"| `{name}` | `{str(field.default).lower()}` |" in section, name
        elif isinstance(field.default, (int, float)) and name != "timeout_s":
            assert f"| `{name}` | `{field.default}` |" in section, name
        elif isinstance(field.default, str):
            assert f'| `{name}` | `"{field.default}"` |' in section, name
