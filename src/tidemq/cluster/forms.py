"""How values are written in records and in rows of the store: by forms, big-endian.

A form is one of these words, or a letter of `struct`, or such a letter with `*`: a list, how many (4) and
each.

- `text`, `bytes`: size (4), and UTF-8 or the bytes;
- `stamp`: clock (8), incarnation (8); `dot`: incarnation (8), number (8); `digest`: 16 bytes;
- `owner`: kind (1), name (a text);
- `vector`, `dots`, `flights`: how many (4), and each of incarnation (8) and number (8); a dot; message id
  (16), place (8) and whether PUBREC has come (1).

With `?` behind it a word may be None: whether there is one (1), and then it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

from tidemq.cluster.operations import GROUP, SESSION, Flight, Owner, Stamp
from tidemq.cluster.vectors import Dot
from tidemq.errors import ClusterError

DIGEST_BYTES = 16

_COUNT = struct.Struct(">I")
_PAIR = struct.Struct(">QQ")
_FLIGHT = struct.Struct(">QQQ?")


def write(text: bytearray, form: str, value: Any) -> None:
    """Appends a value."""
    if form in ("stamp", "dot"):
        text += _PAIR.pack(*value)
    elif form == "owner":
        text.append(value.kind)
        write(text, "text", value.name)
    elif form == "text":
        write(text, "bytes", value.encode())
    elif form == "bytes":
        text += _COUNT.pack(len(value)) + value
    elif form == "digest":
        text += value
    elif form == "vector":
        _write_each(text, _PAIR, sorted(value.items()))
    elif form == "dots":
        _write_each(text, _PAIR, value)
    elif form == "flights":
        _write_each(text, _FLIGHT, [(*flight.id, flight.sequence, flight.released) for flight in value])
    elif form.endswith("*"):
        text += _COUNT.pack(len(value)) + struct.pack(f">{len(value)}{form[0]}", *value)
    elif len(form) > 1:  # may be None
        text.append(value is not None)
        if value is not None:
            write(text, form[:-1], value)
    else:
        text += struct.pack(f">{form}", value)


def _write_each(text: bytearray, layout: struct.Struct, values: Sequence[Iterable[Any]]) -> None:
    text += _COUNT.pack(len(values))
    for value in values:
        text += layout.pack(*value)


def encode(forms: str, *values: Any) -> bytes:
    """The values one behind the other; `forms` has a form for each."""
    text = bytearray()
    for form, value in zip(forms.split(), values, strict=True):
        write(text, form, value)
    return bytes(text)


def decode(forms: str, text: bytes) -> list[Any]:
    """The values; ClusterError where the text has less or more."""
    reader = Reader(text)
    values = [reader.read(form) for form in forms.split()]
    reader.end()
    return values


class Reader:
    """Takes values off a text, in order; ClusterError where it ends too early. `what` it is, for messages."""

    def __init__(self, text: bytes, at: int = 0, what: str = "a row of the cluster") -> None:
        self._text = text
        self._what = what
        self.at = at

    def take(self, size: int) -> bytes:
        """The next bytes."""
        end = self.at + size
        if end > len(self._text):
            raise ClusterError(f"{self._what} ends after {len(self._text)} bytes, within a value of {size}")
        taken, self.at = self._text[self.at : end], end
        return taken

    def end(self) -> None:
        """ClusterError unless all has been taken."""
        if self.at != len(self._text):
            raise ClusterError(f"{self._what} has {len(self._text) - self.at} bytes behind its last value")

    def count(self) -> int:
        """How many there are of something."""
        return int(_COUNT.unpack(self.take(4))[0])

    def read(self, form: str) -> Any:
        """The next value."""
        if form in _PAIRS:
            return _PAIRS[form](*_PAIR.unpack(self.take(_PAIR.size)))
        if form == "owner":
            kind = self.take(1)[0]
            if kind not in (SESSION, GROUP):
                raise ClusterError(f"{self._what} has an owner of kind {kind}; 1 and 2 are known")
            return Owner(kind, self.read("text"))
        if form == "text":
            try:
                return self.read("bytes").decode()
            except UnicodeDecodeError as error:
                raise ClusterError(f"{self._what} has a text that is no UTF-8: {error}") from error
        if form == "bytes":
            return self.take(self.count())
        if form == "digest":
            return self.take(DIGEST_BYTES)
        if form in ("vector", "dots", "flights"):
            return self._read_each(form)
        if form.endswith("*"):
            count = self.count()
            return struct.unpack(f">{count}{form[0]}", self.take(count * struct.calcsize(form[0])))
        if len(form) > 1:
            return self.read(form[:-1]) if self.take(1) != b"\0" else None
        return struct.unpack(f">{form}", self.take(struct.calcsize(f">{form}")))[0]

    def _read_each(self, form: str) -> Any:
        layout = _FLIGHT if form == "flights" else _PAIR
        count = self.count()
        each = layout.iter_unpack(self.take(count * layout.size))
        if form == "vector":
            return dict(each)
        if form == "dots":
            return tuple(Dot(*pair) for pair in each)
        return tuple(Flight(Stamp(clock, whose), place, released) for clock, whose, place, released in each)


_PAIRS = {"stamp": Stamp, "dot": Dot}
