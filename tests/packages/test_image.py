"""The Dockerfile and compose.yml keep what docs/install.md says of them; no container is started here."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import compose_spec
import pytest
import yaml  # type: ignore[import-untyped]

from tidemq.config import load_config

ROOT = Path(__file__).parents[2]
HADOLINT = Path(sys.executable).with_name("hadolint")
DASHBOARD = ROOT / "examples/monitoring/grafana.json"


def instructions() -> Iterator[tuple[str, str]]:
    """Each instruction of the Dockerfile with its arguments, continued lines as one."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if line:
            word, _, rest = line.partition(" ")
            yield word, rest


@pytest.fixture(scope="module")
def last_stage() -> list[tuple[str, str]]:
    found = list(instructions())
    first = max(place for place, (word, _) in enumerate(found) if word == "FROM")
    return found[first:]


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "compose.yml").read_text())["services"]
    return found


def test_a_linter_finds_nothing() -> None:
    done = subprocess.run(
        [HADOLINT, "--failure-threshold", "style", ROOT / "Dockerfile"], capture_output=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_its_base_is_a_version_and_it_does_not_run_as_root(last_stage: list[tuple[str, str]]) -> None:
    bases = [rest.split()[0] for word, rest in instructions() if word == "FROM"]
    assert len(bases) == 2
    assert all(re.fullmatch(r"debian:\d+\.\d+-slim", base) for base in bases)
    values = dict(last_stage)
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", values["USER"])
    assert f"TIDEMQ_DATA={values['VOLUME']} " in values["ENV"]
    assert json.loads(values["ENTRYPOINT"]) + json.loads(values["CMD"]) == ["tidemq", "serve"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    labels = dict(re.findall(r'org\.opencontainers\.image\.([\w.]+)="([^"]*)"', values["LABEL"]))
    assert labels["version"] == project["version"]
    assert labels["licenses"] == project["license"]
    assert labels["base.name"] == bases[0]


def test_tools_are_the_versions_that_the_tests_have() -> None:
    text = (ROOT / "Dockerfile").read_text()
    [version] = re.findall(r"cyclonedx-bom==([\d.]+)", text)
    assert f'"cyclonedx-bom=={version}"' in (ROOT / "pyproject.toml").read_text()


def test_compose_is_a_compose_file(services: dict[str, Any]) -> None:
    compose_spec.PyCompose.from_yaml((ROOT / "compose.yml").read_text()).validate()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for name, service in services.items():
        image = service["image"]
        assert re.search(r":v?\d+\.\d+\.\d+$", image), name
        if image.startswith("tidemq:"):
            assert image == f"tidemq:{version}"


def test_compose_mounts_what_is_there_and_publishes_to_this_machine_alone(services: dict[str, Any]) -> None:
    mounted = []
    for service in services.values():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:")
        for volume in service["volumes"]:
            if (source := volume.split(":")[0]).startswith("./"):
                mounted.append(ROOT / source)
                assert volume.endswith(":ro")
    assert len(mounted) == 4
    assert not [path for path in mounted if not path.exists()]


def test_the_broker_of_compose(services: dict[str, Any], last_stage: list[tuple[str, str]]) -> None:
    broker = services["broker"]
    assert broker["read_only"]
    assert broker["cap_drop"] == ["ALL"]
    data = dict(last_stage)["VOLUME"]
    assert [volume for volume in broker["volumes"] if volume.endswith(f":{data}")]
    user = dict(last_stage)["USER"]
    assert services["prometheus"]["group_add"] == [user.split(":")[1]]


def test_the_settings_of_compose_are_accepted(
    services: dict[str, Any], last_stage: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = dict(re.findall(r"(TIDEMQ_\w+)=(\S+)", dict(last_stage)["ENV"]))
    for name, value in (given | services["broker"]["environment"]).items():
        monkeypatch.setenv(name, value)
    config = load_config(None, {})
    assert config.admin_port == 18083
    assert config.authenticator_options == {"remote": True}


def test_the_token_that_compose_makes(services: dict[str, Any], tmp_path: Path) -> None:
    """Once, for the broker's group; a second start leaves it as it is."""
    service = services["token"]
    [line] = service["command"]
    command = [*service["entrypoint"], line.replace("/run/tidemq", str(tmp_path))]
    subprocess.run(command, check=True)
    token = (tmp_path / "token").read_text()
    assert re.fullmatch(r"[0-9a-f]{64}", token)
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o640
    subprocess.run(command, check=True)
    assert (tmp_path / "token").read_text() == token


def test_monitoring_finds_the_broker_and_its_dashboard(services: dict[str, Any]) -> None:
    folder = ROOT / "examples/monitoring"
    settings = yaml.safe_load((folder / "prometheus.yml").read_text())
    [scrape] = settings["scrape_configs"]
    environment = services["broker"]["environment"]
    assert scrape["authorization"]["credentials_file"] == environment["TIDEMQ_ADMIN_TOKEN_FILE"]
    assert scrape["static_configs"] == [{"targets": ["broker:18083"]}]
    assert f'job="{scrape["job_name"]}"' in (folder / "alerts.yml").read_text()
    [source] = yaml.safe_load((folder / "provisioning/datasources/prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    [provider] = yaml.safe_load((folder / "provisioning/dashboards/tidemq.yml").read_text())["providers"]
    assert (
        f"./examples/monitoring/grafana.json:{provider['options']['path']}/tidemq.json:ro"
        in (services["grafana"]["volumes"])
    )
    dashboard = json.loads(DASHBOARD.read_text())
    assert "__inputs" not in dashboard  # such a file can be imported by hand alone
    assert [each for each in dashboard["templating"]["list"] if each["type"] == "datasource"]


@pytest.mark.long
def test_prometheus_takes_the_configuration_and_the_alerts(
    install: Callable[[str, str], None], tmp_path: Path
) -> None:
    """By Debian's promtool, which is older than the Prometheus of compose.yml."""
    install("promtool", "prometheus")
    shutil.copy(ROOT / "examples/monitoring/alerts.yml", tmp_path)
    (tmp_path / "token").write_text("0123456789abcdef")
    text = (ROOT / "examples/monitoring/prometheus.yml").read_text()
    (tmp_path / "prometheus.yml").write_text(text.replace("/run/tidemq/token", str(tmp_path / "token")))
    done = subprocess.run(["promtool", "check", "config", tmp_path / "prometheus.yml"], capture_output=True)
    assert done.returncode == 0, done
    assert b"rules found" in done.stdout
