"""SCRAM-SHA-256: the messages of RFC 7677, exchanges with a real broker, and what strangers can find out.

The peer is `scramp`'s client, or bytes made by hand; `tidemq.client` is tested in tests/client/test_auth.py.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import scramp.core
from conformance.kit import Client, refused
from conformance.packets import AUTH, CONNACK, DISCONNECT, auth, connect
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples
from scramp import ScramClient, ScramException

from tidemq import Broker, Config
from tidemq.broker.authenticators import password_file, scram
from tidemq.broker.authenticators.password_file import (
    PasswordFile,
    Users,
    change_password_file,
    read_password_file,
)
from tidemq.broker.authenticators.password_hashes import matches
from tidemq.broker.host import watched_files
from tidemq.engine.door.events import AuthRequest, ConnectRequest
from tidemq.errors import ConfigError, UsageError

METHOD = "SCRAM-SHA-256"
FEW = scram.ITERATIONS_MIN
# RFC 7677 section 3
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_NONCE, SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
CLIENT_FIRST = f"n,,n=user,r={CLIENT_NONCE}"
SERVER_FIRST = f"r={CLIENT_NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SERVER_FINAL = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def with_file(file: Path, **options: object) -> Config:
    return Config(
        host="127.0.0.1",
        port=0,
        reactors=1,
        store="memory",
        sys_interval_s=0,
        authenticator="password_file",
        authenticator_options={"file": str(file), **options},
        failed_login_delay_s=0,
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "passwd"
    change_password_file(path, "ann", b"secret", FEW)
    change_password_file(path, "bob", b"hashed")
    return path


@pytest_asyncio.fixture
async def broker(file: Path) -> AsyncIterator[Broker]:
    async with Broker(with_file(file)) as broker:
        yield broker


def login(
    port: int, username: str | None, name: str, password: str, *, flag: str = "n", asks_first: bool = False
) -> tuple[Client, ScramClient]:
    """A client that has sent its proof; the broker's last word is to be read."""
    binding = ("tls-unique", b"x") if flag == "y" else None  # what the broker does not offer
    peer = ScramClient([METHOD], name, password, binding)
    first = peer.get_client_first()
    assert first.startswith(f"{flag},,")
    client = Client(port)
    given = {} if asks_first else {"auth_data": first.encode()}
    client.send(connect("c", username=username, auth_method=METHOD, **given))
    if asks_first:
        question = client.expect(AUTH, reason=0x18)
        assert question.get("auth_data") is None
        client.send(auth(0x18, auth_method=METHOD, auth_data=first.encode()))
    answer(client, peer)
    return client, peer


def answer(client: Client, peer: ScramClient) -> None:
    """Answers the broker's first message."""
    packet = client.expect(AUTH, reason=0x18)
    assert packet.get("auth_method") == METHOD
    peer.set_server_first(packet.get("auth_data").decode())
    client.send(auth(0x18, auth_method=METHOD, auth_data=peer.get_client_final().encode()))


