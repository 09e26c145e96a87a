"""Nodes as processes that are killed, cut off, split and restarted, and their clients: a few seeds.

`make cluster-test` and `make cluster-crash` play more; `TIDEMQ_TEST_CLUSTER_SEED` moves those that are played
here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster.processes.gaps import GAPS
from cluster.processes.run import Choice, ClusterRun
from conftest import ROOT
from crash.history import NEVER
from crash.run import conclude

pytestmark = pytest.mark.timeout(600)

SEED = int(os.environ.get("TIDEMQ_TEST_CLUSTER_SEED", "1"))


def test_what_is_promised_holds_while_nodes_end_and_come_back(
    tmp_path: Path, install: Callable[[str, str], None]
) -> None:
    install("mosquitto_sub", "mosquitto-clients")
    # a node that is slow is not dead, and tests run beside others
    choice = Choice(seed=SEED, nodes=3, faults=("kill", "nats", "kill"), suspect_s=10.0)
    run = ClusterRun(choice, tmp_path)
    outcome = conclude(run, tmp_path)
    assert not outcome.kinds, outcome.report
    assert outcome.starts == 6  # the last one for the end of the run
    assert outcome.deliveries > 100
    guests = {host.name for host in run.hosts}
    assert guests == {"paho", "mosquitto", "ours"}
    assert guests <= {each.subscriber for each in run.history.deliveries}
    assert guests <= {each.publisher for each in run.history.messages if each.acknowledged_at < NEVER}


def test_what_is_promised_holds_in_a_split_and_where_power_is_lost(
    tmp_path: Path, install: Callable[[str, str], None]
) -> None:
    install("mosquitto_sub", "mosquitto-clients")
    choice = Choice(seed=SEED, nodes=3, faults=("split", "power"), suspect_s=8.0)
    run = ClusterRun(choice, tmp_path)
    outcome = conclude(run, tmp_path)
    assert not outcome.kinds, outcome.report
    assert outcome.starts == 5
    (split,) = run.history.splits
    assert split.met_at < NEVER
    on_both = [each for each in run.history.messages if split.at < each.sent_at < split.ended_at]
    assert len({each.publisher for each in on_both if each.acknowledged_at < NEVER}) > 1


def test_what_is_excused_is_documented() -> None:
    """A sentence that has gone: what it said has been mended, and its gap in `gaps.py` goes too."""
    missing = (ROOT / "docs/cluster.md").read_text().partition("## What is missing")[2]
    assert missing
    for gap in GAPS:
        assert f"- {gap.sentence}" in missing, f"docs/cluster.md does not name it: {gap}"
