"""The lines of a `mosquitto.conf` by whose they are: the broker's, each listener's, each bridge's."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from tidemq.config import refused
from tidemq.migration.lines import INCLUDE_DIR, Line
from tidemq.migration.options import OPTIONS, option_name
from tidemq.migration.report import Report

OPEN = "Mosquitto 2.0 lets everybody in"
LOST = "Mosquitto forgets this line, because a file that was included before it has a listener; here it holds"
_NAME = re.compile(r"[A-Za-z0-9_.]{0,40}")
_TRUE, _FALSE = ("true", "1"), ("false", "0")
_DEFAULT_ONLY = ("port", "bind_address")  # of the listener that no line begins, wherever they stand
# for which there is a default listener beside others, and the values for which there is none
_OPENING: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (*_DEFAULT_ONLY, "bind_interface", "cafile", "capath", "certfile", "keyfile", "ciphers",
         "ciphers_tls1.3", "dhparamfile", "psk_hint", "crlfile", "tls_engine", "tls_engine_kpass_sha1",
         "mount_point", "socket_domain", "password_file", "psk_file", "plugin", "auth_plugin"), ()
    ),
    **dict.fromkeys(("require_certificate", "use_identity_as_username", "use_subject_as_username",
                     "use_username_as_clientid"), _FALSE),
    "allow_zero_length_clientid": _TRUE,
    "max_connections": ("-1",),
    "max_qos": ("2",),
    "maximum_qos": ("2",),
    "protocol": ("mqtt",),
    "tls_keyform": ("pem",),
}  # fmt: skip


def shown(line: Line) -> str:
    """The line for people, without what is secret in it."""
    known = OPTIONS.get(option_name(line.option))
    named = "password" in line.option and not line.option.endswith("_file")
    if known is None:  # with a tab or = in place of the space the value would be a part of the name
        found = _NAME.match(line.option)
        name = found[0] if found else ""
        return f"{name} …" if line.value or name != line.option else name
    return (
        f"{line.option} …"
        if (known.secret or named) and line.value
        else f"{line.option} {line.value}".rstrip()
    )


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
        if line.word not in (*_TRUE, *_FALSE):
            raise refused(line.place, option, f"{line.word!r} is refused", ["true", "false"])
        self.note(line)
        return line.word in _TRUE

    def word(self, *options: str) -> str | None:
        """The first word of the value, noted as the table has it; None: it is not given."""
        line = self.get(*options)
        if line is None:
            return None
        self.note(line)
        return line.word

    def number(self, *options: str) -> int | None:
        """A whole number, noted as the table has it; ConfigError for anything else."""
        line = self.get(*options)
        if line is None:
            return None
        try:
            value = int(line.word)
        except ValueError:
            raise refused(line.place, line.option, f"{line.word!r} is refused", ["a whole number"]) from None
        self.note(line)
        return value

    def note(self, line: Line, text: str | None = None) -> None:
        """Says of a line what the table does, or that it was taken as `text` says."""
        known = OPTIONS[option_name(line.option)]
        same = line.word in known.same
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
    local_only: bool = False  # no line says where to listen: Mosquitto takes clients of this machine alone

    @property
    def all(self) -> list[Section]:
        """The broker's first."""
        return [self.broker, *self.listeners, *self.bridges]


def part_lines(lines: Iterable[Line], report: Report) -> Sections:
    """Lines by whose they are. What nobody knows is noted as not taken."""
    lines = list(lines)
    sections = Sections(Section(report))
    by_listener = [line for line in lines if line.option == "per_listener_settings"]
    sections.per_listener = bool(by_listener) and by_listener[-1].word in _TRUE
    default = Section(report)  # the listener that no line begins
    listeners: dict[int, Section] = {}  # the last one of each file
    is_lost = False  # whether Mosquitto still knows the main file's last one
    bridges: dict[int, Section] = {}
    for line in lines:
        known = OPTIONS.get(option_name(line.option))
        if known is None:
            report.add("not taken", line.place, shown(line), "TideMQ knows no such option of Mosquitto's")
            continue
        if line.option == "listener":
            listeners[line.reading] = Section(report)
            is_lost = line.reading > 0
            sections.listeners.append(listeners[line.reading])
        elif line.option == "connection":
            bridges[line.reading] = Section(report)
            sections.bridges.append(bridges[line.reading])
        elif line.option == INCLUDE_DIR and line.reading:
            report.add("not taken", line.place, shown(line), "only the main file includes others")
            continue
        owner = sections.broker
        if line.option in _DEFAULT_ONLY:
            owner = default
        elif known.scope == "listener" or (known.scope == "access" and sections.per_listener):
            owner = listeners.get(line.reading, default)
            if is_lost and owner is listeners.get(0):
                owner.change(line, LOST)
        elif known.scope == "bridge":
            if line.reading not in bridges:
                report.add("not taken", line.place, shown(line), "it stands before the first connection")
                continue
            owner = bridges[line.reading]
        owner.add(line)
    _place_default(sections, default)
    return sections


def _place_default(sections: Sections, default: Section) -> None:
    """Adds the listener that no line begins, where Mosquitto has one: if no line says where to listen, or for
    some of its options.
    """
    opening = [line for line in default.lines() if _opens(line)]
    if opening and sections.per_listener and not default.has("allow_anonymous"):
        default.change(opening[0], f"{OPEN} at this listener, because no line says `allow_anonymous`; here "
                       "nobody is")  # fmt: skip
    sections.local_only = not sections.listeners and not any(map(default.has, _DEFAULT_ONLY))
    if sections.local_only and opening:
        default.change(opening[0], f"{OPEN} from everywhere, because no line says where to listen; here "
                       "clients of this machine are")  # fmt: skip
    if sections.local_only or opening:
        sections.listeners.insert(0, default)
    else:
        for line in default.lines():
            default.refuse(line, "it stands before the first listener, and there is no `port`")


def _opens(line: Line) -> bool:
    """Whether Mosquitto opens the default listener for this line, on port 1883 if there is no `port`."""
    return line.option in _OPENING and line.word not in _OPENING[line.option]
