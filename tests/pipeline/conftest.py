"""One Spark for all tests of this folder: tasks run in processes of Python's own, two at a time. A cluster,
with a master and workers, has the tests of `pipeline_crash`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import StartBroker
from object_store import ObjectStore, object_store
from pipeline.alarmed import Receiver
from pipeline.streaming import Streaming
from pyspark.sql import SparkSession

import tidemq
from tidemq.pipeline.spark.session import spark_session

MASTER = "local[2]"
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.task.maxFailures": "1",  # what a test lets fail need not fail four times
    "spark.ui.enabled": "false",
}


@pytest.fixture(scope="package")
def event_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Spark notes its plans."""
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="package")
def spark(install: Callable[[str, str], None], event_log: Path) -> Iterator[SparkSession]:
    """Commands that tests run start Java in the same quick way."""
    install("java", "default-jre-headless")
    options = (f'--conf "spark.{who}.defaultJavaOptions={QUICK_JAVA}"' for who in ("driver", "executor"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_SUBMIT_ARGS", f"{' '.join(options)} pyspark-shell")
        # workers run in folders of their own: what this process imports they must find, too
        patch.setenv("PYTHONPATH", str(Path(tidemq.__file__).parents[1]))
        events = {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": event_log.as_uri(),
        }
        with spark_session(MASTER, "tests", SETTINGS | events) as session:
            yield session


@pytest.fixture(scope="module")
def streaming(start_broker: StartBroker, tmp_path_factory: pytest.TempPathFactory) -> Streaming:
    """A broker for each file of tests: one has 64 streams in its life."""
    return Streaming(start_broker, tmp_path_factory.mktemp("streams"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("store") / "log") as found:
        yield found


@pytest.fixture
def receive(streaming: Streaming) -> Iterator[Callable[[], Receiver]]:
    """`receive()`: another client, of alerts."""
    receivers = []

    def receive() -> Receiver:
        receivers.append(Receiver(streaming.broker.port))
        return receivers[-1]

    yield receive
    for receiver in receivers:
        receiver.close()
