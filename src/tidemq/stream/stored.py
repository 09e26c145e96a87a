"""The streams that a store knows, and whether all their messages are in their files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tidemq.config import StreamConfig
from tidemq.errors import StoreError, UsageError
from tidemq.store import Store
from tidemq.stream.log import EXTENT, FAMILY, Extent, StreamLog, extent_prefix, read_extent


class StoredStream(NamedTuple):
    """A stream as the store's rows have it: its declaration and where its messages are."""

    config: StreamConfig
    epoch: int
    next_offset: int  # no message gets a lower one, also when there is none left
    extents: list[Extent]

    def folder(self, data: Path) -> Path:
        """Where its files are, in a data directory."""
        return stream_folder(data, self.config.name, self.epoch)


def stream_folder(data: Path, name: str, epoch: int) -> Path:
    """Where the files of the stream of this name and epoch are."""
    return data / "streams" / f"{name}.{epoch:016x}"


def read_streams(store: Store) -> list[StoredStream]:
    """All streams of a store. StoreError for a row that is neither a declaration nor an extent."""
    extents: dict[bytes, list[Extent]] = {}
    declared: list[bytes] = []
    for key, value in store.scan(FAMILY):
        if key.partition(EXTENT)[1]:
            try:
                extents.setdefault(key[:-8], []).append(read_extent(key, value))
            except ValueError as error:
                raise StoreError(f"the store's row stream {key.hex()} is corrupt: {error}") from error
        else:
            declared.append(value)
    found = (_read_declaration(each) for each in declared)
    return [
        StoredStream(config, epoch, next_offset, extents.get(extent_prefix(config.name), []))
        for config, epoch, next_offset in found
    ]


def _read_declaration(value: bytes) -> tuple[StreamConfig, int, int]:
    try:
        fields = json.loads(value)
        epoch, next_offset = int(fields.pop("epoch")), int(fields.pop("next_offset"))
        return StreamConfig.model_validate(fields), epoch, next_offset
    except (ValueError, KeyError, AttributeError) as error:  # also what JSON and the model raise
        raise StoreError(f"the store's row {value[:200]!r} does not declare a stream: {error}") from error


def require_packages() -> None:
    """UsageError when what streams need is not installed."""
    try:
        import tidemq.stream.schema  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"streams need the package {error.name}, which `pip install 'tidemq[streams]'` brings"
        ) from error


def describe_loss(name: str, lost: Sequence[Extent]) -> str:
    """A line for people on messages whose bytes are not there, or not as they were written."""
    rows = sum(each.rows for each in lost)
    return (
        f"the stream {name} has lost {rows} messages, the first of offset {lost[0].first}: "
        "their files are not as they were written"
    )


@dataclass
class StreamFindings:
    """What `check_streams` found: messages and bytes that it read, and a line for each damaged stream."""

    messages: int = 0
    bytes: int = 0
    corrupt: list[str] = field(default_factory=list)


def check_streams(store: Store, data: Path) -> StreamFindings:
    """Reads all messages of all streams and compares checksums. Takes memory for the largest batch, and some
    100 bytes for each. UsageError when a package is missing; StoreError for a row that cannot be read.
    """
    findings = StreamFindings()
    streams = read_streams(store)
    if streams:
        require_packages()
    for stream in streams:
        name, extents = stream.config.name, stream.extents
        log = StreamLog(name, stream.folder(data), extents, stream.next_offset)
        findings.messages += sum(each.rows for each in extents)
        findings.bytes += log.size_bytes
        if lost := log.damaged(verified_bytes=log.size_bytes):
            findings.corrupt.append(describe_loss(name, lost))
    return findings
