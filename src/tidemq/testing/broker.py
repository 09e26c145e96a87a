"""The broker of a test: on a thread and an event loop of its own, behind a proxy that keeps its port."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from tidemq.broker import Broker, Message
from tidemq.config import Config
from tidemq.errors import UsageError
from tidemq.store import MemoryStore
from tidemq.testing.proxy import Link, Proxy
from tidemq.testing.witness import Witness
from tidemq.wire import NO_PROPERTIES, Properties

T = TypeVar("T")

WAIT_S = 5.0  # for what a test expects to happen
_GRACE_S = 1.0  # for what a stopping broker said last to reach the clients
_KNOWN_S = 1.0  # for a client that is named to be connected


class _Controls:
    """What both kinds of broker have; none of it waits for a client."""

    def __init__(self, config: Config | None = None) -> None:
        given = config or Config(reactors=1, sys_interval_s=0)
        # its address and its store are ours
        self._config = given.model_copy(update={"host": "127.0.0.1", "port": 0, "listeners": ()})
        self._store = MemoryStore()
        self._proxy = Proxy(0)
        self._witness = Witness(self._proxy)
        self._broker: Broker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="mqtt-broker", daemon=True)
        self._thread.start()
        try:
            self.start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
            self._now(self._proxy.__aexit__())
        finally:
            self._end()

    @property
    def host(self) -> str:
        return "127.0.0.1"

    @property
    def port(self) -> int:
        """For clients; it stays the same over restarts."""
        return self._proxy.port

    @property
    def url(self) -> str:
        return self._proxy.url

    @property
    def messages(self) -> tuple[Message, ...]:
        """Every message that was published so far, by whomever, in the broker's order; wills too.

        All that the broker has acknowledged is in it. Topics that begin with `$` are left out.
        """
        self._now(self._witness.catch_up())
        return tuple(self._witness.messages)

    def publish(
        self,
        topic: str,
        payload: bytes | str = b"",
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        """Publishes to whoever subscribes. Raises UsageError while the broker is stopped."""
        if self._broker is None:
            raise UsageError("the broker is not running")
        self._now(self._broker.publish(topic, payload, qos=qos, retain=retain, properties=properties))

    def cut(self, client_id: str | None = None) -> None:
        """Resets the client's connection, or all of them, as a lost network does. They may come again.

        Raises TimeoutError when no client of that name is connected.
        """
        __tracebackhide__ = True
        self._now(self._cut(client_id))

    def stall(self, client_id: str | None = None) -> None:
        """The client's connection, or all of them and those to come, stay open, but nothing passes.

        Raises TimeoutError when no client of that name is connected.
        """
        __tracebackhide__ = True
        self._now(self._stall(client_id))

    def resume(self) -> None:
        """Ends all stalls: what was sent meanwhile passes."""
        self._now(self._resume())

    def stop(self) -> None:
        """Says goodbye to the clients; from now on connections are refused. Sessions are kept for `start`."""
        self._now(self._stop())

    def start(self) -> None:
        """Lets clients in again, with the sessions, queues and retained messages that there were."""
        self._now(self._start())

    def restart(self) -> None:
        """`stop`, then `start`."""
        self.stop()
        self.start()

    async def _start(self) -> None:
        if self._broker is not None:
            return
        broker = Broker(self._config, store=self._store, plugins=[self._witness])
        await broker.start()
        await self._witness.begin(broker)
        self._broker = broker
        self._proxy.server_port = broker.port
        await self._proxy.open()

    async def _stop(self) -> None:
        broker, self._broker = self._broker, None
        if broker is None:
            return
        self._proxy.refuse()
        await broker.stop()
        await self._witness.end()
        await self._proxy.close(_GRACE_S)

    async def _links(self, client_id: str | None) -> list[Link]:
        if client_id is not None:
            return [await self._witness.link(client_id, _KNOWN_S)]
        return list(self._proxy.links.values())

    async def _cut(self, client_id: str | None) -> None:
        links = await self._links(client_id)
        self._proxy.cut(links)
        self._witness.forget(links)

    async def _stall(self, client_id: str | None) -> None:
        self._proxy.stall(None if client_id is None else await self._links(client_id))

    async def _resume(self) -> None:
        self._proxy.resume()

    def _begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if self._loop is None:
            work.close()
            raise UsageError("the broker is to be entered first: with MqttBroker() as broker")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _now(self, work: Coroutine[Any, Any, T]) -> T:
        __tracebackhide__ = True
        done = self._begin(work)
        error = done.exception()  # waits
        if isinstance(error, TimeoutError):
            raise error.with_traceback(None)  # pytest shows the caller's line, and what did not come
        return done.result()

    def _end(self) -> None:
        assert self._loop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
        self._loop = None


class MqttBroker(_Controls):
    """A broker in this process: `with MqttBroker() as broker`, or the fixture `mqtt_broker`.

    Listens on a free port of 127.0.0.1, on a thread of its own; its store is in memory and lives as long as
    it does. Any thread may call any method. `config`: what else the broker is told; its address and its store
    are not taken from there.
    """

    def wait_for_message(self, topic_filter: str = "#", *, timeout_s: float = WAIT_S) -> Message:
        """The oldest message on the filter that no wait has returned yet, whenever it was published.

        Raises TimeoutError, with the topics of messages that came instead.
        """
        __tracebackhide__ = True
        return self.wait_for_messages(topic_filter, 1, timeout_s=timeout_s)[0]

    def wait_for_messages(self, topic_filter: str, count: int, *, timeout_s: float = WAIT_S) -> list[Message]:
        """The same for so many messages, in the order in which the broker got them."""
        __tracebackhide__ = True
        return self._wait(self._witness.take(topic_filter, count, timeout_s))

    def wait_for_subscription(self, topic_filter: str, *, timeout_s: float = WAIT_S) -> None:
        """Returns when a client has subscribed to exactly this filter: what is published now, it gets.

        Raises TimeoutError.
        """
        __tracebackhide__ = True
        self._wait(self._witness.subscribed(topic_filter, timeout_s))

    def wait_for_client(self, client_id: str, *, timeout_s: float = WAIT_S) -> None:
        """Returns when the client is connected; after a `cut`, connected again. Raises TimeoutError."""
        __tracebackhide__ = True
        self._wait(self._witness.link(client_id, timeout_s))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        __tracebackhide__ = True
        if _in_event_loop():
            work.close()
            raise UsageError(
                "the test's event loop would stand still while this call waits: "
                "take async_mqtt_broker (AsyncMqttBroker) and await it"
            )
        return self._now(work)


class AsyncMqttBroker(_Controls):
    """`MqttBroker` for coroutines: what waits is awaited. The fixture `async_mqtt_broker`.

    It belongs to no event loop of the caller's, so any asyncio plugin will do; it is entered by `with`.
    """

    async def wait_for_message(self, topic_filter: str = "#", *, timeout_s: float = WAIT_S) -> Message:
        """See MqttBroker."""
        return (await self.wait_for_messages(topic_filter, 1, timeout_s=timeout_s))[0]

    async def wait_for_messages(
        self, topic_filter: str, count: int, *, timeout_s: float = WAIT_S
    ) -> list[Message]:
        """See MqttBroker."""
        return await self._wait(self._witness.take(topic_filter, count, timeout_s))

    async def wait_for_subscription(self, topic_filter: str, *, timeout_s: float = WAIT_S) -> None:
        """See MqttBroker."""
        await self._wait(self._witness.subscribed(topic_filter, timeout_s))

    async def wait_for_client(self, client_id: str, *, timeout_s: float = WAIT_S) -> None:
        """See MqttBroker."""
        await self._wait(self._witness.link(client_id, timeout_s))

    async def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(self._begin(work))


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
