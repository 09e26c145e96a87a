"""The documentation names what the code has: every key, limit, flag and counter."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
import typer
from pydantic import BaseModel

from tidemq.bridge_config import Bridge, BridgeTls, BridgeTopic
from tidemq.broker.authenticators.token_keys import JWKS_COUNTERS
from tidemq.broker.authenticators.webhook import WEBHOOK_COUNTERS
from tidemq.broker.durability.keeper import STORE_COUNTERS
from tidemq.broker.replays import REPLAY_COUNTERS
from tidemq.cli import make_app
from tidemq.cluster.counters import CLUSTER_COUNTERS
from tidemq.cluster.transport.settings import TRANSPORT_COUNTERS
from tidemq.config import (
    LIMIT_RANGES,
    Config,
    Listener,
    PluginConfig,
    StreamConfig,
    TlsConfig,
    WebSocketConfig,
    load_config,
)
from tidemq.engine.base.counters import NAMES
from tidemq.limits import Limits
from tidemq.plugins.json_schema import SCHEMA_COUNTERS
from tidemq.plugins.sparkplug import SPARKPLUG_COUNTERS
from tidemq.store.interface import DAMAGE_COUNTERS
from tidemq.stream.streams import STREAM_COUNTERS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

pytestmark = pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="the source tree is hidden")


def table_rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, its own two lines left out."""
    text = (ROOT / page).read_text()
    section = re.split(rf"\n##+ {re.escape(heading)}\n", text, maxsplit=1)[1]
    section = re.split(r"\n##+ ", section, maxsplit=1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def bare(cell: str) -> str:
    return cell.strip("`")


def default_text(key: str) -> str:
    """A default as TOML writes it."""
    return json.dumps(Config.model_fields[key].default, default=str)


def serve_flags() -> dict[str, str]:
    """The flags of `tidemq serve` by parameter."""
    commands = typer.main.get_command(make_app()).commands  # type: ignore[attr-defined]
    return {parameter.name: parameter.opts[0] for parameter in commands["serve"].params}


def test_every_key_is_documented_with_its_default_flag_and_variable() -> None:
    documented = {bare(row[0]): row for row in table_rows("docs/configuration.md", "Keys")}
    assert documented.keys() == Config.model_fields.keys() - {"limits"}
    flags = serve_flags()
    for key, (_, default, _, flag, variable, _) in documented.items():
        assert bare(default) == default_text(key), key
        assert bare(flag) == flags.get(key, ""), key
        assert variable.split()[0] == f"`TIDEMQ_{key.upper()}`", key


def test_documented_ranges_of_keys_are_accepted_to_their_ends_and_no_further() -> None:
    for key, _, accepted, *_ in table_rows("docs/configuration.md", "Keys"):
        if not (found := re.fullmatch(r"(\d+) to (\d+)", accepted)):
            continue
        name, low, high = bare(key), int(found[1]), int(found[2])
        Config.model_validate({name: low})
        Config.model_validate({name: high})
        for wrong in (low - 1, high + 1):
            with pytest.raises(ValueError, match=name):
                Config.model_validate({name: wrong})


def test_a_stream_has_the_documented_keys_and_defaults() -> None:
    documented = {bare(row[0]): bare(row[1]) for row in table_rows("docs/configuration.md", "Streams")}
    fields = StreamConfig.model_fields
    assert documented.keys() == fields.keys()
    for key, default in documented.items():
        assert default == ("" if fields[key].is_required() else json.dumps(fields[key].default)), key


@pytest.mark.parametrize(
    ("heading", "model"),
    [
        ("Listeners", Listener),
        ("TLS", TlsConfig),
        ("WebSocket", WebSocketConfig),
        ("Plugins", PluginConfig),
        ("Bridges", Bridge),
        ("TLS of a bridge", BridgeTls),
        ("Topics of a bridge", BridgeTopic),
    ],
)
def test_a_table_has_the_documented_keys_and_defaults(heading: str, model: type[BaseModel]) -> None:
    documented = {bare(row[0]): bare(row[1]) for row in table_rows("docs/configuration.md", heading)}
    assert documented.keys() == model.model_fields.keys()
    for key, default in documented.items():
        field = model.model_fields[key]
        assert default == ("" if field.is_required() else json.dumps(field.default)), key


def test_a_listener_has_the_defaults_of_the_plain_one() -> None:
    assert Listener() == Listener(host=Config().host, port=Config().port)


def test_every_limit_is_documented_with_its_default_and_range() -> None:
    documented = {bare(row[0]): row for row in table_rows("docs/configuration.md", "Limits")}
    assert list(documented) == [field.name for field in dataclasses.fields(Limits)]
    for field in dataclasses.fields(Limits):
        _, default, accepted, _, _ = documented[field.name]
        low, high = LIMIT_RANGES[field.name]
        assert bare(default) == str(field.default), field.name
        assert accepted == f"{low} to {high}", field.name


def test_the_files_shown_are_accepted(tmp_path: Path) -> None:
    pages = (ROOT / "docs/configuration.md", ROOT / "docs/security.md")
    shown = re.findall(r"```toml\n(.*?)```", "".join(page.read_text() for page in pages), re.DOTALL)
    assert shown
    for text in shown:
        path = tmp_path / "tidemq.toml"
        path.write_text(text)
        assert load_config(path) != Config()


def test_every_counter_is_documented() -> None:
    text = (ROOT / "docs/counters.md").read_text().split("\n## Prometheus\n")[0]
    documented = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    sources = [path.read_text() for path in (ROOT / "src/tidemq/broker").rglob("*.py")]
    control_plane = re.findall(r'counts\["(\w+)"\]', "".join(sources))
    named = (
        "log_lines_left_out",
        *STORE_COUNTERS,
        *DAMAGE_COUNTERS,
        *STREAM_COUNTERS,
        *REPLAY_COUNTERS,
        *SPARKPLUG_COUNTERS,
        *SCHEMA_COUNTERS,
        *WEBHOOK_COUNTERS,
        *JWKS_COUNTERS,
        *CLUSTER_COUNTERS,
        *TRANSPORT_COUNTERS,
    )
    assert len(documented) == len(set(documented))
    assert set(documented) == {*NAMES, "retained", "subscriptions", *control_plane, *named}


def test_every_counter_of_a_cluster_is_named_among_them() -> None:
    sources = [path.read_text() for path in (ROOT / "src/tidemq/cluster").rglob("*.py")]
    lines = [line for text in sources for line in text.splitlines() if "count" in line]
    used = set(re.findall(r'"(cluster_[a-z_]+)"', "\n".join(lines)))
    assert set(CLUSTER_COUNTERS) <= used <= {*CLUSTER_COUNTERS, *TRANSPORT_COUNTERS}


@pytest.mark.parametrize(
    "part",
    [
        *("wire", "net", "engine", "broker", "stream", "store", "migration", "bench", "pipeline", "plugins"),
        "testing",
        "cluster",
    ],
)
def test_every_module_has_its_place_in_the_architecture(part: str) -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    section = text.split("\n## Modules\n")[1].split("\n## ")[0]
    modules = {
        path.stem for path in (ROOT / "src/tidemq" / part).rglob("*.p*") if path.suffix in (".py", ".pxd")
    }
    assert modules - {"__init__"} <= set(re.findall(r"`(\w+)`", section))


def test_the_tests_of_the_threat_model_exist() -> None:
    text = (ROOT / "THREAT_MODEL.md").read_text()
    rows = [
        line for line in text.splitlines() if line.startswith("|") and not line.startswith(("|---", "| what"))
    ]
    assert len(rows) > 40
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row.split("|")[-2])
        assert named, f"no test: {row}"
        for path, name in named:
            assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE), (
                f"{path}::{name}"
            )


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", linked.read_text().lower(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", each).replace(" ", "-") for each in headings}, target
