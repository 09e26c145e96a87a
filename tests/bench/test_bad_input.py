"""What cannot be run gets one clear sentence, and exit code 2."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bench.conftest import Bench, Done
from conftest import RunningBroker, StartBroker, wait_until_open

from tidemq.testing.ports import free_port

USERS = 'authenticator = "static"\n[authenticator_options.users]\nann = "sec:ret@"\n'


def refused(done: Done, said: str) -> None:
    """The command ended with 2, and one line that says it."""
    assert (done.code, done.out) == (2, "")
    (line,) = done.error.splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--url", "https://user:secret@host"], "is not the URL of a broker: it must be mqtt://"),
        (["--url", "ws://user:secret@host/m q"], "is not the URL of a broker"),
        (["--insecure"], "certificates are for mqtts:// and wss://"),
        (["--url", "mqtts://127.0.0.1", "--cafile", "/no/such"], "/no/such cannot be read: no such file"),
        (["--url", "mqtts://127.0.0.1", "--cafile", "/dev/null"], "holds no certificates of authorities"),
        (["--url", "wss://127.0.0.1", "--key", "/dev/null"], "a key needs its certificate"),
        (["--url", "host:1883"], "is not the URL of a broker: it must be mqtt://"),
        (["--url", "mqtt://host:99999"], "a port is a number from 1 to 65535"),
        (["--url", "wss://broker..example"], "'broker..example' is not the name of a host"),
        (["--url", "mqtt://[::1"], "is not the URL of a broker"),
        (["--url", "mqtt://host/path"], "is not the URL of a broker"),
        (["--url", "unix://" + "/x" * 100], "the path of a Unix socket"),
        (["--url", "mqtt://no-such-host.invalid"], "no-such-host.invalid cannot be resolved"),
        (["--url", "unix:///no/such/socket"], "no such file or directory"),
        (["--mqtt", "3.1"], "--mqtt must be 3.1.1 or 5.0, not 3.1"),
        (["--size", "8"], "a payload has 16 to 1,048,576 bytes, not 8"),
        (["--qos", "3"], "QoS must be 0, 1 or 2"),
        (["--messages", "0"], "at least one message"),
        (["--seconds", "0"], "more than 0 seconds"),
        (["--seconds", "nan"], "more than 0 seconds"),
        (["--rate", "-1"], "a rate cannot be below 0"),
        (["--rate", "0.1", "--seconds", "1"], "no message is due"),
        (["--senders", "-1"], "fewer than 0"),
        (["--senders", "0", "--receivers", "0"], "at least one"),
        (["--window", "0"], "window must be 1 to"),
        (["--timeout", "0"], "time-out must be more than 0"),
        (["--size", "many"], "Invalid value for '--size'"),
        (["--speed", "1"], "No such option"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_impossible_arguments(bench: Bench, tidemq: RunningBroker, arguments: list[str], said: str) -> None:
    url = [] if "--url" in arguments else ["--url", f"mqtt://127.0.0.1:{tidemq.port}"]
    done = bench("fan", *url, *arguments)
    if "Use 'tidemq COMMAND --help'" in done.error:  # of an option that is none
        done = Done(done.code, done.out, done.error.splitlines()[0])
    refused(done, said)
    assert "secret" not in done.error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["many", "--messages", "3"], "No such option"),
        (["suite", "--workloads", "mesh,mash"], "there is no workload mash; known: one-to-one"),
        (["compare", "--broker", "mqtt://host"], "must be NAME=URL"),
        (["compare", "--broker", "a=mqtt://127.0.0.1:1", "--rounds", "0"], ""),
        (["compare"], "Missing option"),
    ],
)
def test_impossible_arguments_of_other_commands(bench: Bench, arguments: list[str], said: str) -> None:
    done = bench(*arguments)
    assert (done.code, done.out) == (2, "")
    assert said in done.error


def test_nobody_listens(bench: Bench) -> None:
    port = free_port()
    refused(
        bench("fan", "--url", f"mqtt://127.0.0.1:{port}"),
        f"mqtt://127.0.0.1:{port}: nobody listens there (connection refused)",
    )


@pytest.fixture
def mute() -> Iterator[Callable[[bytes | None], str]]:
    """`mute(answer)` listens, and answers what a client says with these bytes; None: never."""
    listener = socket.create_server(("127.0.0.1", 0))
    kept = []

    def serve(answer: bytes | None) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            kept.append(connection)
            if answer is not None:
                connection.recv(1000)
                connection.sendall(answer)
                connection.close()

    def start(answer: bytes | None) -> str:
        threading.Thread(target=serve, args=(answer,), daemon=True).start()
        return f"mqtt://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    for connection in kept:
        connection.close()


@pytest.mark.parametrize(
    ("answer", "mqtt", "said"),
    [
        (None, "3.1.1", "no answer to CONNECT within 0.5 s"),
        (b"", "3.1.1", "the broker closed the connection instead of CONNACK"),
        (b"HTTP/1.1 400 Bad Request\r\nServer: some\r\n\r\n" + b"x" * 99, "3.1.1", "does not speak MQTT"),
        (b"\x20\x02\x00\x05", "3.1.1", "refused the connection: not authorized (return code 5)"),
        (b"\x20\x02\x00\x03", "3.1.1", "refused the connection: server unavailable (return code 3)"),
        (b"\x20\x03\x00\x97\x00", "5.0", "refused the connection: quota exceeded (reason code 0x97)"),
        (b"\xd0\x00", "3.1.1", "Pingresp came instead of CONNACK"),
    ],
    ids=["silence", "close", "http", "return code 5", "return code 3", "reason code", "nonsense"],
)
def test_peers_that_let_nobody_in(
    bench: Bench, mute: Callable[[bytes | None], str], answer: bytes | None, mqtt: str, said: str
) -> None:
    timeout_s = 0.5 if answer is None else 20
    refused(bench("fan", "--url", mute(answer), "--mqtt", mqtt, "--timeout", timeout_s), said)


@pytest.fixture(scope="module")
def guarded(start_broker: StartBroker) -> RunningBroker:
    return start_broker(USERS)


@pytest.mark.parametrize(
    ("credentials", "mqtt", "said"),
    [
        ("", "3.1.1", "(return code"),
        ("ann:wrong@", "3.1.1", "(return code"),
        ("ann:wrong@", "5.0", "(reason code 0x8"),
        ("bob:sec%3Aret%40@", "5.0", "(reason code 0x8"),
    ],
)
def test_wrong_credentials(
    bench: Bench, guarded: RunningBroker, credentials: str, mqtt: str, said: str
) -> None:
    done = bench("fan", "--url", f"mqtt://{credentials}127.0.0.1:{guarded.port}", "--mqtt", mqtt)
    refused(done, said)
    assert "wrong" not in done.error
    assert "sec" not in done.error.replace("seconds", "")


def test_right_credentials(bench: Bench, guarded: RunningBroker) -> None:
    url = f"mqtt://ann:sec%3Aret%40@127.0.0.1:{guarded.port}"
    done = bench("fan", "--url", url, "--messages", 10, "--json")
    assert (done.code, done.summary["received"]) == (0, 10)
    assert done.result["run"]["url"] == f"mqtt://ann@127.0.0.1:{guarded.port}"


def test_too_few_file_descriptors(tidemq: RunningBroker) -> None:
    """In a process of its own: a limit that was lowered stays so."""
    program = "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))\n"
    program += "from tidemq.cli import main; main()"
    command = ["bench", "many", "--connections", "500", "--url", f"mqtt://127.0.0.1:{tidemq.port}"]
    done = subprocess.run([sys.executable, "-c", program, *command], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "500 connections need 564 file descriptors, RLIMIT_NOFILE allows 200" in done.stderr
    assert "`ulimit -n 564`" in done.stderr


def test_the_soft_limit_is_raised(tidemq: RunningBroker) -> None:
    """In a process of its own: this one may have more files open."""
    program = "import resource, sys; _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
    program += "resource.setrlimit(resource.RLIMIT_NOFILE, (150, hard))\n"
    program += "from tidemq.cli import main; main()"
    command = ["bench", "many", "--connections", "300", "--seconds", "0.1"]
    command += ["--url", f"mqtt://127.0.0.1:{tidemq.port}"]
    assert subprocess.run([sys.executable, "-c", program, *command]).returncode == 0


@pytest.mark.parametrize(
    ("mqtt", "said"),
    [
        ("5.0", "the broker takes QoS 1 at most, the load is of QoS 2"),
        ("3.1.1", "the broker granted a subscription QoS 1, the load is of QoS 2"),
    ],
)
def test_what_a_broker_cannot_do(
    bench: Bench, tmp_path: Path, install: Callable[[str, str], None], mqtt: str, said: str
) -> None:
    install("mosquitto", "mosquitto")
    port, log, settings = free_port(), tmp_path / "broker.log", tmp_path / "mosquitto.conf"
    settings.write_text(f"listener {port} 127.0.0.1\nmax_qos 1\nallow_anonymous true\n")
    with log.open("wb") as out, subprocess.Popen(["mosquitto", "-c", settings], stderr=out) as process:
        try:
            wait_until_open(RunningBroker(port, process, log, "mosquitto"))
            done = bench("fan", "--url", f"mqtt://127.0.0.1:{port}", "--qos", 2, "--mqtt", mqtt)
        finally:
            process.kill()
    refused(done, said)


def test_results_that_could_not_be_kept_are_not_made(
    bench: Bench, tidemq: RunningBroker, tmp_path: Path
) -> None:
    """It is said before the run."""
    (tmp_path / "file").touch()
    (tmp_path / "summary.parquet").write_text("mine")
    for directory, said in ((tmp_path / "file", "file"), (tmp_path, "is not a Parquet file")):
        url = f"mqtt://127.0.0.1:{tidemq.port}"
        refused(bench("fan", "--url", url, "--messages", 10, "--json", "--out", directory), said)
