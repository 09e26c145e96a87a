"""Fuzzes the parser of the wire format: `python tests/fuzz/fuzz_wire.py --seconds 60 [--seed N] [--runs N]`.

An input is a protocol version (its first byte, modulo 3, plus 3) and a stream of bytes. The corpus is
replayed first, then inputs made from it, always the same for a seed. An input that shows something new (a
fault of a packet type, a set of properties) joins the pool that others are made from. Each is parsed in
front of a page that cannot be read, so that one byte too many ends the process; its parent keeps the input
in a file.

This driver sees outcomes, not the branches of the compiled code. For that, `tests/fuzz/long.sh` builds it
with clang's coverage counters and address sanitizer and hands the same target to atheris (`--engine
atheris`).
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import hashlib
import mmap
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tidemq.errors import ProtocolError
from tidemq.wire import Connect, Decoder, Fault, Packet, Properties, decode, encode

CORPUS = Path(__file__).parent / "corpus" / "wire"
INPUT_BYTES_MAX = 8192
PROT_NONE = 0
Target = Callable[[bytes], object]


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

INTERESTING = b"\0\1\2\3\4\5\x0b\x0f\x10\x20\x23\x26\x2b\x2f\x30\x3f\x40\x7f\x80\x81\x8f\xc0\xed\xf0\xf4\xff"


def replay() -> list[bytes]:
    return [path.read_bytes() for path in sorted(CORPUS.iterdir())]


def mutate(rng: random.Random, pool: list[bytes]) -> bytes:
    """An input of the pool, changed at one to four places; half of them with a remaining length that fits."""
    data = bytearray(rng.choice(pool))
    for _ in range(rng.randint(1, 4)):
        change(rng, data, pool)
    if rng.random() < 0.5:
        fit_length(data)
    return bytes(data[: INPUT_BYTES_MAX + 1])


def change(rng: random.Random, data: bytearray, pool: list[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.randint(1, 8))
    choice = rng.randrange(7)
    if choice == 0 and at < len(data):
        data[at] ^= 1 << rng.randrange(8)
    elif choice == 1 and at < len(data):
        data[at] = rng.choice(INTERESTING)
    elif choice == 2:
        data[at:at] = bytes(rng.choice(INTERESTING) for _ in range(rng.randint(1, 4)))
    elif choice == 3 and len(data) > 1:
        del data[at:end]
    elif choice == 4:
        data[at:at] = data[at:end]
    elif choice == 5:
        other = rng.choice(pool)
        start = rng.randrange(len(other))
        data[at:end] = other[start : start + rng.randint(1, 40)]
    else:
        data += rng.choice(pool)[1:]
    if not data:
        data.append(5)


def fit_length(data: bytearray) -> None:
    """Give an input of one short packet the remaining length that it has."""
    if 3 <= len(data) <= 127 + 3:
        data[2] = len(data) - 3


def fuzz(target: Target, seed: int, seconds: float, runs_max: int, note: Callable[[bytes], None]) -> str:
    """Replay, then mutate until time or runs are over. `note` is told of each input before it runs."""
    rng = random.Random(seed)
    pool = replay()
    seen: set[object] = set()
    digest = hashlib.sha256()
    deadline = time.monotonic() + seconds
    for data in pool:
        note(data)
        seen.add(target(data))
    replayed = runs = len(pool)
    while runs < runs_max and time.monotonic() < deadline:
        data = mutate(rng, pool)
        note(data)
        digest.update(data)
        outcome = target(data)
        runs += 1
        if outcome not in seen:
            seen.add(outcome)
            pool.append(data)
    return (
        f"replayed {replayed}, ran {runs - replayed} more, {len(seen)} outcomes, "
        f"inputs {digest.hexdigest()[:16]}, seed {seed}"
    )


def guarded(target: Target, seed: int, seconds: float, runs_max: int, crash_dir: Path) -> int:
    """Fuzz in a child process; keep the input it died of. Returns 0, or 1 after a finding."""
    shared = mmap.mmap(-1, 8 + INPUT_BYTES_MAX + 1)

    def note(data: bytes) -> None:
        shared[:8] = len(data).to_bytes(8, "little")
        shared[8 : 8 + len(data)] = data

    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            print(fuzz(target, seed, seconds, runs_max, note), flush=True)
            status = 0
        except BaseException as error:
            print(f"seed {seed}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(status)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == 0:
        return 0
    data = shared[8 : 8 + int.from_bytes(shared[:8], "little")]
    path = crash_dir / f"crash-wire-{hashlib.sha1(data).hexdigest()[:12]}"
    path.write_bytes(data)
    how = signal.Signals(-code).name if code < 0 else "a check failed"
    print(f"seed {seed}: {how} with {data.hex(' ')}; kept as {path}", file=sys.stderr)
    return 1


def run_atheris(seed: int, seconds: int) -> None:
    """Hand the target to libFuzzer; new inputs go to `build/fuzz/found`. Never returns."""
    import atheris

    found = Path("build/fuzz/found")
    found.mkdir(parents=True, exist_ok=True)
    options = [sys.argv[0], f"-max_total_time={seconds}", f"-seed={seed}", f"-max_len={INPUT_BYTES_MAX}"]
    atheris.Setup([*options, str(found), str(CORPUS)], exercise)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--runs", type=int, default=sys.maxsize, help="inputs in all, replayed ones included")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=["own", "atheris"], default="own")
    parser.add_argument("--crash-dir", type=Path, default=Path())
    options = parser.parse_args()
    if options.engine == "atheris":
        run_atheris(options.seed, options.seconds)
    return guarded(exercise, options.seed, options.seconds, options.runs, options.crash_dir)


if __name__ == "__main__":
    raise SystemExit(main())
