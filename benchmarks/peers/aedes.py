"""aedes from npm, on Debian's Node.js: one thread, MQTT 3.1 and 3.1.1, in memory.

Its defaults: whoever connects is let in, and QoS 1 and 2 are kept in memory.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from peers.peer import INSTALLED, Conditions, Peer, install_debian, run_installer

PROGRAM = Path(__file__).parent / "aedes_broker"  # with the versions of all that it needs
FOLDER = INSTALLED / "aedes"


class Aedes(Peer):
    """`aedes_broker/broker.mjs` under node."""

    name = "aedes"

    def install(self) -> None:
        install_debian("node", "nodejs")
        install_debian("npm", "npm")
        lock = PROGRAM / "package-lock.json"
        stamp = FOLDER / "installed-lock.json"
        if not stamp.exists() or stamp.read_bytes() != lock.read_bytes():
            shutil.copytree(PROGRAM, FOLDER, dirs_exist_ok=True)
            run_installer(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], folder=FOLDER)
            shutil.copy(lock, stamp)
        shutil.copy(PROGRAM / "broker.mjs", FOLDER)

    def version(self) -> str:
        package = json.loads((PROGRAM / "package.json").read_text())
        return str(package["dependencies"]["aedes"])

    def command(self, folder: Path, port: int, conditions: Conditions) -> Sequence[str]:
        return ["node", str(FOLDER / "broker.mjs"), str(port)]
