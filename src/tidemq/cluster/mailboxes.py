"""Batches of the engine on their way to other nodes and back, each once and in order, whatever the links do.

A batch is numbered and kept until the other node has said that it has it; what was sent and not answered is
sent again. A node that begins with number 1 anew does so under another `life`; what is above its last 16 bits
is another one for each process.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field

from tidemq.errors import ClusterError

BATCH, INTEREST, FLUSH, FLUSHED, PART = 1, 2, 3, 4, 5  # kinds of letters
RESEND_S, RESEND_S_MAX = 0.3, 1.2  # without an answer that goes on, at first; doubles
UNDER_WAY_BYTES = 8 << 20  # sent and not answered; more waits

LIVES_BITS = 16  # of a life: how often one process has begun anew

_HEAD = struct.Struct(">QQB")  # life of the sender, number, kind
_ANSWER = struct.Struct(">QQ")  # life of whom it is for, number up to which all has come


@dataclass(slots=True)
class Letter:
    """What goes to another node."""

    kind: int
    body: bytes
    number: int = 0


@dataclass(slots=True)
class Outgoing:
    """To one node. `take_sent` gives what has arrived, so that there is room for more."""

    life: int
    _waiting: deque[Letter] = field(default_factory=deque)
    _sent: deque[Letter] = field(default_factory=deque)
    _last: int = 0
    _sent_bytes: int = 0
    _goes_on: bool = True  # something has arrived, or nothing was under way
    _again_at: float = 0.0
    _again_s: float = RESEND_S

    def is_void(self, life: int) -> bool:
        """Whether its receiver takes no letters of this life and those before, and this is one."""
        return self.life >> LIVES_BITS == life >> LIVES_BITS and self.life <= life

    def put(self, kind: int, body: bytes) -> int:
        """Something to be sent; gives its number."""
        self._last += 1
        self._waiting.append(Letter(kind, body, self._last))
        return self._last

    @property
    def last(self) -> int:
        """The number of what was put last."""
        return self._last

    @property
    def answered(self) -> int:
        """The number up to which all has arrived."""
        left = self._sent or self._waiting
        return left[0].number - 1 if left else self._last

    def due(self, now: float) -> list[bytes]:
        """What is to be sent now."""
        letters: list[Letter] = []
        if self._goes_on or not self._sent:
            self._goes_on, self._again_at, self._again_s = False, now + RESEND_S, RESEND_S
        elif now >= self._again_at:  # however much is new: behind one that was lost nothing is taken
            letters += self._sent
            self._again_s = min(2 * self._again_s, RESEND_S_MAX)
            self._again_at = now + self._again_s
        while self._waiting and self._sent_bytes < UNDER_WAY_BYTES:
            letter = self._waiting.popleft()
            self._sent.append(letter)
            self._sent_bytes += len(letter.body)
            letters.append(letter)
        return [_HEAD.pack(self.life, each.number, each.kind) + each.body for each in letters]

    def arrived(self, text: bytes) -> list[Letter]:
        """An answer; gives what has arrived by it. ClusterError where it is none."""
        if len(text) != _ANSWER.size:
            raise ClusterError(f"an answer has {_ANSWER.size} bytes, this one {len(text)}")
        life, number = _ANSWER.unpack(text)
        done = []
        while life == self.life and self._sent and self._sent[0].number <= number:
            letter = self._sent.popleft()
            self._sent_bytes -= len(letter.body)
            done.append(letter)
        self._goes_on |= bool(done)
        return done

    def forget(self) -> list[Letter]:
        """The node is gone: gives all that has not arrived."""
        left = [*self._sent, *self._waiting]
        self._sent.clear()
        self._waiting.clear()
        self._sent_bytes = 0
        return left


@dataclass(slots=True)
class Arriving:
    """From one node."""

    _life: int = 0
    _number: int = 0
    void: int = 0  # the last life that does not count any more

    @property
    def has_begun(self) -> bool:
        """Whether something has come since the last life ended."""
        return self._life != 0

    def end_life(self) -> None:
        """Nothing of the life that there is counts any more."""
        self.void, self._life, self._number = self._life or self.void, 0, 0

    def avoid(self, text: bytes) -> None:
        """Nothing of the life counts that this letter is of."""
        self.void, self._life, self._number = int.from_bytes(text[:8]), 0, 0

    def is_of_another_process(self, text: bytes) -> bool:
        """Whether the letter is of another process of the node than those before."""
        life, known = int.from_bytes(text[:8]), self._life or self.void
        return known != 0 and life >> LIVES_BITS != known >> LIVES_BITS

    def take(self, text: bytes) -> Letter | None:
        """A letter, if it is the next one; None: it has come before, or one before it is missing.

        ClusterError where it is none. Who takes it calls `took`.
        """
        if len(text) < _HEAD.size:
            raise ClusterError(f"a letter has at least {_HEAD.size} bytes, this one {len(text)}")
        life, number, kind = _HEAD.unpack_from(text)
        if life <= self.void and life >> LIVES_BITS == self.void >> LIVES_BITS:
            return None
        if life != self._life:
            self._life, self._number = life, 0
        if number != self._number + 1:
            return None
        return Letter(kind, text[_HEAD.size :], number)

    def took(self, letter: Letter) -> None:
        """The letter has been acted on."""
        self._number = letter.number

    @property
    def answer(self) -> bytes:
        """That all up to the last one that was taken has come."""
        return _ANSWER.pack(self._life, self._number)
