"""MQTT.js on Node.js, in MQTT 3.1, 3.1.1 and 5.0, against the broker."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCENARIOS = Path(__file__).parent / "mqttjs" / "scenarios.cjs"
WAIT_S = 30


def run(broker, node_modules: Path, scenario: str, version: int, topic: str) -> None:
    """Runs a scenario of the script; its assertions are in its output."""
    command = ["node", str(SCENARIOS), scenario, str(broker.port), str(version), topic]
    environment = {**os.environ, "NODE_PATH": str(node_modules)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("scenario", ["publish", "retained", "will", "session"])
def test_scenario(broker, node_modules, scenario, version, topic):
    """What every version can do."""
    run(broker, node_modules, scenario, version, topic)


@pytest.mark.parametrize("scenario", ["properties", "takeover"])
def test_scenario_of_5(broker, node_modules, scenario, topic):
    """What only 5.0 can do."""
    run(broker, node_modules, scenario, 5, topic)
