"""What has to be in the stream and in the tables when all is done, whatever was killed before."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pipeline_crash.alarms import Alert, due
from pipeline_crash.publishing import Sent, number_in
from pipeline_crash.tables import rows_of

from tidemq.client.streams import StreamReader

REPORTED_MAX = 5  # messages of one kind of failure
DECODED = {"json": "silver/json", "number": "silver/number", "wrong": "dead_letters"}  # by kind of message
GOLD = {"json": "id", "number": "value"}  # by kind of message the column that is summed
WINDOWS = {"json": timedelta(seconds=10), "number": timedelta(days=1)}  # of its gold
Place = tuple[int, int]  # epoch and offset
Totals = dict[str, tuple[int, float]]  # by topic and window the number of messages, and the sum of theirs
Row = dict[str, Any]


@dataclass(slots=True)
class Found:
    """What was there in the end: the stream's rows and bronze's, with all columns of the stream, and for each
    kind of message the numbers of its table, with the place in the stream that the table says.
    """

    stream: list[Row] = field(default_factory=list)
    bronze: list[Row] = field(default_factory=list)
    decoded: dict[str, list[tuple[int, Place]]] = field(default_factory=dict)
    totals: dict[str, tuple[Totals, Totals]] = field(default_factory=dict)  # of a rule's rows, of its gold
    alerts: list[Alert] = field(default_factory=list)  # as often as they came
    repeats_max: int = 0  # of one alert: as often as somebody was killed who publishes or passes it on
    backtest: list[Alert] | None = None  # of the whole stream; None: nobody has asked

    @property
    def repeated(self) -> int:
        """Messages that came more than once."""
        return len(self.stream) - len({number_in(row["payload"]) for row in self.stream})


def read(url: str, stream: str, folder: Path, table_format: str) -> Found:
    """The stream by HTTP, the tables in `folder` by other readers; Spark is not asked."""
    reader = StreamReader(url, stream)
    epoch = reader.describe().epoch
    found = read_tables(folder, table_format)
    found.stream = [
        {"epoch": epoch, **row} for batch in reader.read(0, epoch=epoch) for row in batch.to_pylist()
    ]
    return found


def read_tables(folder: Path, table_format: str = "delta") -> Found:
    """Without the stream."""

    def table(name: str) -> list[Row]:
        return rows_of(folder / name, table_format)

    bronze = [{name: row[name] for name in row if name != "date"} for row in table("bronze")]
    decoded = {
        kind: [(_number_of(kind, row), (row["epoch"], row["offset"])) for row in table(name)]
        for kind, name in DECODED.items()
    }
    totals = {
        kind: (
            total(
                (row["topic"], window_of(kind, row["received"]), 1, row[value])
                for row in table(f"silver/{kind}")
            ),
            total(
                (row["topic"], row["window"], row["count"], row[f"{value}_sum"])
                for row in table(f"gold/{kind}")
            ),
        )
        for kind, value in GOLD.items()
    }
    return Found(bronze=bronze, decoded=decoded, totals=totals)


def total(rows: Iterable[tuple[str, datetime, int, float]]) -> Totals:
    """Of rows with a topic, a window, a number of messages and a sum."""
    found: Totals = {}
    for topic, window, count, value in rows:
        of = f"{topic} in {window.astimezone(UTC):%F %T}"
        before = found.get(of, (0, 0.0))
        found[of] = before[0] + count, before[1] + value
    return found


def window_of(kind: str, at: datetime) -> datetime:
    """The beginning of the window of a rule's gold that a time is in."""
    since = datetime(1970, 1, 1, tzinfo=UTC)
    return at - (at - since) % WINDOWS[kind]


def _number_of(kind: str, row: Row) -> int:
    return number_in(row["payload"]) if kind == "wrong" else int(row["id" if kind == "json" else "value"])


def judge(sent: Iterable[Sent], found: Found) -> list[str]:
    """What is wrong, a line each; none: each message is where it must be, and once."""
    by_number = {each.number: each for each in sent}
    places: dict[int, list[Place]] = defaultdict(list)
    for row in found.stream:
        places[number_in(row["payload"])].append((row["epoch"], row["offset"]))
    wrong = _stream(by_number, places)
    wrong += _bronze(found)
    for kind, name in DECODED.items():
        first = {
            number: min(at)
            for number, at in places.items()
            if number in by_number and by_number[number].kind == kind
        }
        wrong += _decoded(name, first, found.decoded[kind])
    for kind, (rows, gold) in found.totals.items():
        wrong += _gold(kind, rows, gold)
    return wrong + _alerts(found)


