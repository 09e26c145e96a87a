"""What a broker and its tools write is their user's alone; what others can open is said."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from privileges.serving import Start
from waiting import WAIT_S

from tidemq.client.sync import Client
from tidemq.store.rocksdb import RocksDBStore

TIDEMQ = [sys.executable, "-c", "from tidemq.cli import main; main()"]


def wide(folder: Path) -> dict[str, str]:
    """What others than its owner may open, or that its owner may run."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode != (0o700 if path.is_dir() else 0o600):
            found[str(path)] = oct(mode)
    return found


def test_whatever_is_written_is_the_owner_s_alone(serving: Start, tmp_path: Path) -> None:
    data = tmp_path / "data"
    settings = f'data = "{data}"\n[[streams]]\nname = "all"\nfilters = ["#"]\n'
    broker = serving(settings, umask=0)
    with Client(f"mqtt://127.0.0.1:{broker.port}", client_id="a", session_expiry_s=60) as client:
        client.subscribe("q", qos=1)
        client.publish_many([("s", bytes(100))] * 1000, qos=1)
        client.publish("r", "x", qos=1, retain=True)
    assert broker.stop() == 0
    assert "can be opened by others" not in broker.log
    assert {"lock", "engine", "rocksdb", "streams"} <= {path.name for path in data.rglob("*")}
    assert wide(data) == {}


def test_what_the_tools_write_is_so_too(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with closing(RocksDBStore(data)) as store:
        store.open()
    dump = tmp_path / "dump"
    done = subprocess.run(
        [*TIDEMQ, "store", "dump", "--data", data, dump], umask=0, capture_output=True, timeout=60
    )
    assert (done.returncode, wide(dump)) == (0, {}), done.stderr
    users = tmp_path / "users"
    command = [*TIDEMQ, "passwd", str(users), "ann"]
    done = subprocess.run(command, input=b"secret\n", umask=0, capture_output=True, timeout=WAIT_S)
    assert (done.returncode, wide(users)) == (0, {}), done.stderr


def test_what_others_can_open_is_said_with_the_command_that_mends_it(serving: Start, tmp_path: Path) -> None:
    data, users, token = tmp_path / "data", tmp_path / "users", tmp_path / "token"
    data.mkdir(mode=0o755)
    users.write_text("")
    token.write_text("0123456789abcdef")
    users.chmod(0o644)
    token.chmod(0o640)  # a group is somebody's choice
    settings = (
        f'data = "{data}"\nadmin_token_file = "{token}"\nauthenticator = "password_file"\n'
        f'[authenticator_options]\nfile = "{users}"\n'
    )
    log = serving(settings, admin=True).log
    assert (
        f"WARNING the data directory {data} can be opened by others (mode 0755): chmod -R go= {data}" in log
    )
    assert f"WARNING {users} has secrets, and every user may open it (mode 0644): chmod o= {users}" in log
    assert str(token) not in log


def test_passwords_in_a_configuration_that_all_can_read_and_root_as_the_user_are_said(serving: Start) -> None:
    settings = 'store = "memory"\nauthenticator = "static"\n[authenticator_options.users]\nann = "secret"\n'
    log = serving(settings).log
    assert "0.toml has secrets, and every user may open it" in log
    assert ("WARNING the broker runs as root" in log) == (os.geteuid() == 0)
