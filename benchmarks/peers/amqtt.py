"""amqtt from PyPI, in a virtual environment of its own: asyncio, one thread, MQTT 3.1.1.

Anonymous, in memory. Its default settings log every packet and publish `$SYS`; both are left out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from peers.peer import INSTALLED, Conditions, Peer, run_installer, said_by

REQUIREMENT = "amqtt==0.12.1"
FOLDER = INSTALLED / "amqtt"
SETTINGS = """\
listeners:
  default:
    type: tcp
    bind: 127.0.0.1:{port}
plugins:
  amqtt.plugins.authentication.AnonymousAuthPlugin:
    allow_anonymous: true
"""


class Amqtt(Peer):
    """The command `amqtt`."""

    name = "amqtt"

    def install(self) -> None:
        python = str(FOLDER / "bin" / "python")
        if said_by(python, "-c", "import amqtt; print('amqtt==' + amqtt.__version__)") == REQUIREMENT:
            return
        run_installer([sys.executable, "-m", "venv", "--clear", str(FOLDER)])
        run_installer([python, "-m", "pip", "install", "--quiet", REQUIREMENT])

    def version(self) -> str:
        return re.sub(".*==", "", REQUIREMENT)

    def command(self, folder: Path, port: int, conditions: Conditions) -> Sequence[str]:
        settings = folder / "amqtt.yaml"
        settings.write_text(SETTINGS.format(port=port))
        return [str(FOLDER / "bin" / "amqtt"), "-c", str(settings)]
