"""The subscriptions of a client: requests and their answers, who gets which messages, and how they come
again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

from tidemq.client.errors import SubscribeError
from tidemq.client.incoming import Incoming
from tidemq.client.outgoing import Outgoing
from tidemq.client.queue import Intake, MessageQueue
from tidemq.client.subscription import Subscription
from tidemq.wire import Packet, Suback, Subscribe, Unsuback, Unsubscribe, encode


class Request:
    """A SUBSCRIBE or UNSUBSCRIBE without its answer. It is sent again on the next connection."""

    def __init__(self, packet: Subscribe | Unsubscribe) -> None:
        self.packet = packet
        self.packet_id = 0
        self.answer: asyncio.Future[Suback | Unsuback] = asyncio.get_running_loop().create_future()


class Subscribing:
    """Belongs to one client, for all its connections."""

    def __init__(self, outgoing: Outgoing, incoming: Incoming, intake: Intake, rest: MessageQueue) -> None:
        self._outgoing, self._incoming, self._intake = outgoing, incoming, intake
        self._rest = rest  # of messages that nobody claimed
        self._active: list[Subscription] = []
        self._claimed: list[tuple[Subscription, MessageQueue]] = []
        self._requests: dict[int, Request] = {}
        incoming.find_routes = self._find_routes

    # --- requests

    def ask(self, packet: Subscribe | Unsubscribe) -> asyncio.Future[Suback | Unsuback]:
        """Sends it, now or with the next connection; the answer comes with the future."""
        encode(packet, self._outgoing.version)  # UsageError where it cannot be said
        if self._outgoing.closed_error is not None:
            raise self._outgoing.closed_error
        request = self._keep(packet)
        if self._outgoing.connected:
            self._send(request)
        return request.answer

    def _keep(self, packet: Subscribe | Unsubscribe) -> Request:
        request = Request(packet)
        self._requests[self._outgoing.reserve_id(request)] = request
        return request

    def _send(self, request: Request) -> None:
        packet = replace(request.packet, packet_id=request.packet_id)
        self._outgoing.write(encode(packet, self._outgoing.version))

    def apply(self, packet: Packet) -> None:
        """SUBACK or UNSUBACK came; others are passed over."""
        if not isinstance(packet, Suback | Unsuback):
            return
        request = cast(Request | None, self._outgoing.release_id(packet.packet_id))
        if request is not None:
            del self._requests[packet.packet_id]
            if not request.answer.done():
                request.answer.set_result(packet)

    def connect(self, *, anew: bool) -> None:
        """A connection begins: sends what has no answer and, where the server has forgotten it, all there
        is."""
        if anew:
            waiting = {id(each.packet) for each in self._requests.values()}
            for subscription in self._active:
                if id(subscription.request) not in waiting:
                    request = self._keep(subscription.request)
                    request.answer.add_done_callback(lambda answer: answer.cancelled() or answer.exception())
        for request in self._requests.values():
            self._send(request)

    def close(self, error: Exception, shown: Exception | None) -> None:
        """No answer and no message will come any more; `shown` is what iterating raises."""
        for request in self._requests.values():
            if not request.answer.done():
                request.answer.set_exception(error)
                request.answer.exception()  # whoever waited may be gone
        self._requests.clear()
        for queue in (self._rest, *(queue for _, queue in self._claimed)):
            queue.end(shown)

    # --- subscriptions

    def add(self, subscription: Subscription) -> None:
        """From now on it is made anew where it has to be."""
        self._active.append(subscription)

    def forget(self, subscription: Subscription) -> None:
        """It gets no more messages."""
        if subscription in self._active:
            self._active.remove(subscription)
        for each, queue in self._claimed:
            if each is subscription:
                queue.end()
        self._claimed = [pair for pair in self._claimed if pair[0] is not subscription]
        self._incoming.routes = {} if self._claimed else None

    def forget_filters(self, filters: tuple[str, ...]) -> None:
        """The server has ended these."""
        for subscription in list(self._active):
            left = tuple(each for each in subscription.request.subscriptions if each.filter not in filters)
            if not left:
                self.forget(subscription)
            elif len(left) < len(subscription.request.subscriptions):
                subscription.request = replace(subscription.request, subscriptions=left)
                self._incoming.routes = {} if self._claimed else None

    def claim(self, subscription: Subscription) -> MessageQueue:
        """A queue for it alone, with what has come for it already."""
        queue = MessageQueue(self._intake)
        self._claimed.append((subscription, queue))
        self._incoming.routes = {}
        self._rest.hand_over(queue, subscription.matches)
        return queue

    def _find_routes(self, topic: str) -> tuple[MessageQueue, ...]:
        found = tuple(queue for subscription, queue in self._claimed if subscription.matches(topic))
        return found or (self._rest,)


def check_reasons(what: str, answer: Suback | Unsuback) -> None:
    """`SubscribeError` where a filter was refused."""
    if any(each >= 0x80 for each in answer.reasons):
        raise SubscribeError(what, answer.reasons, answer.properties.reason_string)
