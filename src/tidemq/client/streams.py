"""A stream of a TideMQ broker, read over HTTP from its admin listener: any range of it, again and again.

    reader = StreamReader("http://localhost:18083", "readings")
    for batch in reader.read(0):
        print(batch.num_rows, batch.column("topic")[0])

Messages come as Arrow record batches (docs/streams.md has the columns); pyarrow is imported when they are
read. Nothing here keeps a connection between two calls, so a reader may be used from several threads at once,
and pickled.
"""

from __future__ import annotations

import json
import os
import ssl
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from tidemq.client.address import check_host
from tidemq.client.errors import ConnectError
from tidemq.errors import RefusedError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

TIMEOUT_S = 30.0  # of silence
TABLE_TIMEOUT_S = 300.0  # of a table, which the broker looks through before it answers
RETRY_PAUSE_S = 0.2
_GUARDED = (401, 403, 407)  # without the right token, or by a proxy
_AWAY = (502, 503, 504)  # by a proxy as well, when the broker is not there
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

COLUMNS = (
    *(
        "offset",
        "topic",
        "payload",
        "qos",
        "retain",
        "dup",
        "packet_id",
        "client_id",
        "received",
        "message_id",
    ),
    *("content_type", "response_topic", "correlation_data", "user_properties"),
)
"""Of a stream, in its order; docs/streams.md has their meaning."""

OnMissing = Callable[[int, int], None]
"""Told of messages that the stream does not have any more: the first's offset, and that after the last."""


class StreamError(RefusedError):
    """The broker does not do what was asked of a stream. Caught by the reader's program."""


class UnknownStreamError(StreamError):
    """The broker has no stream of this name."""


class ChangedEpochError(StreamError):
    """The stream was made anew: its offsets are not those that were known."""


