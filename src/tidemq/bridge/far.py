"""The other side of a bridge, as far as it is known from one connection to the next: the session that it
keeps for the bridge, and messages that it does not take.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from tidemq.bridge.relay import Half
from tidemq.wire import ReasonCode

# reasons of DISCONNECT that say that a message was wrong; it would be so again
_OVER_A_MESSAGE = frozenset(
    {
        ReasonCode.MALFORMED_PACKET,
        ReasonCode.PROTOCOL_ERROR,
        ReasonCode.NOT_AUTHORIZED,
        ReasonCode.TOPIC_NAME_INVALID,
        ReasonCode.PACKET_TOO_LARGE,
        ReasonCode.PAYLOAD_FORMAT_INVALID,
        ReasonCode.RETAIN_NOT_SUPPORTED,
        ReasonCode.QOS_NOT_SUPPORTED,
    }
)
_LOSSES = 2  # in a row without an answer to any message: then messages go one at a time


@dataclass(slots=True)
class Far:
    """One address of it. Belongs to the bridges' event loop."""

    url: str
    client_id: str
    is_private: bool  # it is told that a bridge connects
    is_notified: bool  # and keeps a message that says so
    # QoS of those that its session has, as far as we know
    filters: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)  # reasons by filter
    # which of both sessions may remember messages of QoS 2 that the other has forgotten: that there, or here
    is_ahead: bool = False
    is_behind: bool = False
    careful: int = 0  # so many messages go one at a time next, for one of them may have ended the connection
    blamed_id: int = 0  # packet identifier of the message with which alone on its way it has ended it
    skip: int = 0  # packet identifier of the message that is passed by next; 0: none
    losses: int = 0  # connections in a row that have ended with messages under way, and none answered
    stuck_id: int = 0  # of the message that was refused last, but may be taken later
    stuck_since: float = 0.0  # monotonic seconds

    def prepare(self, half: Half) -> None:
        """It is connected; what was learnt before is for this connection."""
        half.careful, self.careful = self.careful, 0
        half.skip, self.skip = self.skip, 0

    def note_refusal(self, packet_id: int, longest_s: float) -> None:
        """It refuses a message, but may take it later. After `longest_s` it is passed by; 0: never."""
        now = time.monotonic()
        if self.stuck_id != packet_id:
            self.stuck_id, self.stuck_since = packet_id, now
        elif longest_s and now - self.stuck_since >= longest_s:
            self.skip, self.stuck_id = packet_id, 0

    def note_disconnect(self, half: Half, reason: int, send_max: int) -> None:
        """It has ended the connection with DISCONNECT. If it did so over a message, it would do so for ever.
        Which one is known when only one was under way; else they go one at a time next. Once may be chance:
        the message is passed by when the same happens as soon as it is sent again.
        """
        if reason not in _OVER_A_MESSAGE or not half.under_way:
            return
        self.careful = send_max
        if half.careful:
            again = half.last_id == self.blamed_id and not half.answered
            self.skip, self.blamed_id = (half.last_id, 0) if again else (0, half.last_id)

    def note_loss(self, half: Half, send_max: int) -> None:
        """The connection is gone without a word. Who closes it at once with what is on its way to it is not
        heard; so messages go one at a time when that happens again.
        """
        self.losses = self.losses + 1 if half.under_way and not half.answered else 0
        if self.losses >= _LOSSES:
            self.careful = send_max
