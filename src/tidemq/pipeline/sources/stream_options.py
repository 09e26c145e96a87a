"""The options of the source `tidemq`, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Self

from tidemq.client.streams import (
    COLUMNS,
    StreamReader,
    StreamState,
    check_columns,
    find_token,
    read_cafile,
)
from tidemq.errors import UsageError

RETRY_S = 30.0  # for so long a broker that cannot be reached may be starting again
PARTITION_ROWS = 250_000

_NAMES = {  # as Spark hands them over, and as they are written
    name.lower(): name
    for name in (
        "url",
        "tokenFile",
        "cafile",
        "stream",
        "start",
        "end",
        "failOnDataLoss",
        "maxRowsPerBatch",
        "maxBytesPerBatch",
        "rowsPerPartition",
        "timeProperty",
        "columns",
        "last",
        "ranges",  # of ingest: rows say which messages there are, and have none
        "nodes",
        "failOnUnreachable",
    )
}


_OF_RANGES = {"start", "end", "maxrowsperbatch", "maxbytesperbatch", "rowsperpartition", "ranges"}


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a stream: an offset, a time, its first message (neither) or its end (`latest`)."""

    offset: int | None = None
    time: datetime | None = None
    latest: bool = False

    @classmethod
    def parse(cls, name: str, text: str) -> Self:
        """UsageError names the option."""
        if text in ("earliest", "latest"):
            return cls(latest=text == "latest")
        if text.isascii() and text.isdigit():
            return cls(offset=int(text))
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            time = None
        if time is None or time.tzinfo is None:
            raise UsageError(
                f"the option {name} is {text!r}; accepted: earliest, latest, an offset, or a time with its "
                "zone such as 2026-01-31T12:00:00Z"
            )
        return cls(time=time)

    def resolve(self, reader: StreamReader, state: StreamState) -> int:
        """The offset that it is now."""
        if self.offset is not None:
            return self.offset
        if self.time is not None:
            return reader.offset_at(self.time)
        return state.next_offset if self.latest else state.first_offset


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a reader is told; docs/pipeline.md has the meaning of each option. 0: no bound."""

    urls: tuple[str, ...]
    nodes: bool  # rows say whose they are, and a checkpoint has an offset for each
    fail_on_unreachable: bool  # of nodes; or the others are read meanwhile
    token: str = field(repr=False)  # what tokenFile holds, so that no plan of Spark's has it
    cadata: str = field(repr=False)  # and cafile: executors need no such files
    stream: str
    start: Position
    end: Position
    fail_on_data_loss: bool
    rows_max: int
    bytes_max: int
    partition_rows: int
    time_property: str
    columns: tuple[str, ...]
    last: bool  # the newest message of each topic instead of a range
    ranges: bool
    retry_s: float = RETRY_S

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """UsageError names the option and what would be accepted."""
        values = {name.lower(): value for name, value in given.items()}
        if unknown := sorted(values.keys() - _NAMES.keys()):
            raise UsageError(f"the option {unknown[0]!r} is unknown; accepted: {', '.join(_NAMES.values())}")
        for name in ("url", "stream"):
            if not values.get(name):
                raise UsageError(f"the option {name} is missing")
        urls = urls_of(values["url"])
        options = cls(
            urls=urls,
            nodes=_flag(values, "nodes", "true" if len(urls) > 1 else "false"),
            fail_on_unreachable=_flag(values, "failonunreachable", "false"),
            token=find_token(values.get("tokenfile", "")),
            cadata=read_cafile(values.get("cafile", "")),
            stream=values["stream"],
            start=Position.parse("start", values.get("start", "earliest")),
            end=Position.parse("end", values.get("end", "latest")),
            fail_on_data_loss=_flag(values, "failondataloss", "true"),
            rows_max=_number(values, "maxrowsperbatch", 0),
            bytes_max=_number(values, "maxbytesperbatch", 0),
            partition_rows=_number(values, "rowsperpartition", PARTITION_ROWS),
            time_property=values.get("timeproperty", ""),
            columns=_columns(values, nodes=len(urls) > 1 or values.get("nodes", "").lower() == "true"),
            last=_flag(values, "last", "false"),
            ranges=values.get("ranges") == "true",
        )
        if options.rows_max and options.bytes_max:
            raise UsageError("the options maxRowsPerBatch and maxBytesPerBatch exclude one another")
        if options.last and (given_too := sorted(_OF_RANGES & values.keys())):
            raise UsageError(f"the options last and {_NAMES[given_too[0]]} exclude one another")
        options._check_nodes()
        return options

    def _check_nodes(self) -> None:
        """Also checks the URLs."""
        for url in self.urls:
            self.open(url)
        if not self.nodes:
            if len(self.urls) > 1:
                raise UsageError("the option nodes is 'false'; accepted with several URLs: true")
            if self.fail_on_unreachable:
                raise UsageError(
                    "the option failOnUnreachable is for several nodes: one alone has to be there"
                )
            return
        if self.last:
            raise UsageError("the option last is for one node: a topic's newest message may be on any")
        if self.start.offset is not None or self.end.offset is not None:
            raise UsageError(
                "an offset is one of a node's stream; accepted for start and end of several nodes: earliest, "
                "latest, or a time with its zone"
            )

    def open(self, url: str = "", retry_s: float | None = None) -> StreamReader:
        """A reader of the stream, at the only URL or at one of several."""
        token, cadata = self.token, self.cadata
        retry_s = self.retry_s if retry_s is None else retry_s
        return StreamReader(url or self.urls[0], self.stream, token=token, cadata=cadata, retry_s=retry_s)


def urls_of(text: str) -> tuple[str, ...]:
    """Of the nodes, separated by commas. UsageError for one that is there twice."""
    urls = tuple(url.strip().rstrip("/") for url in text.split(",") if url.strip())
    if not urls:
        raise UsageError("the option url is missing")
    for place, url in enumerate(urls):
        if url in urls[:place]:
            raise UsageError(f"the option url has {url} twice")
    return urls


def _columns(values: Mapping[str, str], *, nodes: bool) -> tuple[str, ...]:
    """What rows have, in this order."""
    more = ("published",) if values.get("timeproperty") else ()
    accepted = (*(("node",) if nodes else ()), "epoch", *COLUMNS, *more)
    if "columns" not in values:
        return accepted
    if values.get("ranges") == "true":
        raise UsageError("the options columns and ranges exclude one another")
    wanted = tuple(name.strip() for name in values["columns"].split(",") if name.strip())
    try:
        check_columns(wanted, accepted)
    except UsageError as error:
        raise UsageError(f"the option columns is {values['columns']!r}: {error}") from None
    return wanted


def _flag(values: Mapping[str, str], name: str, default: str) -> bool:
    text = values.get(name, default).lower()
    if text not in ("true", "false"):
        raise UsageError(f"the option {_NAMES[name]} is {text!r}; accepted: true, false")
    return text == "true"


def _number(values: Mapping[str, str], name: str, default: int) -> int:
    text = values.get(name, str(default))
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"the option {_NAMES[name]} is {text!r}; accepted: a whole number from 0")
    return int(text)
