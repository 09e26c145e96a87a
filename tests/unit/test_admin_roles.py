"""What each token of the admin listener may do, and what is kept of what was done."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from conformance.kit import connected, unique
from waiting import WAIT_S

from tidemq import Broker, Config
from tidemq.errors import ConfigError

JSON = {"Content-Type": "application/json"}


def token_of(name: str) -> str:
    return f"a-token-of-{name}-and-nobody-else"


def entry(name: str, role: str) -> str:
    digest = hashlib.sha256(token_of(name).encode()).hexdigest()
    return f'[[tokens]]\nname = "{name}"\nrole = "{role}"\ntoken_sha256 = "{digest}"\n'


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.toml"
    path.write_text(
        "".join(entry(role, role) for role in ("read", "operate", "admin-2")).replace(
            'role = "admin-2"', 'role = "admin"'
        )
    )
    return path


@pytest.fixture
def config(tmp_path: Path, tokens: Path, unused_tcp_port: int) -> Config:
    return Config(
        host="127.0.0.1",
        port=0,
        reactors=1,
        sys_interval_s=0,
        data=tmp_path / "data",
        admin_port=unused_tcp_port,
        admin_tokens_file=str(tokens),
        audit_file=str(tmp_path / "audit.log"),
        failed_logins_max=5,
    )


def ask(broker: Broker, who: str, method: str, path: str, body: object = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", broker.admin_port, timeout=WAIT_S)
    head = JSON | {"Authorization": f"Bearer {token_of(who)}"}
    connection.request(method, path, None if body is None else json.dumps(body), head)
    answer = connection.getresponse()
    text = answer.read()
    return answer.status, json.loads(text) if text.startswith(b"{") else text


def mode_of(path: str) -> int:
    return stat.S_IMODE(Path(path).stat().st_mode)


def write(path: Path, text: str) -> None:
    path.write_text(text)


def lines_of(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


async def test_a_role_may_do_what_it_is_for(config: Config) -> None:
    def act() -> None:
        client = connected(broker, client_id=unique("c"))
        path = f"/api/v1/clients/{client.client_id}"
        assert [ask(broker, who, "GET", path)[0] for who in ("read", "operate", "admin-2")] == [200] * 3
        status, body = ask(broker, "read", "DELETE", path)
        assert (status, body["title"]) == (403, "Forbidden")
        assert body["detail"] == "read has the role read; this needs operate"
        client.ping()  # it is still there
        assert ask(broker, "operate", "DELETE", path)[0] == 202
        assert [ask(broker, who, "POST", "/reload", {})[0] for who in ("read", "operate")] == [403, 403]
        assert ask(broker, "admin-2", "POST", "/reload", {})[0] == 200
        stream = {"filters": ["a/#"]}
        assert ask(broker, "read", "PUT", "/streams/s", stream)[0] == 403
        assert ask(broker, "operate", "PUT", "/streams/s", stream)[0] in (200, 201)
        assert ask(broker, "operate", "DELETE", "/streams/s")[0] == 403
        assert ask(broker, "admin-2", "DELETE", "/streams/s")[0] in (200, 202, 204)
        assert broker.counters()["admin_roles_refused"] == 5

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


async def test_every_endpoint_that_changes_something_needs_more_than_read(config: Config) -> None:
    def act() -> None:
        document = ask(broker, "read", "GET", "/openapi.json")[1]
        changing = [
            (method.upper(), path.replace("{client_id}", "x").replace("{name}", "x"))
            for path, methods in document["paths"].items()
            for method in methods
            if method != "get"
        ]
        assert len(changing) >= 4
        assert {ask(broker, "read", method, path)[0] for method, path in changing} == {403}

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


async def test_tokens_change_while_it_runs_and_a_wrong_file_changes_nothing(
    config: Config, tokens: Path
) -> None:
    async with Broker(config) as broker:
        assert (await asyncio.to_thread(ask, broker, "late", "GET", "/counters"))[0] == 401
        write(tokens, entry("late", "read"))
        assert (await broker.reload())["admin"] == ""
        assert (await asyncio.to_thread(ask, broker, "late", "GET", "/counters"))[0] == 200
        assert (await asyncio.to_thread(ask, broker, "read", "GET", "/counters"))[0] == 401
        write(tokens, entry("late", "king"))
        assert "read|operate|admin" in (await broker.reload())["admin"]
        assert (await asyncio.to_thread(ask, broker, "late", "GET", "/counters"))[0] == 200


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "tokens"),
        ("tokens = 1", "tokens"),
        ("[[tokens]]\nname = 'a'\n", "tokens.0.role"),
        (entry("a", "read") + entry("a", "admin"), "stands for somebody else"),
        (entry("admin", "read"), "stands for somebody else"),
        (entry("a", "read") + "colour = 1\n", "colour"),
        (entry("a b", "read"), "tokens.0.name"),
        ("[[tokens]]\nname = 'a'\nrole = 'read'\ntoken_sha256 = 'my secret token'\n", "token_sha256"),
        ("\x00", "tokens.toml"),
    ],
)
async def test_a_wrong_file_is_refused_at_the_start(
    config: Config, tokens: Path, text: str, said: str
) -> None:
    write(tokens, text)
    with pytest.raises(ConfigError) as caught:
        async with Broker(config):
            pass
    assert said in str(caught.value)
    assert "my secret token" not in str(caught.value)


async def test_wrong_tokens_are_counted_and_slowed_and_a_right_one_is_answered(config: Config) -> None:
    def act() -> None:
        wrong = [ask(broker, f"guess-{number}", "GET", "/counters")[0] for number in range(20)]
        assert set(wrong) == {401, 429}
        assert wrong == sorted(wrong)
        assert ask(broker, "guess", "GET", "/nowhere")[0] == 429
        status, counters = ask(broker, "read", "GET", "/counters")
        assert status == 200
        assert counters["admin_tokens_wrong"] == 21

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


async def test_the_audit_log_has_who_what_and_from_where(
    config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tidemq.audit")

    def act() -> None:
        ask(broker, "read", "GET", "/counters")
        ask(broker, "operate", "DELETE", "/api/v1/clients/gone?x=1")
        ask(broker, "read", "DELETE", "/api/v1/sessions/gone")
        ask(broker, "nobody", "POST", "/reload", {})
        Path(config.audit_file).rename(config.audit_file + ".1")
        ask(broker, "admin-2", "POST", "/reload", {})

    async with Broker(config) as broker:
        await asyncio.to_thread(act)
        assert mode_of(config.audit_file) == 0o600
    last = lines_of(config.audit_file)
    lines = lines_of(config.audit_file + ".1") + last
    assert len(last) == 1
    assert [(each["who"], each["method"], each["status"]) for each in lines] == [
        ("operate", "DELETE", 400),
        ("read", "DELETE", 403),
        (None, "POST", 401),
        ("admin-2", "POST", 200),
    ]
    assert (lines[0]["path"], lines[0]["query"]) == ("/api/v1/clients/gone", "x=1")
    assert lines[2]["path"] == ""  # of a stranger
    assert {each["from"] for each in lines} == {"127.0.0.1"}
    assert len([each for each in caplog.records if each.name == "tidemq.audit"]) == 4
    for who in ("read", "operate", "nobody", "admin-2"):
        assert token_of(who) not in json.dumps(lines) + caplog.text


async def test_a_disk_that_takes_no_line_is_counted(config: Config) -> None:
    full = Config.model_validate(config.model_dump() | {"audit_file": "/dev/full"})
    async with Broker(full) as broker:
        assert (await asyncio.to_thread(ask, broker, "admin-2", "POST", "/reload", {}))[0] == 200
        assert broker.counters()["audit_lines_failed"] == 1


async def test_strangers_do_not_fill_the_audit_log(config: Config) -> None:
    few = Config.model_validate(config.model_dump() | {"fault_lines_max": 3})

    def act() -> None:
        for _ in range(100):
            ask(broker, "nobody", "POST", "/reload", {})

    async with Broker(few) as broker:
        await asyncio.to_thread(act)
    assert 3 <= len(lines_of(few.audit_file)) <= 30