def _gold(kind: str, rows: Totals, gold: Totals) -> list[str]:
    """The figures of a window are those of its rows: numbers are whole, so their sums are exact."""
    return [
        f"gold/{kind} has {gold.get(topic, (0, 0.0))} of {topic}, silver {rows.get(topic, (0, 0.0))}"
        for topic in sorted(rows.keys() | gold.keys())
        if rows.get(topic) != gold.get(topic)
    ]


def _stream(sent: dict[int, Sent], places: dict[int, list[Place]]) -> list[str]:
    """The broker's own promise."""
    kept = (each for each in sent.values() if each.acknowledged)
    lost = [each.number for each in kept if each.number not in places]
    twice = [
        number for number, at in places.items() if number in sent and sent[number].qos == 2 and len(at) > 1
    ]
    offsets = sorted(offset for at in places.values() for _, offset in at)
    return [
        *_line("acknowledged and not in the stream", lost),
        *_line("more than once in the stream, at QoS 2", twice),
        *_line("in the stream, but nobody sent it", [number for number in places if number not in sent]),
        *_line("offsets are missing from the stream before", _after_gaps(offsets)),
    ]


def _after_gaps(offsets: list[int]) -> list[int]:
    return [offset for place, offset in enumerate(offsets) if place and offset != offsets[place - 1] + 1]


def _bronze(found: Found) -> list[str]:
    """Each message of the stream, as it is there, once."""
    stream = Counter(map(_comparable, found.stream))
    bronze = Counter(map(_comparable, found.bronze))
    return [
        *_line("in the stream, not in bronze: offsets", [dict(row)["offset"] for row in stream - bronze]),
        *_line("in bronze, not so in the stream: offsets", [dict(row)["offset"] for row in bronze - stream]),
    ]


def _comparable(row: Row) -> tuple[tuple[str, Any], ...]:
    values = row | {"user_properties": repr(row["user_properties"])}
    return tuple(sorted(values.items()))


def _decoded(name: str, first: dict[int, Place], there: list[tuple[int, Place]]) -> list[str]:
    """Each of the stream's messages of the kind once, and that is its first delivery."""
    times = Counter(number for number, _ in there)
    return [
        *_line(f"in the stream, not in {name}", [number for number in first if number not in times]),
        *_line(f"more than once in {name}", [number for number, count in times.items() if count > 1]),
        *_line(f"in {name}, not in the stream", [number for number in times if number not in first]),
        *_line(
            f"in {name} not as it came first",
            [number for number, place in there if times[number] == 1 and first.get(number, place) != place],
        ),
    ]


def _alerts(found: Found) -> list[str]:
    """Each change of state up to the newest message, as the rules say, and no other."""
    wanted = due(found.stream)
    times = Counter(alert["id"] for alert in found.alerts)
    wrong = _different("that came", wanted, [each for each in found.alerts if _in_time(each, found.stream)])
    if often := [name for name, count in times.items() if count > 1 + found.repeats_max]:
        wrong += _lines("alerts came again, and nobody was killed so often", often)
    if found.backtest is not None:
        wrong += _different("of the backtest", wanted, found.backtest)
    return wrong


def _different(whose: str, wanted: dict[str, Alert], alerts: Sequence[Alert]) -> list[str]:
    """Which alerts are not those that are wanted."""
    there = {alert["id"]: alert for alert in alerts}
    others = [alert["id"] for alert in alerts if alert != wanted.get(alert["id"], alert)]
    return [
        *_lines(f"alerts are missing from those {whose}", wanted.keys() - there.keys()),
        *_lines(f"alerts {whose} are against the rules", there.keys() - wanted.keys()),
        *_lines(f"alerts {whose} say something else than the rules", set(others)),
    ]


def _in_time(alert: Alert, stream: list[Row]) -> bool:
    """Whether it is of the time up to the newest message; later, everybody is silent."""
    newest: datetime = max(row["received"] for row in stream)
    return datetime.fromisoformat(alert["time"]) <= newest


def _line(text: str, numbers: list[int]) -> list[str]:
    return _lines(f"messages {text}", numbers)


def _lines(text: str, those: Iterable[Any]) -> list[str]:
    shown = sorted(those)
    return [f"{len(shown)} {text}: {', '.join(map(str, shown[:REPORTED_MAX]))}"] if shown else []
