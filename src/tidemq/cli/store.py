"""`tidemq store`: looks into a data directory that no broker uses, and moves what is in it.

The parts of the store are imported when a command runs, so that the other commands start quickly.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from tidemq.errors import ConfigError, StoreError, TideMQError

if TYPE_CHECKING:
    from tidemq.store import Store
    from tidemq.store.mosquitto import MosquittoState

EXIT_CORRUPT = 1
EXIT_FAILED = 2

app = typer.Typer(
    help="Look into a data directory that no broker uses; copy it, move it to another engine.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Data = Annotated[Path, typer.Option(metavar="DIR", help="The data directory.")]
Engine = Annotated[str, typer.Option("--store", help="Engine of the new store: rocksdb or sqlite.")]


@app.command()
def check(data: Data = Path("tidemq-data")) -> None:
    """Read every row, and every message of streams. Exit code 1 when one is corrupt, 2 when the store cannot
    be opened.

    Leftovers of a crash are named, but they are harmless: the broker removes them when it comes across them.
    """
    from tidemq.store.engines import open_existing
    from tidemq.store.inspection import check_store
    from tidemq.stream.stored import StreamFindings, check_streams

    def run() -> int:
        streams = StreamFindings()
        with closing(open_existing(data)) as store:
            findings = check_store(store)
            try:
                streams = check_streams(store, data)
            except TideMQError as error:
                streams.corrupt.append(f"the messages of streams are not checked: {error}")
        for line in findings.corrupt + streams.corrupt:
            print(f"corrupt: {line}")
        for kind, count in sorted(findings.leftovers.items()):
            print(f"leftover: {kind}: {count}")
        left = findings.leftovers.total()
        print(f"{findings.rows} rows, {findings.corrupt_rows} corrupt, {left} leftovers")
        if streams.messages:
            print(f"{streams.messages} messages of streams, {streams.bytes} bytes")
        return EXIT_CORRUPT if findings.corrupt or streams.corrupt else 0

    _exit_with(run)


@app.command()
def stats(
    data: Data = Path("tidemq-data"),
    queues: Annotated[int, typer.Option(min=0, help="How many queues to show, the longest first.")] = 20,
) -> None:
    """Show sizes: rows and bytes by family, the longest queues, the oldest message."""
    from tidemq.store.engines import open_existing
    from tidemq.store.inspection import measure_store

    def run() -> int:
        with closing(open_existing(data)) as store:
            found = measure_store(store, queues)
        print(f"{'family':12} {'rows':>12} {'bytes':>16}")
        for name, size in found.families.items():
            print(f"{name:12} {size.rows:12} {size.bytes:16}")
        print(f"{'on disk':12} {'':12} {found.disk_bytes:16}")
        print(f"queues: {found.queue_count}")
        for each in found.queues:
            owner = each.name or f"queue {each.queue}, which nobody has"
            print(f"{each.idle:12} idle {each.in_flight:8} in flight {each.message_bytes:14} bytes  {owner}")
        if found.oldest_ns is not None:
            came = datetime.fromtimestamp(found.oldest_ns / 1e9, UTC)
            age_s = time.time() - found.oldest_ns / 1e9
            print(f"oldest message: {came:%Y-%m-%d %H:%M:%S} UTC, {age_s:.0f} s ago")
        return 0

    _exit_with(run)


@app.command()
def dump(
    file: Annotated[str, typer.Argument(metavar="FILE", help="File to write; -: standard output.")],
    data: Data = Path("tidemq-data"),
    arrow: Annotated[
        bool, typer.Option("--arrow", help="FILE is a directory to be made: Parquet tables.")
    ] = False,
    buckets: Annotated[int, typer.Option(min=1, max=128, help="Files of each table, with --arrow.")] = 32,
) -> None:
    """Write all rows to one file, which `restore` takes with either engine; with --arrow, as tables, which
    also `tidemq pipeline reconcile` takes."""
    from tidemq.store.engines import open_existing
    from tidemq.store.portable import read_store, write_dump

    def run() -> int:
        with closing(open_existing(data)) as store:
            if arrow:
                counts = _write_tables(store, Path(file), buckets)
                print(", ".join(f"{count} {name}" for name, count in counts.items()), file=sys.stderr)
                return 0
            if file == "-":
                count = write_dump(read_store(store), sys.stdout.buffer)
                sys.stdout.buffer.flush()
            else:
                with open(file, "xb") as written:
                    count = write_dump(read_store(store), written)
        print(f"{count} rows", file=sys.stderr)
        return 0

    _exit_with(run)


@app.command()
def restore(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="File or directory of `dump`, or a backup; -: standard input."),
    ],
    data: Data = Path("tidemq-data"),
    engine: Engine = "rocksdb",
) -> None:
    """Make a store of what `dump` or `tidemq pipeline reconcile` wrote, or of a backup of a running broker,
    in a directory that is empty or does not exist. A backup keeps its engine, and has its streams."""
    from tidemq.store.engines import open_empty, restore_copy
    from tidemq.store.inspection import measure_store
    from tidemq.store.portable import fill_store, read_dump

    def run() -> int:
        if file != "-" and (Path(file) / "engine").exists():
            with closing(restore_copy(Path(file), data)) as store:
                count = sum(size.rows for size in measure_store(store, 0).families.values())
            print(f"{count} rows", file=sys.stderr)
            return 0
        with ExitStack() as stack:
            if Path(file).is_dir():
                _tables().read_manifest(Path(file))  # before a store is made
                rows = _tables().read_tables(Path(file))
            else:
                rows = read_dump(stack.enter_context(open(0 if file == "-" else file, "rb")))
            count = fill_store(stack.enter_context(closing(open_empty(data, engine))), rows)
        print(f"{count} rows", file=sys.stderr)
        return 0

    _exit_with(run)


@app.command()
def migrate(
    to: Annotated[Path, typer.Option(metavar="DIR", help="Directory of the new store, empty or missing.")],
    engine: Annotated[
        str, typer.Option("--store", help="Engine of the new store: rocksdb or sqlite. [default: the same]")
    ] = "",
    data: Data = Path("tidemq-data"),
) -> None:
    """Make a store of this version's format, in another directory, of one of an older format or another
    engine, with its streams. The old one stays as it is. Needs room for both, and says first how much."""
    from tidemq.store.migration import migrate_store

    def run() -> int:
        count = migrate_store(data, to, engine, lambda line: print(line, file=sys.stderr, flush=True))
        print(f"{count} rows", file=sys.stderr)
        return 0

    _exit_with(run)


@app.command()
def import_mosquitto(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="mosquitto.db of a Mosquitto 2 that has stopped.")
    ],
    data: Data = Path("tidemq-data"),
    engine: Engine = "rocksdb",
    acl: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Mosquitto's acl_file: list the subscriptions that it will end."),
    ] = None,
) -> None:
    """Make a store of what Mosquitto 2 kept, in a directory that is empty or does not exist.

    Sessions, subscriptions, queued and in-flight messages, retained messages. With --acl each subscription is
    named that a broker with these rules will end when its client comes: Mosquitto leaves out at delivery what
    a client may not read, TideMQ refuses a filter of which it may not read all.
    """
    from tidemq.store.engines import open_empty
    from tidemq.store.mosquitto import parse_mosquitto, plan_rows
    from tidemq.store.portable import fill_store

    def run() -> int:
        state = parse_mosquitto(file.read_bytes())
        if acl is not None:
            _list_refused(state, acl)
        with closing(open_empty(data, engine)) as store:
            fill_store(store, plan_rows(state))
        for reason, count in state.left_out.items():
            print(f"left out: {count} {reason}", file=sys.stderr)
        counts = (len(state.clients), len(state.subscriptions), len(state.deliveries), len(state.retained))
        names = ("sessions", "subscriptions", "queued messages", "retained messages")
        print(
            ", ".join(f"{count} {name}" for count, name in zip(counts, names, strict=True)), file=sys.stderr
        )
        return 0

    _exit_with(run)


def _list_refused(state: MosquittoState, acl: Path) -> None:
    """The subscriptions that the rules do not allow, with the line; ConfigError."""
    from tidemq.broker.access.file_formats import read_rules
    from tidemq.migration.stored import refused_subscriptions

    ended = 0
    for name, wanted, why in refused_subscriptions(state, read_rules(acl, "mosquitto")):
        ended += 1
        print(f"will end: {wanted!r} of client {name!r}, {why}", file=sys.stderr)
    if ended:
        print(f"{ended} of {len(state.subscriptions)} subscriptions will end with {acl}", file=sys.stderr)


def _tables() -> ModuleType:
    """`tidemq.store.tables`; StoreError where what it needs is not installed."""
    try:
        from tidemq.store import tables
    except ImportError as error:
        raise StoreError(f"{error}; pip install 'tidemq[streams]'") from error
    return tables


def _write_tables(store: Store, folder: Path, buckets: int) -> Counter[str]:
    """As the store's kind wants it; gives the rows of each table."""
    tables = _tables()
    if not tables.is_of_node(store):
        counts: Counter[str] = tables.write_tables(store, folder, buckets)
        return counts
    from tidemq.cluster.dumps import write_node_tables

    return write_node_tables(store, folder, buckets)


def _exit_with(run: Callable[[], int]) -> None:
    """Ends the command with what it returns; an error is one line on stderr and code 2. What it writes is its
    user's alone: there are messages in it.
    """
    before = os.umask(0o077)
    try:
        code = run()
    except (StoreError, ConfigError, OSError) as error:
        print(f"tidemq: {error}", file=sys.stderr)
        code = EXIT_FAILED
    finally:
        os.umask(before)
    raise typer.Exit(code)
