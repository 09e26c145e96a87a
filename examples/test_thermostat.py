"""A thermostat that uses paho-mqtt, and its tests with the fixture `mqtt_broker`.

pip install pytest paho-mqtt
pytest examples/test_thermostat.py
"""

from __future__ import annotations

from collections.abc import Iterator

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tidemq.testing import MqttBroker

WANTED_CELSIUS = 20.0


class Thermostat:
    """Publishes `on` or `off`, retained, to `ROOM/heater` whenever `ROOM/celsius` says so."""

    def __init__(self, host: str, port: int, room: str) -> None:
        self._room = room
        self._client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id=f"thermostat-{room}", clean_session=False
        )
        self._client.reconnect_delay_set(1, 1)
        self._client.on_connect = lambda client, *_: client.subscribe(f"{room}/celsius", qos=1)
        self._client.on_message = self._on_celsius
        self._client.connect(host, port)
        self._client.loop_start()

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _on_celsius(self, client: mqtt.Client, _: object, message: mqtt.MQTTMessage) -> None:
        switch = "on" if float(message.payload) < WANTED_CELSIUS else "off"
        client.publish(f"{self._room}/heater", switch, qos=1, retain=True)


@pytest.fixture
def thermostat(mqtt_broker: MqttBroker) -> Iterator[Thermostat]:
    thermostat = Thermostat(mqtt_broker.host, mqtt_broker.port, "kitchen")
    mqtt_broker.wait_for_subscription("kitchen/celsius")
    yield thermostat
    thermostat.close()


@pytest.mark.usefixtures("thermostat")
def test_the_heater_follows_the_temperature(mqtt_broker: MqttBroker) -> None:
    for celsius, switch in (("19.5", b"on"), ("20.5", b"off")):
        mqtt_broker.publish("kitchen/celsius", celsius)
        message = mqtt_broker.wait_for_message("kitchen/heater")
        assert message.payload == switch
        assert message.retain


@pytest.mark.usefixtures("thermostat")
def test_a_measurement_made_while_the_thermostat_is_cut_off_is_not_lost(mqtt_broker: MqttBroker) -> None:
    mqtt_broker.cut("thermostat-kitchen")
    mqtt_broker.publish("kitchen/celsius", "5", qos=1)
    assert mqtt_broker.wait_for_message("kitchen/heater").payload == b"on"


@pytest.mark.usefixtures("thermostat")
def test_it_outlives_a_restart_of_the_broker(mqtt_broker: MqttBroker) -> None:
    mqtt_broker.restart()
    mqtt_broker.publish("kitchen/celsius", "5", qos=1)
    assert mqtt_broker.wait_for_message("kitchen/heater").payload == b"on"


@pytest.mark.usefixtures("thermostat")
def test_nothing_is_switched_while_the_network_is_down(mqtt_broker: MqttBroker) -> None:
    mqtt_broker.stall("thermostat-kitchen")
    mqtt_broker.publish("kitchen/celsius", "5", qos=1)
    with pytest.raises(TimeoutError):
        mqtt_broker.wait_for_message("kitchen/heater", timeout_s=0.1)
    mqtt_broker.resume()
    mqtt_broker.wait_for_message("kitchen/heater")
    assert [message.topic for message in mqtt_broker.messages] == ["kitchen/celsius", "kitchen/heater"]
