"""`tidemq passwd`, as a process."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path
from typing import Any

import forks

from tidemq.broker.authenticators.password_file import read_password_file
from tidemq.broker.authenticators.password_hashes import matches


def run_passwd(*arguments: str, given: str = "") -> subprocess.CompletedProcess[Any]:
    return forks.run("passwd", *arguments, input=given, text=True)


def test_the_command_adds_changes_and_removes(tmp_path: Path) -> None:
    file = tmp_path / "passwd"
    assert run_passwd(str(file), "ann", given="one\n").returncode == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text("# people\n" + file.read_text())
    assert run_passwd(str(file), "bob", given="two\n").returncode == 0
    assert run_passwd(str(file), "ann", given="three\n").returncode == 0
    users = read_password_file(file).hashes
    assert matches(users["ann"], b"three")
    assert matches(users["bob"], b"two")
    assert run_passwd(str(file), "--delete", "ann").returncode == 0
    assert file.read_text().startswith("# people\nbob:$argon2id$")
    assert [path.name for path in tmp_path.iterdir()] == ["passwd"]
    for arguments, given, said in (
        (("--delete", "ann"), "", "has no user 'ann'"),
        (("carl",), "\n", "the password is empty"),
        (("a:b",), "x\n", "cannot be"),
    ):
        done = run_passwd(str(file), *arguments, given=given)
        assert (done.returncode, done.stdout) == (1, "")
        assert said in done.stderr


def test_the_command_writes_a_line_for_scram(tmp_path: Path) -> None:
    file = tmp_path / "passwd"
    assert run_passwd(str(file), "ann", "--scram", given="secret\n").returncode == 0
    assert run_passwd(str(file), "carl", "--scram", "--iterations", "4096", given="secret\n").returncode == 0
    users = read_password_file(file)
    assert [users.keys[name].iterations for name in ("ann", "carl")] == [600_000, 4096]
    assert users.keys["ann"].salt != users.keys["carl"].salt
    assert "secret" not in file.read_text()
    assert file.read_text().count(":$key$") == 1
    wrong = run_passwd(str(file), "ann", "--iterations", "4096", given="secret\n")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "--iterations goes with --scram" in wrong.stderr
