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
    def __init__(self, outgoing: Outgoing) -> None:
        self.outgoing = outgoing
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
        if not self.outgoing.drops_oldest and not self.outgoing.has_room_for(receipt):
            return False
        self.promise(receipt, 1)
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
            self.promise(receipt, -1)
            try:
                self.outgoing.admit(receipt)
            except TideMQError as error:
                receipt.refuse(error)
        if self.outgoing.room_waiters and self.outgoing.is_half_empty():
            self.outgoing.wake_room_waiters()  # what was refused has left the room that it was promised

    def promise(self, receipt, sign):
        """Nobody else gets its room, for many a publisher has gone on and could not be told. -1: takes it
        back. What drops the oldest makes room by itself."""
        if not self.outgoing.drops_oldest:
            self.outgoing.promised_messages += sign
            self.outgoing.promised_bytes += sign * receipt.size()
