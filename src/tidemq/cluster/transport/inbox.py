"""What comes to this node: the connection to its own server, on which others' messages and hellos arrive."""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from nats.aio.client import Client
from nats.aio.msg import Msg

from tidemq.cluster.transport.connecting import RefusedError
from tidemq.cluster.transport.frames import Assembly
from tidemq.cluster.transport.hello import SUBJECT, Hello, parse_hello
from tidemq.cluster.transport.jetstream import GoneError, ask, delete_stream, stream_name
from tidemq.cluster.transport.link import Home, Link
from tidemq.errors import ClusterError

PENDING_BYTES_MAX = 64 << 20  # that have come and that nobody has looked at; beyond, they are dropped
SENDERS_MAX = 64  # whose messages are put together; then who was silent for longest is not known any more


class InboxHome(Home, Protocol):
    """What the link to the own server asks of its node besides."""

    def message(self, kind: str, sender: int, body: bytes) -> None: ...
    def met(self, hello: Hello) -> None: ...


class Inbox(Link):
    """To this node's own server."""

    home: InboxHome

    def __init__(self, address: str, home: InboxHome) -> None:
        super().__init__(address, home)
        self._assemblies: dict[int, Assembly] = {}

    async def _introduce(self, client: Client) -> None:
        own, answer_s = self.home.hello, self.home.patience.answer_s
        try:
            other = parse_hello((await ask(client, SUBJECT, own.encode(), answer_s)).data)
        except GoneError:
            pass
        else:
            raise RefusedError(
                f"another node uses this nats-server, {other.incarnation:016x} of {other.address}; expected: "
                "a nats-server for each node"
            )
        try:
            await ask(client, "$JS.API.INFO", b"", answer_s)
        except GoneError as error:
            raise RefusedError("this nats-server has no JetStream; expected: jetstream {…}") from error

    async def _serve(self, client: Client) -> None:
        own = self.home.hello
        subject = f"tidemq.{own.cluster}.{own.incarnation:016x}.*.*"
        await client.subscribe(subject, cb=self._receive, pending_bytes_limit=PENDING_BYTES_MAX)
        await client.subscribe(SUBJECT, cb=self._answer)
        await client.flush()
        self._connected()

    def forget_copies(self, incarnation: int, to_number: int) -> None:
        """Of a node that is no more, if there are none beyond this record."""
        if self.client is not None:
            self.begin(self._forget_copies(self.client, incarnation, to_number), is_vital=False)

    async def _forget_copies(self, client: Client, incarnation: int, to_number: int) -> None:
        with suppress(ClusterError):
            if (await self.read_numbers(incarnation))[1] <= to_number:
                await delete_stream(client, stream_name(incarnation), self.home.patience.answer_s)

    async def _receive(self, msg: Msg) -> None:
        *_, kind, word = msg.subject.split(".")
        try:
            sender = int(word, 16)
            body = self._assembly(sender).add(msg.data)
        except (ClusterError, ValueError) as error:
            self.home.count("cluster_messages_malformed")
            self.home.problem(self.address, f"a message is dropped: {error}")
            return
        finally:
            self._count_missed()
        if body is not None:
            self.home.message(kind, sender, body)

    def _assembly(self, sender: int) -> Assembly:
        found = self._assemblies.pop(sender, None)
        if found is None:
            found = Assembly(self.home.bounds.message_bytes_max)
        self._assemblies[sender] = found  # in the order in which they were heard last
        if len(self._assemblies) > SENDERS_MAX:
            del self._assemblies[next(iter(self._assemblies))]
        self._last = found
        return found

    def _count_missed(self) -> None:
        if self._last is not None and self._last.missed:
            self.home.count("cluster_messages_missed", self._last.missed)
            self._last.missed = 0

    _last: Assembly | None = None

    async def _answer(self, msg: Msg) -> None:
        """Somebody asks who is here: a node that is about to connect."""
        own = self.home.hello
        try:
            other = parse_hello(msg.data)
        except ClusterError as error:
            self.home.count("cluster_hellos_refused")
            self.home.problem(self.address, str(error))
            return
        if msg.reply:
            await msg.respond(own.encode())
        if other.process == own.process:
            return
        refusal = own.refusal(other)
        if not refusal and other.incarnation == own.incarnation:
            refusal = f"it is a second node of this node's incarnation, {own.incarnation:016x}"
        if refusal:
            self.home.count("cluster_hellos_refused")
            self.home.problem(other.address, f"a node there would connect: {refusal}")
        else:
            self.home.met(other)
