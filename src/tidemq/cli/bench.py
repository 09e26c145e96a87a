"""`tidemq bench`: loads a broker, any broker, and says what it did with it.

The parts of the generator are imported when a command runs, so that other commands start quickly.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemq.cli.exit_codes import EXIT_USAGE
from tidemq.errors import TideMQError, UsageError

if TYPE_CHECKING:
    from tidemq.bench.catalogue import Plan, Terms
    from tidemq.bench.measurement import Broker
    from tidemq.bench.result import Result
    from tidemq.bench.shares.threads import Drive

EXIT_FAULTY = 1  # messages lost, repeated or out of order, or a run that ended early

app = typer.Typer(
    help="Load a broker: rates, latencies, what was lost. Exit code 1: not all arrived; 2: could not begin.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Url = Annotated[
    str,
    typer.Option(
        metavar="URL",
        help="mqtt://, mqtts://, ws:// or wss:// and [user:password@]host[:port], or unix:///path.",
    ),
]
Mqtt = Annotated[str, typer.Option(metavar="VERSION", help="3.1.1 or 5.0.")]
Qos = Annotated[int, typer.Option(help="QoS of publishing and subscribing.")]
Size = Annotated[int, typer.Option(help="Bytes of payload, 16 at least.")]
Messages = Annotated[
    int | None, typer.Option(help="Messages per publisher. [default: as many as --seconds allow]")
]
Seconds = Annotated[
    float | None, typer.Option(help="Seconds to publish. [default: 5, unless --messages is given]")
]
Rate = Annotated[
    float, typer.Option(help="Messages a second, of all publishers; 0: as fast as the broker takes them.")
]
Window = Annotated[int, typer.Option(help="QoS 1 and 2: messages in flight of each publisher, at most.")]
OneByOne = Annotated[
    bool,
    typer.Option(
        "--one-by-one",
        help="Hand each message to the system by itself, when it is due.",
    ),
]
Timeout = Annotated[
    float, typer.Option(help="Seconds for connecting, and of silence before what is out counts as lost.")
]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Add the result as Parquet to this directory.")]
Json = Annotated[bool, typer.Option("--json", help="Print the results as JSON, one line each.")]
Spark = Annotated[
    str,
    typer.Option(
        metavar="MASTER", help="Run it from Spark's executors: spark://host:7077, local-cluster[2,1,1024]."
    ),
]
Threads = Annotated[int, typer.Option(help="Generator threads. Use more if the generator is the bottleneck.")]
Source = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ADDRESS",
        help="Local address, or FIRST-LAST; repeatable. Connections come from these in turn "
        "(each address has some 28,000 ports).",
    ),
]
Names = Annotated[str, typer.Option(metavar="NAMES", help="With commas; all, if none is given.")]

# mosquitto_pub's names
CaFile = Annotated[
    str, typer.Option(metavar="FILE", help="Who may sign the broker's certificate. [default: the system's]")
]
Cert = Annotated[str, typer.Option(metavar="FILE", help="The client's certificate.")]
Key = Annotated[str, typer.Option(metavar="FILE", help="Its key. [default: in the same file]")]
Insecure = Annotated[bool, typer.Option("--insecure", help="Do not check the broker's certificate.")]

URL = "mqtt://127.0.0.1:1883"
TIMEOUT_S = 10.0


Tls = dict[str, Any]  # of `Security`, which is imported when a command runs


def secured(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of TLS; it gets them as one argument, `tls`."""

    def run(
        *, cafile: CaFile = "", cert: Cert = "", key: Key = "", insecure: Insecure = False, **others: Any
    ) -> None:
        command(tls={"cafile": cafile, "cert": cert, "key": key, "insecure": insecure}, **others)

    own, added = (list(signature(each, eval_str=True).parameters.values()) for each in (command, run))
    options = [each for each in own if each.name != "tls"] + added[:-1]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    shown = Signature([each.replace(kind=Parameter.KEYWORD_ONLY) for each in options])
    run.__signature__ = shown  # type: ignore[attr-defined]
    return run


