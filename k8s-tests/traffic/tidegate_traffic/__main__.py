"""`python -m tidegate_traffic`: run a plan, or ask a run."""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tidegate_traffic import driver, plan
from tidegate_traffic.errors import TrafficError

_FAILED = 1
_UNUSABLE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, 1 when requests failed, 2 when there could be no run."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.command(options)
    except TrafficError as error:
        sys.stderr.write(f"{error}\n")
        return _UNUSABLE
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tidegate_traffic", description=__doc__)
    commands = parser.add_subparsers(required=True)

    run = commands.add_parser("run", help="send what a plan says; the report goes to stdout")
    run.set_defaults(command=_run)
    run.add_argument("plan", type=Path, help="a JSON file")
    run.add_argument("--http", help="base URL of the gateway, instead of the plan's")
    run.add_argument("--grpc", help="host:port of the gateway, instead of the plan's")
    run.add_argument("--duration-s", type=float, help="seconds, instead of the plan's")
    run.add_argument("--report", type=Path, help="a file for the report, instead of stdout")
    run.add_argument("--control-host", default="127.0.0.1", help="default: %(default)s")
    run.add_argument("--control-port", type=int, help="0: a free one; without it there is none")
    run.add_argument(
        "--wait-for-start", action="store_true", help="send nothing before POST /start"
    )

    # Without it a container would end under the `ask stop` that is executed in it.
    run.add_argument(
        "--stay",
        action="store_true",
        help="after the end, stay to be asked for the report until SIGTERM",
    )

    ask = commands.add_parser("ask", help="ask a run on this machine through its control port")
    ask.set_defaults(command=_ask)
    ask.add_argument(
        "--url", default=f"http://127.0.0.1:{driver.PORT}", help="default: %(default)s"
    )
    ask.add_argument("--timeout-s", type=float, default=60.0, help="default: %(default)s")
    ask.add_argument("question", help=", ".join(driver.QUESTIONS))
    ask.add_argument("name", nargs="*", help="the fault's")
    return parser


def _ask(options: argparse.Namespace) -> int:
    asked = driver.question(options.question, *options.name, timeout_s=options.timeout_s)
    sys.stdout.write(json.dumps(driver.ask_url(options.url, asked)) + "\n")
    return 0


def _run(options: argparse.Namespace) -> int:
    # Not for `ask`, which tests call often, and which would take three times as long.
    from tidegate_traffic.run import send  # noqa: PLC0415

    members: dict[str, Any] = {
        "http": options.http,
        "grpc": options.grpc,
        "duration_s": options.duration_s,
    }
    overrides = {name: value for name, value in members.items() if value is not None}
    report = asyncio.run(send(plan.read(options.plan, overrides), options))
    return _FAILED if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
