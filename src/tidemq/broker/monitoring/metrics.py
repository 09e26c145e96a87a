"""`GET /metrics`, in the text format of Prometheus (https://prometheus.io/docs/instrumenting/exposition_formats/)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

import tidemq
from tidemq.bridge.figures import BridgeFigures
from tidemq.broker.clustering import ClusterFigures, MemberFigures
from tidemq.broker.monitoring.metric_names import metric_name
from tidemq.broker.monitoring.monitor import Monitor
from tidemq.broker.monitoring.watches import Watch
from tidemq.engine.door.figures import Histogram, ReactorFigures

# of a histogram, shown: from 2**10 ns, about a microsecond, to 2**44 ns, almost five hours
BUCKET_FIRST, BUCKET_LAST = 10, 44
HISTOGRAMS = {  # of the engine, and of the keeper: name, what it is, label
    "turn": ("tidemq_turn_seconds", "A turn of a reactor, without its wait.", {}),
    "commit": ("tidemq_commit_seconds", "A commit of the store.", {}),
    "publish_qos_1": ("tidemq_publish_seconds", "From PUBLISH to PUBACK or PUBREC.", {"qos": "1"}),
    "publish_qos_2": ("tidemq_publish_seconds", "From PUBLISH to PUBACK or PUBREC.", {"qos": "2"}),
    "queued": ("tidemq_queued_seconds", "Of QoS 1 and 2 in a queue, until it is first sent.", {}),
    "connect": ("tidemq_connect_seconds", "From CONNECT to CONNACK.", {}),
}
REACTOR = {  # of each reactor
    "connections": ("tidemq_reactor_connections", "Connections of a reactor.", GaugeMetricFamily),
    "load": ("tidemq_reactor_load_ratio", "Share of the time that a reactor was busy.", GaugeMetricFamily),
    "inbox": ("tidemq_reactor_inbox_mails", "Mails from other threads that wait.", GaugeMetricFamily),
    "turns": ("tidemq_reactor_turns", "Turns.", CounterMetricFamily),
    "messages_received": ("tidemq_reactor_messages_received", "PUBLISH accepted.", CounterMetricFamily),
    "messages_sent": ("tidemq_reactor_messages_sent", "PUBLISH written.", CounterMetricFamily),
}
WATCHES = {  # of watched topic filters, label `filter`
    "tidemq_watched_topic_messages": "Messages on a watched topic filter.",
    "tidemq_watched_topic_payload_bytes": "Bytes of their payloads.",
}
GAUGES = {  # of `Monitor.gauges`
    "tidemq_memory_used_bytes": "Bytes that count against memory_bytes_max.",
    "tidemq_memory_max_bytes": "memory_bytes_max.",
    "tidemq_store_bytes": "Files of the store.",
    "tidemq_disk_free_bytes": "Free at the data directory.",
    "tidemq_disk_bytes": "Size of that file system.",
    "tidemq_oldest_queued_seconds": "Age of the oldest message in a queue, as of the last look.",
    "tidemq_uptime_seconds": "Since the broker started.",
}
BRIDGE_GAUGES: Mapping[str, tuple[str, Callable[[BridgeFigures], float]]] = {
    "tidemq_bridge_up": ("1: the bridge is connected.", lambda each: each.status.is_connected),
    "tidemq_bridge_queued_messages": ("Messages for the other side.", lambda each: each.queued_messages),
    "tidemq_bridge_queued_bytes": ("The same, in bytes.", lambda each: each.queued_bytes),
}
MEMBER_STATES = ("alive", "joining", "suspected", "dead")
CLUSTER_GAUGES: Mapping[str, tuple[str, Callable[[ClusterFigures], float]]] = {
    "tidemq_cluster_log_records": (
        "Records of this node's log that it keeps.",
        lambda each: each.log_records,
    ),
    "tidemq_cluster_log_bytes": ("The same, in bytes.", lambda each: each.log_bytes),
    "tidemq_cluster_format": ("In which this node writes; 0: none yet.", lambda each: each.format),
    "tidemq_cluster_degraded": ("How much is not as it should be.", lambda each: len(each.degraded)),
}
CLUSTER_MEMBERS = "tidemq_cluster_members"


def _left_s(member: MemberFigures) -> float | None:
    return 0.0 if member.progress == "complete" else member.left_s


MEMBER_GAUGES: Mapping[str, tuple[str, Callable[[MemberFigures], float | None]]] = {
    "tidemq_cluster_member_up": ("1: the node is heard.", lambda each: each.state in ("alive", "joining")),
    "tidemq_cluster_behind_records": ("Records that a node lacks.", lambda each: each.behind_records),
    "tidemq_cluster_behind_seconds": ("How long it has lacked any.", lambda each: each.behind_s),
    "tidemq_cluster_left_seconds": ("Until it has what it lacks, by estimate.", _left_s),
}
BRIDGE_DROPS = "tidemq_bridge_dropped"
BRIDGE = {  # of `BridgeFigures.counts`
    "messages_out": ("tidemq_bridge_messages_out", "Messages passed on to the other side."),
    "messages_in": ("tidemq_bridge_messages_in", "Messages passed on from the other side."),
    "bytes_out": ("tidemq_bridge_out_bytes", "The same, in bytes of PUBLISH packets."),
    "bytes_in": ("tidemq_bridge_in_bytes", "The same, in bytes of PUBLISH packets."),
    "connects": ("tidemq_bridge_connects", "Connections that were made."),
    "failures": ("tidemq_bridge_failures", "Attempts that failed, and connections that ended."),
}


class Exposition(Collector):
    """All metrics, read anew for each answer."""

    def __init__(self, monitor: Monitor, counters: Callable[[], Mapping[str, int]]) -> None:
        self._monitor = monitor
        self._counters = counters
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Nothing is asked before the first answer."""
        return []

    def text(self) -> bytes:
        """The answer."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        monitor = self._monitor
        info = GaugeMetricFamily("tidemq_build_info", "1, of this version.", labels=["version"])
        info.add_metric([tidemq.__version__], 1)
        yield info
        yield from of_counters(self._counters())
        yield from of_histograms(monitor.histograms())
        yield from _of_reactors(monitor.view.reactors())
        gauges = monitor.gauges()
        for name, text in GAUGES.items():
            if name in gauges:
                yield GaugeMetricFamily(name, text, gauges[name])
        connections = GaugeMetricFamily(
            "tidemq_listener_connections", "Connections of a listener.", labels=["listener"]
        )
        for listener, count in monitor.view.listeners().items():
            connections.add_metric([listener], count)
        yield connections
        yield _of_certificates(monitor.certificates())
        yield from _of_watches(monitor.watches.counted())
        yield from _of_bridges(monitor.bridges())
        yield from of_cluster(monitor.cluster())
        alarms = GaugeMetricFamily("tidemq_alarm", "1: the alarm goes on.", labels=["reason"])
        for alarm in monitor.alarms.active:
            alarms.add_metric([alarm.name], 1)
        yield alarms


def of_counters(counters: Mapping[str, int]) -> Iterator[Metric]:
    """The broker's counters, those of a group as one metric."""
    groups: dict[str, dict[str, float]] = {}  # by name, then by reason: providers' counters may share one
    gauges: set[str] = set()
    for counter, count in counters.items():
        named = metric_name(counter)
        members = groups.setdefault(named.name, {})
        members[named.reason] = members.get(named.reason, 0.0) + count * named.factor
        gauges |= {named.name} if named.is_gauge else set()
    for name, members in groups.items():
        labelled = any(members)
        family = GaugeMetricFamily if name in gauges else CounterMetricFamily
        metric = family(name, "See docs/counters.md.", labels=["reason"] if labelled else [])
        for reason, total in members.items():
            metric.add_metric([reason] if labelled else [], total)
        yield metric


