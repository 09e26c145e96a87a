"""docs/how-to/sizing.md computes right, and what it says of bytes is what a broker takes."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conformance.packets import connect, disconnect, publish, subscribe
from conftest import RunningBroker, StartBroker
from waiting import WAIT_S

from tidemq.bench.process import resident_bytes

MANY = 200_000  # as the page has it
SUBSCRIPTIONS = 1000  # of a client
PINGREQ, PINGRESP = b"\xc0\0", b"\xd0\0"
PAGE = Path(__file__).parents[2] / "docs/how-to/sizing.md"


def number(text: str) -> int:
    return int(text.replace(",", ""))


def tables() -> list[list[list[str]]]:
    """Each table's rows, without its heads."""
    found = re.findall(r"(?:^\|.*\n)+", PAGE.read_text(), re.MULTILINE)
    return [
        [[cell.strip() for cell in line.strip("|\n ").split("|")] for line in table.splitlines()[2:]]
        for table in found
    ]


def examples() -> list[list[list[str]]]:
    return [table for table in tables() if len(table[0]) == 4]


def test_there_are_examples() -> None:
    assert len(examples()) == 2


@pytest.mark.parametrize("example", examples())
def test_an_example_is_computed_from_the_figures(example: list[list[str]]) -> None:
    (figures, *_others) = tables()
    known = {number(each) for row in figures for each in re.findall(r"\b\d[\d,]*\d\b", " ".join(row))}
    *rows, (_, _, _, together) = example
    for _what, count, each, product in rows:
        assert number(each) in known
        assert number(count) * number(each) == number(product)
    assert sum(number(row[3]) for row in rows) == number(together)


def test_the_time_of_a_start_is_computed_right() -> None:
    (things, per_s, seconds) = re.findall(r"^([\d,]+) / ([\d,]+) = ([\d.]+) seconds", PAGE.read_text(), re.M)[
        0
    ]
    assert round(number(things) / number(per_s), 1) == float(seconds)
    (start,) = [table for table in tables() if len(table[0]) == 2 and table[-1][0] == "together"]
    assert sum(number(row[1]) for row in start[:-1]) == number(start[-1][1]) == number(things)


def test_the_bytes_of_a_row_are_those_of_the_format() -> None:
    text = (PAGE.parents[1] / "store.md").read_text()
    assert "A message is `>BBqIII`" in text
    assert "queue (8), status (1: 1 idle, 2 in flight), message id | `>BBIqQ`" in text
    assert f"payload and {16 + struct.calcsize('>BBqIII')} bytes" in PAGE.read_text()
    assert f"and {8 + 1 + 16 + struct.calcsize('>BBIqQ')} bytes for each client" in PAGE.read_text()


class Growth:
    """How much a broker's memory grows for each of many things."""

    def __init__(self, broker: RunningBroker) -> None:
        self._broker = broker
        self.bytes_each = 0.0

    @contextmanager
    def measured(self, many: int) -> Iterator[None]:
        """The connections within are answered before the end."""
        before = resident_bytes(self._broker.process.pid)
        yield
        self.bytes_each = (resident_bytes(self._broker.process.pid) - before) / many

    def send(self, client_id: str, *packets: bytes, clean: bool = True) -> socket.socket:
        """A client of 3.1.1 that sends these and then has an answer to a PINGREQ."""
        client = socket.create_connection(("127.0.0.1", self._broker.port), WAIT_S)
        client.sendall(b"".join([connect(client_id, 4, clean=clean), *packets, PINGREQ]))
        said = b""
        while not said.endswith(PINGRESP):
            said += (more := client.recv(65536))
            assert more, "the broker has ended the connection"
        return client


@pytest.fixture
def growth(start_broker: StartBroker) -> Growth:
    return Growth(start_broker(settings="sys_interval_s = 0"))


def figure(what: str) -> int:
    """Of the page, in memory."""
    (row,) = [row for row in tables()[0] if row[0] == what]
    return number(row[1])


def near(measured: float, said: int) -> bool:
    """It is for planning: the page may say a third too much, and little too few."""
    return 0.6 * said < measured < 1.15 * said


@pytest.mark.long
def test_an_offline_session_takes_what_the_page_says(growth: Growth) -> None:
    with growth.measured(MANY):
        for index in range(MANY):
            topic = (f"plant/{index}/commands", 1)
            client = growth.send(f"device-{index}", subscribe(1, topic, version=4), clean=False)
            client.sendall(disconnect())
            assert client.recv(1) == b""
            client.close()
    assert near(growth.bytes_each, figure("an offline session with one subscription")), growth.bytes_each


@pytest.mark.long
@pytest.mark.parametrize("size", [16, 200])
def test_a_retained_message_takes_what_the_page_says(growth: Growth, size: int) -> None:
    with growth.measured(MANY):
        topics = (f"plant/{each}/state" for each in range(MANY))
        growth.send(
            "publisher", *(publish(topic, bytes(size), version=4, retain=True) for topic in topics)
        ).close()
    assert near(growth.bytes_each, figure(f"a retained message of {size} bytes")), growth.bytes_each


@pytest.mark.long
def test_a_subscription_takes_what_the_page_says(growth: Growth) -> None:
    clients = []
    with growth.measured(MANY):
        for start in range(0, MANY, SUBSCRIPTIONS):
            filters = [(f"plant/{each}/#", 1) for each in range(start, start + SUBSCRIPTIONS)]
            clients.append(growth.send(f"client-{start}", subscribe(1, *filters, version=4)))
    assert near(growth.bytes_each, figure("a subscription")), growth.bytes_each
    for client in clients:
        client.close()
