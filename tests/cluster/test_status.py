"""`tidemq cluster`, metrics and readiness of real nodes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from cluster.nodes import make_node
from cluster.test_host import Cluster, client
from typer.testing import CliRunner
from waiting import until

from tidemq.broker import Broker
from tidemq.broker.clustering import ClusterFigures, Progress
from tidemq.broker.monitoring.metrics import of_cluster
from tidemq.cli import make_app
from tidemq.cli.cluster import _show as show
from tidemq.cluster.counters import CLUSTER_COUNTERS
from tidemq.cluster.survey import Survey
from tidemq.cluster.transport.settings import TRANSPORT_COUNTERS
from tidemq.testing.ports import free_port


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        yield Cluster(tmp_path, stack)


async def run(broker: Broker, *words: str) -> tuple[int, str]:
    """`tidemq cluster …` for a node."""
    environment = {"TIDEMQ_ADMIN_URL": f"http://127.0.0.1:{broker.admin_port}"}
    done = await asyncio.to_thread(
        CliRunner().invoke, make_app("cluster"), ["cluster", *words], env=environment
    )
    return done.exit_code, done.output


async def status(broker: Broker) -> Any:
    code, output = await run(broker, "status", "--json")
    assert code == 0, output
    return json.loads(output)


async def states(broker: Broker) -> dict[str, str]:
    return {each["name"]: each["state"] for each in (await status(broker))["members"]}


def get(broker: Broker, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{broker.admin_port}{path}") as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


async def test_a_cluster_is_shown_as_it_is_and_a_node_that_goes_is_seen_to_go(cluster: Cluster) -> None:
    one = await cluster.start("one", admin_port=free_port(), cluster_suspect_s=2.0)
    two = await cluster.start("two")

    async def are(wanted: dict[str, str]) -> bool:
        return await states(one) == wanted

    await until(lambda: are({"one": "alive", "two": "alive"}), "both are alive", poll_s=0.1)
    async with client(one, "ann") as ann, client(one, "bob") as bob:
        await ann.subscribe("a/#", qos=1)
        for _ in range(10):
            await bob.publish("a/1", b"x", qos=1)

        async def has_all() -> bool:
            found = await status(one)
            other = next(each for each in found["members"] if not each["is_self"])
            return (
                other["behind_records"] == 0
                and (other["progress"], other["left_s"], other["rows_taken"]) == ("complete", None, None)
                and other["copies"] is not None
                and other["copies"]["connection"] == "connected"
                and other["copies"]["last"] is not None
                and not found["degraded"]
            )

        await until(has_all, "all is copied and applied", poll_s=0.1)
    counters = one.counters()
    assert {*CLUSTER_COUNTERS, *TRANSPORT_COUNTERS} <= set(counters)
    assert counters["cluster_links_connected"] >= 1

    async def says_how_long() -> bool:  # of no node that has just been told of the clients' disconnects
        _, text = await asyncio.to_thread(get, one, "/metrics")
        assert 'tidemq_cluster_members{state="alive"} 2.0' in text
        assert 'tidemq_cluster_member_up{incarnation="' in text
        return text.count("tidemq_cluster_left_seconds{") == 2

    await until(says_how_long, "nothing is under way", poll_s=0.1)
    await two.stop()
    await until(lambda: are({"one": "alive", "two": "dead"}), "it is seen to be dead", poll_s=0.1)
    code, output = await run(one, "status")
    assert code == 0
    assert "degraded: nothing is heard of two" in output

    async def is_named() -> bool:
        code, text = await asyncio.to_thread(get, one, "/ready")
        assert code == 200  # it serves clients
        return "cluster" in json.loads(text).get("alarms", [])

    await until(is_named, "readiness names the alarm", poll_s=0.1)


MEMBER = {
    "name": "two",
    "incarnation": "2" * 16,
    "address": "here",
    "is_self": False,
    "state": "alive",
    "since": "2026-11-27T12:00:00Z",
    "heard_s": 0.1,
    "behind_records": 900,
    "behind_s": 30.0,
    "copies": None,
    "formats": None,
    "progress": "unknown",
    "left_s": None,
    "rows_taken": None,
}


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"progress": "catching_up", "left_s": 12.34}, "900     30.0      12.3"),
        ({"progress": "staying_behind"}, "900     30.0      stays behind"),
        ({"progress": "stalled"}, "900     30.0      no progress"),
        ({}, "900     30.0      - "),
        ({"state": "joining", "rows_taken": 4711}, "joining: two has taken 4711 rows so far"),
    ],
)
def test_what_is_left_is_a_number_or_said_in_words(
    changes: dict[str, Any], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = {"name": "farm", "format": 1, "log_records": 1, "log_bytes": 1, "degraded": [], "troubles": []}
    show({**figures, "members": [{**MEMBER, **changes}]})
    assert shown in capsys.readouterr().out


@pytest.mark.parametrize(
    ("progress", "left_s", "samples"),
    [
        ("complete", None, [0.0]),
        ("catching_up", 7.5, [7.5]),
        ("stalled", None, []),
        ("unknown", None, []),
    ],
)
def test_a_metric_has_no_sample_where_nothing_can_be_said(
    progress: Progress, left_s: float | None, samples: list[float]
) -> None:
    figures = survey_of_one()
    [member] = figures.members
    shown = of_cluster(replace(figures, members=[replace(member, progress=progress, left_s=left_s)]))
    [metric] = [each for each in shown if each.name == "tidemq_cluster_left_seconds"]
    assert [sample.value for sample in metric.samples] == samples


def survey_of_one() -> ClusterFigures:
    """A node that has met nobody."""
    survey = Survey("c")
    survey.look(make_node(0, 1), 0.0, settled=(), joins=False, degraded=[])
    figures = survey.figures(0.0)
    assert figures is not None
    return figures


async def test_why_a_node_was_refused_is_shown(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemq.cluster.host.ALONE_S", 1.0)
    one = await cluster.start("one", admin_port=free_port())
    two = await cluster.start("two", cluster_name="elsewhere")

    async def is_said() -> bool:
        return any("elsewhere" in each["text"] for each in (await status(one))["troubles"])

    await until(is_said, "it says that the other belongs elsewhere", poll_s=0.1)
    assert [each["name"] for each in (await status(one))["members"]] == ["one"]
    assert cluster.hosts["two"].figures() is not None
    assert two.counters()["cluster_links_refused"] + one.counters()["cluster_hellos_refused"] >= 1
    _, output = await run(one, "status")
    assert "trouble: " in output
