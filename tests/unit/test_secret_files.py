"""Which files of a configuration have secrets."""

from __future__ import annotations

from pathlib import Path

from tidemq.broker.host.secret_files import secret_files
from tidemq.config import Config, Listener


def test_secrets_of_chains_tokens_and_webhooks_are_among_them() -> None:
    jwt = {"authenticator": "jwt", "secret_file": "/s/jwt", "algorithms": ["HS256"]}
    keys = {"authenticator": "jwt", "jwks_file": "/public/jwks", "algorithms": ["ES256"]}
    users = {"authenticator": "password_file", "file": "/s/users"}
    config = Config(
        authenticator="chain",
        authenticator_options={"of": [jwt, keys, users, {"authenticator": "certificate"}]},
        authoriser="webhook",
        authoriser_options={"url": "http://localhost", "secret_file": "/s/hook"},
        listeners=(
            Listener(port=1, authenticator="jwt", authenticator_options={"secret_file": Path("/s/more")}),
        ),
    )
    assert [str(file) for file in secret_files(config)] == ["/s/jwt", "/s/users", "/s/hook", "/s/more"]
