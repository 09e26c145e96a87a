"""`tidemq stream`: the commands against a broker in another process."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import forks
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner
from waiting import WAIT_S

from tidemq.cli.stream import app
from tidemq.client.sync import Client


class Broker:
    """`tidemq serve` with an admin listener."""

    def __init__(self, folder: Path, admin_port: int) -> None:
        options = [
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--admin-port",
            str(admin_port),
            "--data",
            str(folder),
        ]
        self.process = forks.Tidemq(["serve", *options], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = f"mqtt://{self.process.stdout.readline().split()[-1]}"
        self.admin_url = f"http://127.0.0.1:{admin_port}"

    def stream(self, *words: str) -> tuple[int, str, str]:
        """Exit code, output, errors."""
        done = CliRunner().invoke(app, words, env={"TIDEMQ_ADMIN_URL": self.admin_url})
        return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def broker(tmp_path: Path, unused_tcp_port: int) -> Iterator[Broker]:
    broker = Broker(tmp_path / "data", unused_tcp_port)
    yield broker
    broker.process.terminate()
    assert broker.process.wait(WAIT_S) == 0


def test_a_stream_from_its_declaration_to_its_end(broker: Broker, tmp_path: Path) -> None:
    assert broker.stream("create", "plant", "plant/#", "yard/+", "--retention-s", "60") == (0, "", "")
    with Client(broker.url) as client:
        client.publish("plant/1", "20.5", qos=1)
        client.publish("yard/1", b"\xff\x00", qos=1)
        client.publish("other", "x", qos=1)
    code, listed, _ = broker.stream("list")
    assert code == 0
    [line] = [line.split() for line in listed.splitlines() if line.startswith("plant")]
    assert line[:3] == ["plant", "0", "2"]
    assert line[4:] == ["all", "plant/#", "yard/+"]
    code, printed, said = broker.stream("tail", "plant", "--start", "first", "--count", "2")
    assert (code, said) == (0, "")
    first, second = map(json.loads, printed.splitlines())
    assert (first["offset"], first["topic"], first["payload"], first["qos"]) == (0, "plant/1", "20.5", 1)
    assert second["payload"] == "0xff00"
    file = tmp_path / "plant.parquet"
    assert broker.stream("export", "plant", str(file), "--start", "1") == (0, "", "1 messages\n")
    assert pq.read_table(file)["topic"].to_pylist() == ["yard/1"]
    assert broker.stream("delete", "plant") == (0, "", "")
    assert broker.stream("list")[1].count("\n") == 1


def test_the_newest_of_each_topic_is_exported(broker: Broker, tmp_path: Path) -> None:
    assert broker.stream("create", "states", "states/#", "--last") == (0, "", "")
    assert broker.stream("create", "plant", "plant/#") == (0, "", "")
    with Client(broker.url) as client:
        client.publish_many([("states/a", "1"), ("states/b", "1"), ("states/a", "2")], qos=1)
    listed = {line.split()[0]: line.split()[4] for line in broker.stream("list")[1].splitlines()[1:]}
    assert listed == {"states": "last", "plant": "all"}
    for name in ("states.parquet", "states.arrow"):
        assert broker.stream("export", "states", str(tmp_path / name), "--last") == (0, "", "2 messages\n")
    table = pq.read_table(tmp_path / "states.parquet").select(["topic", "payload"])
    assert [tuple(row.values()) for row in table.to_pylist()] == [("states/b", b"1"), ("states/a", b"2")]
    file = str(tmp_path / "x.arrow")
    for words, text in (
        (("states", file, "--last", "--start", "next"), "--last excludes --start and --end"),
        (("states", file, "--last", "--end", "1"), "--last excludes --start and --end"),
        (("plant", file, "--last"), "the stream plant is not one with last = true"),
    ):
        code, _, said = broker.stream("export", *words)
        assert code == 1
        assert text in said


def test_what_cannot_be_done_is_one_line(broker: Broker, tmp_path: Path) -> None:
    for words, text in (
        (("delete", "none"), "there is no stream 'none'"),
        (("tail", "none"), "there is no stream 'none'"),
        (("create", "x", "a/#/b"), "malformed"),
        (("list", "--url", "http://127.0.0.1:1"), "no broker with streams answers there"),
    ):
        code, printed, said = broker.stream(*words)
        assert (code, printed, said.count("\n")) == (1, "", 1), said
        assert said.startswith("tidemq: ")
        assert text in said
    assert broker.stream("create", "x", "a")[0] == 0
    wrong: list[tuple[tuple[str, ...], str]] = [
        (("export", "x", str(tmp_path / "x.csv")), "has to end in .parquet or .arrow"),
        (("export", "x", str(tmp_path / "x.arrow")), "there is no message"),
        (("tail", "x", "--start", "noon"), "not a valid start"),
    ]
    for more, text in wrong:
        code, _, said = broker.stream(*more)
        assert code == 1
        assert text in said
