"""A transport ends at any moment, in any state, from any thread, and leaves nothing."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster.transport.kit import PATIENCE, Heard, Node, connect, record, secure
from waiting import wait_until

from tidemq.cluster.transport.settings import Security
from tidemq.cluster.transport.transport import Transport
from tidemq.errors import ClusterError
from tidemq.testing.ports import free_port


def make(security: Security, address: str) -> tuple[Transport, Heard]:
    heard = Heard()
    made = Transport(
        cluster="test",
        incarnation=9,
        address=address,
        security=security,
        events=heard,
        patience=PATIENCE,
    )
    heard.transport = made
    return made, heard


def is_running(transport: Transport) -> bool:
    return transport._thread.is_alive()


@contextmanager
def silent_server() -> Iterator[str]:
    """Takes connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_it_ends_before_it_has_begun(tmp_path: Path) -> None:
    transport, _ = make(secure(tmp_path), "127.0.0.1:4222")
    transport.send(1, "mail", b"x")
    transport.join(["127.0.0.1:4223"])
    transport.close()
    transport.close()
    transport.join(["127.0.0.1:4224"])
    transport.copy(1, [(1, b"x")])
    transport.fetch(1, 2, 3, 4)
    with pytest.raises(ClusterError, match="closed"):
        transport.copied_of(1).result(10)


def test_it_ends_while_it_connects(tmp_path: Path) -> None:
    security = secure(tmp_path)
    with silent_server() as silent:
        for delay_s in (0.0, 0.001, 0.02, 0.1):
            transport, heard = make(security, f"127.0.0.1:{free_port()}")
            transport.start()
            transport.join([silent, f"127.0.0.1:{free_port()}"])
            time.sleep(delay_s)
            began = time.monotonic()
            transport.close()
            assert not is_running(transport)
            assert time.monotonic() - began < PATIENCE.connect_s
            count = len(heard.problems)
            time.sleep(0.01)
            assert len(heard.problems) == count


def test_it_ends_while_everything_is_under_way(tmp_path: Path) -> None:
    with Node(tmp_path, 1) as one:
        for turn in range(12):
            with Node(tmp_path / f"{turn}", 2, security=one.security) as two:
                two.transport.join([one.address])
                two.append(1, range(1, 200), 20_000)
                if turn > 2:
                    wait_until(two.transport.connected, "the peer")
                for number in range(50):
                    two.transport.send(1, "mail", bytes(100_000))
                    two.transport.fetch(1, 2, 1, number)
                answer = two.transport.copied_of(1)
                time.sleep(turn % 4 * 0.01)
                two.transport.close()
                assert not is_running(two.transport)
                assert answer.done()
        assert one.transport.counts["cluster_calls_failed"] == 0


def test_it_ends_by_one_of_its_own_calls_and_by_several_threads(tmp_path: Path) -> None:
    with Node(tmp_path, 1) as one, Node(tmp_path, 2) as two:
        connect(one, two)
        ended = threading.Event()

        def close(kind: str, sender: int, body: bytes) -> None:
            one.transport.close()
            ended.set()

        one.heard.on_message = close  # type: ignore[method-assign]
        two.transport.send(1, "mail", b"end")
        wait_until(ended.is_set, "the call returns")
        wait_until(lambda: not is_running(one.transport), "its end")
        threads = [threading.Thread(target=two.transport.close) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert not is_running(two.transport)


def test_a_call_that_fails_ends_nothing(tmp_path: Path) -> None:
    with Node(tmp_path, 1) as one, Node(tmp_path, 2) as two:
        connect(one, two)

        def fail(kind: str, sender: int, body: bytes) -> None:
            raise RuntimeError(kind)

        heard, two.heard.on_message = two.heard.on_message, fail  # type: ignore[method-assign]
        one.transport.send(2, "wrong", b"")
        wait_until(lambda: two.transport.counts["cluster_calls_failed"] == 1, "it is counted")
        two.heard.on_message = heard  # type: ignore[method-assign]
        one.transport.send(2, "right", b"")
        wait_until(lambda: two.heard.messages[1] == [("right", b"")], "the next one")
        one.append(2, range(1, 2))
        wait_until(lambda: one.heard.copied.get(2) == 1, "copies")
        assert record(1) == one.heard.log[1]
