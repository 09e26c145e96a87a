"""The packet identifiers that a client has in use (5.0 section 2.2.1): given out in turn, found at once.

Needs the GIL; one thread at a time.
"""

import cython
from cython.cimports.libc.stdint import uint16_t, uint32_t
from cython.cimports.tidemq.client.identifiers import IDENTIFIERS_MAX
from cython.cimports.tidemq.client.receipt import Receipt

if not cython.compiled:
    raise ImportError("tidemq.client.identifiers is compiled code: run `make build`")

_SLOTS_MIN = 64
_SLOTS_MAX = cython.declare(uint32_t, 0x10000)


def id_of(owner):
    return cython.cast(Receipt, owner).packet_id if type(owner) is Receipt else owner.packet_id


@cython.final
@cython.cclass
class Identifiers:
    def __init__(self) -> None:
        self.slots, self.mask = [None] * _SLOTS_MIN, _SLOTS_MIN - 1

    def assign(self, owner):
        assert self.used < IDENTIFIERS_MAX
        packet_id: uint16_t = 0
        while True:
            packet_id = cython.cast(uint16_t, self.last % IDENTIFIERS_MAX + 1)
            if self.slots[packet_id & self.mask] is None:
                break
            if self.mask + 1 < _SLOTS_MAX:
                self.enlarge()
            else:
                self.last = packet_id  # in use: the next
        self.last = packet_id
        self.slots[packet_id & self.mask] = owner
        self.used += 1
        return packet_id

    def occupy(self, packet_id, owner):
        while self.slots[packet_id & self.mask] is not None:
            if id_of(self.slots[packet_id & self.mask]) == packet_id:
                return False
            self.enlarge()
        self.slots[packet_id & self.mask] = owner
        self.last = packet_id
        self.used += 1
        return True

    def owner(self, packet_id):
        found = self.slots[packet_id & self.mask]
        return found if found is not None and id_of(found) == packet_id else None

    def free(self, packet_id):
        self.slots[packet_id & self.mask] = None
        self.used -= 1

    def receipts(self):
        return sorted([each for each in self.slots if type(each) is Receipt], key=serial_of)

    def enlarge(self):
        """Twice the slots."""
        slots: list = [None] * (2 * (self.mask + 1))
        self.mask = 2 * self.mask + 1
        for each in self.slots:
            if each is not None:
                slots[id_of(each) & self.mask] = each
        self.slots = slots


def serial_of(receipt: Receipt) -> int:
    return receipt.serial