@app.command()
@secured
def fan(
    tls: Tls,
    url: Url = URL,
    senders: Annotated[int, typer.Option(help="Publishers.")] = 1,
    receivers: Annotated[int, typer.Option(help="Subscribers, each to what all senders send.")] = 1,
    mqtt: Mqtt = "3.1.1",
    qos: Qos = 0,
    size: Size = 64,
    messages: Messages = None,
    seconds: Seconds = None,
    rate: Rate = 0.0,
    window: Window = 100,
    one_by_one: OneByOne = False,
    timeout: Timeout = TIMEOUT_S,
    threads: Threads = 1,
    source: Source = None,
    spark: Spark = "",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Senders publish, all receivers get everything: one to one, fan-in, fan-out."""

    def plans() -> list[Plan]:
        from tidemq.bench import catalogue

        return [
            catalogue.fan(
                terms(mqtt, qos, size, messages, seconds, rate, window, one_by_one), senders, receivers
            )
        ]

    run_against(url, tls, plans, timeout, out, as_json, threads, source, spark)


@app.command()
@secured
def mesh(
    tls: Tls,
    url: Url = URL,
    clients: Annotated[int, typer.Option(help="Each publishes, and gets what all publish.")] = 20,
    mqtt: Mqtt = "3.1.1",
    qos: Qos = 0,
    size: Size = 64,
    messages: Messages = None,
    seconds: Seconds = None,
    rate: Rate = 0.0,
    window: Window = 100,
    one_by_one: OneByOne = False,
    timeout: Timeout = TIMEOUT_S,
    threads: Threads = 1,
    source: Source = None,
    spark: Spark = "",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Every client publishes to all clients."""

    def plans() -> list[Plan]:
        from tidemq.bench import catalogue

        common = terms(mqtt, qos, size, messages, seconds, rate, window, one_by_one)
        return [catalogue.mesh(common, clients)]

    run_against(url, tls, plans, timeout, out, as_json, threads, source, spark)


@app.command()
@secured
def pairs(
    tls: Tls,
    url: Url = URL,
    pairs: Annotated[int, typer.Option(help="Publishers, each with a subscriber of its own.")] = 100,
    mqtt: Mqtt = "3.1.1",
    qos: Qos = 0,
    size: Size = 64,
    messages: Messages = None,
    seconds: Seconds = None,
    rate: Rate = 0.0,
    window: Window = 100,
    one_by_one: OneByOne = False,
    timeout: Timeout = TIMEOUT_S,
    threads: Threads = 1,
    source: Source = None,
    spark: Spark = "",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Pairs of a publisher and a subscriber."""

    def plans() -> list[Plan]:
        from tidemq.bench import catalogue

        common = terms(mqtt, qos, size, messages, seconds, rate, window, one_by_one)
        return [catalogue.pairs(common, pairs)]

    run_against(url, tls, plans, timeout, out, as_json, threads, source, spark)


@app.command()
@secured
def ping(
    tls: Tls,
    url: Url = URL,
    pairs: Annotated[int, typer.Option(help="Each bounces a message of its own.")] = 1,
    mqtt: Mqtt = "3.1.1",
    qos: Qos = 0,
    size: Size = 64,
    messages: Messages = None,
    seconds: Seconds = None,
    rate: Rate = 0.0,
    timeout: Timeout = TIMEOUT_S,
    threads: Threads = 1,
    source: Source = None,
    spark: Spark = "",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Bounce a message as fast as possible, or start one at --rate; latency is that of the round trip."""

    def plans() -> list[Plan]:
        from tidemq.bench import catalogue

        return [catalogue.ping(terms(mqtt, qos, size, messages, seconds, rate), pairs)]

    run_against(url, tls, plans, timeout, out, as_json, threads, source, spark)


@app.command()
@secured
def many(
    tls: Tls,
    url: Url = URL,
    connections: Annotated[int, typer.Option(help="How many.")] = 1000,
    connect_rate: Annotated[
        float, typer.Option(help="Connections opened a second; 0: as fast as the broker takes them.")
    ] = 0.0,
    mqtt: Mqtt = "3.1.1",
    qos: Qos = 0,
    size: Size = 64,
    seconds: Seconds = None,
    rate: Rate = 0.0,
    timeout: Timeout = TIMEOUT_S,
    threads: Threads = 1,
    source: Source = None,
    spark: Spark = "",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Many connections, idle, or with --rate messages a second of all of them, each to itself."""

    def plans() -> list[Plan]:
        from tidemq.bench import catalogue

        return [catalogue.many(terms(mqtt, qos, size, None, seconds, rate), connections, connect_rate)]

    run_against(url, tls, plans, timeout, out, as_json, threads, source, spark)


@app.command()
@secured
def ticktock(
    tls: Tls,
    url: Url = URL,
    clients: Annotated[int, typer.Option(help="All hear every tick.")] = 100,
    mqtt: Mqtt = "3.1.1",
    qos: Qos = 0,
    size: Size = 64,
    messages: Annotated[int | None, typer.Option(help="Ticks. Without it: as --seconds allow.")] = None,
    seconds: Seconds = None,
    rate: Annotated[float, typer.Option(help="Ticks a second.")] = 1.0,
    timeout: Timeout = TIMEOUT_S,
    threads: Threads = 1,
    source: Source = None,
    spark: Spark = "",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """One tick a second to all."""

    def plans() -> list[Plan]:
        from tidemq.bench import catalogue

        return [catalogue.ticktock(terms(mqtt, qos, size, messages, seconds, rate), clients)]

    run_against(url, tls, plans, timeout, out, as_json, threads, source, spark)


@app.command()
@secured
def subscribers(
    tls: Tls,
    url: Url = URL,
    count: Annotated[int, typer.Option(help="All get every message.")] = 1000,
    mqtt: Mqtt = "3.1.1",
    qos: Qos = 0,
    size: Size = 64,
    timeout: Timeout = TIMEOUT_S,
    threads: Threads = 1,
    source: Source = None,
    spark: Spark = "",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """End-to-end latency of five messages while so many subscribers are connected."""

    def plans() -> list[Plan]:
        from tidemq.bench import catalogue

        return [catalogue.subscribers(terms(mqtt, qos, size, None, None, 0.0), count)]

    run_against(url, tls, plans, timeout, out, as_json, threads, source, spark)


@app.command()
@secured
def suite(
    tls: Tls,
    url: Url = URL,
    workloads: Names = "",
    mqtt: Mqtt = "3.1.1",
    size: Size = 64,
    seconds: Annotated[float, typer.Option(help="Of each workload.")] = 2.0,
    timeout: Timeout = TIMEOUT_S,
    threads: Threads = 1,
    source: Source = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """All workloads, one after the other."""

    def plans() -> list[Plan]:
        from tidemq.bench.catalogue import suite_plans

        return suite_plans(workloads, terms(mqtt, 0, size, None, seconds, 0.0))

    run_against(url, tls, plans, timeout, out, as_json, threads, source)


@app.command()
@secured
def compare(
    tls: Tls,
    broker: Annotated[list[str], typer.Option(metavar="NAME=URL", help="Again for each broker.")],
    workloads: Names = "",
    rounds: Annotated[int, typer.Option(help="How often each workload runs against each broker.")] = 3,
    mqtt: Mqtt = "3.1.1",
    size: Size = 64,
    seconds: Annotated[float, typer.Option(help="Of each run.")] = 2.0,
    timeout: Timeout = TIMEOUT_S,
    threads: Threads = 1,
    source: Source = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Several brokers in turn, workload by workload, in one table."""

    def run() -> int:
        from tidemq.bench.catalogue import suite_plans
        from tidemq.bench.comparison import parse_brokers
        from tidemq.bench.peer.target import Security
        from tidemq.bench.report.terminal import comparison_text

        plans = suite_plans(workloads, terms(mqtt, 0, size, None, seconds, 0.0))
        writer = writer_to(out)
        brokers = parse_brokers(broker, plans[0].workload.version, timeout, Security(**tls))
        show = print_json if as_json else lambda result: None
        results, code = run_all(plans, brokers, rounds, timeout, writer, show, drive(threads, source))
        if not as_json:
            print(comparison_text(results))
        return code

    exit_with(run)


@app.command()
def report(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="What --out wrote.")],
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to write. [default: the first of them]")
    ] = None,
) -> None:
    """Draw runs: report.html, complete in itself, and a PNG for each plot."""

    def run() -> int:
        try:
            from tidemq.bench.report.page import write_report
        except ModuleNotFoundError as error:
            raise UsageError(f"a report needs {error.name}: pip install 'tidemq[bench]'") from error
        for path in write_report(directories, output):
            print(path)
        return 0

    exit_with(run)


