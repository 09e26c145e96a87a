"""`tidemq config check`: what it prints; it refuses what `tidemq serve` refuses, in the same words."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import forks
import pytest
import trustme

GOOD_ACL = "allow all #\n"


def check(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return forks.run("config", "check", *arguments, text=True, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files that a configuration may name, right and wrong ones."""
    certificate = trustme.CA().issue_cert("localhost")
    certificate.private_key_pem.write_to_path(str(tmp_path / "server.key"))
    certificate.cert_chain_pems[0].write_to_path(str(tmp_path / "server.pem"))
    (tmp_path / "rules.acl").write_text(GOOD_ACL)
    (tmp_path / "bad.acl").write_text("allow all\n")
    (tmp_path / "bad-users").write_text("ann:secret\n")
    (tmp_path / "short-token").write_text("x\n")
    (tmp_path / "users").write_text("")
    return tmp_path


WRONG = {
    "an unknown key": "prot = 1883\n",
    "a wrong value": "port = 70000\n",
    "no TOML": "port 1883\n",
    "rules": "port = 0\nacl_file = '{folder}/bad.acl'\n",
    "no rules": "port = 0\nacl_file = '{folder}/missing.acl'\n",
    "passwords": "port = 0\nauthenticator = 'password_file'\n"
    "authenticator_options = {{ file = '{folder}/bad-users' }}\n",
    "an option": "port = 0\nauthenticator = 'password_file'\nauthenticator_options = {{ fiel = 'x' }}\n",
    "an authenticator": "port = 0\nauthenticator = 'nobody'\n",
    "a listener's authenticator": "plain = false\n[[listeners]]\nport = 0\nauthenticator = 'jwt'\n"
    "authenticator_options = {{ algorithms = ['ES256'], public_key_file = '{folder}/users' }}\n",
    "an authoriser": "port = 0\nauthoriser = 'nobody'\n",
    "a store": "port = 0\nstore = 'nosuch'\n",
    "a certificate": "plain = false\n[[listeners]]\nport = 0\n"
    "tls = {{ cert = '{folder}/users', key = '{folder}/server.key' }}\n",
    "two listeners of a name": "port = 0\n[[listeners]]\nname = 'default'\n",
    "no listener": "plain = false\n",
    "a user": "port = 0\nuser = 'nosuchuser'\n",
    "a token": "port = 0\nadmin_port = 1\nadmin_token_file = '{folder}/short-token'\n",
    "an open admin listener": "port = 0\nadmin_port = 1\nadmin_host = '0.0.0.0'\n",
    "an admin certificate": "port = 0\nadmin_port = 1\nadmin_cert = '{folder}/users'\n",
    "bans": "port = 0\nbans_file = '{folder}/bad.acl'\n",
    "topic rules": "port = 0\ntopic_rules_file = '{folder}/bad.acl'\n",
    "a watched topic": "port = 0\nwatched_topics = ['a/#', 'a/#/b']\n",
    "a plugin": "port = 0\n[[plugins]]\nname = 'nosuch'\n",
    "streams without a store": "port = 0\nstore = 'memory'\n[[streams]]\nname = 'a'\nfilters = ['#']\n",
}


@pytest.mark.parametrize("settings", WRONG.values(), ids=WRONG.keys())
def test_it_refuses_what_serve_refuses_in_the_same_words(folder: Path, settings: str) -> None:
    path = folder / "tidemq.toml"
    path.write_text(settings.format(folder=folder))
    done = check(path)
    assert done.returncode == 1
    served = forks.run("serve", "--config", path, "--data", folder / "data", text=True)
    assert served.returncode == 2
    last = served.stderr.splitlines()[-1]
    assert done.stderr.splitlines()[-1] == last
    assert last.startswith("tidemq: ")


def test_it_refuses_to_watch_what_a_group_takes(folder: Path) -> None:
    path = folder / "tidemq.toml"
    path.write_text("port = 0\nwatched_topics = ['$share/g/a']\n")
    done = check(path)
    assert done.returncode == 1
    assert "watched_topics: '$share/g/a': accepted is the filter" in done.stderr


def test_it_refuses_a_streams_filter_that_is_none(folder: Path) -> None:
    path = folder / "tidemq.toml"
    path.write_text("port = 0\n[[streams]]\nname = 'a'\nfilters = ['a/#/b']\n")
    done = check(path)
    assert done.returncode == 1
    assert "streams.a.filters: 'a/#/b'" in done.stderr


def test_it_prints_each_value_and_writes_nothing(folder: Path) -> None:
    path = folder / "tidemq.toml"
    path.write_text(
        f"acl_file = '{folder}/rules.acl'\nauthenticator = 'static'\n"
        f"authenticator_options = {{ users = {{ ann = 'hidden-secret' }} }}\ndata = '{folder}/data'\n"
        "[[listeners]]\nport = 8883\n"
        f"tls = {{ cert = '{folder}/server.pem', key = '{folder}/server.key' }}\n"
    )
    done = check(path, "--port", "1884")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert "port = 1884  # flag --port" in lines
    assert f"listeners.0.port = 8883  # {path}:6" in lines
    assert "limits.inflight_max = 1024  # default" in lines
    assert "hidden-secret" not in done.stdout
    assert not (folder / "data").exists()


def test_the_file_may_be_named_by_the_environment(folder: Path) -> None:
    import os

    path = folder / "tidemq.toml"
    path.write_text("port = 1999\n")
    done = check(env=os.environ | {"TIDEMQ_CONFIG": str(path)})
    assert f"port = 1999  # {path}:1" in done.stdout.splitlines()
