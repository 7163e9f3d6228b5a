"""What is printed in the end. Pure."""

import statistics
from collections.abc import Sequence

from bench.balance.figures import (
    EXPECTED,
    MOST_NOISE,
    Load,
    Round,
    Verdict,
    gateway_share,
    noise,
    quantile,
    spread,
    verdict,
)

_HEAD = ("", "requests/s", "spread", "of the ideal", "p50", "p99", "by engine")


def table(engines: Sequence[tuple[str, str]], open_share: float, rounds: Sequence[Round]) -> str:
    """All figures in Markdown: medians of the rounds, but sums of the requests by engine.

    Args:
        engines: what each is called here, and its address.
        open_share: of the ideal, where requests come when they like.
    """
    ideals = [each.ideal for each in rounds]
    calm = f"at {open_share:.0%} of the ideal"
    loads = {
        "gateway": [each.gateway for each in rounds],
        "round robin without a gateway": [each.round_robin for each in rounds],
        f"gateway, {calm}": [each.gateway_open for each in rounds],
        f"round robin, {calm}": [each.round_robin_open for each in rounds],
    }
    alone = {
        f"{name} alone": [each.alone[index] for each in rounds]
        for index, (name, _) in enumerate(engines)
    }
    addresses = [address for _, address in engines]
    lines = [
        _HEAD,
        ["---"] * len(_HEAD),
        *(_line(name, of_rounds, ideals, addresses) for name, of_rounds in alone.items()),
        [
            "ideal: their sum",
            f"{statistics.median(ideals):.1f}",
            f"{spread(ideals):.1%}",
            *[""] * 4,
        ],
        *(_line(name, of_rounds, ideals, addresses) for name, of_rounds in loads.items()),
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def judgement(rounds: Sequence[Round]) -> str:
    """The verdict in words."""
    share = gateway_share(rounds)
    further = sum(
        load.further_attempts for each in rounds for load in (each.gateway, each.gateway_open)
    )
    said = f"The gateway reaches {share:.1%} of the ideal, with {further} further attempts. "
    match verdict(rounds):
        case Verdict.NOISY:
            return said + (
                f"Not judged: without the gateway, too, rounds differ by {noise(rounds):.0%}, more "
                f"than {MOST_NOISE:.0%}; the machine has too much else to do."
            )
        case Verdict.BELOW:
            return said + f"That is too little: at least {EXPECTED:.0%} is expected."
        case Verdict.GOOD:
            return said + f"At least {EXPECTED:.0%} is expected."


def _line(
    name: str, loads: Sequence[Load], ideals: Sequence[float], addresses: Sequence[str]
) -> Sequence[str]:
    """The cells of one kind of load, of which each round has one."""
    rates = [load.per_second for load in loads]
    shares = [rate / ideal for rate, ideal in zip(rates, ideals, strict=True)]
    quantiles = (
        statistics.median(quantile(load.latencies, q) for load in loads) for q in (0.5, 0.99)
    )
    counts = (sum(load.attempts[address] for load in loads) for address in addresses)
    return (
        name,
        f"{statistics.median(rates):.1f}",
        f"{spread(rates):.1%}",
        f"{statistics.median(shares):.1%}",
        *(f"{1000 * seconds:.0f} ms" for seconds in quantiles),
        " / ".join(str(count) for count in counts),
    )
