"""Queries that go on for ever, as jobs: begun again from the checkpoint where that helps."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from tidemq.errors import TideMQError
from tidemq.pipeline.places import in_one_line

FAILURES_MAX = 3  # of batches in a row, without a batch between them, before a job gives up
RESTART_PAUSE_S = 1.0
BEGIN_S = 60.0  # for a query, before the next one of the process begins
_POLL_S = 0.05
# What is in Python has processes that Spark gives ten seconds to start: those of several queries need longer.
_STARTING = threading.Lock()
_FINAL = (  # what no restart mends, as it stands in a message of Spark's
    "tidemq.client.streams.",
    "tidemq.errors.UsageError",
    "tidemq.errors.ConfigError",
    "tidemq.pipeline.lake.table_log.TableError: the table",
)
_OVERLOADED = "Python worker failed to connect back"  # within Spark's ten seconds: it passes by itself

_log = logging.getLogger(__name__)


class JobError(TideMQError):
    """A job cannot go on. Caught by who started it; the cause is Spark's exception."""


class JavaGoneError(JobError):
    """No job of this process can go on: Spark's Java process has ended. Caught by who started it."""


def run_job(start: Callable[[], StreamingQuery]) -> None:
    """Returns when the query has ended by itself; after a failure `start` begins it again.

    JobError after a failure that no restart mends, such as expired offsets, and after several in a row;
    JavaGoneError where Spark's Java process ends.
    """
    failures = 0
    while True:
        query = None
        try:
            with _STARTING:
                query = start()
                _wait_until_begun(query)
            query.awaitTermination()
            return
        except (PySparkException, Py4JJavaError) as error:
            text = str(error)
            if _OVERLOADED not in text:
                failures = 0 if query is not None and query.lastProgress else failures + 1
            if failures >= FAILURES_MAX or any(each in text for each in _FINAL):
                raise JobError(reason(text)) from error
            _log.warning("begun again from the checkpoint: %s", reason(text))
            time.sleep(RESTART_PAUSE_S)
        except (Py4JError, ConnectionError) as error:
            raise JavaGoneError(f"Spark's Java process does not answer any more: {error}") from error
        finally:
            if query is not None:
                with suppress(Py4JError, ConnectionError):  # it is not there to be stopped
                    query.stop()


def _wait_until_begun(query: StreamingQuery) -> None:
    """Until it has done its first batch, or waits for one, or has ended; no longer than a minute."""
    deadline = time.monotonic() + BEGIN_S
    while query.isActive and time.monotonic() < deadline:
        if query.lastProgress or query.status["message"].startswith("Waiting for"):
            return
        time.sleep(_POLL_S)


def reason(text: str) -> str:
    """The line of a message of Spark's, often two stacks of calls, that says what the matter was: that of the
    last exception of Python's, or else the last cause that Java names, or else the first.
    """
    text = in_one_line(text)
    raised = re.findall(r"^(?!java|scala|org|py4j)([\w.]+): (.+)$", text, re.MULTILINE)
    errors = [(name, said) for name, said in raised if name.endswith(("Error", "Exception"))]
    if not errors:
        if causes := re.findall(r"^(?:Caused by)?: (.+)$", text, re.MULTILINE):
            return str(causes[-1])
        return next(iter(text.strip().splitlines()), "no reason was given")
    name, said = errors[-1]
    return said if name.startswith("tidemq.") else f"{name}: {said}"