class MissingMessagesError(StreamError):
    """Messages of the range are not there: retention gave them up, or their file was damaged.

    Those from offset `start` up to `end` are missing.
    """

    def __init__(self, stream: str, start: int, end: int) -> None:
        super().__init__(
            f"the stream {stream} does not have the {end - start} messages of offsets {start} to {end - 1}: "
            "they are older than its retention allows, or their file was damaged"
        )
        self.start = start
        self.end = end


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream as it was a moment ago. Messages have the offsets from `first_offset` up to `next_offset`."""

    name: str
    filters: tuple[str, ...]
    epoch: int  # another one: the stream was made anew, and offsets mean other messages
    first_offset: int
    next_offset: int
    bytes: int  # on the broker's disk
    last: bool = False  # only the newest message of each topic is kept
    node: str = ""  # the broker's name in its cluster; empty: it is no node of one


def state_of(said: Any, url: str) -> StreamState:
    """A stream as the broker describes it in JSON; ConnectError where that is something else."""
    names = ("epoch", "first_offset", "next_offset", "bytes")
    numbers = {name: number_of(said, name, url) for name in names}
    try:
        last, node = bool(said.get("last", False)), said.get("node") or ""
        return StreamState(
            name=said["name"], filters=tuple(said["filters"]), last=last, node=str(node), **numbers
        )
    except (KeyError, TypeError) as error:
        raise strange_answer(url, error) from error


def number_of(said: Any, name: str, url: str) -> int:
    """One that the broker gives in JSON, or in a header; ConnectError where it does not."""
    try:
        return int(said[name])
    except (KeyError, TypeError, ValueError) as error:
        raise strange_answer(url, error) from error


def strange_answer(url: str, error: Exception) -> ConnectError:
    """Of something that answers in the place of a broker with streams: a proxy, another server."""
    return ConnectError(f"{url}: no broker with streams answers there: {error!r}")


def check_columns(wanted: Sequence[str], accepted: Sequence[str]) -> None:
    """UsageError where there is none, a name that is not accepted, or one twice."""
    if not wanted:
        raise UsageError(f"no column is wanted; accepted: {', '.join(accepted)}")
    for place, name in enumerate(wanted):
        if name not in accepted:
            raise UsageError(f"a stream has no column {name!r}; accepted: {', '.join(accepted)}")
        if name in wanted[:place]:
            raise UsageError(f"the column {name} is wanted twice")


def find_token(file: str | Path = "") -> str:
    """The admin token: what the file holds; without one, what the file does that the environment names in
    TIDEMQ_ADMIN_TOKEN_FILE, or TIDEMQ_ADMIN_TOKEN itself; empty where there is none. UsageError for a file
    that cannot be read.
    """
    named = file or os.environ.get("TIDEMQ_ADMIN_TOKEN_FILE", "")
    if not named:
        return os.environ.get("TIDEMQ_ADMIN_TOKEN", "")
    try:
        return Path(named).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the token file {named} cannot be read: {error}") from error


def read_cafile(file: str | Path) -> str:
    """The certificates in a file, in PEM, as `StreamReader` takes them in `cadata`; none for no file.
    UsageError for a file that cannot be read, or has none.
    """
    if not file:
        return ""
    try:
        text = Path(file).read_text(encoding="ascii", errors="ignore")  # there may be words around them
        trusting(text or "nothing")
    except OSError as error:  # of the file, or, as ssl.SSLError, of what it holds
        raise UsageError(f"no certificates can be read from {file}: {error}") from error
    return text


@lru_cache(maxsize=16)
def trusting(cadata: str) -> ssl.SSLContext:
    """For connections to who has a certificate of one of these authorities (PEM)."""
    return ssl.create_default_context(cadata=cadata)


def authorization(token: str) -> dict[str, str]:
    """The header that brings a token; UsageError, which does not quote it, where it cannot be one."""
    if not token:
        return {}
    if not (token.isascii() and token.isprintable()):
        raise UsageError("the admin token is not one line of printable ASCII characters")
    return {"Authorization": f"Bearer {token}"}


class StreamReader:
    """Reads one stream. `url` is the admin listener's: http://host:port. `token`: its token, where it has one
    (`find_token`). `cadata`: the certificates, in PEM, that are trusted with https, in place of the system's
    (`read_cafile`).

    Every call raises ConnectError when the broker cannot be reached, is silent for `timeout_s`, or answers
    what is no stream's answer; `retry_s` is for how long an unreachable one is tried again before that, at
    every step of a long read. UnknownStreamError where it has no such stream, StreamError where the
    token is missing or wrong, or a proxy asks for credentials.
    """

    def __init__(
        self,
        url: str,
        stream: str,
        *,
        token: str = "",
        cadata: str = "",
        timeout_s: float = TIMEOUT_S,
        retry_s: float = 0.0,
    ) -> None:
        try:
            parts = urlsplit(url)
            self._port = parts.port
        except ValueError as error:  # of brackets that hold no address, too
            raise UsageError(f"the URL {url!r} has no valid port or host: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"the URL {url!r} of a stream's broker is not of the form http://host:port")
        check_host(parts.hostname)
        self.url = url.rstrip("/")
        self.stream = stream
        self._secure = parts.scheme == "https"
        self._cadata = cadata
        self._host = parts.hostname
        self._path = f"{parts.path.rstrip('/')}/streams/{quote(stream, safe='')}"
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._headers = authorization(token)

    # --- what there is -----------------------------------------------------------------------------

    def describe(self) -> StreamState:
        """The stream as it is now."""
        return self._state({}, self._timeout_s)

    def wait(self, beyond: int, wait_s: float) -> StreamState:
        """The stream once it has a message of offset `beyond`, or after `wait_s` seconds without (the broker
        gives up after a minute).
        """
        return self._state({"beyond": beyond, "wait_s": wait_s}, self._timeout_s + wait_s)

    def offset_at(self, at: datetime) -> int:
        """The offset of the first message that came at this time or later, the next one's if there is none.

        Times are the broker's, and may go back a little from one message to the next.
        """
        if at.tzinfo is None:
            raise UsageError(f"the time {at.isoformat()} has no time zone")
        time_us = max((at - _EPOCH) // timedelta(microseconds=1), 0)
        found = number_of(self._json("/offset", {"time_us": time_us}, self._timeout_s), "offset", self.url)
        # that is where a batch begins; the message is somewhere in it
        _, end = self._extent(found, found + 1, 1)
        read = self.read(found, end, on_missing=lambda *_: None, columns=("offset", "received"))
        for batch in read:
            for row, received in enumerate(batch.column("received").cast("int64").to_pylist()):
                if received >= time_us:
                    offset: int = batch.column("offset")[row].as_py()
                    return offset
        return end

    def end_within(self, start: int, end: int, bytes_max: int) -> int:
        """How far from `start` towards `end` one gets with so many bytes on the broker's disk: an offset, of
        whole batches, of at least one of them.
        """
        _, covered = self._extent(start, end, bytes_max)
        return min(covered, end) if covered > start else end  # nothing but missing ones are ahead

    # --- messages ----------------------------------------------------------------------------------

    def read(
        self,
        start: int,
        end: int | None = None,
        *,
        epoch: int | None = None,
        on_missing: OnMissing | None = None,
        columns: Sequence[str] = COLUMNS,
    ) -> Iterator[pa.RecordBatch]:
        """The messages from offset `start` up to `end`, in order, as record batches; without `end`, up to the
        stream's last one of now. With these `columns`, in this order; the broker sends no others.

        UsageError at once for a column that is none, or twice. ChangedEpochError when the stream's epoch is
        not `epoch`, if given. MissingMessagesError where some are missing; with `on_missing`, that is called
        instead, and reading goes on behind them. What compaction has removed from a stream with `last` is
        not missing: offsets ascend, but not one by one. A connection that breaks is made again where it
        broke, within `retry_s`.
        """
        wanted = list(columns)
        check_columns(wanted, COLUMNS)
        return self._read(start, end, epoch, on_missing or self._refuse_missing, wanted)

    def _read(
        self, start: int, end: int | None, epoch: int | None, missing: OnMissing, columns: list[str]
    ) -> Iterator[pa.RecordBatch]:
        if end is None or epoch is None:
            state = self.describe()
            end = state.next_offset if end is None else end
            epoch = state.epoch if epoch is None else epoch
        at, broken_s = start, 0.0
        while at < end:
            began = at
            try:
                with self._messages(at, end, epoch, columns) as (covers, batches):
                    if covers.start > at:
                        missing(at, min(covers.start, end))
                        at = min(covers.start, end)
                    for batch in batches:
                        rows = _between(batch, at, end)
                        if rows.num_rows:
                            yield rows.select(columns)
                            at, broken_s = rows.column("offset")[-1].as_py() + 1, 0.0
                if covers.stop <= began:  # nothing is there
                    missing(at, end)
                    at = end
                at = max(at, min(covers.stop, end))
            except _ExpiredError:
                first = min(self.describe().first_offset, end)
                if first > at:  # else it was there after all
                    missing(at, first)
                    at = first
            except _BrokenError as error:
                if broken_s >= self._retry_s:
                    raise ConnectError(f"{self.url}: {error}") from error
                time.sleep(RETRY_PAUSE_S)
                broken_s += RETRY_PAUSE_S

    def _refuse_missing(self, start: int, end: int) -> None:
        raise MissingMessagesError(self.stream, start, end)

    def read_last(
        self,
        *,
        epoch: int | None = None,
        columns: Sequence[str] = COLUMNS,
        timeout_s: float = TABLE_TIMEOUT_S,
    ) -> Iterator[pa.RecordBatch]:
        """The newest message of each topic at one moment, by offset, without topics whose newest has no
        payload: a stream with `last` as a table. With these `columns`, in this order. What came behind that
        moment is found from the highest of these offsets on.

        UsageError at once for a column that is none, or twice. ChangedEpochError as for `read`. StreamError
        where the stream is not one with `last`, or the broker cannot hold its topics. ConnectError where the
        broker is silent for `timeout_s`, or the connection breaks: then the table is to be read anew.
        """
        wanted = list(columns)
        check_columns(wanted, COLUMNS)
        return self._read_last(epoch, wanted, timeout_s)

    def _read_last(self, epoch: int | None, columns: list[str], timeout_s: float) -> Iterator[pa.RecordBatch]:
        query: dict[str, Any] = {"columns": ",".join(columns)}
        if epoch is not None:
            query["epoch"] = epoch
        with self._answer("/last", query, timeout_s) as answer:
            try:
                for batch in self._batches(answer):
                    yield batch.select(columns)
            except _BrokenError as error:
                raise ConnectError(f"{self.url}: {error}") from error

    @contextmanager
    def _messages(
        self, start: int, end: int, epoch: int, columns: list[str]
    ) -> Iterator[tuple[range, Iterator[pa.RecordBatch]]]:
        """The offsets that an answer covers, and its whole batches, with these columns and `offset` at
        least. Of offsets that it covers, what is not in them was compacted.
        """
        query: dict[str, Any] = {"start": start, "end": end, "epoch": epoch}
        if len(columns) < len(COLUMNS):
            query["columns"] = ",".join({"offset": None} | dict.fromkeys(columns))
        with self._answer("/messages", query, self._timeout_s) as answer:
            names = ("X-First-Offset", "X-Next-Offset")
            covers = range(*(number_of(answer.headers, name, self.url) for name in names))
            yield covers, self._batches(answer)

    def _batches(self, answer: HTTPResponse) -> Iterator[pa.RecordBatch]:
        """What an answer has; _BrokenError where it ends too early."""
        import pyarrow as pa

        left = number_of(answer.headers, "X-Messages", self.url)
        try:
            with pa.ipc.open_stream(answer) as batches:
                for batch in batches:
                    left -= batch.num_rows
                    yield batch
        except (OSError, HTTPException, pa.ArrowInvalid) as error:
            raise _BrokenError(f"the connection broke {left} messages before the end: {error}") from error
        if left:  # Arrow takes an end between two batches for the end of all
            raise _BrokenError(f"the connection ended {left} messages before the end")

    def _extent(self, start: int, end: int, bytes_max: int) -> tuple[int, int]:
        """The offsets that whole batches of so many bytes cover: of the first, and after the last."""
        query = {"start": start, "end": end, "bytes_max": bytes_max}
        try:
            with self._answer("/messages", query, self._timeout_s) as answer:
                names = ("X-First-Offset", "X-Next-Offset")
                first, end = (number_of(answer.headers, name, self.url) for name in names)
                return first, end
        except _ExpiredError:
            first = self.describe().first_offset
            return first, first

    # --- HTTP --------------------------------------------------------------------------------------

    def _state(self, query: dict[str, Any], timeout_s: float) -> StreamState:
        return state_of(self._json("", query, timeout_s), self.url)

    def _json(self, path: str, query: dict[str, Any], timeout_s: float) -> Any:
        with self._answer(path, query, timeout_s) as answer:
            try:
                return json.loads(answer.read())
            except (OSError, HTTPException, ValueError) as error:
                raise ConnectError(f"{self.url}: the answer is not a stream's: {error}") from error

    @contextmanager
    def _answer(self, path: str, query: dict[str, Any], timeout_s: float) -> Iterator[HTTPResponse]:
        """The answer to a GET, its body unread; its connection is closed in the end."""
        target = f"{self._path}{path}" + (f"?{urlencode(query)}" if query else "")
        until = time.monotonic() + self._retry_s
        while True:
            connection = self._connection(timeout_s)
            try:
                connection.request("GET", target, headers=self._headers)
                answer = connection.getresponse()
                if answer.status in _AWAY:
                    raise HTTPException(f"{answer.status} {answer.reason}")
                break
            except (OSError, HTTPException) as error:
                connection.close()
                if time.monotonic() >= until:
                    reason = str(error) or type(error).__name__
                    raise ConnectError(f"{self.url}: the broker's admin listener: {reason}") from error
                time.sleep(RETRY_PAUSE_S)
        try:
            if answer.status != 200:
                self._refuse(answer)
            yield answer
        finally:
            answer.close()
            connection.close()

    def _connection(self, timeout_s: float) -> HTTPConnection:
        if not self._secure:
            return HTTPConnection(self._host, self._port, timeout=timeout_s)
        trusted = trusting(self._cadata) if self._cadata else None  # None: the system's
        return HTTPSConnection(self._host, self._port, timeout=timeout_s, context=trusted)

    def _refuse(self, answer: HTTPResponse) -> None:
        """Raises what a status other than 200 means."""
        if answer.status in _GUARDED:
            raise StreamError(
                f"{self.url}: {answer.status} {answer.reason}: the admin token is missing or wrong, or a "
                "proxy before the broker wants credentials"
            )
        try:
            said = json.loads(answer.read())
            text, routed = said["error"], "paths" not in said
        except (OSError, HTTPException, ValueError, TypeError, KeyError):
            text, routed = answer.reason, False
        if not routed:
            raise ConnectError(f"{self.url}: no broker with streams answers there: {answer.status} {text}")
        kinds: dict[int, type[StreamError]] = {
            404: UnknownStreamError,
            409: ChangedEpochError,
            410: _ExpiredError,
        }
        raise kinds.get(answer.status, StreamError)(f"{self.url}: {text}")


def _between(batch: pa.RecordBatch, start: int, end: int) -> pa.RecordBatch:
    """The rows with these offsets, which ascend."""
    offsets, rows = batch.column("offset"), range(batch.num_rows)
    first = bisect_left(rows, start, key=lambda row: offsets[row].as_py())
    return batch.slice(first, bisect_left(rows, end, key=lambda row: offsets[row].as_py()) - first)


class _ExpiredError(StreamError):
    """The first offset of the range is not kept any more."""


class _BrokenError(Exception):
    """An answer ended before its end."""
