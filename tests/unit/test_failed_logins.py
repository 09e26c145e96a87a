"""Failed logins: delayed more and more, forgotten with time, and no way to lock others out."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from unit.conftest import BrokerOnFake
from waiting import until

from tidemq import Broker, Config
from tidemq.broker import Verdict
from tidemq.broker.access import failed_logins
from tidemq.broker.access.failed_logins import FailedLogins
from tidemq.broker.access.peer_address import is_local, source_of
from tidemq.broker.authenticators import password_file
from tidemq.broker.authenticators.password_file import change_password_file
from tidemq.broker.authenticators.password_hashes import matches
from tidemq.broker.providers import Challenge
from tidemq.client import Client
from tidemq.engine.door.events import AuthRequest, ConnectRequest
from tidemq.wire import Connack, Connect, Decoder, encode

HERE, THERE = "192.0.2.1:1000", "198.51.100.7:2000"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now_s = [1000.0]
    monkeypatch.setattr(failed_logins.time, "monotonic", lambda: now_s[0])  # type: ignore[attr-defined]
    return now_s


@pytest.mark.parametrize(
    ("peer", "source", "local"),
    [
        ("192.0.2.1:1883", "192.0.2.1", False),
        ("127.9.8.7:5", "127.9.8.7", True),
        ("::1:5", "::/64", True),
        ("::ffff:127.0.0.1:5", "127.0.0.1", True),
        ("::ffff:192.0.2.1:5", "192.0.2.1", False),
        ("2001:db8:1:2:3:4:5:6:5", "2001:db8:1:2::/64", False),
        ("2001:db8:1:2:ffff::1:5", "2001:db8:1:2::/64", False),
        ("fe80::1%eth0:5", "fe80::/64", False),
        ("unix:4711", "unix", True),
        ("unix", "unix", True),
        (":", "", False),
        ("", "", False),
        ("p", "p", False),
    ],
)
def test_a_peer_has_a_source_and_is_local_or_not(peer: str, source: str, local: bool) -> None:
    assert (source_of(peer), is_local(peer)) == (source, local)


def test_the_delay_doubles_to_its_end_and_decays(clock: list[float]) -> None:
    logins = FailedLogins(Config())
    delays = [logins.failed(HERE, "ann") for _ in range(10)]
    assert delays == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10])
    clock[0] += 60.0
    assert logins.failed(HERE, "ann") == pytest.approx(0.1 * 2**5)  # ten became five, and one more
    clock[0] += 3600.0
    assert logins.failed(HERE, "ann") == pytest.approx(0.1)
    assert max(FailedLogins(Config()).failed(HERE, "ann") for _ in range(3)) == pytest.approx(0.1)
    for _ in range(5000):
        assert logins.failed(HERE, "ann") <= 10


def test_an_address_and_a_name_each_count(clock: list[float]) -> None:
    logins = FailedLogins(Config())
    for number in range(3):
        logins.failed(HERE, f"user{number}")
    assert logins.failed(HERE, "other") == pytest.approx(0.8)  # many names from one address
    for number in range(3):
        logins.failed(f"203.0.113.{number}:1", "ann")
    assert logins.failed(THERE, "ann") == pytest.approx(0.8)  # one name from many addresses
    assert logins.failed("203.0.113.99:1", "carl") == pytest.approx(0.1)


def test_an_address_is_refused_beyond_its_failures_until_they_decay(clock: list[float]) -> None:
    logins = FailedLogins(Config(failed_logins_max=3))
    for _ in range(3):
        assert not logins.refuses(HERE, "ann")
        logins.failed(HERE, "ann")
    assert logins.refuses(HERE, "ann")
    assert logins.refuses(HERE, "bob")
    assert not logins.refuses(THERE, "ann")  # the user is not locked out from elsewhere
    clock[0] += 1.0
    assert not logins.refuses(HERE, "bob")
    for _ in range(100):
        logins.failed(HERE, None)
    assert logins.refuses(HERE, None)
    unbounded = FailedLogins(Config(failed_logins_max=0))
    for _ in range(100):
        unbounded.failed(HERE, "ann")
    assert not unbounded.refuses(HERE, "ann")


def test_who_has_logged_in_from_there_is_still_asked_for(clock: list[float]) -> None:
    logins = FailedLogins(Config(failed_logins_max=3))
    logins.succeeded(HERE, "ann")
    for _ in range(10):
        logins.failed(HERE, "bob")
    assert logins.refuses(HERE, "bob")
    assert logins.refuses(HERE, "carl")
    assert not logins.refuses(HERE, "ann")
    for _ in range(3):
        logins.failed(HERE, "ann")
    assert logins.refuses(HERE, "ann")


def test_a_success_forgives_what_that_user_has_failed_from_there_and_no_more(clock: list[float]) -> None:
    logins = FailedLogins(Config(failed_logins_max=3))
    for _ in range(3):
        logins.failed(HERE, "ann")
    logins.failed(THERE, "ann")
    logins.succeeded(HERE, "ann")
    assert not logins.refuses(HERE, "bob")
    assert logins.failed(HERE, "bob") == pytest.approx(0.1)
    assert logins.failed(THERE, "ann") == pytest.approx(0.2)  # what came from elsewhere stays
    for _ in range(3):
        logins.failed(HERE, "victim")
        logins.succeeded(HERE, "mallory")  # an account of one's own buys no attempts
    assert logins.refuses(HERE, "victim")


def test_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_logins, "ENTRIES_MAX", 30)
    logins = FailedLogins(Config(failed_logins_max=3))
    for number in range(1000):
        logins.failed(HERE, f"user{number}" * 1000)
        logins.succeeded(f"203.0.113.{number % 256}:1", f"user{number}")
    assert len(logins._records) == 30
    assert logins.refuses(HERE, "other")  # what goes on is not forgotten


# --- in a broker


def request(number: int, peer: str, username: str = "ann", password: bytes = b"wrong") -> ConnectRequest:
    return ConnectRequest(number, f"c{number}", username, password, peer, 5, True, 60, None, None, None)


class Wrong:
    """Knows one password, and counts who asks."""

    def __init__(self) -> None:
        self.asked = 0

    async def authenticate(self, request: ConnectRequest) -> Verdict:
        self.asked += 1
        return Verdict() if request.password == b"right" else Verdict(0x86)


async def test_a_delayed_answer_holds_no_place(broker_on_fake: type[BrokerOnFake]) -> None:
    """With one place for decisions and one more to wait, others are decided while refusals are kept back;
    beyond the bound of what is kept back they are given at once; the end of the broker drops them."""
    config = Config(
        host="127.0.0.1",
        port=0,
        sys_interval_s=0,
        decisions_max=1,
        decisions_waiting_max=2,
        failed_login_delay_s=60,
        failed_login_delay_max_s=60,
        failed_logins_max=0,
    )
    wrong = Wrong()
    async with broker_on_fake(config, authenticator=wrong) as broker:
        for number in (1, 2, 3):
            broker.engine.say(request(number, HERE))
            await until(lambda: wrong.asked >= number)  # noqa: B023 (called at once)
        broker.engine.say(request(4, HERE, password=b"right"))
        await until(lambda: len(broker.engine.answers) >= 2)
        assert [each[1:3] for each in broker.engine.answers] == [(3, 0x86), (4, 0)]
        counters = broker.counters()
        assert (counters["logins_failed"], counters["logins_delayed"]) == (3, 2)
        assert "decisions_over_quota" not in counters
    await asyncio.sleep(0)
    assert len(broker.engine.answers) == 2


async def test_a_delayed_answer_comes(broker_on_fake: type[BrokerOnFake]) -> None:
    config = Config(host="127.0.0.1", port=0, sys_interval_s=0, failed_login_delay_s=0.02)
    async with broker_on_fake(config, authenticator=Wrong()) as broker:
        begun_s = asyncio.get_running_loop().time()
        broker.engine.say(request(1, HERE))
        await until(lambda: broker.engine.answers)
        assert asyncio.get_running_loop().time() - begun_s >= 0.02
        assert broker.engine.answers[0][1:3] == (1, 0x86)


async def guess(port: int, source: str, number: int, answers: list[int]) -> None:
    """One false password from an address of this machine; notes the reason code of CONNACK."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
    writer.write(encode(Connect(version=5, client_id="", username="ann", password=b"no%d" % number), 5))
    decoder = Decoder(5)
    while (packet := next(decoder, None)) is None:
        decoder.feed(await reader.readexactly(1))
    assert isinstance(packet, Connack)
    answers.append(packet.reason)
    writer.close()


