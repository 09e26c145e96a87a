"""systemd's own tools on the units, and its protocols with real sockets; no systemd has to run."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from privileges.serving import Start
from waiting import WAIT_S, wait_until

from tidemq.broker.host.systemd import Notifier, inherited_sockets
from tidemq.client.sync import Client
from tidemq.errors import ConfigError
from tidemq.testing.ports import free_port

UNITS = Path(__file__).parents[2] / "examples/systemd"
CONFINED = Path(__file__).with_name("confined.py")
EXPOSURE_MAX = 15  # tenths; systemd calls up to 2.0 "OK", and most services of a system are at 9.6

in_source = pytest.mark.skipif(not UNITS.is_dir(), reason="the source tree is hidden")


@pytest.fixture
def systemd(install: Callable[[str, str], None]) -> None:
    install("systemd-analyze", "systemd")


def said(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)


@pytest.fixture
def units(tmp_path: Path) -> list[str]:
    """The units, with a command that this machine has."""
    text = (UNITS / "tidemq.service").read_text()
    service = tmp_path / "tidemq.service"
    service.write_text(text.replace("/opt/tidemq/bin/tidemq", sys.executable))
    sockets = tmp_path / "tidemq.socket"
    sockets.write_text((UNITS / "tidemq.socket").read_text())
    return [str(service), str(sockets)]


@in_source
def test_the_units_are_well_formed(systemd: None, units: list[str]) -> None:
    done = said("systemd-analyze", "verify", "--man=no", *units)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    Path(units[0]).write_text(Path(units[0]).read_text().replace("LimitNOFILE=", "LimitNoFile="))
    assert "LimitNoFile" in said("systemd-analyze", "verify", "--man=no", *units).stderr  # it does look


@in_source
def test_the_service_is_confined(systemd: None, units: list[str]) -> None:
    done = said(
        "systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", "--no-pager", units[0]
    )
    assert done.returncode == 0, done.stdout + done.stderr


def allowed_calls(unit: str) -> list[str]:
    """The system calls that the unit's filter leaves, as systemd-analyze resolves its sets."""
    allowed: set[str] = set()
    for line in re.findall(r"^SystemCallFilter=(.*)$", unit, re.MULTILINE):
        names = line.removeprefix("~").split()
        while names:
            name = names.pop()
            if name.startswith("@"):
                listed = said("systemd-analyze", "syscall-filter", "--no-pager", name).stdout.splitlines()[1:]
                names += [
                    each.strip() for each in listed if each.strip() and not each.strip().startswith("#")
                ]
            elif line.startswith("~"):
                allowed.discard(name)
            else:
                allowed.add(name)
    return sorted(allowed)


@in_source
def test_the_broker_works_within_the_filter_and_without_writable_code(
    systemd: None, serving: Start, tmp_path: Path
) -> None:
    unit = (UNITS / "tidemq.service").read_text()
    assert "MemoryDenyWriteExecute=yes" in unit
    calls = allowed_calls(unit)
    assert {"epoll_wait", "fdatasync", "sendfile"} <= set(calls)
    assert not {"setuid", "chown", "mount", "ptrace", "reboot"} & set(calls)
    broker = serving(
        f'data = "{tmp_path / "data"}"\n[[streams]]\nname = "all"\nfilters = ["#"]\n',
        admin=True,
        under=(sys.executable, str(CONFINED), ",".join(calls)),
    )
    status = Path(f"/proc/{broker.process.pid}/status").read_text()
    assert re.search(r"^Seccomp:\t2$", status, re.MULTILINE)
    with Client(f"mqtt://127.0.0.1:{broker.port}", client_id="a", session_expiry_s=60) as client:
        messages = iter(client.subscribe("a/#", qos=2))
        client.publish_many([(f"a/{number}", bytes(1000)) for number in range(500)], qos=2)
        assert [len(next(messages).payload) for _ in range(500)] == [1000] * 500
    assert broker.ask("/streams/all/messages?start=0&end=500")[0] == 200
    assert broker.stop() == 0, broker.log
    for word in ("ERROR", "Operation not permitted", "Traceback"):
        assert word not in broker.log


