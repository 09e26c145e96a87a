"""What nodes of a cluster tell each other, over NATS: bytes, incarnations, addresses, and nothing of MQTT.

`transport.Transport` is what the rest of the cluster uses; `server.NatsServer` starts a `nats-server`. What
is sent where: docs/decisions/0024. Without the extra `cluster` an import from here raises ClusterError.
"""

from tidemq.errors import ClusterError

try:
    import nats  # noqa: F401 - its absence is said here, in words
except ImportError as error:
    raise ClusterError(f"a cluster needs pip install 'tidemq[cluster]': {error}") from error