async def test_a_storm_of_false_passwords_is_mostly_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """400 guesses at ann's password at once from one address: of them no more than twice the limit are looked
    at. From another address ann herself is let in meanwhile, and her messages arrive."""
    checked: list[bytes] = []

    def counted(hashed: str, password: bytes) -> bool:
        checked.append(password)
        return matches(hashed, password)

    monkeypatch.setattr(password_file, "matches", counted)
    file = tmp_path / "passwd"
    change_password_file(file, "ann", b"right")
    config = Config(
        host="127.0.0.1",
        port=0,
        reactors=1,
        store="memory",
        sys_interval_s=0,
        authenticator="password_file",
        authenticator_options={"file": str(file)},
        failed_logins_max=10,
        failed_login_delay_s=0.01,
        failed_login_delay_max_s=0.1,
        decision_s=60,
    )
    answers: list[int] = []
    async with Broker(config) as broker:
        storm = [asyncio.create_task(guess(broker.port, "127.0.0.2", each, answers)) for each in range(400)]
        await until(lambda: checked, poll_s=0)
        during = len(answers)
        async with Client(f"mqtt://127.0.0.1:{broker.port}", username="ann", password="right") as client:
            await client.subscribe("t", qos=1)
            for number in range(100):
                await client.publish("t", str(number), qos=1)
            assert [(await anext(client.messages)).payload for _ in range(100)] == [
                str(number).encode() for number in range(100)
            ]
        await asyncio.gather(*storm)
        counters = broker.counters()
    assert during < 400
    assert len(answers) == 400
    assert set(answers) == {0x86, 0x9F}
    false = [password for password in checked if password != b"right"]
    assert 10 <= len(false) <= 2 * 10 + 3  # the count decays a little meanwhile
    assert counters["logins_refused"] == 400 - len(false) == answers.count(0x9F)
    assert counters["logins_failed"] == len(false)


