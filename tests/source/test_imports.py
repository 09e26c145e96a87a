"""Imports point one way: a part of the package sees only the parts below it, a room of a part only the rooms
below it, and no modules of a part go round in a circle.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

BELOW = {
    "limits": "",
    "errors": "",
    "bridge_config": "",
    "config": "limits errors bridge_config",
    "wire": "limits errors",
    "net": "errors",
    "engine": "limits errors wire net",
    "store": "limits errors config wire",
    "stream": "limits errors config wire engine store",
    "client": "limits errors wire",
    "bridge": "limits errors bridge_config wire client",
    "broker": "limits errors bridge_config config wire net engine store stream client bridge",
    "cluster": "limits errors config wire engine store broker",
    "origins": "config",
    "plugins": "errors config wire broker",
    "migration": "errors bridge_config config wire store broker",
    "testing": "limits errors config wire engine store broker client",
    "pytest_plugin": "config testing",
    "bench": "limits errors wire net",
    "pipeline": "limits errors wire client bench",  # of bench: results of load tests, read and drawn
    "cli": "limits errors config wire store stream broker cluster origins migration client bench pipeline",
    "__init__": "limits errors config wire broker",  # what the package offers
}
# The rooms of a part: its folders, and the modules that stand before them, each a room of its own.
ROOMS = {
    "engine": {
        "base": "",
        "index": "base",
        "state": "base index",
        "link": "base index state",
        "journal": "base state link",
        "queues": "base index state link journal",
        "clients": "base index state link journal queues",
        "turn": "base index state link journal queues clients",
        "door": "base index state link journal queues turn",
        "__init__": "door",
    },
    "broker": {
        "acl_rules": "",
        "circuit_breaker": "",
        "completion": "",
        "fault_log": "",
        "logs": "",
        "settings": "logs",
        "reload": "",
        "program_subscription": "",
        "sys_topics": "",
        "host": "",
        "providers": "acl_rules",
        "own_providers": "providers reload",
        "topic_rules": "host",
        "plugins": "circuit_breaker completion fault_log",
        "hooks": "completion fault_log plugins providers",
        "own_plugins": "hooks plugins providers",
        "stream_filters": "providers",
        "replay_pieces": "stream_filters",
        "replays": "fault_log providers replay_pieces stream_filters",
        "listeners": "host",
        "durability": "completion providers",
        "clustering": "durability plugins",
        "access": "acl_rules fault_log hooks host providers replay_pieces replays stream_filters",
        "authenticators": "access acl_rules circuit_breaker host providers",
        "monitoring": "clustering durability",
        "own_files": "access monitoring providers reload topic_rules",
        "bridging": "access acl_rules host monitoring providers",
        "event_handlers": "access bridging fault_log monitoring own_plugins program_subscription replays",
        "admin": "access clustering durability fault_log logs monitoring program_subscription settings",
        "preflight": "access admin bridging host listeners own_plugins own_providers providers reload "
        "topic_rules",
        "broker": "access admin authenticators bridging clustering completion durability event_handlers "
        "fault_log host listeners logs monitoring own_files own_plugins own_providers plugins "
        "program_subscription providers reload replays settings sys_topics",
        "__init__": "acl_rules broker hooks plugins program_subscription providers",
    },
    "bench": {
        "__init__": "",
        "linux": "",
        "process": "",
        "result": "",
        "workload": "result",
        "catalogue": "result workload",
        "peer": "linux",
        "load": "linux peer process result workload",
        "shares": "load peer result workload",
        "measurement": "catalogue peer process result shares workload",
        "comparison": "catalogue measurement peer result shares",
        "report": "result",
        "spark": "catalogue load measurement peer report result shares workload",
    },
    "pipeline": {
        "__init__": "",
        "toml_files": "",
        "places": "toml_files",
        "load_results": "places",
        "spark": "places",
        "decode": "toml_files",
        "reconcile": "places",
        "sources": "decode spark",
        "lake": "decode places sources spark toml_files",
        "replay": "decode lake places sources",
        "alerts": "decode places sources spark",
        "backtest": "alerts lake places sources spark",
        "service": "alerts decode lake places sources spark toml_files",
    },
}
WITH_CIRCLES = {"engine"}  # of all other parts circles are refused
CIMPORT = re.compile(r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+c?import|c?import[ \t]+([\w., \t]+))", re.MULTILINE)


Sources = dict[Path, ast.Module]
Declarations = dict[Path, str]


def part_of(path: Path) -> str:
    """The part that a file belongs to: its first folder, or its own name."""
    return path.parts[0] if len(path.parts) > 1 else path.stem


def module_of(path: Path) -> str:
    """The full name of a file's module."""
    words = ("tidemq", *path.with_suffix("").parts)
    return ".".join(words[:-1] if words[-1] == "__init__" else words)


