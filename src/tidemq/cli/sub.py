"""`tidemq sub`: subscribes and prints, in mosquitto_sub's manner."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import typer

from tidemq.cli import options
from tidemq.cli.blocking_connection import Connection, reason_text
from tidemq.cli.exit_codes import EXIT_FAILED
from tidemq.cli.message_format import MessageFormat, NotJsonError
from tidemq.errors import UsageError
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
from tidemq.wire.filters import matches
from tidemq.wire.topics import topic_filter_fault

EXIT_TIMEOUT = 27  # mosquitto_sub's
RECONNECT_S = 1.0


Topics = Annotated[list[str], typer.Option("-t", "--topic", help="Topic filter; may be repeated.")]
FilterOut = Annotated[
    list[str], typer.Option("-T", "--filter-out", help="Print no messages that match; may be repeated.")
]
Timeout = Annotated[
    float | None, typer.Option("-W", min=0, help="Exit after this many seconds, with code 27.")
]
Output = Annotated[
    str | None, typer.Option("-F", metavar="FORMAT", help="How to print, such as '%I %t %p' or '%j'.")
]
RandomFilter = Annotated[float, typer.Option(min=0, max=100, help="Print a random sample: this percentage.")]
RemoveRetained = Annotated[
    bool, typer.Option("--remove-retained", help="Clear the retained messages that come.")
]
RetainAsPublished = Annotated[
    bool, typer.Option("--retain-as-published", help="Keep the RETAIN flag of new messages (mqttv5).")
]
RetainedOnly = Annotated[bool, typer.Option("--retained-only", help="Print only retained ones.")]
ExitAfterSuback = Annotated[bool, typer.Option("-E", help="Exit once the server has subscribed it.")]


class Printer:
    """Prints messages as the options say, until it has printed enough."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        """`given`: the command's options; UsageError for a format or a filter that is none."""
        self._count_left: int | None = given["count"]
        self._end = b"" if given["no_eol"] else b"\n"
        self._fresh_only: bool = given["no_retained"]
        self._retained_only: bool = given["retained_only"]
        self._left_out: list[str] = given["filter_out"]
        self._percent: float = given["random_filter"]
        self._quiet: bool = given["quiet"]
        for each in self._left_out:
            if topic_filter_fault(each):
                raise UsageError(f"-T {each!r} is no topic filter")
        form = given["output"]
        if form is None:
            form = "%t %p" if given["verbose"] else "%p"
        self._format = MessageFormat(form, pretty=given["pretty"])

    @property
    def done(self) -> bool:
        """Whether `count` messages were printed."""
        return self._count_left == 0

    def wants(self, message: Publish) -> bool:
        """Whether it is to be printed, and whatever else the command does with messages."""
        if self.done or (message.retain and self._fresh_only) or (not message.retain and self._retained_only):
            return False
        if any(matches(each, message.topic) for each in self._left_out):
            return False
        return self._percent == 100 or random.random() * 100 < self._percent

    def show(self, message: Publish) -> None:
        """Prints a message that is wanted."""
        if self._count_left is not None:
            self._count_left -= 1
        try:
            sys.stdout.buffer.write(self._format.show(message) + self._end)
        except NotJsonError as error:
            if not self._quiet:
                print(f"Error: {error}.", file=sys.stderr)
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

    def __init__(self, connection: Connection, printer: Printer, given: Mapping[str, Any]) -> None:
        self._connection = connection
        self._printer = printer
        self._remove_retained: bool = given["remove_retained"]
        self._quiet: bool = given["quiet"]
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
                self._show(message)
        elif isinstance(packet, Suback):
            self._take_suback(packet)

    def _take_publish(self, message: Publish) -> None:
        if message.qos == 2:
            self._unreleased[message.packet_id] = message
            self._connection.send(Pubrec(packet_id=message.packet_id))
            return
        self._show(message)
        if message.qos == 1:
            self._connection.send(Puback(packet_id=message.packet_id))

    def _show(self, message: Publish) -> None:
        if self._printer.wants(message):
            self._printer.show(message)
            if self._remove_retained and message.retain:
                self._connection.send(Publish(topic=message.topic, retain=True))

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
    topics: Topics = [],  # noqa: B006
    filter_out: FilterOut = [],  # noqa: B006
    unsubscribe: Annotated[list[str], typer.Option("-U", "--unsubscribe", help="Unsubscribe first.")] = [],  # noqa: B006
    qos: options.Qos = 0,
    count: Annotated[int | None, typer.Option("-C", min=1, help="Exit after this many messages.")] = None,
    timeout: Timeout = None,
    output: Output = None,
    pretty: Annotated[bool, typer.Option("--pretty", help="JSON of -F in lines.")] = False,
    random_filter: RandomFilter = 100.0,
    remove_retained: RemoveRetained = False,
    retain_as_published: RetainAsPublished = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Print the topic too.")] = False,
    no_eol: Annotated[bool, typer.Option("-N", help="Print no end of line.")] = False,
    no_retained: Annotated[bool, typer.Option("-R", help="Print no retained messages.")] = False,
    retained_only: RetainedOnly = False,
    exit_after_suback: ExitAfterSuback = False,
    host: options.Host = None,
    port: options.Port = None,
    url: options.Url = None,
    unix: options.Unix = None,
    bind: options.Bind = None,
    nodelay: options.NoDelay = False,
    client_id: options.ClientId = "",
    id_prefix: options.IdPrefix = "",
    username: options.Username = None,
    password: options.Password = None,
    scram: options.Scram = False,
    cafile: options.CaFile = None,
    capath: options.CaPath = None,
    tls_version: options.TlsVersion = None,
    ciphers: options.Ciphers = None,
    tls_alpn: options.TlsAlpn = None,
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
    raise typer.Exit(options.run(partial(_subscribe, context.params), quiet=quiet, interrupted=0))


