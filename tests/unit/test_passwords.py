"""Password files: made by `tidemq passwd` and by Mosquitto, read by the broker, and read again."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tidemq import Broker, Config
from tidemq.broker.authenticators import password_file
from tidemq.broker.authenticators.password_file import PasswordFile, change_password_file, read_password_file
from tidemq.broker.authenticators.password_hashes import check_form, hash_password, matches
from tidemq.broker.host import watched_files
from tidemq.client import Client, ServerRefusedError
from tidemq.errors import ConfigError, UsageError

TIDEMQ = [sys.executable, "-c", "from tidemq.cli import main; main()"]


async def enters(broker: Broker, user: str | None, password: str | None) -> bool:
    client = Client(f"mqtt://127.0.0.1:{broker.port}", username=user, password=password and password.encode())
    try:
        async with client:
            return True
    except ServerRefusedError as error:
        return error.reason != 0x86


def with_file(file: Path) -> Config:
    options = {"file": str(file)}
    return Config(
        host="127.0.0.1",
        port=0,
        reactors=1,
        store="memory",
        authenticator="password_file",
        authenticator_options=options,
        failed_login_delay_s=0,
    )


def test_a_hash_is_of_its_password_alone_and_never_twice_the_same() -> None:
    hashed = hash_password(b"secret")
    check_form(hashed)
    assert hashed.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert matches(hashed, b"secret")
    assert not matches(hashed, b"Secret")
    assert not matches(hashed, b"")
    assert hash_password(b"secret") != hashed


def test_a_hash_that_was_cut_off_is_none() -> None:
    """So a file that is half written locks nobody out; but for a cut at another usual size."""
    hashed = hash_password(b"secret")
    taken = []
    for length in range(1, len(hashed)):
        try:
            check_form(hashed[:length])
        except UsageError:
            continue
        taken.append(length)
    assert len(taken) == 2  # of 16 bytes, and 24


@pytest.mark.parametrize("kind", ["sha512", "sha512-pbkdf2"])
def test_mosquittos_hashes_are_understood(
    tmp_path: Path, install: Callable[[str, str], None], kind: str
) -> None:
    install("mosquitto_passwd", "mosquitto")
    file = tmp_path / "passwd"
    file.touch()
    subprocess.run(["mosquitto_passwd", "-H", kind, "-b", file, "ann", "sécret"], check=True)
    hashed = read_password_file(file).hashes["ann"]
    assert hashed.startswith({"sha512": "$6$", "sha512-pbkdf2": "$7$"}[kind])
    assert matches(hashed, "sécret".encode())
    assert not matches(hashed, b"secret")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ann", "line 2: it has no user or no hash"),
        (":$6$x$y", "line 2: it has no user or no hash"),
        ("ann:secret", "line 2: the hash of 'ann': its kind is unknown"),
        ("ann:$6$c2FsdA==$c2hvcnQ=", "line 2: the hash of 'ann': it is not whole"),
        ("ann:$7$many$c2FsdA==$c2hvcnQ=", "line 2: the hash of 'ann': it is not whole"),
        ("ann:$argon2id$v=19$m=1,t=1", "line 2: the hash of 'ann': it is not whole"),
        ("ann:$argon2id$v=19$m=1000000,t=1,p=1$YWFhYWFhYWE$YWFhYWFhYWFhYWFhYWFhYQ", "its cost is above"),
        ("ann:$argon2id$v=19$m=99999,t=1,p=1000$YWFhYWFhYWE$YWFhYWFhYWFhYWFhYWFhYQ", "its cost is above"),
        ("ann:$argon2id$v=19$m=19456,t=2,p=1$!!!!!!!!!!!$YWFhYWFhYWFhYWFhYWFhYQ", "it is not whole"),
        ("ann:$argon2id$v=19$m=19456,t=2,p=1$YWFhYWFhYWE$YWFhYWFhYWFhYWFhYWFhY", "it is not whole"),
        ("ann:$argon2id$v=19$m=19456,t=0,p=1$YWFhYWFhYWE$YWFhYWFhYWFhYWFhYWFhYQ", "it is not whole"),
        (f"ann:$7$100000000$YWFhYWFhYWE=${'A' * 86}==", "rounds, more than"),
    ],
)
def test_what_is_no_password_file_is_refused_by_line_and_without_its_hash(
    tmp_path: Path, line: str, said: str
) -> None:
    file = tmp_path / "passwd"
    file.write_text(f"# users\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        read_password_file(file)
    assert said in str(caught.value)
    assert "c2FsdA" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_user_has_one_line(tmp_path: Path) -> None:
    file = tmp_path / "passwd"
    change_password_file(file, "ann", b"one")
    file.write_text(file.read_text() * 2)
    with pytest.raises(ConfigError, match="line 2: the user 'ann' has a line already"):
        read_password_file(file)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_password_file(Path("/nowhere"))


async def test_the_broker_lets_in_who_is_in_the_file_and_reads_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watched_files, "CHECK_S", 0.0)
    file = tmp_path / "passwd"
    change_password_file(file, "ann", b"one")
    async with Broker(with_file(file)) as broker:
        assert await enters(broker, "ann", "one")
        assert await enters(broker, "ann", "one")
        for user, password in (("ann", "two"), ("bob", "one"), ("ann", None), (None, None)):
            assert not await enters(broker, user, password)
        change_password_file(file, "ann", b"two")
        assert not await enters(broker, "ann", "one")
        assert await enters(broker, "ann", "two")
        file.write_text("nonsense\n")
        assert await enters(broker, "ann", "two")
        assert "line 1" in caplog.text
        file.unlink()
        assert await enters(broker, "ann", "two")


async def test_a_right_password_is_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []

    def counted(hashed: str, password: bytes) -> bool:
        checked.append(threading.current_thread().name)
        return matches(hashed, password)

    monkeypatch.setattr(password_file, "matches", counted)
    file = tmp_path / "passwd"
    change_password_file(file, "ann", b"one")
    async with Broker(with_file(file)) as broker:
        assert all(await asyncio.gather(*(enters(broker, "ann", "one") for _ in range(3))))
        first = len(checked)
        assert await enters(broker, "ann", "one")
        assert len(checked) == first
        for _ in range(2):
            assert not await enters(broker, "ann", "wrong")
        assert not await enters(broker, "nobody", "one")  # takes as long as a known user
        assert len(checked) == first + 3
    assert all(name.startswith("tidemq-password") for name in checked)


async def test_what_is_remembered_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(password_file, "REMEMBERED_MAX", 2)
    monkeypatch.setattr(password_file, "matches", lambda *_: True)
    file = tmp_path / "passwd"
    for user in "abc":
        change_password_file(file, user, b"x")
    provider = PasswordFile(file)
    async with Broker(with_file(file), authenticator=provider) as broker:
        for user in "abc":
            assert await enters(broker, user, "x")
    assert len(provider._right) == 2


@pytest.mark.parametrize("options", [{}, {"file": 1}, {"file": "x", "more": 1}, {"file": "/nowhere/passwd"}])
async def test_wrong_options_are_refused_at_the_start(options: dict[str, object]) -> None:
    config = Config(
        host="127.0.0.1",
        port=0,
        store="memory",
        authenticator="password_file",
        authenticator_options=options,
    )
    with pytest.raises(ConfigError, match=r"options of password_file|/nowhere/passwd"):
        await Broker(config).start()


def test_a_file_that_cannot_be_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "passwd"
    change_password_file(file, "ann", b"one")
    before = file.read_text()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        change_password_file(file, "ann", b"two")
    assert file.read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["passwd"]
    with pytest.raises(UsageError, match="cannot be"):
        change_password_file(file, "#ann", b"two")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_file_stays_its_owners(tmp_path: Path) -> None:
    """Root adds a user: the broker, which is somebody else, reads the file as before."""
    file = tmp_path / "passwd"
    change_password_file(file, "ann", b"one")
    os.chown(file, 12_345, 23_456)
    file.chmod(0o640)
    change_password_file(file, "bob", b"two")
    found = file.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (12_345, 23_456, 0o640)


def test_the_mode_of_a_file_and_a_link_to_it_stay(tmp_path: Path) -> None:
    file, link = tmp_path / "passwd", tmp_path / "link"
    change_password_file(file, "ann", b"one")
    file.chmod(0o640)
    link.symlink_to("passwd")
    change_password_file(link, "bob", b"two")
    assert link.is_symlink()
    assert list(read_password_file(file).hashes) == ["ann", "bob"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_what_two_write_at_a_time_is_all_there(tmp_path: Path) -> None:
    """Above all, who was taken out does not come back with the other's file."""
    file = tmp_path / "passwd"
    change_password_file(file, "bob", b"one")
    change_at_once(file, ("bob", None), *((f"user{number}", b"x") for number in range(8)))
    assert sorted(read_password_file(file).hashes) == [f"user{number}" for number in range(8)]