async def threaded(work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    return await asyncio.to_thread(work, *arguments, **named)


# --- the standard's own messages


def test_keys_are_those_of_rfc_7677_and_are_kept_in_postgresqls_form() -> None:
    keys = scram.Keys(*scram._MECHANISM.make_auth_info("pencil", 4096, SALT))
    kept = scram.parse_keys(
        "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
        ":wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
    )
    assert kept == keys
    assert scram.fits(keys, b"pencil")
    assert not scram.fits(keys, b"Pencil")


async def test_the_exchange_of_rfc_7677_word_for_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "passwd"
    salt, stored, server, _ = scram._MECHANISM.make_auth_info("pencil", 4096, SALT)
    kept = [base64.b64encode(each).decode() for each in (salt, stored, server)]
    file.write_text(f"user:SCRAM-SHA-256$4096:{kept[0]}${kept[1]}:{kept[2]}\n")
    monkeypatch.setattr(scramp.core.Nonce, "create", classmethod(lambda cls: cls(SERVER_NONCE)))

    def talk(port: int) -> None:
        client = Client(port)
        client.send(connect("c", username="user", auth_method=METHOD, auth_data=CLIENT_FIRST.encode()))
        assert client.expect(AUTH, reason=0x18).get("auth_data") == SERVER_FIRST.encode()
        client.send(auth(0x18, auth_method=METHOD, auth_data=CLIENT_FINAL.encode()))
        connack = client.expect(CONNACK, reason=0)
        assert (connack.get("auth_method"), connack.get("auth_data")) == (METHOD, SERVER_FINAL.encode())
        client.disconnect()

    async with Broker(with_file(file)) as broker:
        await threaded(talk, broker.port)


# --- exchanges


@pytest.mark.parametrize(("flag", "asks_first"), [("n", False), ("y", False), ("n", True)])
async def test_the_right_password_is_let_in_and_the_broker_proves_itself(
    broker: Broker, flag: str, asks_first: bool
) -> None:
    def talk() -> None:
        client, peer = login(broker.port, "ann", "ann", "secret", flag=flag, asks_first=asks_first)
        peer.set_server_final(client.expect(CONNACK, reason=0).get("auth_data").decode())
        client.disconnect()

    await threaded(talk)


@pytest.mark.parametrize(
    ("username", "name", "password"),
    [
        pytest.param("ann", "ann", "Secret", id="wrong password"),
        pytest.param("bob", "bob", "hashed", id="a user without a line for SCRAM"),
        pytest.param("eve", "eve", "secret", id="nobody"),
        pytest.param("bob", "ann", "secret", id="another name in CONNECT"),
        pytest.param(None, "ann", "secret", id="no name in CONNECT"),
    ],
)
async def test_whoever_is_not_the_user_is_refused_in_the_same_way(
    broker: Broker, username: str | None, name: str, password: str
) -> None:
    def talk() -> None:
        client, _ = login(broker.port, username, name, password)
        refused(client, 0x86)

    await threaded(talk)
    assert broker.counters()["logins_failed"] == 1


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", 0x82),
        (b"n,,n=ann,r=", 0x82),
        (b"n,,n=ann", 0x82),
        (b"n,a=bob,n=ann,r=abc", 0x82),  # to act as somebody else
        (b"n,,m=x,n=ann,r=abc", 0x82),  # a mandatory extension
        (b"n,,n=a=nn,r=abc", 0x82),
        (b"\xff,,n=ann,r=abc", 0x82),
        (b"n,,n=ann,r=" + b"x" * 1024, 0x82),
        (b"p=tls-unique,,n=ann,r=abc", 0x8C),
        (b"p=tls-exporter,,n=ann,r=abc", 0x8C),
    ],
)
async def test_what_is_no_first_message_is_refused(broker: Broker, data: bytes, reason: int) -> None:
    def talk() -> None:
        client = Client(broker.port)
        client.send(connect("c", username="ann", auth_method=METHOD, auth_data=data))
        refused(client, reason)

    await threaded(talk)
    assert "decisions_failed" not in broker.counters()


@pytest.mark.parametrize(
    "final",
    [
        b"",
        b"c=biws,r=abc,p=AAAA",  # another nonce
        b"c=eSws,r={nonce},p={zeros}",  # bound to another header
        b"c=biws,r={nonce},p=AAAA",
        b"c=biws,r={nonce},p={zeros}",
        b"c=biws,r={nonce}",
        b"x" * 1025,
    ],
)
async def test_what_is_no_last_message_is_refused(broker: Broker, final: bytes) -> None:
    def talk() -> None:
        client = Client(broker.port)
        client.send(connect("c", username="ann", auth_method=METHOD, auth_data=b"n,,n=ann,r=abc"))
        nonce = client.expect(AUTH).get("auth_data").split(b",")[0][2:]
        sent = final.replace(b"{nonce}", nonce).replace(b"{zeros}", base64.b64encode(bytes(32)))
        client.send(auth(0x18, auth_method=METHOD, auth_data=sent))
        refused(client, 0x82, 0x86, 0x8C)

    await threaded(talk)
    assert "decisions_failed" not in broker.counters()


