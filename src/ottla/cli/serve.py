"""`ottla serve`: parses arguments and files into a broker's options, and runs the broker.

Parsed with argparse, unlike the other commands: a broker starts without importing typer.
"""

import argparse
import asyncio
import logging
import socket
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NoReturn

from ottla.broker.app import ServeOptions
from ottla.broker.process import serve as serve_broker
from ottla.cli.exit_codes import FAILED
from ottla.cli.store_access import AccessOptions, read_access
from ottla.cli.terminal import print_error
from ottla.config import BrokerConfig, flatten
from ottla.errors import InvalidConfig, StorageFailed, UsageRefused, did_you_mean
from ottla.model import BrokerId, Endpoint
from ottla.telemetry import configure_logging

_EXAMPLES: Final = """\
examples:
  ottla serve --data ./data
  ottla serve --data /var/lib/ottla --listen 0.0.0.0:9092 --advertise queue.example.org:9092
  ottla serve --data ./data --set num.partitions=4 --set log.retention.ms=86400000
  ottla serve --data ./data --config ottla.toml --metrics 127.0.0.1:9100
  ottla serve --data ./two --listen 127.0.0.1:9093 --node-id 2 --store sqlite:./cluster.sqlite
  ottla serve --data /var/lib/ottla --listen 10.0.0.2:9092 --node-id 2 \\
    --store etcd://10.0.0.1,10.0.0.2,10.0.0.3

Settings come from --config (TOML, dotted names or tables), then from --set, which wins.
`ottla config list broker` shows them all. SIGTERM or Ctrl-C stop the broker cleanly.
"""
log = logging.getLogger("ottla.cli")

_LOCAL_NAMES: Final = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")
_LOG_LEVELS: Final = ("debug", "info", "warning", "error")


class _Parser(argparse.ArgumentParser):
    """Reports errors in one line, like every other command."""

    def error(self, message: str) -> NoReturn:
        text = self._explain(message)
        hint = "" if text.endswith("?") else "; `ottla serve --help` shows the usage"
        raise UsageRefused(f"{text}{hint}")

    def _explain(self, message: str) -> str:
        """A mistake in the words of the other commands; argparse has words of its own."""
        text = message.removeprefix("argument ")
        if text.endswith(": expected one argument"):
            return f"{text.removesuffix(': expected one argument')} needs a value"
        if text.startswith("unrecognized arguments: "):
            word = text.removeprefix("unrecognized arguments: ")
            if not word.startswith("-"):
                return f"unexpected argument {word}"
            option = word.partition(" ")[0].partition("=")[0]
            return f"unknown option {option}{did_you_mean(option, self._option_string_actions)}"
        option, _, value = text.partition(": invalid choice: ")
        if value:
            choices = ", ".join(self._option_string_actions[option].choices or ())
            return f"{option}: {value.partition(' (')[0]} is none of {choices}"
        return text


def run(arguments: Sequence[str]) -> int:
    """Run a broker until it is stopped; returns the exit code."""
    try:
        parsed = _parser().parse_args(arguments)
    except SystemExit as after_help:
        return int(after_help.code or 0)
    options = _options(parsed)
    if parsed.brokers > 1:
        return _run_many(parsed, options)
    configure_logging(parsed.log_level, as_json=parsed.log_format == "json")
    if options.advertise is not None and parsed.advertise is None:
        log.warning(
            "clients are given the name of this host",
            extra={
                "listen": options.listen,
                "advertised": options.advertise.host,
                "reason": "--listen is every address; --advertise HOST:PORT names another",
            },
        )
    try:
        return serve_broker(options)
    except InvalidConfig as problem:
        raise UsageRefused(str(problem)) from None
    except StorageFailed as problem:
        print_error(f"the broker's disk has failed: {problem}")
        return FAILED
    except OSError as problem:
        raise UsageRefused(f"the broker cannot start: {_explain(problem)}") from None


def _explain(problem: OSError) -> str:
    reason = (problem.strerror or str(problem)).lower()
    if problem.filename is None:
        return reason
    return f"{problem.filename}: {reason}; choose another directory with --data DIR"


def _run_many(parsed: argparse.Namespace, options: ServeOptions) -> int:
    from ottla.cli.serve_many import children, supervise  # noqa: PLC0415  # needed by few

    passed_on = ["--log-format", parsed.log_format, "--log-level", parsed.log_level]
    for name in ("config", "rack", "machine"):
        if getattr(parsed, name) is not None:
            passed_on += [f"--{name}", str(getattr(parsed, name))]
    for option, value in _access_options(parsed).named():
        passed_on += [option, value]
    for assignment in parsed.assignments:
        passed_on += ["--set", assignment]
    brokers = children(options, parsed.brokers, passed_on)
    configure_logging(parsed.log_level, as_json=parsed.log_format == "json")
    options.data.mkdir(parents=True, exist_ok=True)
    return asyncio.run(supervise(brokers))


def parse_options(arguments: Sequence[str]) -> ServeOptions:
    """The options of a command line, or UsageRefused."""
    return _options(_parser().parse_args(arguments))


