"""A pipeline as a tree of text: what comes from where, and goes where."""

from __future__ import annotations

from rich.tree import Tree

from tidemq.pipeline.alerts.alert_rules import AlertRule
from tidemq.pipeline.decode.payload_rules import Rule
from tidemq.pipeline.service.pipeline_file import Plan, StreamPlan


def drawn(plan: Plan) -> Tree:
    """For `rich.print`."""
    table, upkeep = plan.table, plan.table.maintenance
    kind = "Iceberg" if table.format == "iceberg" else "Delta Lake"
    tree = Tree(f"{table.url} -> {table.tables} ({kind}), by Spark on {table.master}")
    for stream in plan.streams:
        _draw_stream(tree.add(f"stream {stream.ingest.stream}"), stream)
    expiry = f", bronze keeps {upkeep.bronze_days} days" if upkeep.bronze_days else ""
    tree.add(f"maintenance every {upkeep.every_s:g} s, old versions stay {upkeep.keep_h} hours{expiry}")
    if table.metrics_port is not None:
        tree.add(f"metrics on http://{table.metrics_host}:{table.metrics_port}/metrics")
    return tree


def _draw_stream(tree: Tree, stream: StreamPlan) -> None:
    ingest = stream.ingest
    bronze = tree.add(f"bronze, every {ingest.trigger_s:g} s")
    for rule in ingest.rules:
        _draw_rule(bronze, rule)
    if ingest.rules:
        bronze.add("dead_letters: what no rule could read that wanted it")
    if alerts := stream.alerts:
        branch = tree.add(f"alerts -> {alerts.mqtt.url}")
        for alert in alerts.rules:
            branch.add(_alert_text(alert))
    for bridge in stream.bridges:
        to = f"{bridge.target.url} {bridge.topic_prefix}".rstrip()
        tree.add(f"sink {bridge.name}: {bridge.filter} -> {to}")


def _draw_rule(bronze: Tree, rule: Rule) -> None:
    columns = "columns as they come" if rule.infers else rule.columns
    branch = bronze.add(f"silver/{rule.name}: {rule.filter} as {rule.format}: {columns}")
    if rule.watermark:
        branch.add(f"late/{rule.name}: later than {rule.watermark}")
    if rule.gold:
        values = f" of {', '.join(rule.gold.values)}" if rule.gold.values else ""
        branch.add(f"gold/{rule.name}: every {rule.gold.window}{values}")


def _alert_text(alert: AlertRule) -> str:
    condition = alert.condition
    limits = (
        f"{name} {limit:g}" for name in ("above", "below") if (limit := getattr(condition, name)) is not None
    )
    said = f"for {condition.after_s:g} s" if condition.kind == "absence" else " or ".join(limits)
    return f"{alert.name}: {alert.filter} {alert.value or 'payload'} {condition.kind} {said} -> {alert.topic}"