ATTRIBUTES = ["n=ann", "r=abc", "a=x", "m=x", "c=biws", "p=AAAA", "n=", "r=", "x=1", "{nonce}"]
PIECES = [*ATTRIBUTES, "n", "y", "p=tls-unique", ",", ",,", "=2C", "=", "é", "\u202e", "\0", "\u0627"]
MESSAGES = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)
ANN = Users({"ann": scram.hash_for_scram(b"secret", FEW)}, bytes(32))


@settings(max_examples=examples(300), deadline=None)
@given(first=MESSAGES.map(str.encode) | st.binary(max_size=60), final=MESSAGES | st.text(max_size=60))
def test_whatever_comes_it_is_refused_without_a_stumble(first: bytes, final: str) -> None:
    async def challenge(data: bytes | None) -> bytes:
        nonce = "" if data is None else data.decode().partition(",")[0]
        return final.replace("{nonce}", nonce).encode(errors="surrogatepass")

    request = ConnectRequest(1, "c", "ann", None, "127.0.0.1:9", 5, True, 60, None, METHOD, first or None)
    with pytest.raises(StopIteration) as ended:  # nothing in it waits
        scram.prove(request, challenge, ANN.find_keys).send(None)
    assert ended.value.value.reason >= 0x80


async def test_a_proof_cannot_be_sent_again(broker: Broker) -> None:
    """What was seen on the network is good for that exchange alone: the broker's nonce is new each time."""

    def talk() -> None:
        heard = []
        for _ in range(2):
            client = Client(broker.port)
            client.send(connect("c", username="ann", auth_method=METHOD, auth_data=b"n,,n=ann,r=abc"))
            heard.append(client.expect(AUTH).get("auth_data"))
        assert heard[0] != heard[1]
        assert heard[0].split(b",")[1:] == heard[1].split(b",")[1:]

    await threaded(talk)


async def test_other_methods_and_files_without_scram_are_refused(tmp_path: Path, broker: Broker) -> None:
    file = tmp_path / "hashes"
    change_password_file(file, "bob", b"hashed")

    def talk(port: int, method: str) -> None:
        client = Client(port)
        client.send(connect("c", username="bob", auth_method=method, auth_data=b"n,,n=bob,r=abc"))
        refused(client, 0x8C)

    await threaded(talk, broker.port, "SCRAM-SHA-256-PLUS")
    async with Broker(with_file(file)) as other:
        await threaded(talk, other.port, METHOD)


# --- authenticating again


async def test_a_client_authenticates_again(broker: Broker) -> None:
    def talk() -> None:
        client, peer = login(broker.port, "ann", "ann", "secret")
        peer.set_server_final(client.expect(CONNACK, reason=0).get("auth_data").decode())
        again = ScramClient([METHOD], "ann", "secret")
        first = again.get_client_first().encode()
        client.send(auth(0x19, auth_method=METHOD, auth_data=first))
        answer(client, again)
        again.set_server_final(client.expect(AUTH, reason=0).get("auth_data").decode())
        third = ScramClient([METHOD], "ann", "wrong")
        client.send(auth(0x19, auth_method=METHOD, auth_data=third.get_client_first().encode()))
        answer(client, third)
        client.expect(DISCONNECT, reason=0x87)  # it has no 0x86

    await threaded(talk)


