"""`tidemq sub`: subscribes and prints, in mosquitto_sub's manner."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from typing import Annotated

import typer

from tidemq.cli import options
from tidemq.cli.connection import Connection, reason_text
from tidemq.wire import (
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsubscribe,
)

EXIT_TIMEOUT = 27  # mosquitto_sub's
RECONNECT_S = 1.0


class Printer:
    """Prints messages as the options say, until it has printed enough."""

    def __init__(
        self, *, count: int | None, verbose: bool, no_eol: bool, fresh: bool, retained: bool
    ) -> None:
        self._count_left = count
        self._verbose = verbose
        self._end = b"" if no_eol else b"\n"
        self._fresh_only = fresh
        self._retained_only = retained

    @property
    def done(self) -> bool:
        """Whether `count` messages were printed."""
        return self._count_left == 0

    def show(self, message: Publish) -> None:
        """Prints the message unless it is not wanted."""
        if self.done or (message.retain and self._fresh_only) or (not message.retain and self._retained_only):
            return
        head = message.topic.encode() + b" " if self._verbose else b""
        if self._count_left is not None:
            self._count_left -= 1
        try:
            sys.stdout.buffer.write(head + message.payload + self._end)
        except BrokenPipeError:
            self._end_output()

    def flush(self) -> None:
        """Passes on what was printed."""
        try:
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            self._end_output()

    def _end_output(self) -> None:
        # whoever read the output is gone: that is enough printed, and Python must not flush to it at exit
        self._count_left = 0
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Subscriber:
    """One connection's subscriptions and what arrives on them."""

    def __init__(self, connection: Connection, printer: Printer, *, quiet: bool) -> None:
        self._connection = connection
        self._printer = printer
        self._quiet = quiet
        self._unreleased: dict[int, Publish] = {}  # QoS 2, by packet identifier
        self.acknowledged = False  # SUBACK came
        self.denied = False  # and refused every filter

    def take(self, packet: Packet) -> None:
        """Acknowledges and prints; a message at QoS 2 is printed when the server has released it."""
        if isinstance(packet, Publish):
            self._take_publish(packet)
        elif isinstance(packet, Pubrel):
            self._connection.send(Pubcomp(packet_id=packet.packet_id))
            message = self._unreleased.pop(packet.packet_id, None)
            if message is not None:
                self._printer.show(message)
        elif isinstance(packet, Suback):
            self._take_suback(packet)

    def _take_publish(self, message: Publish) -> None:
        if message.qos == 2:
            self._unreleased[message.packet_id] = message
            self._connection.send(Pubrec(packet_id=message.packet_id))
            return
        self._printer.show(message)
        if message.qos == 1:
            self._connection.send(Puback(packet_id=message.packet_id))

    def _take_suback(self, packet: Suback) -> None:
        self.acknowledged = True
        refused = [reason for reason in packet.reasons if reason >= 0x80]
        self.denied = len(refused) == len(packet.reasons)
        if refused and not self._quiet:
            text = (
                "All subscription requests were denied"
                if self.denied
                else "Warning: a subscription was denied"
            )
            print(f"{text}: {reason_text(refused[0])}.", file=sys.stderr)


