"""For tests of programs that speak MQTT: a broker in the test's process, which the test watches and disturbs.

With pytest, the fixtures `mqtt_broker` and `async_mqtt_broker` are there as soon as TideMQ is installed; with
any other runner: `with MqttBroker() as broker`.
"""

from tidemq.broker import Message
from tidemq.testing.broker import AsyncMqttBroker, MqttBroker
from tidemq.testing.proxy import Proxy

__all__ = ["AsyncMqttBroker", "Message", "MqttBroker", "Proxy"]
