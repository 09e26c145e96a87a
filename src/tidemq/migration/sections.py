"""The lines of a `mosquitto.conf` by whose they are: the broker's, each listener's, each bridge's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tidemq.config import refused
from tidemq.migration.lines import Line
from tidemq.migration.options import OPTIONS, option_name
from tidemq.migration.report import Report

_TRUE, _FALSE = ("true", "1"), ("false", "0")


def shown(line: Line) -> str:
    """The line for people, without what is secret in it."""
    known = OPTIONS.get(option_name(line.option))
    named = "password" in line.option and not line.option.endswith("_file")
    secret = known is None or known.secret or named
    return f"{line.option} …" if secret and line.value else f"{line.option} {line.value}".rstrip()


class Section:
    """The options of one owner. What is taken from it is noted in the report by whoever takes it; `rest` says
    of the others what the table has.
    """

    def __init__(self, report: Report) -> None:
        self.report = report
        self._lines: dict[str, list[Line]] = {}
        self._used: set[str] = set()

    def add(self, line: Line) -> None:
        """One more line."""
        self._lines.setdefault(line.option, []).append(line)

    def has(self, option: str) -> bool:
        """Whether a line says something of it."""
        return option in self._lines

    def peek(self, *options: str) -> str | None:
        """The last value with one of these names, of which somebody else says what becomes of it."""
        values = [line.value for option in options for line in self._lines.get(option, [])]
        return values[-1] if values else None

    def lines(self) -> list[Line]:
        """All of them, whoever has asked for them."""
        return [line for lines in self._lines.values() for line in lines]

    def all(self, option: str) -> list[Line]:
        """Its lines, in order; whoever asks says what becomes of them."""
        self._used.add(option)
        return self._lines.get(option, [])

    def get(self, *options: str) -> Line | None:
        """The last line with one of these names; whoever asks says what becomes of it."""
        found = [line for option in options for line in self.all(option)]
        for line in found[:-1]:
            self.report.add("changed", line.place, shown(line), "it comes again, and the last one counts")
        return found[-1] if found else None

    def text(self, *options: str) -> str | None:
        """The value, noted as the table has it; None: it is not given."""
        line = self.get(*options)
        if line is None:
            return None
        self.note(line)
        return line.value

    def flag(self, option: str, default: bool) -> bool:
        """True or false, noted as the table has it; ConfigError for anything else."""
        line = self.get(option)
        if line is None:
            return default
        if line.value not in (*_TRUE, *_FALSE):
            raise refused(line.place, option, f"{line.value!r} is refused", ["true", "false"])
        self.note(line)
        return line.value in _TRUE

    def number(self, option: str) -> int | None:
        """A whole number, noted as the table has it; ConfigError for anything else."""
        line = self.get(option)
        if line is None:
            return None
        try:
            value = int(line.value)
        except ValueError:
            raise refused(line.place, option, f"{line.value!r} is refused", ["a whole number"]) from None
        self.note(line)
        return value

    def note(self, line: Line, text: str | None = None) -> None:
        """Says of a line what the table does, or that it was taken as `text` says."""
        known = OPTIONS[option_name(line.option)]
        same = line.value in known.same
        fate = "taken" if same or text else known.fate
        self.report.add(fate, line.place, shown(line), text or ("as it is" if same else known.text))

    def change(self, line: Line, text: str) -> None:
        """Says that the line means something else by now."""
        self.report.add("changed", line.place, shown(line), text)

    def refuse(self, line: Line, text: str | None = None) -> None:
        """Says that a line is not taken; without `text` for the reason that the table has."""
        self.report.add("not taken", line.place, shown(line), text or OPTIONS[option_name(line.option)].text)

    def rest(self) -> None:
        """Says of all lines that nobody has asked for what the table does."""
        for option, lines in self._lines.items():
            if option not in self._used:
                for line in lines:
                    self.note(line)


@dataclass
class Sections:
    """All of them. A listener's first line is `listener`, or it is the one that needs none."""

    broker: Section
    listeners: list[Section] = field(default_factory=list)
    bridges: list[Section] = field(default_factory=list)
    per_listener: bool = False

    @property
    def all(self) -> list[Section]:
        """The broker's first."""
        return [self.broker, *self.listeners, *self.bridges]


def part_lines(lines: Iterable[Line], report: Report) -> Sections:
    """Lines by whose they are. What nobody knows is noted as not taken."""
    lines = list(lines)
    sections = Sections(Section(report))
    by_listener = [line for line in lines if line.option == "per_listener_settings"]
    sections.per_listener = bool(by_listener) and by_listener[-1].value in _TRUE
    default = Section(report)  # the listener that no line begins
    listener = default
    bridge: Section | None = None
    for line in lines:
        known = OPTIONS.get(option_name(line.option))
        if known is None:
            report.add("not taken", line.place, shown(line), "TideMQ knows no such option of Mosquitto's")
            continue
        if line.option == "listener":
            listener = Section(report)
            sections.listeners.append(listener)
        elif line.option == "connection":
            bridge = Section(report)
            sections.bridges.append(bridge)
        owner = sections.broker
        if known.scope == "listener" or (known.scope == "access" and sections.per_listener):
            owner = listener
        elif known.scope == "bridge":
            if bridge is None:
                report.add("not taken", line.place, shown(line), "it stands before the first connection")
                continue
            owner = bridge
        owner.add(line)
    if default.has("port") or default.has("bind_address") or not sections.listeners:
        sections.listeners.insert(0, default)
    else:
        for line in default.lines():
            default.refuse(line, "it stands before the first listener, and there is no `port`")
    return sections
