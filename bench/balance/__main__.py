"""Compares the gateway with round robin over the same three engines, one of them at half speed.

Exits with 1 where the gateway reaches less of the ideal than is expected, and with 3 where the
machine was too noisy to tell.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

from bench.balance import report
from bench.balance.figures import Round, Verdict, verdict
from bench.balance.load import MODEL, Client
from tidegate_engine.local import LocalEngine
from tidegate_gateway.local import LocalGateway

LOG = Path(__file__).parents[2] / ".run" / "bench" / "gateway.log"
# What each engine is called, and how many times as long it takes.
ENGINES = {"engine 1": 1, "engine 2": 1, "engine 3, at half speed,": 2}
# Requests in flight for each engine: `paced` works on 16 at a time, and a third as many wait.
IN_FLIGHT = 16 + 5
# Of the ideal, where requests come when they like.
OPEN_SHARE = 0.7
STATUSES = {Verdict.GOOD: 0, Verdict.BELOW: 1, Verdict.NOISY: 3}


def main() -> int:
    """Run all rounds; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.balance", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument(
        "--seconds", type=float, default=3, help="of each load, 7 a round (default: %(default)s)"
    )
    arguments = parser.parse_args()
    _progress(f"{os.cpu_count()} processors, load average {os.getloadavg()[0]:.1f}")
    with ExitStack() as stack:
        engines = [stack.enter_context(LocalEngine([MODEL])) for _ in ENGINES]
        for engine, pace in zip(engines, ENGINES.values(), strict=True):
            engine.slow_down(pace)
        addresses = [engine.grpc_address for engine in engines]
        gateway = stack.enter_context(
            LocalGateway(",".join(addresses), LOG, arguments=["--answers.engine_names=true"])
        )
        _progress(f"{len(engines)} engines and a gateway are up")
        rounds = asyncio.run(
            _measure(addresses, gateway.grpc_address, arguments.rounds, arguments.seconds)
        )
    print(report.table(list(zip(ENGINES, addresses, strict=True)), OPEN_SHARE, rounds))
    print(report.judgement(rounds))
    return STATUSES[verdict(rounds)]


async def _measure(
    addresses: Sequence[str], gateway: str, rounds: int, seconds: float
) -> Sequence[Round]:
    measured = []
    async with AsyncExitStack() as stack:
        alone = [await stack.enter_async_context(Client([address])) for address in addresses]
        through = await stack.enter_async_context(Client([gateway]))
        in_turn = await stack.enter_async_context(Client(addresses))
        for number in range(rounds):
            began = time.monotonic()
            measured.append(await _round(alone, through, in_turn, seconds, seed=number))
            _progress(
                f"round {number + 1} of {rounds} took {time.monotonic() - began:.0f} s: "
                f"ideal {measured[-1].ideal:.0f}/s, "
                f"gateway {measured[-1].gateway.per_second:.0f}/s, "
                f"round robin {measured[-1].round_robin.per_second:.0f}/s"
            )
    return measured


async def _round(
    alone: Sequence[Client], through: Client, in_turn: Client, seconds: float, seed: int
) -> Round:
    each = [await client.saturate(IN_FLIGHT, seconds) for client in alone]
    together = IN_FLIGHT * len(alone)
    rate = OPEN_SHARE * sum(load.per_second for load in each)
    return Round(
        alone=each,
        gateway=await through.saturate(together, seconds),
        round_robin=await in_turn.saturate(together, seconds),
        gateway_open=await through.arrive(rate, seconds, seed),
        round_robin_open=await in_turn.arrive(rate, seconds, seed),
    )


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
