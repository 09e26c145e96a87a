"""Files that are read again when they have changed."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from waiting import WAIT_S, until

from tidemq.broker.host import watched_files
from tidemq.broker.host.watched_files import WatchedFiles
from tidemq.errors import ConfigError


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_files, "CHECK_S", 0.01)


async def test_whatever_goes_wrong_the_next_change_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also what nobody has thought of: else a revocation would never count."""
    file = tmp_path / "file"
    file.write_text("first")
    used: list[str] = []

    def read() -> str:
        text = file.read_text()
        if text == "wrong":
            raise ConfigError("it is wrong")
        if text == "odd":
            raise RuntimeError("nobody has thought of it")
        return text

    files = WatchedFiles([file], read, used.append)
    watching = asyncio.create_task(files.watch())
    for text in ("wrong", "odd", "last"):
        before = len(caplog.records)
        file.write_text(text)
        await until(lambda: len(caplog.records) != before or files.value == "last")  # noqa: B023 (called at once)
    assert not watching.done()
    watching.cancel()
    assert used == ["last"]
    assert caplog.text.count("the old content stays in force") == 2


async def test_one_that_began_to_read_earlier_does_not_end_later(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("first")
    go_on = threading.Event()

    def read() -> str:
        text = file.read_text()
        if text == "second":
            go_on.wait(WAIT_S)
        return text

    files = WatchedFiles([file], read)
    file.write_text("second")
    slow = asyncio.create_task(files.reload())
    await asyncio.sleep(0.05)
    file.write_text("third")
    quick = asyncio.create_task(files.reload())
    await asyncio.sleep(0.05)
    go_on.set()
    await asyncio.gather(slow, quick)
    assert files.value == await files.current() == "third"


async def test_a_file_that_is_being_written_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But once two looks find it the same."""
    file = tmp_path / "file"
    file.write_text("0")
    reads: list[str] = []
    files = WatchedFiles([file], lambda: reads.append(file.read_text()))
    looks = 0
    real = files._look

    def look() -> tuple[watched_files.FileVersion, ...]:
        nonlocal looks
        looks += 1
        if looks <= 10:  # each finds it longer than the one before
            file.write_text("x" * looks)
        return real()

    monkeypatch.setattr(files, "_look", look)
    watching = asyncio.create_task(files.watch())
    await until(lambda: len(reads) >= 2)
    watching.cancel()
    assert reads == ["0", "x" * 10]


@pytest.mark.parametrize("change", ["text", "mode", "gone"])
async def test_a_change_of_any_of_them_is_seen(tmp_path: Path, change: str) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("1")
    two.write_text("2")
    reads: list[int] = []
    files = WatchedFiles([one, two], lambda: reads.append(1))
    await asyncio.sleep(0.02)
    await files.current()
    assert len(reads) == 1
    if change == "text":
        two.write_text("3")
    elif change == "mode":
        two.chmod(0o640)
    else:
        two.unlink()
    await asyncio.sleep(0.02)
    await files.current()
    assert len(reads) == 2
