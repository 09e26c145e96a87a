"""Fuzzes the parser of the wire format: `python tests/fuzz/fuzz_wire.py --seconds 60 [--seed N] [--runs N]`.

An input is a protocol version (its first byte, modulo 3, plus 3) and a stream of bytes. It shows something
new where it has a fault of a packet type, or a set of properties, for the first time. Each is parsed in front
of a page that cannot be read, so that one byte too many ends the process.

This driver sees outcomes, not the branches of the compiled code. For that, `tests/fuzz/long.sh` builds it
with clang's coverage counters and address sanitizer and hands the same target to atheris (`--engine
atheris`).
"""

from __future__ import annotations

import ctypes
import dataclasses
import mmap
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzz.driver import INPUT_BYTES_MAX, Subject, guarded, parser

from tidemq.errors import ProtocolError
from tidemq.wire import Connect, Decoder, Fault, Packet, Properties, decode, encode

PROT_NONE = 0


class GuardedPages:
    """Memory whose end is the end of what may be read."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, INPUT_BYTES_MAX + mmap.PAGESIZE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        forbidden = ctypes.c_void_p(start + INPUT_BYTES_MAX)
        if ctypes.CDLL(None, use_errno=True).mprotect(forbidden, mmap.PAGESIZE, PROT_NONE) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")

    def hold(self, data: bytes) -> memoryview:
        """A view of a copy of `data`, valid until the next call, that ends where reading is forbidden."""
        self._map[INPUT_BYTES_MAX - len(data) : INPUT_BYTES_MAX] = data
        return memoryview(self._map)[INPUT_BYTES_MAX - len(data) : INPUT_BYTES_MAX]


PAGES = GuardedPages()


# --- the target


def exercise(data: bytes) -> tuple[object, ...]:
    """Parse one input and check what must hold of any; the return value says what was seen."""
    if not data:
        return ()
    version = 3 + data[0] % 3
    stream = data[1 : 1 + INPUT_BYTES_MAX]
    packets, fault, used = parse(PAGES.hold(stream), version)
    if fault is None:
        assert is_incomplete(stream[used:]), "bytes of a whole packet were left"
    check_split(stream, version, packets, fault)
    return (version, fault, stream[used] >> 4 if fault else None, *map(signature, packets[:4]))


def parse(view: memoryview, version: int) -> tuple[list[Packet], Fault | None, int]:
    """The packets, the fault that ended them, and the bytes that the packets took."""
    packets: list[Packet] = []
    used = 0
    while True:
        try:
            found = decode(view[used:], version)
        except ProtocolError as error:
            return packets, Fault(error.fault), used
        if found is None:
            return packets, None, used
        packet, size = found
        assert 2 <= size <= len(view) - used, "a packet of more bytes than there are"
        if isinstance(packet, Connect):
            version = packet.version
        again = decode(encode(packet, version), version)
        assert again is not None, "what was read cannot be written"
        assert again[0] == packet, "what was read is written otherwise"
        packets.append(packet)
        used += size


def is_incomplete(rest: bytes) -> bool:
    """Whether more bytes are needed, by the algorithm of section 1.5.5."""
    value = 0
    for i, byte in enumerate(rest[1:5]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return len(rest) < i + 2 + value
    return len(rest) < 5


def check_split(stream: bytes, version: int, packets: list[Packet], fault: Fault | None) -> None:
    """The same stream in two pieces gives the same."""
    decoder = Decoder(version)
    middle = len(stream) // 2
    found: list[Packet] = []
    ended: Fault | None = None
    try:
        for piece in (stream[:middle], stream[middle:]):
            decoder.feed(piece)
            for packet in decoder:
                found.append(packet)
    except ProtocolError as error:
        ended = Fault(error.fault)
    assert ended == fault, "a split stream ends otherwise"
    assert found == packets, "a split stream gives other packets"


def signature(packet: Packet) -> tuple[object, ...]:
    """Its type and which of its fields hold something."""
    fields = tuple(field.name for field in dataclasses.fields(packet) if getattr(packet, field.name))
    return (type(packet).__name__, fields, present(getattr(packet, "properties", None)))


def present(properties: Properties | None) -> tuple[str, ...]:
    if properties is None:
        return ()
    values = ((field.name, getattr(properties, field.name)) for field in dataclasses.fields(properties))
    return tuple(name for name, value in values if value not in (None, ()))


# --- the driver


def fit_length(rng: random.Random, data: bytearray) -> None:
    """Give every second input of one short packet the remaining length that it has."""
    if rng.random() < 0.5 and 3 <= len(data) <= 127 + 3:
        data[2] = len(data) - 3


SUBJECT = Subject(name="wire", target=exercise, finish=fit_length)


def run_atheris(seed: int, seconds: int) -> None:
    """Hand the target to libFuzzer; new inputs go to `build/fuzz/found`. Never returns."""
    import atheris

    found = Path("build/fuzz/found")
    found.mkdir(parents=True, exist_ok=True)
    options = [sys.argv[0], f"-max_total_time={seconds}", f"-seed={seed}", f"-max_len={INPUT_BYTES_MAX}"]
    atheris.Setup([*options, str(found), str(SUBJECT.corpus_folder)], exercise)
    atheris.Fuzz()


def main() -> int:
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--engine", choices=["own", "atheris"], default="own")
    options = arguments.parse_args()
    if options.engine == "atheris":
        run_atheris(options.seed, options.seconds)
    return guarded(SUBJECT, options.seed, options.seconds, options.runs, options.crash_dir)


if __name__ == "__main__":
    raise SystemExit(main())
