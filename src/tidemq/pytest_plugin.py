"""The fixtures. pytest alone imports this module; the broker is loaded when a test wants one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tidemq.config import Config
    from tidemq.testing import AsyncMqttBroker, MqttBroker


@pytest.fixture
def mqtt_broker_config() -> Config | None:
    """What the two brokers below are told; define a fixture of this name to tell them something else."""
    return None


@pytest.fixture
def mqtt_broker(mqtt_broker_config: Config | None) -> Iterator[MqttBroker]:
    """An MQTT broker in this process, on a free port, for this test (docs/testing.md)."""
    from tidemq.testing import MqttBroker

    with MqttBroker(mqtt_broker_config) as broker:
        yield broker


@pytest.fixture
def async_mqtt_broker(mqtt_broker_config: Config | None) -> Iterator[AsyncMqttBroker]:
    """`mqtt_broker` for tests that are coroutines: its waits are awaited."""
    from tidemq.testing import AsyncMqttBroker

    with AsyncMqttBroker(mqtt_broker_config) as broker:
        yield broker