def names_of_python(path: Path, tree: ast.Module) -> Iterator[str]:
    """The full name of every module that a Python file imports, wherever in the file."""
    package = ["tidemq", *path.parts[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def names_of_declarations(text: str) -> Iterator[str]:
    """The same of a .pxd file."""
    for module, modules in CIMPORT.findall(text):
        yield from (name.strip() for name in (module or modules).split(","))


@pytest.fixture(scope="module")
def imported(trees: Sources, declarations: Declarations) -> list[tuple[Path, list[str]]]:
    """Every file with the names that it imports, in Python's form."""
    found = [(path, list(names_of_python(path, tree))) for path, tree in trees.items()]
    found += [(path, list(names_of_declarations(text))) for path, text in declarations.items()]
    return [(path, [name.removeprefix("cython.cimports.") for name in names]) for path, names in found]


def places_seen(names: Iterable[str], above: str, places: Iterable[str]) -> set[str]:
    """Which of these places, all within the package `above`, the imported names belong to."""
    inside = (name.removeprefix(f"{above}.").split(".")[0] for name in names if name.startswith(f"{above}."))
    return {place if place in places else "__init__" for place in inside}


def seen_by_file(
    imported: list[tuple[Path, list[str]]], above: str, table: dict[str, str]
) -> Iterator[tuple[Path, str, set[str]]]:
    """Each file within the package `above`, its own place there, and the other places that it sees."""
    depth = above.count(".")
    for path, names in imported:
        if path.parts[:depth] == tuple(above.split(".")[1:]) and len(path.parts) > depth:
            own = part_of(Path(*path.parts[depth:]))
            yield path, own, places_seen(names, above, table) - {own}


def upward(imported: list[tuple[Path, list[str]]], above: str, table: dict[str, str]) -> dict[str, list[str]]:
    """Files within the package `above` that see a place which the table does not put below theirs."""
    found = seen_by_file(imported, above, table)
    return {
        str(path): sorted(extra) for path, own, seen in found if (extra := seen - set(table[own].split()))
    }


def circle_in(arrows: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle; empty where there is none."""
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def arrows_between(imported: list[tuple[Path, list[str]]], part: str) -> dict[str, set[str]]:
    """What each module of a part imports of the part, wherever in the file and for whatever purpose."""
    files = [(module_of(path), names) for path, names in imported if part_of(path) == part]
    modules = {module for module, _names in files}
    arrows: dict[str, set[str]] = {module: set() for module in modules}
    for module, names in files:
        for name in names:
            while name and name not in modules:
                name = name.rpartition(".")[0]
            if name and name != module:
                arrows[module].add(name)
    return arrows


def test_every_part_has_its_place(trees: Sources, declarations: Declarations) -> None:
    assert {part_of(path) for path in [*trees, *declarations]} == set(BELOW)


@pytest.mark.parametrize("part", ROOMS)
def test_every_room_has_its_place(trees: Sources, declarations: Declarations, part: str) -> None:
    inside = [Path(*path.parts[1:]) for path in [*trees, *declarations] if path.parts[0] == part]
    assert {part_of(path) for path in inside} == set(ROOMS[part])


@pytest.mark.parametrize("table", [BELOW, *ROOMS.values()], ids=["the package", *ROOMS])
def test_a_table_itself_points_one_way(table: dict[str, str]) -> None:
    seen: set[str] = set()
    for place, below in table.items():
        assert set(below.split()) <= seen, place
        seen.add(place)


def test_nothing_imports_upward(imported: list[tuple[Path, list[str]]]) -> None:
    assert not upward(imported, "tidemq", BELOW)


@pytest.mark.parametrize("part", ROOMS)
def test_within_a_part_nothing_imports_upward(imported: list[tuple[Path, list[str]]], part: str) -> None:
    assert not upward(imported, f"tidemq.{part}", ROOMS[part])


@pytest.mark.parametrize("part", ROOMS)
def test_a_room_sees_all_that_the_table_says(imported: list[tuple[Path, list[str]]], part: str) -> None:
    """So the table is a picture of the part, and not only a bound."""
    seen: dict[str, set[str]] = {}
    for _path, own, others in seen_by_file(imported, f"tidemq.{part}", ROOMS[part]):
        seen.setdefault(own, set()).update(others)
    assert seen == {room: set(below.split()) for room, below in ROOMS[part].items()}


@pytest.mark.parametrize("part", sorted(BELOW.keys() - WITH_CIRCLES))
def test_no_modules_of_a_part_import_each_other_in_a_circle(
    imported: list[tuple[Path, list[str]]], part: str
) -> None:
    assert not circle_in(arrows_between(imported, part))


SOURCE = """
import tidemq.broker.hooks
from tidemq import limits
from tidemq.wire import codes
from cython.cimports.tidemq.engine.state.reactor import Reactor
from ..store import memory
def later():
    from tidemq.cli.pub import pub
"""
DECLARATIONS = """
from tidemq.wire.protocol cimport Span
cimport tidemq.engine.state.reactor
    from tidemq.store import x
"""


def test_all_forms_of_import_are_seen() -> None:
    python = [
        name.removeprefix("cython.cimports.")
        for name in names_of_python(Path("bench/x.py"), ast.parse(SOURCE))
    ]
    assert places_seen(python, "tidemq", BELOW) == {"broker", "limits", "wire", "engine", "store", "cli"}
    declared = names_of_declarations(DECLARATIONS)
    assert places_seen(declared, "tidemq", BELOW) == {"wire", "engine", "store"}


def test_an_upward_import_and_a_circle_are_found() -> None:
    found = [
        (Path("bench/load/loop.py"), ["tidemq.bench.shares.threads.Drive", "tidemq.bench.linux"]),
        (Path("bench/shares/threads.py"), ["tidemq.bench.load.loop", "tidemq.bench.result.End"]),
        (Path("bench/result.py"), ["tidemq.errors.UsageError"]),
    ]
    assert upward(found, "tidemq.bench", ROOMS["bench"]) == {"bench/load/loop.py": ["shares"]}
    assert upward([(Path("net/x.py"), ["tidemq.wire"])], "tidemq", BELOW) == {"net/x.py": ["wire"]}
    circle = circle_in(arrows_between(found, "bench"))
    assert set(circle) == {"tidemq.bench.load.loop", "tidemq.bench.shares.threads"}
    assert not circle_in(arrows_between(found[1:], "bench"))
