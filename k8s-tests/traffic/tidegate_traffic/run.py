"""The command `run`: a generator with its signals, its control port and its progress."""

import argparse
import asyncio
import contextlib
import signal
import sys

from tidegate_traffic import control, plan, tables
from tidegate_traffic.generator import Generator
from tidegate_traffic.report import Report


async def send(planned: plan.Plan, options: argparse.Namespace) -> Report:
    """Send what is planned until its end, SIGTERM or SIGINT; publish and return the last report.

    Raises:
        TrafficError: the control port is taken.
    """
    generator = Generator(planned)
    told_to_end = asyncio.Event()

    def end() -> None:
        told_to_end.set()
        generator.stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    async with contextlib.AsyncExitStack() as stack:
        if options.control_port is not None:
            url = await stack.enter_async_context(
                control.listening(generator, options.control_host, options.control_port)
            )
            sys.stderr.write(f"control: {url}\n")
            sys.stderr.flush()
        if not options.wait_for_start:
            generator.start()
        progress = asyncio.create_task(_progress(generator))
        try:
            await generator.run()
        finally:
            progress.cancel()
        report = generator.report()
        _publish(report, options)
        if options.stay:
            await told_to_end.wait()
    return report


def _publish(report: Report, options: argparse.Namespace) -> None:
    sys.stderr.write(tables.whole(report) + "\n")
    sys.stderr.flush()
    if options.report is None:
        sys.stdout.write(report.to_json() + "\n")
        sys.stdout.flush()
    else:
        options.report.write_text(report.to_json() + "\n")


async def _progress(generator: Generator) -> None:
    """A line a second."""
    while True:
        await asyncio.sleep(1)
        ended = generator.ledger.interval()
        failures = ", ".join(f"{count} × {sort}" for sort, count in ended.failures.items())
        sys.stderr.write(
            f"{generator.now_s:7.1f} s  {generator.state}  {ended.latency.count} ended, "
            f"p99 {ended.latency.p99_ms:.0f} ms, {generator.ledger.in_flight} in flight"
            f"{'  FAILED: ' + failures if failures else ''}\n"
        )
        sys.stderr.flush()
