"""Real clients for the tests: what is missing is installed, or the tests fail and say what it is."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import installing

HERE = Path(__file__).parent
CACHE = HERE.parent.parent / "build" / "node"  # of MQTT.js and what it needs
INSTALL_S = 300

_numbers = itertools.count(1)


def install_mqttjs() -> None:
    lock = (HERE / "mqttjs" / "package-lock.json").read_bytes()
    stamp = CACHE / "installed-lock.json"
    if stamp.exists() and stamp.read_bytes() == lock:
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copy(HERE / "mqttjs" / name, CACHE)
    command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    done = subprocess.run(command, cwd=CACHE, capture_output=True, text=True, timeout=INSTALL_S)
    if done.returncode:
        pytest.fail(f"npm could not install MQTT.js:\n{done.stderr[-2000:]}")
    stamp.write_bytes(lock)


@pytest.fixture(scope="session")
def mosquitto_clients(install: Callable[[str, str], None]) -> None:
    """mosquitto_pub and mosquitto_sub can be run."""
    install("mosquitto_pub", "mosquitto-clients")


@pytest.fixture(scope="session")
def node_modules(install: Callable[[str, str], None]) -> Path:
    """The folder `node_modules` with MQTT.js as the lock file pins it."""
    install("node", "nodejs")
    install("npm", "npm")
    with installing():  # several files of tests need it
        install_mqttjs()
    return CACHE / "node_modules"


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"clients/{os.getpid()}/{next(_numbers)}"
