"""Who reads the pages in place of a reader: notices what is not as a page says."""

from __future__ import annotations

from pathlib import Path

import pytest
from documents.terminals import Reader, UntrueError, fits, goes_on, steps_of

WAIT_S = 20.0


def read(page: str, folder: Path) -> None:
    Reader(folder, WAIT_S).read(steps_of(page))


def console(text: str, title: str = "") -> str:
    heading = f' title="{title}"' if title else ""
    return f"```console{heading}\n{text}\n```\n"


def test_what_is_typed_and_seen_is_told_apart() -> None:
    page = console("$ first\nseen\nalso seen\n$ second") + "text\n" + console("more\n^C", "broker")
    found = [(step.terminal, step.typed, step.seen) for step in steps_of(page)]
    assert found == [
        ("", "first", ["seen", "also seen"]),
        ("", "second", []),
        ("broker", "", ["more"]),
        ("broker", "^C", []),
    ]


def test_a_command_goes_on_if_more_is_seen_of_it_or_it_is_stopped() -> None:
    page = console("$ serve\nready", "broker") + console("$ publish") + console("^C\n$ again", "broker")
    steps = steps_of(page)
    assert [goes_on(steps, index) for index in range(4)] == [True, False, False, False]


def test_lines_are_seen_in_their_order_with_others_between() -> None:
    assert fits("a\nready on port 1\nb\nc\n", ["ready on …", "c"])
    assert not fits("c\nready on port 1\n", ["ready on …", "c"])
    assert not fits("not ready on port 1\n", ["ready on …"])


def test_a_page_that_is_true_is_read(tmp_path: Path) -> None:
    page = '```text title="list"\na\n```\n' + console("$ cat list; echo $HOME\na\n…/home")
    page += '```text title="list"\nb\n```\n' + console("$ cat list\na\nb")
    page += console("$ echo begun; sleep 1000\nbegun", "other") + console("^C\n$ echo over\nover", "other")
    read(page, tmp_path)


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (console("$ echo 21.5\n21.6"), "not seen: 21.6"),
        (console("$ echo 21.5; exit 3\n21.5"), "status 3"),
        (console("$ echo begun\nready", "broker") + console("^C", "broker"), "not seen: ready"),
        (console("^C"), "nothing runs"),
        (console("$ echo $USER$TIDEMQ_PORT,\nroot,"), "not seen: root,"),
    ],
)
def test_a_page_that_is_not_true_is_refused(
    page: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER", "root")
    with pytest.raises(UntrueError, match=said):
        read(page, tmp_path)
