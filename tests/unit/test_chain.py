"""Several authenticators in a chain: who is asked, and whose answer counts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from unit.auth_kit import HttpServer, answer, broker_with, enters, request

from tidemq.broker.authenticators.chain import Chain, make_chain
from tidemq.broker.authenticators.password_file import change_password_file
from tidemq.broker.providers import UNKNOWN, Verdict, find_provider
from tidemq.config import Config
from tidemq.errors import ConfigError, UsageError


class Member:
    """Answers with a verdict, or raises."""

    def __init__(self, verdict: Verdict | Exception) -> None:
        self.verdict, self.asked = verdict, 0
        self.closed = False
        self.counts = {"asked": 0}

    def authenticate(self, _: Any) -> Verdict:
        self.asked += 1
        self.counts["asked"] += 1
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict

    async def close(self) -> None:
        self.closed = True


class Enhanced(Member):
    """Has an authentication method."""

    def __init__(self, method: str, verdict: Verdict) -> None:
        super().__init__(verdict)
        self.method = method

    async def converse(self, request: Any, _: Any) -> Verdict:
        return self.authenticate(None) if request.auth_method == self.method else Verdict(0x8C)


OTHER_UNKNOWN = Verdict(0x88, unknown=True)


@pytest.mark.parametrize(
    ("verdicts", "result", "asked"),
    [
        ([Verdict(username="a"), Verdict(0x87)], Verdict(username="a"), [1, 0]),
        ([UNKNOWN, Verdict(username="b")], Verdict(username="b"), [1, 1]),
        ([Verdict(0x86), Verdict()], Verdict(0x86), [1, 0]),
        ([UNKNOWN, OTHER_UNKNOWN], OTHER_UNKNOWN, [1, 1]),
        ([UNKNOWN, Verdict(0x87), Verdict()], Verdict(0x87), [1, 1, 0]),
    ],
)
async def test_the_first_that_knows_the_client_decides(
    verdicts: list[Verdict], result: Verdict, asked: list[int]
) -> None:
    members = [Member(verdict) for verdict in verdicts]
    chain = Chain(members, 1)
    assert await chain.authenticate(request()) == result
    assert [member.asked for member in members] == asked
    assert chain.counts["asked"] == sum(asked)
    await chain.close()
    assert all(member.closed for member in members)


def test_a_verdict_that_accepts_knows_the_client() -> None:
    with pytest.raises(UsageError, match="0x80 or above"):
        Verdict(unknown=True)


async def test_an_error_refuses_and_asks_nobody_else() -> None:
    last = Member(Verdict())
    with pytest.raises(RuntimeError, match="no database"):
        await Chain([Member(RuntimeError("no database")), last], 1).authenticate(request())
    assert not last.asked


async def test_a_method_goes_to_the_first_that_has_it() -> None:
    members = [
        Member(Verdict()),
        Enhanced("A", Verdict(0x87)),
        Enhanced("B", UNKNOWN),
        Enhanced("B", Verdict(username="b")),
    ]
    chain = Chain(members, 1)

    async def converse(method: str) -> Verdict:
        return await chain.converse(request(auth_method=method), None)  # type: ignore[arg-type]

    assert await converse("A") == Verdict(0x87)
    assert await converse("B") == Verdict(username="b")
    assert await converse("C") == Verdict(0x8C)
    assert not members[0].asked


async def test_a_file_then_a_webhook_then_anybody(tmp_path: Path) -> None:
    file = tmp_path / "passwd"
    change_password_file(file, "ann", b"one")
    async with HttpServer(answer({"result": "ignore"})) as server:
        members: list[dict[str, Any]] = [
            {"authenticator": "password_file", "file": str(file)},
            {"authenticator": "webhook", "url": server.url, "deny_s": 0, "failures_max": 1},
        ]
        async with broker_with("chain", {"of": members}) as broker:
            assert await enters(broker, "ann", "one") == 0
            assert await enters(broker, "ann", "two") == 0x86
            assert not server.bodies
            assert await enters(broker, "bob", "two") == 0x86
            server.handler = answer({"result": "allow"})
            assert await enters(broker, "bob", "two") == 0
            assert broker.counters()["webhook_calls"] == 2
        server.handler = answer(None, 500)
        members[1]["on_failure"] = "ignore"
        members.append({"authenticator": "anonymous"})
        async with broker_with("chain", {"of": members}) as broker:
            for _ in range(2):  # the circuit is open the second time
                assert await enters(broker, "bob", "x") == 0
            assert await enters(broker, "ann", "x") == 0x86


async def test_a_real_mistake_in_a_chain_is_an_error_of_that_client_alone() -> None:
    members = [{"authenticator": "static", "users": {"ann": "pw"}}]
    async with broker_with("chain", {"of": members}) as broker:
        broker._decisions._authenticators["default"]._members.append(Member(RuntimeError("boom")))  # type: ignore[union-attr]
        assert await enters(broker, "bob", "pw") == 0x83
        assert await enters(broker, "ann", "pw") == 0
        assert broker.counters()["decisions_failed"] == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "options of chain.of: it is missing"),
        ({"of": []}, "options of chain.of"),
        ({"of": [{}]}, "options of chain.of.0.authenticator: it is missing"),
        ({"of": [{"authenticator": "statik"}]}, "did you mean static"),
        ({"of": [{"authenticator": "static"}]}, "options of static.users: it is missing"),
        (
            {
                "of": [
                    {"authenticator": "anonymous", "remote": True},
                    {"authenticator": "static", "users": {}},
                ]
            },
            "it is never asked",
        ),
        ({"of": [{"authenticator": "static", "users": {}}] * 17}, "options of chain.of"),
        ({"of": [], "more": 1}, "options of chain"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_chain(Config(), options)
    assert said in str(caught.value)


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tidemq.broker.authenticators.jwt", raising=False)
    monkeypatch.setitem(sys.modules, "jwt", None)
    with pytest.raises(
        ConfigError, match=r"jwt needs the package jwt; accepted: pip install 'tidemq\[auth\]'"
    ):
        find_provider("authenticator", "jwt", {}, Config())


async def test_a_provider_that_does_not_close_holds_up_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Member):
        async def close(self) -> None:
            raise RuntimeError("no")

    first, last = Broken(UNKNOWN), Member(UNKNOWN)
    await Chain([first, last], 1).close()
    assert last.closed
    assert "Broken did not close" in caplog.text


async def test_a_reload_reaches_all_members_and_says_what_is_wrong(tmp_path: Path) -> None:
    """Who was taken out of a file is out, and a wrong file is not called read."""
    first, second = tmp_path / "first", tmp_path / "second"
    change_password_file(first, "ann", b"one")
    change_password_file(second, "bob", b"two")
    of = [{"authenticator": "password_file", "file": str(file)} for file in (first, second)]
    async with broker_with("chain", {"of": of}, failed_login_delay_s=0) as broker:
        assert await enters(broker, "ann", b"one") == await enters(broker, "bob", b"two") == 0
        first.write_text("nonsense\n")
        change_password_file(second, "bob", None)
        said = (await broker.reload())["authenticator chain"]
        assert f"{first}: line 1" in said
        assert await enters(broker, "ann", b"one") == 0
        assert await enters(broker, "bob", b"two") == 0x86