def sub(
    context: typer.Context,
    topics: Annotated[list[str], typer.Option("-t", "--topic", help="Topic filter; may be repeated.")],
    unsubscribe: Annotated[list[str], typer.Option("-U", "--unsubscribe", help="Unsubscribe first.")] = [],  # noqa: B006
    qos: options.Qos = 0,
    count: Annotated[int | None, typer.Option("-C", min=1, help="End after so many messages.")] = None,
    timeout: Annotated[
        float | None, typer.Option("-W", min=0, help="End after so many seconds, code 27.")
    ] = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Print the topic too.")] = False,
    no_eol: Annotated[bool, typer.Option("-N", help="Print no end of line.")] = False,
    no_retained: Annotated[bool, typer.Option("-R", help="Print no retained messages.")] = False,
    retained_only: Annotated[bool, typer.Option("--retained-only", help="Print only retained ones.")] = False,
    exit_after_suback: Annotated[bool, typer.Option("-E", help="End when the subscription stands.")] = False,
    host: options.Host = "localhost",
    port: options.Port = 1883,
    client_id: options.ClientId = "",
    username: options.Username = None,
    password: options.Password = None,
    scram: options.Scram = False,
    cafile: options.CaFile = None,
    os_certs: options.OsCerts = False,
    cert: options.Cert = None,
    key: options.Key = None,
    insecure: options.Insecure = False,
    version: options.Version = "mqttv311",
    keep_alive: options.KeepAlive = 60,
    keep_session: options.KeepSession = False,
    session_expiry: options.SessionExpiry = None,
    will_topic: options.WillTopic = None,
    will_payload: options.WillPayload = None,
    will_qos: options.WillQos = 0,
    will_retain: options.WillRetain = False,
    properties: options.GivenProperties = [],  # noqa: B006
    debug: options.Debug = False,
    quiet: options.Quiet = False,
) -> None:
    """Subscribe to topic filters and print the messages that come."""
    until_s = None if timeout is None else time.monotonic() + timeout
    printer = Printer(count=count, verbose=verbose, no_eol=no_eol, fresh=no_retained, retained=retained_only)

    def subscribe() -> int:
        for number in (signal.SIGTERM, signal.SIGINT):  # a shell's background jobs begin with SIGINT ignored
            signal.signal(number, signal.default_int_handler)
        client = options.make_client(context.params, ("subscribe", "unsubscribe"))
        requests = _make_requests(client, topics, unsubscribe, qos)
        connection: Connection | None = client.open()
        while connection is not None:
            try:
                for request in requests:
                    connection.send(replace(request, packet_id=connection.next_packet_id()))
                subscriber = Subscriber(connection, printer, quiet=quiet)
                return _print_messages(connection, subscriber, printer, until_s, exit_after_suback)
            except (ConnectionError, TimeoutError):
                # as mosquitto_sub does: a listener outlives the server it listens to
                connection = _reopen(client, until_s)
        return EXIT_TIMEOUT

    raise typer.Exit(options.run(subscribe, quiet=quiet))


def _make_requests(
    client: options.Client, topics: list[str], unsubscribe: list[str], qos: int
) -> list[Subscribe | Unsubscribe]:
    """What to send after CONNECT; the packet identifiers are still to be set."""
    subscriptions = tuple(Subscription(filter=topic, qos=qos) for topic in topics)
    requests: list[Subscribe | Unsubscribe] = [
        Subscribe(packet_id=1, subscriptions=subscriptions, properties=client.properties["subscribe"])
    ]
    if unsubscribe:
        filters = tuple(unsubscribe)
        requests.insert(
            0, Unsubscribe(packet_id=1, filters=filters, properties=client.properties["unsubscribe"])
        )
    for request in requests:
        client.check(request)
    return requests


def _print_messages(
    connection: Connection,
    subscriber: Subscriber,
    printer: Printer,
    until_s: float | None,
    exit_after_suback: bool,
) -> int:
    """Until enough is printed, the time is up or a signal comes; gives the exit code."""
    code = 0
    try:
        while not printer.done and not (exit_after_suback and subscriber.acknowledged):
            packet = connection.receive(until_s=0.0)
            if packet is None:
                printer.flush()
                packet = connection.receive(until_s)
            if packet is None:
                print("Timed out", file=sys.stderr)
                code = EXIT_TIMEOUT
                break
            subscriber.take(packet)
            if subscriber.denied:
                code = options.EXIT_FAILED
                break
    except KeyboardInterrupt:
        pass
    printer.flush()
    connection.close()
    return code


def _reopen(client: options.Client, until_s: float | None) -> Connection | None:
    """Connects again, sooner or later; None when the time is up."""
    while until_s is None or time.monotonic() + RECONNECT_S < until_s:
        time.sleep(RECONNECT_S)
        try:
            return client.open()
        except OSError:
            continue
    return None
