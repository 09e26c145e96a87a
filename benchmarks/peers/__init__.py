"""The brokers that are compared: one module each, with how to get it, start it and stop it.

`python benchmarks/peers NAME…` runs some of them until Ctrl-C.
"""

from __future__ import annotations

from peers.aedes import Aedes
from peers.amqtt import Amqtt
from peers.mosquitto import Mosquitto
from peers.peer import Peer
from peers.rabbitmq import RabbitMQ
from peers.relay import Relay
from peers.tidemq import TideMQ

# TideMQ without its store is what compares with brokers that keep nothing on the disk
ALL: tuple[Peer, ...] = (
    TideMQ("tidemq", "memory"),
    TideMQ("tidemq-durable", ""),
    Mosquitto(),
    Amqtt(),
    Aedes(),
    RabbitMQ(),
    Relay(),
)
PEERS = {peer.name: peer for peer in ALL}
