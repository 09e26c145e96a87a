"""The page is complete in itself and holds every figure; the pictures show what was measured."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest
from bench_report.conftest import made_result

from tidemq.bench.report.runs import Case, Runs, read_runs
from tidemq.bench.result import Bucket

NAMES = ["throughput.png", "throughput-per-cpu.png", "latency.png", "latency-over-time.png"]


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    """Imported with the first test: matplotlib takes longer than it takes to find all other tests."""
    from tidemq.bench.report import figures

    return figures


@pytest.fixture(scope="module")
def write_report() -> Callable[..., list[Path]]:
    from tidemq.bench.report.page import write_report

    return write_report


@pytest.fixture(scope="module")
def compared(written: Callable[..., Path]) -> Path:
    """Two brokers, two workloads, two rounds."""
    labels = ["fan 1:20, QoS 0, 64 bytes", "ping, 10 pairs <&>"]
    return written(
        *(made_result("tidemq", label, rate=rate) for label in labels for rate in (4e6, 5e6)),
        *(made_result("mosquitto", label, rate=rate, low_us=300) for label in labels for rate in (1e5, 2e5)),
    )


class Page(HTMLParser):
    """What a page would fetch, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [
            value
            for name, value in attrs
            if name in ("src", "href", "xlink:href") and value and not value.startswith("#")
        ]
        assert tag not in ("script", "link", "img", "iframe"), tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())


@pytest.fixture(scope="module")
def paths(compared: Path, write_report: Callable[..., list[Path]]) -> list[Path]:
    """What a report wrote."""
    return write_report([compared], compared / "report")


def test_page_and_pictures_are_written(paths: list[Path]) -> None:
    assert [path.name for path in paths] == ["report.html", *NAMES]
    assert {path.name for path in paths[0].parent.iterdir()} == {path.name for path in paths}
    for path in paths[1:]:
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG\r\n\x1a\n")
        assert len(content) > 10_000


def test_names_are_shown_as_they_are(
    written: Callable[..., Path], write_report: Callable[..., list[Path]], tmp_path: Path
) -> None:
    """Also those that matplotlib would read as formulas, or leave out."""
    names = [r"$\broker$", "_hidden"]
    page, *_ = write_report([written(*map(made_result, names))], tmp_path)
    texts = Page(page.read_text()).texts
    for name in names:
        assert texts.count(name) >= len(NAMES)  # in each plot, on an axis or in the legend


def test_the_page_fetches_nothing_and_holds_the_figures(paths: list[Path]) -> None:
    text = paths[0].read_text()
    page = Page(text)
    assert page.fetched == []
    assert not re.search(r"url\((?!#)|@import", text)
    for figure in (
        "4.5 M",
        "4 M to 5 M",
        "150 k",
        "9 M",
        "53 µs",
        "303 µs",
        "tidemq (tidemq 1.0), mosquitto (mosquitto 1.0)",
    ):
        assert figure in page.texts, figure
    assert "ping, 10 pairs <&>" in page.texts
    assert "None: every message arrived once and in order." in page.texts


def test_plots_within_the_page_are_well_formed_and_share_no_identifiers(paths: list[Path]) -> None:
    text = paths[0].read_text()
    elements = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(elements) == 4
    identifiers = []
    for element in elements:
        tree = ElementTree.fromstring(element)
        own = [each.get("id") for each in tree.iter() if each.get("id")]
        links = [value[1:] for each in tree.iter() for key, value in each.items() if key.endswith("href")]
        assert set(links) <= set(own)
        identifiers += own
    assert len(identifiers) == len(set(identifiers))


def test_bars_are_as_long_as_the_medians(figures: ModuleType, compared: Path) -> None:
    throughput = figures.plots(read_runs([compared]))[0].figure
    widths = [[round(bar.get_width()) for bar in axes.patches] for axes in throughput.axes]
    assert widths == [[4_500_000, 150_000], [4_500_000, 150_000]]
    assert [label.get_text() for label in throughput.axes[0].get_yticklabels()] == ["tidemq", "mosquitto"]


def test_the_tail_rises_tenfold_a_step(figures: ModuleType) -> None:
    buckets = [
        Bucket(1000, 1999, 900),
        Bucket(2000, 2999, 90),
        Bucket(9000, 9999, 9),
        Bucket(50_000, 50_999, 1),
    ]
    across, up = figures.tail_curve(buckets)
    assert across == [1.0, 1.999, 2.999, 9.999, 50.999]
    assert up == pytest.approx([0, 1, 2, 3, 3])


