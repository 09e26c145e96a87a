"""From a command's arguments to a workload; every name of the suite can be run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidemq.bench import catalogue
from tidemq.bench.catalogue import SUITE, Terms, suite_plans
from tidemq.bench.workload import MESSAGES_MAX, check_workload
from tidemq.errors import UsageError

TERMS = Terms()


def test_without_numbers_a_run_takes_its_time() -> None:
    workload = catalogue.fan(TERMS).workload
    assert (workload.seconds, workload.messages) == (catalogue.SECONDS, MESSAGES_MAX)


def test_with_a_number_it_takes_as_long_as_it_takes() -> None:
    workload = catalogue.fan(replace(TERMS, messages=7)).workload
    assert (workload.seconds, workload.messages) == (0, 7)


def test_with_both_what_comes_first_ends_it() -> None:
    workload = catalogue.fan(replace(TERMS, messages=7, seconds=2)).workload
    assert (workload.seconds, workload.messages) == (2, 7)


def test_large_messages_are_fewer_on_their_way() -> None:
    assert catalogue.fan(TERMS).workload.outstanding_max == 20_000
    assert catalogue.fan(replace(TERMS, size=1 << 20)).workload.outstanding_max == 32


def test_two_runs_do_not_meet() -> None:
    assert Terms().prefix != Terms().prefix


def test_labels_tell_workloads_apart_and_name_no_run() -> None:
    labels = [plan.label for plan in suite_plans("", Terms(seconds=2))]
    assert len(set(labels)) == len(SUITE)
    assert labels == [plan.label for plan in suite_plans("", Terms(seconds=2))]
    assert labels[0] == "fan 1:1, QoS 0, 64 bytes"
    assert "ping by 10 pairs, QoS 0, 64 bytes, 1,000/s" in labels


@pytest.mark.parametrize("mqtt", ["3.1.1", "5.0"])
@pytest.mark.parametrize("name", SUITE)
def test_every_workload_of_the_suite_can_be_run(name: str, mqtt: str) -> None:
    (plan,) = suite_plans(name, Terms(mqtt=mqtt, seconds=0.5))
    check_workload(plan.workload)
    assert plan.mqtt == mqtt
    assert {"qos", "size", "seconds"} <= plan.arguments.keys()


def test_the_order_is_the_one_that_was_given() -> None:
    assert [plan.workload.name for plan in suite_plans("ping, mesh", TERMS)] == ["ping", "mesh"]


def test_many_takes_no_number() -> None:
    with pytest.raises(UsageError, match="many runs for seconds"):
        catalogue.many(replace(TERMS, messages=3))
