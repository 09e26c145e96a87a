"""What the pipeline needs, looked at piece by piece: Java, packages, the broker, Spark and its executors."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tidemq.client.streams import StreamReader, find_token, read_cafile
from tidemq.errors import TideMQError, UsageError
from tidemq.pipeline.spark.java import find_java

if TYPE_CHECKING:
    import pyarrow as pa

PACKAGES = {  # the oldest
    "pyspark": (4, 3),
    "pyarrow": (18, 0),
    "pandas": (2, 2),
    "deltalake": (1, 6),
    "cbor2": (6, 2),
    "msgspec": (0, 20),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    subject: str
    good: bool
    text: str


def examine(
    url: str = "", stream: str = "", master: str = "", *, token_file: str = "", cafile: str = ""
) -> Iterator[Finding]:
    """Looks at what a job with these needs, and goes on after what is wrong. Without `url`, at no broker;
    without `master`, Spark is not started. A few seconds; ten with `master`.
    """

    def reader(at: str) -> StreamReader:
        return StreamReader(at, stream, token=find_token(token_file), cadata=read_cafile(cafile))

    yield _looked("Java", _java)
    for package, oldest in PACKAGES.items():
        yield _looked(package, partial(_package, package, oldest))
    urls = [each.strip() for each in url.split(",") if each.strip()]  # of several nodes
    for each in urls:
        yield _looked("broker", partial(_broker, partial(reader, each)))
    if master:
        yield _looked("Spark", lambda: _spark([reader(each) for each in urls], master))


def _looked(subject: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(subject, True, look())
    except TideMQError as error:
        return Finding(subject, False, str(error))


def _java() -> str:
    java = find_java()
    return f"{java.version}, from {java.origin}: {java.home}"


def _package(name: str, oldest: tuple[int, int]) -> str:
    wanted = ".".join(map(str, oldest))
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        raise UsageError(f"not installed; pip install 'tidemq[pipeline]' brings {wanted} or newer") from None
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < oldest:
        raise UsageError(f"{version} is too old: {wanted} or newer is needed")
    return version


def _broker(make_reader: Callable[[], StreamReader]) -> str:
    reader = make_reader()
    state = reader.describe()
    kept = state.next_offset - state.first_offset
    what = "offsets, of each topic its newest message," if state.last else "messages"
    return f"{reader.url} has the stream {state.name}: {kept:,} {what} from offset {state.first_offset}"


def _spark(readers: Sequence[StreamReader], master: str) -> str:
    """Starts it, and lets a task on an executor ask for the broker."""
    import pyarrow as pa

    from tidemq.pipeline.spark.session import spark_session

    def ask(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            text = ""
            try:
                for reader in readers:
                    reader.describe()
            except TideMQError as error:
                text = str(error)
            yield pa.RecordBatch.from_pydict({"text": [text]})

    with spark_session(master, "tidemq pipeline doctor") as spark:
        try:
            said = spark.range(0, 1, 1, 1).mapInArrow(ask, "text string").collect()
        except Exception as error:  # of Spark, or of Java on its behalf: they have no common class
            raise UsageError(f"no task ran on {master}: {_cause(str(error))}") from error
        if said[0].text:
            raise UsageError(f"an executor of {master} does not reach the broker: {said[0].text}")
        return f"{spark.version} on {master}; its executors " + (
            "reach the broker" if readers else "run TideMQ's code"
        )


def _cause(text: str) -> str:
    """Of a stack of Python's or Java's the line that says what the matter was."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "Error: " in line or "Exception: " in line]
    return (errors or lines or ["no reason was given"])[-1]
