"""`tidemq stream`: the streams of a running broker, asked over HTTP."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemq.cli.exit_codes import EXIT_FAILED
from tidemq.errors import TideMQError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemq.client.streams import StreamReader

WAIT_S = 30.0  # for the next message, before it is asked for again

app = typer.Typer(
    help="Declare, list and read the streams of a running broker (pip install 'tidemq[streams]').",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Url = Annotated[
    str, typer.Option(envvar="TIDEMQ_ADMIN_URL", metavar="URL", help="The broker's admin listener.")
]
TokenFile = Annotated[
    str,
    typer.Option(
        envvar="TIDEMQ_ADMIN_TOKEN_FILE",
        metavar="FILE",
        help="With the listener's token; or TIDEMQ_ADMIN_TOKEN has it.",
    ),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the stream.")]
Start = Annotated[
    str, typer.Option(help="Where to begin: first, next, an offset, or a time with its zone (ISO 8601).")
]
Count = Annotated[int | None, typer.Option("--count", "-C", min=1, help="Exit after this many messages.")]
DEFAULT_URL = "http://127.0.0.1:18083"


@app.command("list")
def list_streams(url: Url = DEFAULT_URL, token_file: TokenFile = "") -> None:
    """Show the streams: what is kept of each topic, offsets, size, filters."""
    from tidemq.client.stream_admin import list_streams
    from tidemq.client.streams import find_token

    def run() -> None:
        states = list_streams(url, token=find_token(token_file))
        print(f"{'name':20} {'first':>14} {'next':>14} {'bytes':>16}  kept  filters")
        for each in states:
            sizes = f"{each.first_offset:14} {each.next_offset:14} {each.bytes:16}"
            kept = "last" if each.last else "all"
            print(f"{each.name:20} {sizes}  {kept:4}  {' '.join(each.filters)}")

    _exit_with(run)


@app.command()
def create(
    name: Name,
    filters: Annotated[list[str], typer.Argument(metavar="FILTER...", help="What goes into it.")],
    url: Url = DEFAULT_URL,
    token_file: TokenFile = "",
    retention_s: Annotated[
        float | None,
        typer.Option(help="Seconds for which messages are kept; 0: no bound. [default: 7 days; --last: 0]"),
    ] = None,
    retention_bytes: Annotated[
        int | None, typer.Option(help="Bytes on disk; 0: no bound. [default: 10 GiB; --last: 0]")
    ] = None,
    compression: Annotated[
        str | None, typer.Option(help="Of its files: none, lz4, zstd. [default: lz4]")
    ] = None,
    last: Annotated[bool, typer.Option("--last", help="Keep only the newest message of each topic.")] = False,
) -> None:
    """Create a stream, or give an existing one these filters and settings."""
    from tidemq.client.stream_admin import declare_stream
    from tidemq.client.streams import find_token

    def run() -> None:
        declare_stream(
            url,
            name,
            filters,
            retention_s=retention_s,
            retention_bytes=retention_bytes,
            compression=compression,
            last=last,
            token=find_token(token_file),
        )

    _exit_with(run)


@app.command()
def delete(name: Name, url: Url = DEFAULT_URL, token_file: TokenFile = "") -> None:
    """End a stream. Its messages are lost."""
    from tidemq.client.stream_admin import delete_stream
    from tidemq.client.streams import find_token

    _exit_with(lambda: delete_stream(url, name, token=find_token(token_file)))


@app.command()
def tail(
    name: Name,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = "",
    start: Start = "next",
    count: Count = None,
) -> None:
    """Print messages as they come, each a line of JSON. Payloads that are no UTF-8 are in hexadecimal."""

    def run() -> None:
        for row in _rows(_reader(url, token_file, name), start, count):
            print(json.dumps(row), flush=True)

    _exit_with(run)


@app.command()
def export(
    name: Name,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="To write: .parquet or .arrow.")],
    url: Url = DEFAULT_URL,
    token_file: TokenFile = "",
    start: Start = "first",
    end: Annotated[int | None, typer.Option(help="Offset to end before. [default: all]")] = None,
    last: Annotated[
        bool, typer.Option("--last", help="The newest message of each topic instead, of a stream with last.")
    ] = False,
) -> None:
    """Write a range of messages to a file for another program, as Parquet or as an Arrow IPC file."""

    def run() -> None:
        reader = _reader(url, token_file, name)
        if last and (start, end) != ("first", None):
            raise UsageError("--last excludes --start and --end: it is the table of now")
        if last:
            rows = _write(file, reader.read_last())
        else:
            first = _offset(reader, start)
            rows = _write(file, reader.read(first, reader.describe().next_offset if end is None else end))
        print(f"{rows} messages", file=sys.stderr)

    _exit_with(run)


def _reader(url: str, token_file: str, name: str) -> StreamReader:
    from tidemq.client.streams import StreamReader, find_token

    return StreamReader(url, name, token=find_token(token_file))


def _offset(reader: StreamReader, start: str) -> int:
    """The offset that `start` names."""
    if start in ("first", "next"):
        state = reader.describe()
        return state.first_offset if start == "first" else state.next_offset
    if start.isdecimal():
        return int(start)
    try:
        return reader.offset_at(datetime.fromisoformat(start))
    except ValueError as error:
        raise UsageError(
            f"{start!r} is not a valid start: give first, next, an offset or a time like 2026-11-22T08:00Z"
        ) from error


def _rows(reader: StreamReader, start: str, count: int | None) -> Iterator[dict[str, Any]]:
    """Messages, for ever or so many, as what JSON can say."""
    at = _offset(reader, start)
    left = count
    while left is None or left > 0:
        end = reader.wait(at, WAIT_S).next_offset
        for batch in reader.read(at, end):
            for row in batch.slice(0, left).to_pylist():
                yield _said(row)
            left = None if left is None else left - batch.num_rows
            if left is not None and left <= 0:
                return
        at = max(at, end)


def _said(row: dict[str, Any]) -> dict[str, Any]:
    said = {key: value for key, value in row.items() if value not in (None, [])}
    said["received"] = row["received"].isoformat()
    said["message_id"] = row["message_id"].hex()
    said["payload"] = _text(row["payload"])
    if "correlation_data" in said:
        said["correlation_data"] = row["correlation_data"].hex()
    return said


def _text(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return f"0x{payload.hex()}"


def _write(file: Path, batches: Iterator[pa.RecordBatch]) -> int:
    """Writes batches in the form that the file's name asks for; how many rows. UsageError: another name."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {
        ".parquet": lambda schema: pq.ParquetWriter(file, schema, compression="zstd"),
        ".arrow": lambda schema: pa.ipc.new_file(file, schema),
    }
    if file.suffix not in kinds:
        raise UsageError(f"the file {file} has to end in {' or '.join(kinds)}")
    first = next(batches, None)
    if first is None:
        raise UsageError("there is no message in this range")
    rows = 0
    with kinds[file.suffix](first.schema) as writer:
        for batch in itertools.chain([first], batches):
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


def _exit_with(run: Callable[[], None]) -> None:
    """Ends the command; an error is one line on stderr and code 1."""
    try:
        run()
        code = 0
    except KeyboardInterrupt:
        code = 0
    except ImportError as error:
        print(f"tidemq: this needs the package {error.name}: pip install 'tidemq[streams]'", file=sys.stderr)
        code = EXIT_FAILED
    except (TideMQError, OSError) as error:
        print(f"tidemq: {error}", file=sys.stderr)
        code = EXIT_FAILED
    raise typer.Exit(code)