def test_the_first_users_of_a_file_are_all_there(tmp_path: Path) -> None:
    for attempt in range(5):
        file = tmp_path / f"passwd{attempt}"
        change_at_once(file, *((f"user{number}", b"x") for number in range(4)))
        assert sorted(read_password_file(file).hashes) == [f"user{number}" for number in range(4)]
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_file_that_was_not_there_is_not_left_behind_empty(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no user"):
        change_password_file(tmp_path / "passwd", "bob", None)
    assert list(tmp_path.iterdir()) == []


def change_at_once(file: Path, *changes: tuple[str, bytes | None]) -> None:
    threads = [
        threading.Thread(target=change_password_file, args=(file, user, password))
        for user, password in changes
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_an_editors_mark_in_front_locks_nobody_out(tmp_path: Path) -> None:
    file = tmp_path / "passwd"
    change_password_file(file, "ann", b"one")
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    assert list(read_password_file(file).hashes) == ["ann"]


async def test_a_file_that_could_not_be_read_is_read_once_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of its mode or owner is one, too: who was taken out does not stay in for want of another."""
    monkeypatch.setattr(watched_files, "CHECK_S", 0.0)
    file = tmp_path / "passwd"
    change_password_file(file, "ann", b"one")
    readable = [True]
    real = password_file.read_password_file

    def read(path: Path) -> password_file.Users:
        if not readable[0]:  # these tests may run as root, who can read all
            raise ConfigError("Permission denied")
        return real(path)

    monkeypatch.setattr(password_file, "read_password_file", read)
    async with Broker(with_file(file)) as broker:
        assert await enters(broker, "ann", "one")
        change_password_file(file, "bob", b"two")
        change_password_file(file, "ann", None)
        readable[0] = False
        assert await enters(broker, "ann", "one")
        readable[0] = True
        file.chmod(0o640)
        assert not await enters(broker, "ann", "one")
        assert await enters(broker, "bob", "two")
