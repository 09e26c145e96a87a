"""Who connects is who the options say, over TLS where the URL says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trustme
from client.servers import Server
from conftest import StartBroker

from tidemq.client import ConnectError, Message, ServerRefusedError
from tidemq.client.exactly_once import ExactlyOncePublisher
from tidemq.errors import UsageError
from tidemq.pipeline.sources import mqtt_target
from tidemq.pipeline.sources.mqtt_target import Target

USERS = 'authenticator = "static"\n[authenticator_options.users]\njob = "secret"\n'
MESSAGE = Message("a", b"x", 1)


def publish(target: Target) -> int:
    """In both of the sink's ways."""
    with target.connected() as client:
        count = client.publish_many([MESSAGE], timeout_s=10)
    with ExactlyOncePublisher(
        target.url, "tests", username=target.user, password=target.password, tls=target.tls(), retry_s=0
    ) as publisher:
        return count + publisher.publish(0, [MESSAGE])


def test_user_and_password_are_those_of_the_options(start_broker: StartBroker) -> None:
    url = f"mqtt://127.0.0.1:{start_broker(USERS).port}"
    assert publish(Target.parse({"url": url, "user": "job", "password": "secret"})) == 2
    for wrong in (Target(url), Target(url, "job", "wrong")):
        with pytest.raises(ServerRefusedError, match="bad user name or password"), wrong.connected():
            pass
        with (
            ExactlyOncePublisher(url, "tests", username=wrong.user, password=wrong.password) as publisher,
            pytest.raises(ServerRefusedError, match="bad user name or password"),
        ):
            publisher.publish(0, [MESSAGE])


def test_the_password_may_be_in_a_file(start_broker: StartBroker, tmp_path: Path) -> None:
    url = f"mqtt://127.0.0.1:{start_broker(USERS).port}"
    file = tmp_path / "password"
    file.write_text("secret\n")
    target = Target.parse({"url": url, "user": "job", "passwordFile": str(file)})
    with target.connected() as client:
        assert client.publish_many([MESSAGE], timeout_s=10) == 1
    assert "secret" not in repr(Target(url, password="secret"))
    file.unlink()
    with pytest.raises(UsageError, match=r"the password file .* cannot be read"), target.connected():
        pass
    with pytest.raises(UsageError, match="password and passwordFile exclude one another"):
        Target.parse({"url": url, "password": "x", "passwordFile": "x"})
    with pytest.raises(UsageError, match="the option key needs cert"):
        Target.parse({"url": url, "key": "x"})


def test_the_certificates_are_those_of_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, install: Callable[[str, str], None]
) -> None:
    install("mosquitto", "mosquitto")
    monkeypatch.setattr(mqtt_target, "RETRY_S", 0.0)
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    tmp_path.chmod(0o755)
    job = authority.issue_cert(common_name="job", organization_name="jobs")
    job.private_key_and_cert_chain_pem.write_to_path(tmp_path / "job.pem")
    (tmp_path / "empty.pem").touch()
    files = f"certfile {tmp_path}/cert.pem\nkeyfile {tmp_path}/key.pem\ncafile {tmp_path}/ca.pem"
    listener = f"{files}\nrequire_certificate true\nuser root"
    server = Server("mosquitto", tmp_path, listener).start()
    try:
        url = f"mqtts://localhost:{server.port}"
        own = {"cafile": str(tmp_path / "ca.pem"), "cert": str(tmp_path / "job.pem")}
        assert publish(Target.parse({"url": url, **own})) == 2
        with pytest.raises(ConnectError):  # the server wants a certificate
            publish(Target(url, cafile=own["cafile"]))
        with pytest.raises(ConnectError, match="its certificate is not accepted"):
            publish(Target(url))
    finally:
        server.kill()
    with pytest.raises(UsageError, match=r"no certificates can be read from .*nowhere\.pem"):
        publish(Target(url, cafile=str(tmp_path / "nowhere.pem")))
    with pytest.raises(UsageError, match=r"no certificate with its key can be read from .*empty\.pem"):
        publish(Target(url, cert=str(tmp_path / "empty.pem")))