def terms(
    mqtt: str,
    qos: int,
    size: int,
    messages: int | None,
    seconds: float | None,
    rate: float,
    window: int = 100,
    one_by_one: bool = False,
) -> Terms:
    """The options that most commands share."""
    from tidemq.bench.catalogue import Terms

    return Terms(
        mqtt=mqtt,
        qos=qos,
        size=size,
        messages=messages,
        seconds=seconds,
        rate=rate,
        window=window,
        one_by_one=one_by_one,
    )


def drive(threads: int, source: Sequence[str] | None) -> Drive:
    """How the load is made."""
    from tidemq.bench.shares.threads import Drive

    return Drive(threads=threads, sources=tuple(source or ()))


def run_against(
    url: str,
    tls: Tls,
    plans: Callable[[], Sequence[Plan]],
    timeout_s: float,
    out: Path | None,
    as_json: bool,
    threads: int,
    source: Sequence[str] | None,
    master: str = "",
) -> None:
    """Run the plans against one broker, say what came of each, and end the command."""

    def run() -> int:
        from tidemq.bench.comparison import open_broker
        from tidemq.bench.peer.target import Security
        from tidemq.bench.report.terminal import run_text

        if master and (threads != 1 or source):
            raise UsageError(
                "--spark makes a share of each core of the executors: it takes no --threads, no --source"
            )
        chosen, writer = list(plans()), writer_to(out)
        broker = open_broker("", url, chosen[0].workload.version, timeout_s, Security(**tls))
        show = print_json if as_json else lambda result: print(run_text(result), flush=True)
        if master:
            return run_on_spark(master, chosen[0], broker, url, timeout_s, writer, show)
        return run_all(chosen, [broker], 1, timeout_s, writer, show, drive(threads, source))[1]

    exit_with(run)


