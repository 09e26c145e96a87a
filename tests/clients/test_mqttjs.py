"""MQTT.js on Node.js, in MQTT 3.1, 3.1.1 and 5.0, against the broker."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from conftest import RunningBroker
from waiting import WAIT_S

SCRIPT = Path(__file__).parent / "mqttjs" / "node.cjs"


def run(
    url: str, node_modules: Path, scenario: str, version: int, topic: str, ca: Path | None = None
) -> None:
    """Runs a scenario of the script; what went wrong is in its output. `ca`: an authority that it trusts."""
    command = ["node", str(SCRIPT), scenario, url, str(version), topic]
    environment = os.environ | {"NODE_PATH": str(node_modules)}
    if ca is not None:
        environment["NODE_EXTRA_CA_CERTS"] = str(ca)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("scenario", ["publish", "large", "retained", "will", "session"])
def test_scenario(broker: RunningBroker, node_modules: Path, scenario: str, version: int, topic: str) -> None:
    """What every version can do."""
    run(f"mqtt://127.0.0.1:{broker.port}", node_modules, scenario, version, topic)


@pytest.mark.parametrize("scenario", ["properties", "takeover"])
def test_scenario_of_5(broker: RunningBroker, node_modules: Path, scenario: str, topic: str) -> None:
    """What only 5.0 can do."""
    run(f"mqtt://127.0.0.1:{broker.port}", node_modules, scenario, 5, topic)
