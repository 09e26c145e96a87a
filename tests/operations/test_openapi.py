"""The OpenAPI document is true: schemathesis makes requests of it, right and wrong, and checks answers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis

# before there are threads: pytest parses what is imported, and Python 3.11 does that on one thread at a time
# (SystemError: AST constructor recursion depth mismatch, https://github.com/python/cpython/issues/106905)
import schemathesis.specs.openapi.schemas
from conformance.kit import connected, kept
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tidemq import Broker, Config
from tidemq.broker import logs

EXAMPLES = {"few": 5, "all": 100}.get(os.environ.get("TIDEMQ_TEST_EXAMPLES", ""), 15)
LINE_MAX = 10_000  # characters of a URL: percent-encoded less than the server takes
STREAMS = ("/api/v1/events", "/api/v1/messages", "/api/v1/trace")  # whose answers do not end
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


def check_all(url: str) -> int:
    """Asks every operation; how many there are."""
    schema = schemathesis.openapi.from_url(f"{url}openapi.json")
    asked = 0
    results: Any = schema.get_all_operations()
    for result in results:
        operation = result.ok()
        if operation.path not in STREAMS:
            _check(operation)
            asked += 1
    return asked


def _check(operation: Any) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(case=st.one_of(*(operation.as_strategy(mode) for mode in GenerationMode)))
    def ask(case: schemathesis.Case[Any]) -> None:
        assume(len(str(case.as_transport_kwargs()["url"])) + len(str(case.query)) < LINE_MAX)
        case.call_and_validate(checks=CHECKS)

    ask()


@pytest.fixture
def levels() -> Iterator[None]:
    """Those of the log, which are this process's, are as before afterwards."""
    yield
    for area in ("", *logs.AREAS):
        logs.set_level(area, None)


@pytest.mark.usefixtures("levels")
async def test_the_document_is_true(tmp_path: Path, unused_tcp_port: int) -> None:
    config = Config(host="127.0.0.1", port=0, sys_interval_s=0, data=tmp_path, admin_port=unused_tcp_port)

    def act() -> None:
        client = connected(broker, client_id="0", **kept(5))
        client.subscribe("0/#", qos=1)
        client.drop()
        connected(broker).publish("0/1", b"x", qos=1, retain=True)
        assert check_all(broker.admin_url) > 20

    async with Broker(config) as broker:
        await asyncio.to_thread(act)