@pytest.mark.parametrize(("username", "reason"), [("ann", 0), ("bob", 0x86)])
async def test_only_the_same_user_authenticates_again(file: Path, username: str, reason: int) -> None:
    provider = PasswordFile(file)
    peer = ScramClient([METHOD], "ann", "secret")

    async def challenge(data: bytes | None) -> bytes:
        assert data is not None
        peer.set_server_first(data.decode())
        found: bytes = peer.get_client_final().encode()
        return found

    first = peer.get_client_first().encode()
    verdict = await provider.converse(AuthRequest(1, "c", 0x19, METHOD, first, username=username), challenge)
    assert verdict.reason == reason


async def test_a_client_does_not_become_another_user(
    broker: Broker, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_files, "CHECK_S", 0.0)
    change_password_file(file, "carl", b"secret", FEW)

    def talk() -> None:
        client, _ = login(broker.port, "ann", "ann", "secret")
        client.expect(CONNACK, reason=0)
        again = ScramClient([METHOD], "carl", "secret")
        client.send(auth(0x19, auth_method=METHOD, auth_data=again.get_client_first().encode()))
        answer(client, again)
        client.expect(DISCONNECT, reason=0x87)
        client, _ = login(broker.port, "carl", "carl", "secret")
        client.expect(CONNACK, reason=0)

    await threaded(talk)


# --- what strangers find out


async def first_answer(provider: PasswordFile, name: str) -> bytes:
    """What a client is told of a user before it has proved anything, but for the nonce."""
    heard: list[bytes] = []

    async def challenge(data: bytes | None) -> bytes:
        assert data is not None
        heard.append(data.split(b",", 1)[1])
        return b""

    first = f"n,,n={name},r=abc".encode()
    request = ConnectRequest(1, "c", name, None, "127.0.0.1:9", 5, True, 60, None, METHOD, first)
    assert (await provider.converse(request, challenge)).reason != 0
    return heard[0]


async def test_who_is_not_there_cannot_be_told_from_who_is(file: Path) -> None:
    """A name gets the same salt each time, also by another broker with this file and after a change of it; of
    the same length as a real one, with as many iterations."""
    told = [await first_answer(PasswordFile(file), name) for name in ("eve", "eve", "mallory", "bob", "ann")]
    assert told[0] == told[1]
    assert len(set(told)) == 4
    assert len({(len(each), each.rpartition(b",")[2]) for each in told}) == 1
    change_password_file(file, "carl", b"other", FEW)
    change_password_file(file, "ann", b"another", FEW)
    provider = PasswordFile(file)
    assert await first_answer(provider, "eve") == told[0]
    assert await first_answer(provider, "ann") != told[4]
    text = await asyncio.to_thread(file.read_text)
    key = next(line for line in text.splitlines() if line.startswith(":$key$"))
    await asyncio.to_thread(file.write_text, text.replace(key, key[:-5] + "AAAA="))
    assert await first_answer(PasswordFile(file), "eve") != told[0]


