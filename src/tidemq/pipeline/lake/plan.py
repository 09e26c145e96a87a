"""What is to be brought where: a stream, the rules for its payloads, and the tables that they fill."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from tidemq.client.streams import StreamReader, StreamState, find_token, read_cafile
from tidemq.errors import UsageError
from tidemq.pipeline.decode.payload_rules import Rule
from tidemq.pipeline.decode.schema_registry import RegistryError
from tidemq.pipeline.lake.delta_log import DELTA
from tidemq.pipeline.lake.table import Table
from tidemq.pipeline.lake.table_log import TableFormat
from tidemq.pipeline.places import ENVIRONMENT, Storage, place_uri
from tidemq.pipeline.sources.nodes import Nodes
from tidemq.pipeline.sources.stream_options import RETRY_S, SourceOptions, urls_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """The tables of a stream, and the rules that make them of what came. `tables` is a folder, or its URI,
    that all executors reach.
    """

    stream: str
    tables: str
    rows_max: int = 1_000_000  # messages that are worked at once
    bytes_max: int = 64 << 20  # of messages, or rows, that a task holds before it writes them
    rules: tuple[Rule, ...] = ()  # how payloads are decoded; none: bronze is all
    storage: Storage = ENVIRONMENT
    format: TableFormat = DELTA
    _tables: dict[str, Table] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def folder(self) -> str:
        """Of the stream's tables, as a URI."""
        return f"{place_uri(self.tables)}/{self.stream}"

    def rule(self, name: str) -> Rule:
        """UsageError says which there are."""
        for each in self.rules:
            if each.name == name:
                return each
        raise UsageError(f"there is no rule {name}; there are: {', '.join(each.name for each in self.rules)}")

    @property
    def bronze(self) -> Table:
        """What came, as it came."""
        return self.table("bronze")

    @property
    def dead_letters(self) -> Table:
        """What could not be decoded, with the reason."""
        return self.table("dead_letters")

    def silver(self, rule: Rule) -> Table:
        """What a rule has decoded."""
        return self.table(f"silver/{rule.name}")

    def late(self, rule: Rule) -> Table:
        """What a rule with a watermark has decoded, but came too late."""
        return self.table(f"late/{rule.name}")

    def births(self, rule: Rule) -> Table:
        """What Sparkplug B's birth certificates say of metrics."""
        return self.table(f"births/{rule.name}")

    def gold(self, rule: Rule) -> Table:
        """The figures of a rule's rows."""
        return self.table(f"gold/{rule.name}")

    @property
    def all_tables(self) -> list[Table]:
        """Of these rules, each whether or not there is one yet."""
        found = [self.bronze]
        for rule in self.rules:
            found.append(self.silver(rule))
            if rule.watermark:
                found.append(self.late(rule))
            if rule.gold:
                found.append(self.gold(rule))
            if rule.format == "sparkplug":
                found.append(self.births(rule))
        return [*found, self.dead_letters] if self.rules else found

    def check(self) -> None:
        """ConfigError for what cannot be. A registry that is away holds its rules back, but not the job."""
        for rule in self.rules:
            rule.check()
            if rule.registry:
                with suppress(RegistryError):
                    rule.registry.check()

    def table(self, name: str) -> Table:
        """By its name below the folder."""
        if name not in self._tables:
            self._tables[name] = Table(f"{self.folder}/{name}", self.storage, self.format)
        return self._tables[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingest(Lake):
    """What is to be brought where; a batch has `rows_max` messages at most."""

    url: str  # of the broker's admin listener; of several nodes separated by commas
    nodes: bool = False  # also one URL is that of one of several nodes
    fail_on_unreachable: bool = False  # of several nodes; or the others are read meanwhile
    token_file: str = ""  # with its token, on the driver (see `find_token`)
    cafile: str = ""  # with the certificates that are trusted in place of the system's, on the driver
    start: str = "earliest"  # of a new checkpoint: latest, an offset, a time
    fail_on_data_loss: bool = True
    batch_bytes_max: int = 0  # of a batch, on the broker's disk, in place of `rows_max`; 0: that bounds it
    trigger_s: float = 1.0  # from the beginning of one batch to that of the next
    maintain_batches: int = 0  # so often tables are maintained between batches; 0: somebody else does it
    checkpoint: str = ""  # its folder or URI, which Spark's driver can write to; empty: beside the tables

    @property
    def checkpoint_uri(self) -> str:
        return place_uri(self.checkpoint) if self.checkpoint else f"{self.folder}/checkpoint"

    @property
    def urls(self) -> tuple[str, ...]:
        return urls_of(self.url)

    @property
    def has_nodes(self) -> bool:
        """Whether the streams of nodes are brought together."""
        return self.nodes or len(self.urls) > 1

    @property
    def source(self) -> dict[str, str]:
        """Options of the source that hold for every read of the stream."""
        fail = str(self.fail_on_data_loss).lower()
        given = {"url": self.url, "stream": self.stream, "failOnDataLoss": fail}
        if self.has_nodes:
            given |= {"nodes": "true", "failOnUnreachable": str(self.fail_on_unreachable).lower()}
        files = {"tokenFile": self.token_file, "cafile": self.cafile}
        return given | {name: file for name, file in files.items() if file}

    @property
    def limits(self) -> dict[str, str]:
        """Options of the source that bound a batch."""
        if self.batch_bytes_max:
            return {"maxBytesPerBatch": str(self.batch_bytes_max)}
        return {"maxRowsPerBatch": str(self.rows_max)}

    def open(self, url: str = "", retry_s: float = RETRY_S) -> StreamReader:
        """A reader of the stream, at the only URL or at one of several, for the driver."""
        token, cadata = find_token(self.token_file), read_cafile(self.cafile)
        return StreamReader(url or self.urls[0], self.stream, token=token, cadata=cadata, retry_s=retry_s)

    @property
    def node_options(self) -> SourceOptions:
        """Of the source, where it has several nodes. UsageError for what is of one broker alone."""
        return SourceOptions.parse(self.source | {"start": self.start})

    def describe(self, retry_s: float = RETRY_S) -> list[StreamState]:
        """The stream as its broker has it; as each of several nodes has it that is there. ConnectError where
        none is, StreamError where one does not have it.
        """
        if self.has_nodes:
            return list(Nodes(self.node_options).look(retry_s=retry_s).values())
        return [self.open(retry_s=retry_s).describe()]
