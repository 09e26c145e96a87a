"""Modules of the engine that hold state say what they rely on; each invariant has a planted break."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

from assertions.breaks import PLANTED

FEWER: dict[str, str] = {  # than two invariants, and why
    "base/asserting": "it is the check itself",
    "base/clock": "reads the clock",
    "base/counters": "names, and sums of what others have counted",
    "base/steps": "it is a check itself",
    "base/histograms": "names, and sums of what others have counted",
    "door/events": "plain Python data",
    "door/figures": "plain Python data",
    "door/listeners": "plain Python data",
    "door/node_access": "hands filters, bytes and answers over",
    "door/plugin_access": "hands filters and answers over; one of its own",
    "door/rule_book": "makes a policy in one call",
    "door/restoring": "bytes into structs, which `arrivals` installs; one of its own",
    "door/session_moves": "looks at rows, which `arrivals` installs",
    "door/rosters": "Python objects into a struct and back",
    "door/rule_row": "plain Python data",
    "door/topic_rule_book": "makes the rules in one call",
    "door/topic_rule_rows": "plain Python data",
    "door/view": "looks",
    "index/interest": "notes what `subscriptions` tells it, and looks",
    "index/subscription_view": "looks, for tests and benchmarks",
    "index/topic_rules": "constant once made; looks",
    "journal/rows": "bytes into structs and back",
    "link/polling": "one system call",
    "link/replies": "encodes packets",
    "link/visits": "asks `guarding`, which has two; one of its own",
    "state/wall_clock": "one function changes something; one",
    "clients/finding": "asks once; one of its own",
    "clients/leaving": "what `sessions` has of one that ends",
    "queues/clearing": "a few places of what `outbox` has, which has more than two; one of its own",
    "queues/doubles": "a set of ids that nothing else looks at",
    "queues/giving": "what `routing` and `promises` have",
    "queues/outside_rows": "what `queueing` has, which has more than two; one of its own",
    "clients/releasing": "what `holding` has, which has more than two",
    "turn/scheduling": "two system calls",
}


def invariants(tree: ast.Module) -> list[str]:
    """The words of a module's assertions."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "holds":
            words = node.args[1]
            assert isinstance(words, ast.Constant)
            assert isinstance(words.value, bytes)
            found.append(words.value.decode())
    return found


def stated(trees: dict[Path, ast.Module]) -> dict[str, list[str]]:
    """By module of the engine: `queues/outbox`."""
    return {
        str(path.relative_to("engine").with_suffix("")): invariants(tree)
        for path, tree in trees.items()
        if path.parts[0] == "engine" and path.stem != "__init__"
    }


def test_each_invariant_is_said_once_and_has_a_break(trees: dict[Path, ast.Module]) -> None:
    said = Counter(words for module in stated(trees).values() for words in module)
    said.pop("what try_invariant was given is true")
    assert said == Counter(each.invariant for each in PLANTED)
    assert max(said.values()) == 1


def test_assertions_stand_in_modules_alone(declarations: dict[Path, str]) -> None:
    """Where a break can be planted without a new build of all that include a declaration."""
    found = {path for path, text in declarations.items() if re.search(r"\bholds\(", text)}
    assert found == {Path("engine/base/asserting.pxd")}


def test_modules_that_hold_state_have_two(trees: dict[Path, ast.Module]) -> None:
    few = {module for module, said in stated(trees).items() if len(said) < 2}
    assert few == set(FEWER)


def test_breaks_change_what_is_there(root: Path) -> None:
    wrong = []
    for each in PLANTED:
        text = (root / "src/tidemq/engine" / each.file).read_text()
        missing = [test for test in each.tests if not (root / test.partition("::")[0]).is_file()]
        planted = text.count(each.old) == 1 and each.new != each.old and "holds(" not in each.old
        if not planted or not each.tests or missing:
            wrong.append(each.invariant)
    assert wrong == []
