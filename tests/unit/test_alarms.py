"""Alarms: when they begin and end, and what each is raised for."""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import trustme

from tidemq.broker.durability.keeper import Keeper
from tidemq.broker.monitoring import conditions
from tidemq.broker.monitoring.alarms import ENDED_MAX, HOLD_S, Alarm, Alarms
from tidemq.broker.monitoring.certificates import certificate_ends
from tidemq.broker.monitoring.pulse import KEEPER_S, TURNS_S, Pulse


def test_an_alarm_begins_once_and_ends_when_nothing_is_seen_of_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tidemq.alarms")
    published: list[Alarm] = []
    alarms = Alarms(published.append)
    alarms.look({"disk": "1 GB is free"}, 100.0)
    alarms.look({"disk": "half a GB is free"}, 110.0)
    assert [(each.name, each.text) for each in alarms.active] == [("disk", "half a GB is free")]
    assert alarms.active[0].began == published[0].began
    alarms.look({}, 110.0 + HOLD_S - 0.1)
    assert len(alarms.active) == 1
    alarms.look({}, 110.0 + HOLD_S)
    assert not alarms.active
    assert [(each.name, each.ended is None) for each in published] == [("disk", True), ("disk", False)]
    assert alarms.ended == [published[1]]
    assert caplog.messages[0] == "alarm disk: 1 GB is free"
    assert caplog.messages[1].startswith("alarm disk is over; it began at ")
    assert len(caplog.messages) == 2


def test_so_many_alarms_that_have_ended_are_remembered_the_last_first() -> None:
    alarms = Alarms(lambda _: None)
    for number in range(ENDED_MAX + 5):
        alarms.look({str(number): "text"}, number * HOLD_S)
    assert len(alarms.ended) == ENDED_MAX
    assert alarms.ended[0].name == str(ENDED_MAX + 3)  # the last goes on
    assert alarms.ended[0].describe()["ended"] is not None


def test_counters_that_grow_too_fast_are_told_and_those_that_mqtt_demands_are_not() -> None:
    counts = {"dropped_slow_consumer": 1000, "dropped_expired": 0, "events_dropped": 7, "clock_steps": 1}
    drops = conditions.messages_are_dropped(lambda: counts, 10.0)
    events, clock = conditions.events_are_lost(lambda: counts), conditions.clock_jumps(lambda: counts)
    assert not (drops(1.0))
    assert not (events(1.0))
    assert not (clock(1.0))
    counts["dropped_slow_consumer"] += 20
    counts["dropped_expired"] += 1000
    assert not drops(2.0)
    counts["dropped_slow_consumer"] += 21
    counts["events_dropped"] += 3
    counts["clock_steps"] += 1
    assert drops(2.0)["drops"].startswith("10 messages a second are dropped")
    assert events(1.0)["events"].startswith("3 events were dropped")
    assert "clock" in clock(1.0)
    assert not (drops(1.0))
    assert not (events(1.0))
    assert not (clock(1.0))


def test_a_condition_that_fails_keeps_no_other_from_being_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: float) -> dict[str, str]:
        raise RuntimeError("a provider's fault")

    found = conditions.looked_at([fail, lambda _: {"disk": "full"}, fail], 1.0, conditions.Faults())
    assert found == {"disk": "full"}
    assert len([each for each in caplog.records if "cannot be looked at" in each.message]) == 1


def test_a_disk_with_less_than_a_tenth_free_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look = conditions.disk_is_full(tmp_path)
    assert conditions.disk_bytes(tmp_path)[1] > 0
    of_disk = {"f_frsize": 4096, "f_blocks": 1_000_000}
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=100_000, **of_disk))
    assert not look(1.0)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=99_999, **of_disk))
    assert look(1.0) == {"disk": f"0.4 GB of 4.1 GB are free at {tmp_path}"}


def test_memory_and_a_store_that_refuses_are_told() -> None:
    assert not conditions.memory_is_full(lambda: (2, 1, False))(1.0)
    found = conditions.memory_is_full(lambda: (3_000_000, 2_000_000, True))(1.0)
    assert found == {"memory": "3 MB are used, memory_bytes_max is 2 MB"}
    assert not conditions.store_refuses(lambda: "")(1.0)
    assert conditions.store_refuses(lambda: "nothing can be stored")(1.0) == {
        "store": "nothing can be stored"
    }


def test_a_certificate_that_ends_soon_is_told_by_its_listener(tmp_path: Path) -> None:
    authority = trustme.CA()
    files = {}
    for name, days in (("late", 15), ("soon", 13), ("over", -1)):
        path = tmp_path / f"{name}.pem"
        cert = authority.issue_cert("localhost", not_after=datetime.now(UTC) + timedelta(days=days))
        cert.cert_chain_pems[0].write_to_path(path)
        files[name] = str(path)
    (tmp_path / "none.pem").write_text("this is none")
    files |= {"none": str(tmp_path / "none.pem"), "gone": str(tmp_path / "gone.pem")}
    ends = certificate_ends(files)
    assert set(ends) == {"late", "soon", "over"}
    found = conditions.certificates_end(lambda: ends)(1.0)
    assert set(found) == {"certificate-soon", "certificate-over"}
    assert found["certificate-soon"].startswith("the certificate of soon ends in 13.0 days, at 20")
    assert found["certificate-over"].startswith("the certificate of over has ended, at 20")


def test_a_reactor_and_a_keeper_that_stand_still_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("tidemq.broker.monitoring.pulse.time.monotonic", lambda: now)
    turns, keeper = [5, 5], SimpleNamespace(times=SimpleNamespace(seen_s=1000.0), died=False)
    pulse = Pulse(lambda: turns, cast(Keeper, keeper))
    assert not pulse.look()
    said = []
    for _ in range(int(TURNS_S) + 1):
        now += 1
        turns = [turns[0] + 1, 5]
        said = pulse.look()
    assert said == [f"reactor 1 has not turned for {TURNS_S + 1:.0f} s"]
    for _ in range(int(KEEPER_S) - 10):
        now += 1
        turns = [turns[0] + 1, turns[1] + 1]
        said = pulse.look()
    assert said == [f"the keeper, which stores messages, has not gone on for {KEEPER_S + 1:.0f} s"]
    now += 3600  # of which the process had nothing
    assert not pulse.look()
    now += 1
    assert not pulse.look()
    keeper.times.seen_s = now
    assert not pulse.look()
    keeper.died = True
    assert pulse.look() == ["the keeper has died"]