def of_histograms(histograms: Mapping[str, Histogram]) -> Iterator[Metric]:
    """In seconds."""
    families: dict[str, HistogramMetricFamily] = {}
    for key, histogram in histograms.items():
        name, text, labels = HISTOGRAMS[key]
        if name not in families:
            families[name] = HistogramMetricFamily(name, text, labels=list(labels))
        families[name].add_metric(list(labels.values()), _buckets(histogram), histogram.sum_ns / 1e9)
    yield from families.values()


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Cumulative, by their upper bounds in seconds."""
    found = []
    count = sum(histogram.counts[:BUCKET_FIRST])
    for bucket in range(BUCKET_FIRST, BUCKET_LAST + 1):
        count += histogram.counts[bucket]
        found.append((f"{2**bucket / 1e9:.9g}", float(count)))
    return [*found, ("+Inf", float(sum(histogram.counts)))]


def _of_reactors(reactors: Sequence[ReactorFigures]) -> Iterator[Metric]:
    for field, (name, text, family) in REACTOR.items():
        metric = family(name, text, labels=["reactor"])
        for index, figures in enumerate(reactors):
            metric.add_metric([str(index)], getattr(figures, field))
        yield metric


def _of_watches(counted: Iterable[tuple[Watch, int, int]]) -> Iterator[Metric]:
    """The label is the filter that an operator has named, never a topic."""
    messages, payload_bytes = (
        CounterMetricFamily(name, text, labels=["filter"]) for name, text in WATCHES.items()
    )
    for watch, count, size in counted:
        messages.add_metric([watch.topic_filter], count)
        payload_bytes.add_metric([watch.topic_filter], size)
    yield from (messages, payload_bytes)


def _of_bridges(bridges: Sequence[BridgeFigures]) -> Iterator[Metric]:
    """Nothing where there are none."""
    if not bridges:
        return
    for name, (text, read) in BRIDGE_GAUGES.items():
        gauge = GaugeMetricFamily(name, text, labels=["bridge"])
        for each in bridges:
            gauge.add_metric([each.name], read(each))
        yield gauge
    for key, (name, text) in BRIDGE.items():
        metric = CounterMetricFamily(name, text, labels=["bridge"])
        for each in bridges:
            metric.add_metric([each.name], each.counts[key])
        yield metric
    text = "Messages that a bridge did not pass on."
    drops = CounterMetricFamily(BRIDGE_DROPS, text, labels=["bridge", "reason"])
    for each in bridges:
        for key, count in each.counts.items():
            if key.startswith("dropped_"):
                drops.add_metric([each.name, key.removeprefix("dropped_")], count)
    yield drops


def of_cluster(cluster: ClusterFigures | None) -> Iterator[Metric]:
    """Nothing where there is none. Two nodes may have one name, so the incarnation is a label, too."""
    if cluster is None:
        return
    for name, (text, read) in CLUSTER_GAUGES.items():
        yield GaugeMetricFamily(name, text, read(cluster))
    members = GaugeMetricFamily(CLUSTER_MEMBERS, "Nodes by their state.", labels=["state"])
    for state in MEMBER_STATES:
        members.add_metric([state], sum(each.state == state for each in cluster.members))
    yield members
    for name, (text, read_member) in MEMBER_GAUGES.items():
        gauge = GaugeMetricFamily(name, text, labels=["node", "incarnation"])
        for each in cluster.members:
            if (value := read_member(each)) is not None:
                gauge.add_metric([each.name, each.incarnation], value)
        yield gauge


def _of_certificates(ends: Mapping[str, datetime]) -> Metric:
    now = datetime.now(UTC)
    metric = GaugeMetricFamily(
        "tidemq_certificate_days", "Until the certificate of a listener ends.", labels=["listener"]
    )
    for place, end in ends.items():
        metric.add_metric([place], (end - now).total_seconds() / 86400)
    return metric
