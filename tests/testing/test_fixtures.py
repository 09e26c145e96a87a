"""The pytest plugin as a stranger's project sees it: fixtures without an import, failures that say why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

EXAMPLE = Path(__file__).parents[2] / "examples" / "test_thermostat.py"


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *options)


def test_the_fixtures_are_there(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import asyncio, socket

        def test_blocking(mqtt_broker):
            assert mqtt_broker.url == f"mqtt://127.0.0.1:{mqtt_broker.port}"
            socket.create_connection((mqtt_broker.host, mqtt_broker.port)).close()

        def test_without_a_plugin_for_asyncio(async_mqtt_broker):
            async def wait():
                asyncio.get_running_loop().call_soon(async_mqtt_broker.publish, "a/b", "x")
                return await async_mqtt_broker.wait_for_message("a/+")

            assert asyncio.run(wait()).payload == b"x"
        """
    )
    run(pytester, "-p", "no:asyncio").assert_outcomes(passed=2)


def test_with_pytest_asyncio(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from tidemq.client import Client

        @pytest.mark.asyncio
        async def test_both_ways(async_mqtt_broker):
            async with Client(async_mqtt_broker.url, client_id="x") as client:
                await async_mqtt_broker.wait_for_client("x")
                await client.subscribe("to/x")
                await async_mqtt_broker.wait_for_subscription("to/x")
                async_mqtt_broker.publish("to/x", "1")
                assert (await anext(client.messages)).payload == b"1"
                await client.publish("from/x", "2")
                assert (await async_mqtt_broker.wait_for_message("from/#")).payload == b"2"

        @pytest.mark.asyncio
        async def test_blocking_the_loop_is_refused(mqtt_broker):
            mqtt_broker.wait_for_message("a")
        """
    )
    result = run(pytester)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["E *UsageError: *take async_mqtt_broker*"])


def test_a_failure_shows_the_line_and_what_came_instead(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_waits(mqtt_broker):
            mqtt_broker.publish("came/instead", "x")
            mqtt_broker.wait_for_message("a/b", timeout_s=0.05)
        """
    )
    result = run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            '>*mqtt_broker.wait_for_message("a/b", timeout_s=0.05)',
            "E *TimeoutError: 0 of 1 messages on 'a/b' came, besides those on 'came/instead', within 0.05 s",
        ]
    )
    result.stdout.no_fnmatch_line("*tidemq/testing/*")


def test_its_configuration_may_be_given(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from tidemq import Config
        from tidemq.client import Client, ServerRefusedError

        @pytest.fixture
        def mqtt_broker_config():
            return Config(authenticator="static", authenticator_options={"users": {"ada": "x"}})

        @pytest.mark.asyncio
        async def test_who_may_come(async_mqtt_broker):
            async with Client(async_mqtt_broker.url, username="ada", password="x"):
                pass
            with pytest.raises(ServerRefusedError):
                async with Client(async_mqtt_broker.url, username="ada", password="y", reconnect=False):
                    pass
        """
    )
    run(pytester).assert_outcomes(passed=1)


def test_the_plugin_loads_no_broker_before_a_test_wants_one() -> None:
    program = "import sys, tidemq.pytest_plugin; assert 'tidemq.broker' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_brokers_work_without_pytest() -> None:
    program = """
import sys
from tidemq.testing import MqttBroker
with MqttBroker() as broker:
    broker.publish("a", "x")
    broker.wait_for_message("a")
assert "pytest" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.skipif(not EXAMPLE.is_file(), reason="the source tree is hidden")
def test_the_example_passes(pytester: pytest.Pytester) -> None:
    pytester.copy_example(str(EXAMPLE))
    run(pytester).assert_outcomes(passed=4)