def _parser() -> _Parser:
    parser = _Parser(
        prog="ottla serve",
        description="Run a broker until SIGTERM or Ctrl-C.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--data",
        type=Path,
        default=Path("data"),
        metavar="DIR",
        help="data directory; created if missing (default: ./data)",
    )
    add(
        "--listen",
        type=_endpoint,
        default=Endpoint("127.0.0.1", 9092),
        metavar="HOST:PORT",
        help="address for clients; port 0 takes a free one (default: 127.0.0.1:9092)",
    )
    add(
        "--advertise",
        type=_endpoint,
        metavar="HOST:PORT",
        help="address given to clients; port 0 is that of --listen (default: --listen, or this"
        " host's name if --listen is every address: 0.0.0.0 or [::])",
    )
    add(
        "--node-id",
        type=_node_id,
        default=BrokerId(0),
        metavar="N",
        help="broker id in the cluster (default: 0)",
    )
    _add_cluster(parser)
    add(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="log lines as text or as JSON objects (default: text)",
    )
    add("--config", type=Path, metavar="FILE.toml", help="file of broker settings")
    add(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="assignments",
        help="broker setting, overrides the file; repeatable",
    )
    add(
        "--metrics",
        type=_endpoint,
        metavar="HOST:PORT",
        help="address of the metrics endpoint for Prometheus (default: none)",
    )
    add("--hints", action="store_true", help="print first commands to try once the broker is ready")
    add(
        "--log-level",
        choices=_LOG_LEVELS,
        default="info",
        help="level of log lines on standard error (default: info)",
    )
    return parser


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    """Add the options of a broker that has peers."""
    add = parser.add_argument
    add(
        "--store",
        metavar="STORE",
        help="coordination store that brokers share: sqlite:FILE for those of this machine,"
        " etcd://HOST:2379,HOST:2379/PREFIX for several machines, etcds:// with TLS (default: one"
        " in --data)",
    )
    add(
        "--store-user",
        metavar="NAME",
        help="user of etcd (default: OTTLA_STORE_USER)",
    )
    add(
        "--store-password-file",
        type=Path,
        metavar="FILE",
        help="file with the password of etcd's user (default: OTTLA_STORE_PASSWORD)",
    )
    add(
        "--store-ca",
        type=Path,
        metavar="FILE",
        help="authority that etcd's certificate is from (default: those of the system)",
    )
    add("--store-certificate", type=Path, metavar="FILE", help="certificate shown to etcd")
    add("--store-key", type=Path, metavar="FILE", help="its key, if in a file of its own")
    add(
        "--brokers",
        type=_broker_count,
        default=1,
        metavar="K",
        help="run so many brokers on this machine, on the ports from --listen on (default: 1)",
    )
    add("--ends-with-stdin", action="store_true", help=argparse.SUPPRESS)
    add("--rack", metavar="NAME", help="rack of this broker: replicas are spread over racks")
    add(
        "--machine",
        metavar="NAME",
        help="machine of this broker: replicas are spread over machines (default: found by itself)",
    )


def _options(parsed: argparse.Namespace) -> ServeOptions:
    return ServeOptions(
        data=parsed.data,
        listen=parsed.listen,
        advertise=choose_advertised(parsed.listen, parsed.advertise),
        node_id=parsed.node_id,
        config=read_config(parsed.config, parsed.assignments),
        metrics=parsed.metrics,
        hints=parsed.hints,
        store=parsed.store,
        store_access=read_access(parsed.store, _access_options(parsed)),
        rack=parsed.rack,
        machine=parsed.machine,
        ends_with_stdin=parsed.ends_with_stdin,
    )


def _access_options(parsed: argparse.Namespace) -> AccessOptions:
    return AccessOptions(
        user=parsed.store_user,
        password_file=parsed.store_password_file,
        ca=parsed.store_ca,
        certificate=parsed.store_certificate,
        key=parsed.store_key,
    )


def choose_advertised(
    listen: Endpoint,
    advertise: Endpoint | None,
    names: Callable[[], Iterable[str]] = lambda: (socket.getfqdn(), socket.gethostname()),
) -> Endpoint | None:
    """The address for clients: --advertise, else None (--listen), else a name of this host.

    A client cannot connect to "every address": for it, 0.0.0.0 is its own machine.
    """
    if advertise is not None:
        if _is_every_address(advertise.host):
            raise UsageRefused(
                f"--advertise {advertise}: no client can connect to every address; give the name or"
                " address by which clients reach this host"
            )
        return advertise
    if not _is_every_address(listen.host):
        return None
    for name in dict.fromkeys(names()):
        if name and name not in _LOCAL_NAMES and _is_resolved(name):
            return Endpoint(name, listen.port)
    raise UsageRefused(
        f"--listen {listen} is every address, and this host has no name that clients could be"
        " given; add --advertise HOST:PORT, the address by which clients reach it"
    )


def _is_every_address(host: str) -> bool:
    try:
        return not any(socket.inet_aton(host))
    except OSError:
        pass
    try:
        return not any(socket.inet_pton(socket.AF_INET6, host))
    except OSError:
        return False


def _is_resolved(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):
        return False


def read_config(file: Path | None, assignments: Sequence[str]) -> BrokerConfig:
    """Broker settings: `assignments` over `file` over the defaults."""
    raw = {} if file is None else flatten(_read_toml(file))
    raw |= dict(map(_split_assignment, assignments))
    try:
        return BrokerConfig.parse(raw)
    except InvalidConfig as problem:
        raise UsageRefused(str(problem)) from None


def _read_toml(file: Path) -> dict[str, object]:
    import tomllib  # noqa: PLC0415  # most brokers start without a file

    try:
        return tomllib.loads(file.read_text())
    except OSError as problem:
        raise UsageRefused(f"--config {file} cannot be read: {problem.strerror}") from None
    except ValueError as problem:
        raise UsageRefused(f"--config {file} is not TOML: {problem}") from None


def _split_assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UsageRefused(f"--set {text!r} is not NAME=VALUE, such as num.partitions=4")
    return name.strip(), value.strip()


def _endpoint(text: str) -> Endpoint:
    try:
        return Endpoint.parse(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def _broker_count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 64):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 64")
    return int(text)


def _node_id(text: str) -> BrokerId:
    if not (text.isascii() and text.isdigit() and int(text) < 2**31):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 2147483647")
    return BrokerId(int(text))