def test_a_curve_has_no_zero_for_its_axis_has_none(figures: ModuleType) -> None:
    nothing, something = Bucket(0, 0, 5), Bucket(1000, 1000, 5)
    curve: Any = figures.tail_curve([nothing, something])
    assert curve == ([1.0], [pytest.approx(-math.log10(0.5))])
    assert figures.tail_curve([nothing]) == ([0.001], [0.0])


def test_a_curve_of_very_many_points_keeps_its_ends_and_its_height(figures: ModuleType) -> None:
    count = 100_000
    across, up = figures.tail_curve([Bucket(at * 1000, at * 1000, 1) for at in range(1, count + 1)])
    assert len(across) == len(up) <= figures.POINTS + 2
    assert (across[0], up[0]) == (1.0, 0.0)
    assert up == sorted(up)
    assert up[-1] == pytest.approx(5, abs=0.01)
    assert across[-1] == pytest.approx(count, rel=0.001)


def test_what_evaluations_show_is_drawn_of_runs_and_of_latencies_alone(
    figures: ModuleType, written: Callable[..., Path]
) -> None:
    """SurgeMQ's figure is a line, a ping a bar, and a crowd's runs lie where their number is."""
    fan = made_result(run={"arguments": {"senders": 1, "receivers": 20, "qos": 0}})
    crowds = [
        made_result(
            label=f"{count} subscribers",
            run={"workload": "subscribers", "arguments": {"count": count}},
            summary={"seconds": 2.0, "broker_cpu_s": cpu_s},
        )
        for count, cpu_s in ((10, 1.0), (100, 3.0))
    ]
    runs = read_runs([written(fan, *crowds)])
    ping = Case(label="ping", broker="samples", latencies=(Bucket(7000, 7000, 3), Bucket(9000, 9000, 1)))
    drawn: dict[str, Any] = {
        plot.name: plot.figure for plot in figures.plots(Runs([*runs.cases, ping]), figures.PUBLISHED)
    }
    assert list(drawn) == list(figures.PUBLISHED)
    (surgemq,) = drawn["surgemq"].axes
    assert [line.get_xdata()[0] for line in surgemq.get_lines() if line.get_linestyle() == "--"] == [750_000]
    (bars,) = drawn["ping"].axes
    assert [bar.get_width() for bar in bars.patches] == [7.0]
    waits, cores = drawn["subscribers"].axes
    assert list(waits.get_lines()[0].get_xdata()) == [10, 100]
    drawn["subscribers"].draw_without_rendering()
    labels = [label.get_text() for axes in (waits, cores) for label in axes.get_xticklabels(which="both")]
    assert {"10", "100"} <= set(labels)
    assert not [label for label in labels if "$" in label]
    assert list(cores.get_lines()[0].get_ydata()) == [0.5, 1.5]


def test_over_time_shows_the_round_in_the_middle(figures: ModuleType, written: Callable[..., Path]) -> None:
    rounds = [made_result(rate=rate, low_us=low_us) for rate, low_us in ((1e6, 10), (3e6, 30), (2e6, 20))]
    over_time = figures.plots(read_runs([written(*rounds)]))[-1]
    p50, p99 = over_time.figure.axes[0].get_lines()
    assert over_time.name == "latency-over-time"
    assert p50.get_xdata() == pytest.approx([0.1, 0.3, 0.5, 0.7, 0.9])
    assert (set(p50.get_ydata()), set(p99.get_ydata())) == ({22.0}, {900.0})


def test_runs_without_a_broker_on_this_machine_have_no_plot_of_its_cpu(
    figures: ModuleType, written: Callable[..., Path]
) -> None:
    remote = made_result(summary={"broker_cpu_s": None, "bytes_per_connection": None})
    assert "throughput-per-cpu" not in [plot.name for plot in figures.plots(read_runs([written(remote)]))]


def command(*arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """`tidemq bench report`, in a process of its own that ran `before`."""
    program = f"import sys\n{before}\nfrom tidemq.cli import main\nmain()"
    words = [sys.executable, "-c", program, "bench", "report", *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=110)


def test_the_command_prints_what_it_wrote(compared: Path, tmp_path: Path) -> None:
    done = command(str(compared), "--output", str(tmp_path / "out"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [str(tmp_path / "out" / name) for name in ("report.html", *NAMES)]
    assert all(Path(name).stat().st_size > 10_000 for name in done.stdout.split())


def test_the_command_refuses_a_directory_without_runs(tmp_path: Path) -> None:
    done = command(str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"Error: {tmp_path}/summary.parquet is missing")
    assert len(done.stderr.splitlines()) == 1


def test_the_command_says_what_to_install(compared: Path) -> None:
    done = command(str(compared), before="sys.modules['matplotlib'] = None")
    assert done.returncode == 2
    assert done.stderr == "Error: a report needs matplotlib: pip install 'tidemq[bench]'\n"
