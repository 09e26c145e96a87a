"""Rules for alerts are read as they are written, and a wrong one is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemq.errors import ConfigError
from tidemq.pipeline.alerts.alert_rules import AlertRule, load_alert_rules
from tidemq.pipeline.alerts.states import Condition

GOOD = """
[[alerts]]
name = "hot"
filter = "plant/+/climate"
value = "climate.celsius"
kind = "threshold"
above = 30
hysteresis = 2
count = 3
of = 5

[[alerts]]
name = "silent"
filter = "plant/#"
kind = "absence"
after_s = 60
by = "client"
topic = "gone/{client}"
retain = true

[[alerts]]
name = "odd"
filter = "plant/+/level"
kind = "zscore"
above = 3
below = -3
window = 20
"""


def rules_of(tmp_path: Path, text: str) -> tuple[AlertRule, ...]:
    file = tmp_path / "alerts.toml"
    file.write_text(text)
    return load_alert_rules(file)


def test_rules_are_read(tmp_path: Path) -> None:
    hot, silent, odd = rules_of(tmp_path, GOOD)
    assert hot == AlertRule(
        name="hot",
        filter="plant/+/climate",
        value="climate.celsius",
        topic="alerts/{name}/{topic}",
        condition=Condition(kind="threshold", above=30, hysteresis=2, count=3, of=5),
    )
    assert silent.condition == Condition(kind="absence", after_s=60)
    assert (silent.by, silent.retain, silent.value) == ("client", True, "")
    assert odd.condition == Condition(kind="zscore", above=3, below=-3, window=20)
    assert hot.render("plant/1/climate") == "alerts/hot/plant/1/climate"
    assert silent.render("a+b/{client}#") == "gone/a_b/{client}_"


THRESHOLD = '[[alerts]]\nname = "a"\nfilter = "a/#"\nkind = "threshold"\n'
ABSENCE = '[[alerts]]\nname = "a"\nfilter = "a/#"\nkind = "absence"\nafter_s = 1\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "nothing else"),
        ("alerts = []", r"accepted: tables \[\[alerts\]\]"),
        ("[[alerts", "no TOML"),
        ("alerts = [1]", "alerts has 1"),
        ('[[alerts]]\nfilter = "a"\nkind = "rate"', "alerts.name is missing; accepted: letters"),
        ('[[alerts]]\nname = "a"\nkind = "rate"', "alerts.filter is missing"),
        ('[[alerts]]\nname = "a"\nfilter = "a"', "alerts.kind is missing; accepted: threshold, rate, zscore"),
        ('[[alerts]]\nname = "a/b"\nfilter = "a"\nkind = "rate"', "alerts.name is 'a/b'"),
        ('[[alerts]]\nname = "a"\nfilter = "a#"\nkind = "rate"', "alerts.filter is 'a#'"),
        ('[[alerts]]\nname = "a"\nfilter = "a"\nkind = "odd"', "alerts.kind is 'odd'; accepted: threshold"),
        ('[[alerts]]\nname = "a"\nfilter = "a"\nkind = []', r"alerts.kind is \[\]"),
        (
            '[[alerts]]\nname = "a"\nfilter = "a"\nkind = "absence"',
            "alerts.after_s is missing; accepted: sec",
        ),
        ('[[alerts]]\nname = "a"\nfilter = "a"\nkind = "zscore"\nabove = 3', "alerts.window is missing"),
        (THRESHOLD, "the alert a has no limit; accepted: above, below"),
        (THRESHOLD + 'above = "1"', "alerts.above is '1'; accepted: a number"),
        (THRESHOLD + "above = nan", "alerts.above is nan; accepted: a number"),
        (THRESHOLD + "above = true", "alerts.above is True; accepted: a number"),
        (THRESHOLD + "above = 1\nbelow = 2", "alerts.below is 2; accepted: at most `above`, 1"),
        (THRESHOLD + "above = 1\nhysteresis = -1", "alerts.hysteresis is -1; accepted: a number from 0"),
        (THRESHOLD + "above = 1\nfor_s = 0", "alerts.for_s is 0; accepted: seconds, more than 0"),
        (THRESHOLD + "above = 1\ncount = 2", "alerts.count is 2; accepted: at most `of`"),
        (THRESHOLD + "above = 1\nfor_s = 1\nof = 2", "has for_s and of; accepted: one of them"),
        (THRESHOLD + "above = 1\nof = 1000000", "alerts.of is 1000000; accepted: a number of readings"),
        (THRESHOLD + "above = 1\nwindow = 5", "alerts.window is unknown for threshold; accepted: name,"),
        (THRESHOLD + 'above = 1\nvalue = "a..b"', "alerts.value is 'a..b'; accepted: a JSON field"),
        (THRESHOLD + 'above = 1\nby = "user"', "alerts.by is 'user'; accepted: topic, client"),
        (THRESHOLD + 'above = 1\ntopic = "x/{client}"', r"accepted: a topic name, with {name} and {topic}"),
        (THRESHOLD + 'above = 1\ntopic = "x/+/{topic}"', r"alerts.topic is 'x/\+/{topic}'"),
        (THRESHOLD + 'above = 1\ntopic = ""', "alerts.topic is ''"),
        (THRESHOLD + "above = 1\ntopic = 1", "alerts.topic is 1;"),
        (THRESHOLD + 'above = 1\ntopic = "a/{name}"', "which the alert's own filter a/# matches"),
        (ABSENCE + "above = 1", "alerts.above is unknown for absence"),
        (ABSENCE + "more = 1", "alerts.more is unknown for absence; accepted: name, filter, kind"),
        (2 * ABSENCE, "two alerts have the name a"),
    ],
)
def test_a_wrong_rule_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        rules_of(tmp_path, text)