class Manager:
    """The other end of NOTIFY_SOCKET."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.settimeout(WAIT_S)

    def take(self) -> dict[str, str]:
        lines = self.socket.recv(4096).decode().splitlines()
        return dict(line.split("=", 1) for line in lines)


def test_it_says_when_clients_can_connect_when_it_reloads_and_when_it_stops(
    serving: Start, tmp_path: Path
) -> None:
    path = tmp_path / "notify"
    manager = Manager(str(path))
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    settings = f'store = "memory"\nadmin_token_file = "{token}"\n'
    port = free_port()
    broker = serving(settings, port=port, admin=True, environment={"NOTIFY_SOCKET": str(path)}, ready=False)
    assert manager.take() == {"READY": "1", "STATUS": f"clients are served on 127.0.0.1:{port}"}
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S):  # at the first try
        pass
    for content, status in (("short", "; not reloaded: admin"), ("fedcba9876543210", "")):
        token.write_text(content)
        before_us = time.monotonic_ns() // 1000
        broker.process.send_signal(signal.SIGHUP)
        reloading = manager.take()
        assert reloading.keys() == {"RELOADING", "MONOTONIC_USEC"}
        assert before_us <= int(reloading["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
        assert manager.take()["STATUS"] == f"clients are served on 127.0.0.1:{port}{status}"
    assert broker.ask("/counters", headers={"Authorization": "Bearer fedcba9876543210"})[0] == 200
    broker.process.send_signal(signal.SIGTERM)
    assert manager.take()["STOPPING"] == "1"
    assert broker.stop() == 0


def test_an_abstract_address_and_a_deaf_manager(caplog: pytest.LogCaptureFixture) -> None:
    name = f"tidemq-test-{os.getpid()}"
    manager = Manager(f"\0{name}")
    notifier = Notifier({"NOTIFY_SOCKET": f"@{name}"})
    notifier.ready("fine")
    assert manager.take()["STATUS"] == "fine"
    manager.socket.close()
    notifier.ready("fine")
    assert "cannot tell systemd READY" in caplog.text
    Notifier({}).ready("nobody is there")


TAKES = """
import json, os
from tidemq.broker.host.systemd import inherited_sockets
found = inherited_sockets()
names = {name: [each.getsockname() for each in sockets] for name, sockets in found.items()}
print(json.dumps(names), flush=True)
first = next(iter(found.values()))[0]
assert not first.getblocking() and not first.get_inheritable()
assert not [name for name in os.environ if name.startswith("LISTEN_")]
connection = first.accept()[0]
connection.sendall(b"served")
assert inherited_sockets() == {}
"""


def test_sockets_that_systemd_has_bound(systemd: None, tmp_path: Path) -> None:
    port, path = free_port(), tmp_path / "mqtt.sock"
    command = [
        "systemd-socket-activate",
        f"--listen=127.0.0.1:{port}",
        f"--listen={path}",
        "--fdname=mqtt:local",
    ]
    environment = [f"-E{name}" for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ]
    with subprocess.Popen(
        [*command, *environment, sys.executable, "-c", TAKES], stdout=subprocess.PIPE, text=True
    ) as process:
        connections: list[socket.socket] = []

        def connected() -> bool:
            try:
                connections.append(socket.create_connection(("127.0.0.1", port), timeout=WAIT_S))
            except ConnectionRefusedError:
                return False
            return True

        wait_until(connected, "systemd-socket-activate listens")  # it starts the command when somebody comes
        assert connections[0].recv(100) == b"served"
        assert process.stdout is not None
        found = json.loads(process.stdout.readline())
    assert process.returncode == 0
    assert found == {"mqtt": [["127.0.0.1", port]], "local": [str(path)]}


def activated(*listen: str, names: str) -> tuple[str, ...]:
    """The command that binds as systemd does, and starts what follows when somebody connects."""
    passed = [f"-E{name}" for name in os.environ if name in ("PATH", "HOME") or name.startswith("PYTHON")]
    return ("systemd-socket-activate", *(f"--listen={each}" for each in listen), f"--fdname={names}", *passed)


def wake(port: int) -> None:
    """Connects, once somebody listens."""

    def connected() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    wait_until(connected, "systemd-socket-activate listens")


@in_source
def test_the_broker_serves_the_sockets_of_the_unit_and_of_listeners_by_name(
    systemd: None, serving: Start, tmp_path: Path
) -> None:
    unit = dict(re.findall(r"^(\w+)=(.*)$", (UNITS / "tidemq.socket").read_text(), re.MULTILINE))
    assert unit["ListenStream"] == "1883"
    port, path = free_port(), tmp_path / "mqtt.sock"
    names = f"{unit['FileDescriptorName']}:local"
    broker = serving(
        'store = "memory"\n[[listeners]]\nname = "local"\npath = "/nonexistent/nobody/binds/this"\n',
        ready=False,
        under=activated(f"[::]:{port}", str(path), names=names),  # as systemd binds ListenStream=1883
    )
    wake(port)
    broker.wait_until_ready()
    assert broker.port == port
    for url in (f"mqtt://127.0.0.1:{port}", f"unix://{path}"):
        with Client(url) as client:
            messages = iter(client.subscribe("a", qos=1))
            client.publish("a", b"there", qos=1)
            assert next(messages).payload == b"there"
    assert broker.stop() == 0, broker.log
    assert path.exists()  # it is systemd's


def test_a_socket_for_no_listener_is_refused_by_name(systemd: None, serving: Start) -> None:
    port = free_port()
    command = activated(f"127.0.0.1:{port}", names="mqtts")
    broker = serving('store = "memory"\n', ready=False, under=command)
    wake(port)
    assert broker.process.wait(WAIT_S) == 2
    assert "a socket for the listener: 'mqtts' is unknown" in broker.log
    assert "accepted: default" in broker.log


def given(descriptors: int, names: str = "") -> dict[str, str]:
    return {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(descriptors), "LISTEN_FDNAMES": names}


def test_sockets_for_another_process_are_left_alone() -> None:
    assert inherited_sockets({}) == {}
    assert inherited_sockets({"LISTEN_PID": "1", "LISTEN_FDS": "3"}) == {}


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        (given(2, "a"), "LISTEN_FDNAMES: 1 names for 2 sockets"),
        (given(0) | {"LISTEN_FDS": "x"}, "LISTEN_FDS: 'x' is no number"),
    ],
)
def test_a_wrong_environment_is_refused(environment: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        inherited_sockets(environment)


PASSES = """
import os, socket
from tidemq.broker.host.systemd import inherited_sockets
from tidemq.errors import ConfigError
for make in (
    lambda: open("/dev/null"),
    lambda: socket.socket(type=socket.SOCK_DGRAM),
    lambda: socket.socket(type=socket.SOCK_STREAM),
):
    made = make()
    os.dup2(made.fileno(), 3)
    try:
        inherited_sockets({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "mqtt"})
    except ConfigError as error:
        print(error)
"""


def test_what_is_no_listening_stream_socket_is_refused() -> None:
    done = subprocess.run([sys.executable, "-c", PASSES], capture_output=True, text=True, timeout=WAIT_S)
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done
    for line, text in zip(lines, ("no socket", "of another family or type", "does not listen"), strict=True):
        assert line.startswith("environment: LISTEN_FDS: descriptor 3, 'mqtt': it ")
        assert f"{text}; accepted: listening stream sockets" in line