def run_on_spark(
    master: str,
    plan: Plan,
    broker: Broker,
    url: str,
    timeout_s: float,
    write: Callable[[Result], None],
    show: Callable[[Result], None],
) -> int:
    """Measure one plan from the executors of a cluster; the exit code."""
    try:
        from tidemq.bench.spark import measure_on_spark, spark_session
    except ModuleNotFoundError as error:
        raise UsageError(f"--spark needs {error.name}: pip install 'tidemq[bench-spark]'") from error
    with spark_session(master) as spark:
        result = measure_on_spark(spark, plan, broker, url, timeout_s)
    write(result)
    show(result)
    return 0 if result.summary.intact else EXIT_FAULTY


def run_all(
    plans: Sequence[Plan],
    brokers: Sequence[Broker],
    rounds: int,
    timeout_s: float,
    write: Callable[[Result], None],
    show: Callable[[Result], None],
    drive: Drive,
) -> tuple[list[Result], int]:
    """Measure everything, with progress on a terminal; the results and the exit code."""
    from tidemq.bench.comparison import measure_all
    from tidemq.bench.report.progress import Progress

    results: list[Result] = []

    def take(result: Result) -> None:
        results.append(result)
        write(result)
        show(result)

    failures = measure_all(plans, brokers, rounds, Progress(), timeout_s, take, drive)
    for failure in failures:
        print(f"Error: {failure}", file=sys.stderr)
    intact = all(result.summary.intact for result in results)
    return results, 0 if intact and not failures else EXIT_FAULTY


def writer_to(out: Path | None) -> Callable[[Result], None]:
    """What adds a result to a directory of Parquet files; does nothing where none was asked for."""
    if out is None:
        return lambda result: None
    try:
        from tidemq.bench.report.files import prepare_directory, write_results
    except ModuleNotFoundError as error:
        raise UsageError(f"--out needs {error.name}: pip install 'tidemq[bench]'") from error
    prepare_directory(out)  # before the run: it would be a pity to lose it
    return lambda result: write_results([result], out)


def print_json(result: Result) -> None:
    from tidemq.bench.result import as_json

    print(json.dumps(as_json(result)), flush=True)


def exit_with(run: Callable[[], int]) -> None:
    """End the command with the code of `run`; what could not be begun is one line on standard error."""
    try:
        code = run()
    except (TideMQError, OSError) as error:
        print(f"Error: {error}", file=sys.stderr)
        code = EXIT_USAGE
    except KeyboardInterrupt:
        code = EXIT_FAULTY
    raise typer.Exit(code)