def _subscribe(params: Mapping[str, Any]) -> int:
    """The command's work; gives its exit code."""
    until_s = None if params["timeout"] is None else time.monotonic() + params["timeout"]
    for number in (signal.SIGTERM, signal.SIGINT):  # a shell's background jobs begin with SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    given, named = options.read_url(params)
    client = options.make_client(given, ("subscribe", "unsubscribe"))
    printer = Printer(given)
    requests = _make_requests(client, given, [*given["topics"], *([named] if named else ())])
    connection: Connection | None = client.open()
    while connection is not None:
        try:
            for request in requests:
                connection.send(replace(request, packet_id=connection.next_packet_id()))
            subscriber = Subscriber(connection, printer, given)
            return _print_messages(connection, subscriber, printer, until_s, given["exit_after_suback"])
        except (ConnectionError, TimeoutError):
            # as mosquitto_sub does: a listener outlives the server it listens to
            connection = _reopen(client, until_s)
    return EXIT_TIMEOUT


def _make_requests(
    client: options.Client, given: Mapping[str, Any], topics: list[str]
) -> list[Subscribe | Unsubscribe]:
    """What to send after CONNECT; the packet identifiers are still to be set."""
    if not topics:
        raise UsageError("give a topic filter, with -t or in -L")
    retain_as_published: bool = given["retain_as_published"]
    if retain_as_published and client.connect.version < 5:
        raise UsageError("--retain-as-published needs -V mqttv5")
    subscriptions = tuple(
        Subscription(filter=topic, qos=given["qos"], retain_as_published=retain_as_published)
        for topic in topics
    )
    requests: list[Subscribe | Unsubscribe] = [
        Subscribe(packet_id=1, subscriptions=subscriptions, properties=client.properties["subscribe"])
    ]
    if given["unsubscribe"]:
        filters = tuple(given["unsubscribe"])
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
            packet = None
            if until_s is None or time.monotonic() < until_s:  # also where there is always one more
                packet = connection.receive(until_s=0.0)
                if packet is None:
                    printer.flush()
                    if printer.done:  # nobody reads it any more
                        break
                    packet = connection.receive(until_s)
            if packet is None:
                print("Timed out", file=sys.stderr)
                code = EXIT_TIMEOUT
                break
            subscriber.take(packet)
            if subscriber.denied:
                code = EXIT_FAILED
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
