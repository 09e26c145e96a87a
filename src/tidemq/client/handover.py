"""Messages that threads publish, on their way to the client's event loop, which is woken once for many.

No lock: the GIL is held from the look at what is there to the note that there is more.
"""

from collections import deque

import cython
from cython.cimports.tidemq.client.outgoing import Outgoing
from cython.cimports.tidemq.client.receipt import Receipt

from tidemq.client.errors import DisconnectedError
from tidemq.errors import TideMQError

if not cython.compiled:
    raise ImportError("tidemq.client.handover is compiled code: run `make build`")


@cython.final
@cython.cclass
class Handover:
    def __init__(self, outgoing: Outgoing, messages_max: int, drops_oldest: bool) -> None:
        self.outgoing = outgoing
        self.messages_max, self.drops_oldest = messages_max, drops_oldest
        self.receipts = deque()

    def open(self, wake) -> None:
        """There is a loop, which `wake` lets call `accept`."""
        self.wake = wake

    @property
    def held_messages(self) -> int:
        """Of the client, with those that are on their way to it."""
        return self.outgoing.held_messages + len(self.receipts)

    def offer(self, receipt: Receipt) -> cython.bint:
        """By any thread. False where the client has no room, the client's error where it has ended."""
        if self.outgoing.closed_error is not None:
            raise self.outgoing.closed_error
        if self.wake is None:
            raise DisconnectedError("the client is not connected")
        if not self.drops_oldest and (
            not self.outgoing.has_room(len(receipt.payload))
            or self.outgoing.held_messages + len(self.receipts) >= self.messages_max
        ):
            return False
        self.receipts.append(receipt)
        if not self.woken:
            self.woken = True
            self.wake()
        return True

    def accept(self) -> None:
        """In the loop: takes what there is."""
        receipt: Receipt
        self.woken = False
        while self.receipts:
            receipt = self.receipts.popleft()
            try:
                self.outgoing.admit(receipt)
            except TideMQError as error:
                receipt.refuse(error)
