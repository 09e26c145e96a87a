"""A broker that root starts becomes somebody else: asked of the kernel, with a port that only root binds."""

from __future__ import annotations

import grp
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from privileges.serving import Serving, Start
from waiting import WAIT_S

from tidemq.broker.authenticators.password_file import change_password_file
from tidemq.broker.host.privileges import find_identity
from tidemq.client.sync import Client
from tidemq.errors import ConfigError

NOBODY = 65534
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


@pytest.fixture
def low_port() -> int:
    """A port that only root binds."""
    for port in range(1023, 600, -1):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    pytest.fail("no port below 1024 is free")


def threads(broker: Serving) -> list[dict[str, list[str]]]:
    """What the kernel says of each thread."""
    found = []
    for status in Path(f"/proc/{broker.process.pid}/task").glob("*/status"):
        lines = (line.partition(":") for line in status.read_text().splitlines())
        found.append({name: words.split() for name, _, words in lines})
    return found


def check_given_up(broker: Serving, gid: int) -> None:
    """No thread has anything of root's."""
    found = threads(broker)
    assert "rocksdb:low" in {each["Name"][0] for each in found}  # not Python's threads alone
    for each in found:
        assert each["Uid"] == [str(NOBODY)] * 4
        assert each["Gid"] == [str(gid)] * 4
        assert "0" not in each["Groups"]
        for capabilities in ("CapPrm", "CapEff", "CapAmb"):
            assert int(each[capabilities][0], 16) == 0


def test_root_becomes_the_user_for_good_and_serves(
    serving: Start, low_port: int, shared_folder: Path
) -> None:
    secret, data = shared_folder / "passwd", shared_folder / "data"
    change_password_file(secret, "ann", b"right")  # root's, mode 0600: read before the change
    settings = (
        f'user = "nobody"\ngroup = "daemon"\ndata = "{data}"\nauthenticator = "password_file"\n'
        f'[[streams]]\nname = "all"\nfilters = ["#"]\n[authenticator_options]\nfile = "{secret}"\n'
    )
    first = serving(settings, port=low_port, admin=True)
    assert first.port == low_port
    check_given_up(first, grp.getgrnam("daemon").gr_gid)
    with Client(f"mqtt://127.0.0.1:{low_port}", username="ann", password=b"right") as client:
        client.publish("kept", "x", qos=1, retain=True)
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    assert {path.stat().st_uid for path in (data, *data.rglob("*"))} == {NOBODY}
    assert f"{secret} cannot be read by user {NOBODY} any more" in first.log
    assert first.stop() == 0, first.log
    second = serving(settings, port=low_port, admin=True)  # with what the first has stored
    with Client(f"mqtt://127.0.0.1:{low_port}", username="ann", password=b"right") as client:
        assert next(iter(client.subscribe("kept"))).payload == b"x"
    assert second.ask("/streams/all/messages?start=0&end=1")[0] == 200
    assert second.stop() == 0, second.log
    for broker in (first, second):
        assert "ERROR" not in broker.log
        assert "Traceback" not in broker.log


@pytest.mark.parametrize(
    ("user", "group", "said"),
    [
        ("no-such-user", "", "configuration: user: there is no user 'no-such-user'"),
        ("nobody", "no-such", "configuration: group: there is no group 'no-such'"),
        ("root", "", "configuration: user: 'root' is root; accepted: a user without its rights"),
        ("", "daemon", "configuration: group: it is given without a user"),
    ],
)
def test_whom_it_cannot_become_is_refused(user: str, group: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        find_identity(user, group)


def test_a_unix_socket_that_root_has_made_stays_where_the_user_may_not_remove_it(
    serving: Start, shared_folder: Path
) -> None:
    path = shared_folder / "mqtt.sock"  # the folder is root's
    settings = f'user = "nobody"\nstore = "memory"\n[[listeners]]\nmode = "0666"\npath = "{path}"\n'
    for _ in range(2):  # the second replaces what the first has left
        broker = serving(settings)
        with Client(f"unix://{path}") as client:
            client.publish("a", b"x", qos=1)
        assert broker.stop() == 0, broker.log
        assert f"{path} cannot be removed" in broker.log
        assert "Traceback" not in broker.log


def test_a_directory_of_somebody_else_s_is_refused_with_the_command_that_mends_it(
    serving: Start, shared_folder: Path
) -> None:
    data = shared_folder / "data"
    data.mkdir()
    broker = serving(f'user = "nobody"\ndata = "{data}"', ready=False)
    assert broker.process.wait(WAIT_S) == 2
    assert f"chown -R nobody: {data}" in broker.log
    assert list(data.iterdir()) == []


def test_only_root_can_become_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    with pytest.raises(ConfigError, match=r"only root can become 'daemon'.* started by user 65534"):
        find_identity("daemon", "")


KEEPS_CAPABILITIES = """
import ctypes
from tidemq.broker.host.privileges import become, find_identity
PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP = 28, 4
assert ctypes.CDLL(None).prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0) == 0
become(find_identity("nobody", ""))
"""


def test_a_change_that_leaves_rights_of_root_is_found_out() -> None:
    """Some containers and parents set this: the user changes, and capabilities stay."""
    done = subprocess.run(
        [sys.executable, "-c", KEEPS_CAPABILITIES], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 1
    assert "PrivilegeError: thread" in done.stderr
    assert "has kept rights of root" in done.stderr
