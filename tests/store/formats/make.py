"""Makes an archive of the store that a killed broker leaves, for tests/store/test_store_formats.py.

    make.py ENGINE ARCHIVE COMMAND...

COMMAND is the command `tidemq` of the version whose format it is: a program, or Python with its arguments.
The archives are made once for each format, by the release that has it, and never again.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from conformance.kit import Client, connected
from conformance.packets import PUBLISH, PUBREC, Will, publish

FOR_EVER = {"clean": False, "session_expiry": 0xFFFFFFFF}
SETTINGS = """
[[streams]]
name = "s"
filters = ["s/#"]
retention_s = 0
retention_bytes = 0
"""


class Broker(NamedTuple):
    """A broker, as far as a client must know it."""

    port: int


def start(engine: str, folder: Path, command: list[str]) -> tuple[subprocess.Popen[str], Broker]:
    """A broker that keeps its store in the folder."""
    configuration = folder / "tidemq.toml"
    configuration.write_text(SETTINGS)
    flags = ["--config", str(configuration), "--host", "127.0.0.1", "--port", "0", "--reactors", "1"]
    flags += ["--store", engine, "--data", str(folder / "data"), "--durability", "sync"]
    process = subprocess.Popen([*command, "serve", *flags], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    found = re.search(r"ready on 127\.0\.0\.1:(\d+)", process.stdout.readline())
    assert found, "the broker printed no port"
    return process, Broker(int(found[1]))


def fill(broker: Broker) -> list[Client]:
    """One of everything that a store keeps; gives the clients that are to stay until the broker is killed."""
    reader = connected(broker, client_id="reader", **FOR_EVER)
    reader.subscribe("a/#", qos=2, subscription_id=7)
    reader.disconnect()
    member = connected(broker, client_id="member", **FOR_EVER)
    member.subscribe("$share/group/c/#", qos=1)
    member.disconnect()
    holder = connected(broker, client_id="holder", **FOR_EVER)
    holder.subscribe("b", qos=1)
    will = Will("w", b"will", 1, properties=[("will_delay", 4_000_000_000)])
    sender = connected(broker, client_id="sender", will=will, **FOR_EVER)
    sender.publish("a/1", b"one", qos=1)
    sender.publish("a/2", b"two", qos=2, message_expiry=4_000_000_000)
    sender.publish("c/1", b"shared", qos=1)
    sender.publish("r/1", b"retained", qos=1, retain=True)
    for number in range(3):
        sender.publish(f"s/{number}", b"kept %d" % number, qos=1)
    sender.publish("b", b"in flight", qos=1)
    holder.expect(PUBLISH, topic="b", payload=b"in flight")  # and no PUBACK
    sender.send(publish("a/3", b"once", 2, 77))
    sender.expect(PUBREC, packet_id=77)  # and no PUBREL
    return [holder, sender]


def main() -> None:
    engine, archive, *command = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        process, broker = start(engine, folder, command)
        clients = fill(broker)
        process.kill()
        process.wait()
        for each in clients:
            each.socket.close()
        (folder / "data/lock").write_text("")
        for path in (folder / "data").rglob("LOG*"):  # RocksDB's diary
            path.unlink()
        with tarfile.open(archive, "w:xz") as file:
            file.add(folder / "data", "data", filter=anonymous)
    print(f"{archive}: {os.path.getsize(archive)} bytes")


def anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Nothing of who made it."""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


if __name__ == "__main__":
    main()