async def test_a_login_under_another_name_forgives_nothing(broker_on_fake: type[BrokerOnFake]) -> None:
    """Who logs in by a token or certificate may write any user name into CONNECT: it was not asked for."""

    class Either(Wrong):
        async def authenticate(self, request: ConnectRequest) -> Verdict:
            self.asked += 1
            if request.password == b"mallory's token":
                return Verdict(username="mallory")
            return Verdict(0x86)

    config = Config(
        host="127.0.0.1",
        port=0,
        sys_interval_s=0,
        failed_logins_max=3,
        failed_login_delay_s=0,
        failed_login_half_life_s=86_400,
    )
    either = Either()
    async with broker_on_fake(config, authenticator=either) as broker:

        async def reason(number: int, password: bytes) -> int:
            broker.engine.say(request(number, HERE, "ann", password))
            await until(lambda: broker.engine.answers)
            return int(broker.engine.answers.pop()[2])

        reasons = []
        for number in range(10):
            reasons.append(await reason(2 * number, b"guess"))
            await reason(2 * number + 1, b"mallory's token")
    assert reasons == sorted(reasons)
    assert 3 <= reasons.count(0x86) <= 4  # the count decays a little meanwhile
    assert reasons[-1] == 0x9F


async def test_exchanges_that_all_end_at_once_are_not_all_told_what_they_have_guessed(
    broker_on_fake: type[BrokerOnFake],
) -> None:
    """They had begun before the first of them failed; the right one among the rest is not told."""

    class Asks(Wrong):
        async def converse(self, request: ConnectRequest, challenge: Challenge) -> Verdict:
            return Verdict() if await challenge(b"?") == b"right" else Verdict(0x86)

    config = Config(
        host="127.0.0.1",
        port=0,
        sys_interval_s=0,
        failed_logins_max=3,
        failed_login_delay_s=0,
        failed_login_half_life_s=86_400,
    )
    async with broker_on_fake(config, authenticator=Asks()) as broker:
        engine = broker.engine
        for number in range(10):
            engine.say(replace(request(number, HERE, password=b""), auth_method="M", auth_data=b"!"))
        await until(lambda: len(engine.answers) >= 10)
        engine.answers.clear()
        for number in range(10):
            data = b"right" if number == 9 else b"wrong"
            engine.say(AuthRequest(number, "", 0x18, "M", data, peer=HERE))
            await until(lambda: len(engine.answers) > number)  # noqa: B023 (called at once)
        reasons = [answer[2] for answer in engine.answers]
        assert reasons == sorted(reasons)
        assert 3 <= reasons.count(0x86) <= 4  # the count decays a little meanwhile
        assert reasons[-1] == 0x9F
        counters = broker.counters()
        assert counters["logins_failed"] == reasons.count(0x86) == 10 - counters["logins_refused"]


async def test_exchanges_that_nobody_goes_on_with_shut_nobody_out(broker_on_fake: type[BrokerOnFake]) -> None:
    """They hold no place of decisions; beyond what may wait, the oldest goes, and no newcomer."""

    class Asks(Wrong):
        async def converse(self, request: ConnectRequest, challenge: Challenge) -> Verdict:
            return Verdict() if await challenge(b"?") == b"right" else Verdict(0x86)

    config = Config(
        host="127.0.0.1", port=0, sys_interval_s=0, decisions_max=1, decisions_waiting_max=3, decision_s=60
    )
    async with broker_on_fake(config, authenticator=Asks()) as broker:
        engine = broker.engine

        async def next_answer() -> tuple[int, int]:
            await until(lambda: engine.answers)
            return engine.answers.pop(0)[1:3]

        for number in range(9):
            engine.say(replace(request(number, HERE), auth_method="M", auth_data=b"!"))
            given = [await next_answer() for _ in range(1 if number < 3 else 2)]
            assert sorted(given) == [(number - 3, 0x88), (number, 0x18)][number < 3 :]
        engine.say(request(10, THERE, password=b"right"))
        assert await next_answer() == (10, 0)
        engine.say(replace(request(9, THERE), auth_method="M", auth_data=b"!"))
        assert sorted([await next_answer(), await next_answer()]) == [(6, 0x88), (9, 0x18)]
        engine.say(AuthRequest(9, "", 0x18, "M", b"right", peer=THERE))
        assert await next_answer() == (9, 0)
        counters = broker.counters()
        assert counters["decisions_late"] == 7
        assert "decisions_over_quota" not in counters