async def test_a_password_for_nobody_is_work_as_for_somebody(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hash that is worked on is of a kind that users have, and always the same for a name."""
    checked: list[str] = []

    def counted(hashed: str, password: bytes) -> bool:
        checked.append(hashed)
        return matches(hashed, password)

    monkeypatch.setattr(password_file, "matches", counted)
    change_password_file(file, "bob", None)
    provider = PasswordFile(file)
    for password in (b"secret", b"x"):
        request = ConnectRequest(1, "c", "eve", password, "127.0.0.1:9", 5, True, 60, None, None, None)
        assert (await provider.authenticate(request)).reason == 0x86  # also with the password of another
    assert checked == [read_password_file(file).hashes["ann"]] * 2


# --- plain passwords


def plain(port: int, username: str, password: str) -> int:
    client = Client(port)
    client.send(connect("c", username=username, password=password.encode()))
    reason: int = client.expect(CONNACK).reason
    return reason


async def test_a_user_with_scram_logs_in_by_password_too(broker: Broker) -> None:
    found = [
        await threaded(plain, broker.port, *each)
        for each in (("ann", "secret"), ("ann", "Secret"), ("ann", "\ud7ff\x07"), ("bob", "hashed"))
    ]
    assert found == [0, 0x86, 0x86, 0]


async def test_passwords_as_they_are_can_be_forbidden(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Then nobody is led to send one, and none is looked at."""

    def talk(port: int) -> None:
        client = Client(port)
        client.send(connect("c", username="ann", password=b"secret"))
        connack = client.expect(CONNACK, reason=0x87)
        assert "SCRAM-SHA-256" in connack.get("reason_string")
        client, peer = login(port, "ann", "ann", "secret")
        peer.set_server_final(client.expect(CONNACK, reason=0).get("auth_data").decode())

    async with Broker(with_file(file, plain=False)) as broker:
        await threaded(talk, broker.port)
    assert "1 users have no line for SCRAM" in caplog.text


@pytest.mark.parametrize("plain", [0, "no"])
async def test_a_wrong_option_is_refused(file: Path, plain: object) -> None:
    with pytest.raises(ConfigError, match=r"password_file\.plain"):
        await Broker(with_file(file, plain=plain)).start()


# --- the file


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ("SCRAM-SHA-256$4096", "not whole"),
        (f"SCRAM-SHA-256$4095:{'A' * 24}${'A' * 43}=:{'A' * 43}=", "4095 iterations"),
        (f"SCRAM-SHA-256$99999999:{'A' * 24}${'A' * 43}=:{'A' * 43}=", "99999999 iterations"),
        (f"SCRAM-SHA-256$4096:{'A' * 8}${'A' * 43}=:{'A' * 43}=", "not whole"),
        (f"SCRAM-SHA-256$4096:{'A' * 24}${'A' * 40}:{'A' * 43}=", "not whole"),
        (f"SCRAM-SHA-256$4096:{'A' * 24}${'A' * 43}=:{'A' * 41}", "not whole"),
        (f"SCRAM-SHA-256$4096:{'A' * 24}${'A' * 43}=:{'A' * 42}!=", "not whole"),
    ],
)
def test_damaged_lines_are_refused_without_their_keys(tmp_path: Path, kept: str, said: str) -> None:
    file = tmp_path / "passwd"
    file.write_text(f"ann:{kept}\n")
    with pytest.raises(ConfigError, match="line 1: the hash of 'ann'") as caught:
        read_password_file(file)
    assert said in str(caught.value)
    assert "AAAA" not in str(caught.value)


def test_a_damaged_key_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "passwd"
    file.write_text(":$key$c2VjcmV0\n")
    with pytest.raises(ConfigError, match="line 1: the key is not whole") as caught:
        read_password_file(file)
    assert "c2VjcmV0" not in str(caught.value)


@pytest.mark.parametrize(
    ("user", "password", "iterations", "said"),
    [
        ("ann", b"se\x07cret", FEW, "cannot take the password"),
        ("ann", b"\xff", FEW, "it is not UTF-8"),
        ("ann", b"x" * 1025, FEW, "at most 1024 bytes"),
        ("ann", b"x", FEW - 1, "accepted: 4096 to 10000000"),
        ("\uff21nn", b"x", FEW, "would be 'Ann'"),
    ],
)
def test_what_scram_cannot_take_is_refused(
    tmp_path: Path, user: str, password: bytes, iterations: int, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        change_password_file(tmp_path / "passwd", user, password, iterations)
    assert list(tmp_path.iterdir()) == []


def test_scramps_client_refuses_a_broker_that_does_not_know_the_user(file: Path) -> None:
    """What `make_up` gives proves nothing to a client that has a password."""
    keys, known = read_password_file(file).find_keys("eve")
    assert not known
    server = scram._MECHANISM.make_server(lambda _: keys)
    client = ScramClient([METHOD], "eve", "secret")
    server.set_client_first(client.get_client_first())
    client.set_server_first(server.get_server_first())
    with pytest.raises(ScramException):
        server.set_client_final(client.get_client_final())
