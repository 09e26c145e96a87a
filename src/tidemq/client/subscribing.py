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
        self.before: list[Subscription] = []  # those that were there when it was made
        self.sent = False
        self.abandoned = False  # nobody waits: it is not sent again
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

    def ask(self, packet: Subscribe | Unsubscribe) -> Request:
        """Sends it, now or with the next connection; the answer comes with its future."""
        encode(packet, self._outgoing.version)  # UsageError where it cannot be said
        if self._outgoing.closed_error is not None:
            raise self._outgoing.closed_error
        request = self._keep(packet)
        if self._outgoing.connected:
            self._send(request)
        return request

    def abandon(self, request: Request) -> None:
        """Nobody waits for its answer any more: what was not sent will not be."""
        request.abandoned = True
        if not request.sent:
            self._drop(request)

    def _drop(self, request: Request) -> None:
        if self._requests.pop(request.packet_id, None) is not None:
            self._outgoing.release_id(request.packet_id)

    def _keep(self, packet: Subscribe | Unsubscribe) -> Request:
        request = Request(packet)
        request.before = list(self._active)
        self._requests[self._outgoing.reserve_id(request)] = request
        return request

    def _send(self, request: Request) -> None:
        packet = replace(request.packet, packet_id=request.packet_id)
        self._outgoing.write(encode(packet, self._outgoing.version))
        request.sent = True

    def apply(self, packet: Packet) -> None:
        """SUBACK or UNSUBACK came; others are passed over."""
        if not isinstance(packet, Suback | Unsuback):
            return
        request = cast(Request | None, self._outgoing.release_id(packet.packet_id))
        if request is not None:
            del self._requests[packet.packet_id]
            if isinstance(request.packet, Unsubscribe):
                self._forget_filters(request, packet)
            if not request.answer.done():
                request.answer.set_result(packet)

    def connect(self, *, anew: bool) -> None:
        """A connection begins: sends what has no answer and, where the server has forgotten it, all there
        is."""
        for request in [each for each in self._requests.values() if each.abandoned]:
            self._drop(request)
        waiting = list(self._requests.values())
        if anew:  # what was asked later than these comes after them
            asked = {id(each.packet) for each in waiting}
            for subscription in self._active:
                if id(subscription.request) not in asked:
                    self._send(self._ask_alone(subscription.request))
        for request in waiting:
            self._send(request)

    def _ask_alone(self, packet: Subscribe | Unsubscribe) -> Request:
        """Nobody will look at the answer."""
        request = self._keep(packet)
        request.answer.add_done_callback(lambda answer: answer.cancelled() or answer.exception())
        return request

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

    def undo(self, subscription: Subscription, request: Request) -> None:
        """Its SUBSCRIBE was refused, or nobody waits for the answer: it gets no more messages, and the server
        is told, where it may have it and nobody else wants it."""
        self.forget(subscription)
        if self._outgoing.closed_error is not None:
            return
        granted: tuple[int, ...] = ()
        if request.answer.done() and not request.answer.cancelled():
            granted = request.answer.result().reasons
        else:
            self.abandon(request)
            if not request.sent:
                return
        wanted = {option.filter for each in self._active for option in each.request.subscriptions}
        reasons = granted or (0,) * len(subscription.filters)
        ended = [name for name, reason in zip(subscription.filters, reasons, strict=True) if reason < 0x80]
        if left := tuple(name for name in ended if name not in wanted):
            unsubscribing = self._ask_alone(Unsubscribe(packet_id=1, filters=left))
            if self._outgoing.connected:
                self._send(unsubscribing)

    def forget(self, subscription: Subscription) -> None:
        """It gets no more messages."""
        if subscription in self._active:
            self._active.remove(subscription)
        for each, queue in self._claimed:
            if each is subscription:
                queue.end()
        self._claimed = [pair for pair in self._claimed if pair[0] is not subscription]
        self._incoming.routes = {} if self._claimed else None

    def _forget_filters(self, request: Request, answer: Suback | Unsuback) -> None:
        """The server has ended these, but for those that it refuses to, and that were made since."""
        assert isinstance(request.packet, Unsubscribe)
        names = request.packet.filters
        refused = [name for name, reason in zip(names, answer.reasons, strict=False) if reason >= 0x80]
        filters = [name for name in names if name not in refused]
        for subscription in [each for each in self._active if each in request.before]:
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
