"""Compares the choices in all scenarios: tables on standard output, and a picture."""

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench.simulation.chart import Panel, Style, chart
from bench.simulation.scenarios import CHOICES, Figures, Scenario, figures, simulate
from bench.simulation.world import SHARES_S, Scale

STYLES = [
    Style(name, colour, dashes)
    for name, (colour, dashes) in zip(
        CHOICES,
        [("#0967d2", ""), ("#0967d2", "5 3"), ("#31b237", ""), ("#e12d39", ""), ("#cb6e17", "2 2")],
        strict=True,
    )
]


@dataclass(frozen=True, slots=True)
class Run:
    """What is shown of one run."""

    figures: Figures
    utilisation: list[float]
    shares: list[float]


Runs = dict[tuple[Scenario, str], Run]


def main() -> None:
    """Run every scenario with every choice."""
    parser = argparse.ArgumentParser(prog="python -m bench.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of chance (default: %(default)s)")
    parser.add_argument("--engines", type=int, default=1000, help="default: %(default)s")
    parser.add_argument("--gateways", type=int, default=300, help="default: %(default)s")
    parser.add_argument("--picture", type=Path, help="file for the picture, as SVG")
    arguments = parser.parse_args()
    scale = Scale(engines=arguments.engines, gateways=arguments.gateways)

    runs: Runs = {}
    for scenario in Scenario:
        for name in CHOICES:
            begun = time.monotonic()
            runs[scenario, name] = run(scenario, name, scale, arguments.seed)
            print(f"{scenario}, {name}: {time.monotonic() - begun:.0f} s", file=sys.stderr)
    for scenario in Scenario:
        print(table(scenario, runs))
    print(connections(runs))
    if arguments.picture:
        arguments.picture.write_text(picture(scale, runs))


def run(scenario: Scenario, name: str, scale: Scale, seed: int) -> Run:
    """One run, without what only its figures are made of."""
    result = simulate(scenario, CHOICES[name], scale, seed)
    return Run(figures(scenario, scale, result), result.utilisation, result.shares)


def table(scenario: Scenario, runs: Runs) -> str:
    """The figures of one scenario in Markdown."""
    lines = [
        f"| {scenario} | p50 | p99 | failed | busiest engine | p99 engine | reaction |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in CHOICES:
        row = runs[scenario, name].figures
        cells = [
            name,
            f"{row.p50_s * 1000:.0f} ms",
            f"{row.p99_s * 1000:.0f} ms",
            f"{row.failed:.3%}",
            f"{row.most_used:.2f}",
            f"{row.p99_used:.2f}",
            "–" if row.reaction_s is None else f"{row.reaction_s:g} s",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def connections(runs: Runs) -> str:
    """The connections of each choice in Markdown, where all engines are alike."""
    lines = [
        "| connections | of a gateway | of the engine that has most |",
        "|---|---|---|",
    ]
    for name in CHOICES:
        row = runs[Scenario.ALIKE, name].figures
        lines.append(f"| {name} | {row.per_gateway:.0f} | {row.per_engine} |")
    return "\n".join(lines) + "\n"


def picture(scale: Scale, runs: Runs) -> str:
    """Utilisation with slow engines; traffic of stalled and of new engines over time. SVG."""
    seconds = int(scale.end_s - scale.event_s)

    def utilisation(name: str) -> list[tuple[float, float]]:
        used = runs[Scenario.SLOW, name].utilisation
        last = len(used) - 1
        return [(percent, 100 * used[percent * last // 100]) for percent in range(101)]

    def shares(scenario: Scenario, name: str) -> list[tuple[float, float]]:
        begin = round(scale.event_s / SHARES_S)
        after = runs[scenario, name].shares[begin:]
        return [((i + 0.5) * SHARES_S, 100 * share) for i, share in enumerate(after)]

    panels = [
        Panel(
            "10 % at half speed: utilisation",
            "% of the engines, least used first",
            x_ticks=(0, 25, 50, 75, 100),
            y_ticks=(0, 25, 50, 75, 100),
            lines=[utilisation(name) for name in CHOICES],
        ),
        Panel(
            "5 % stall: their share of attempts",
            "seconds since they stalled",
            x_ticks=range(0, seconds + 1, 2),
            y_ticks=(0, 2, 4, 6),
            lines=[shares(Scenario.STALL, name) for name in CHOICES],
        ),
        Panel(
            "10 % more come: their share",
            "seconds since they came",
            x_ticks=range(0, seconds + 1, 2),
            y_ticks=(0, 4, 8, 12),
            lines=[shares(Scenario.JOIN, name) for name in CHOICES],
        ),
    ]
    return chart("Five ways to choose an engine, in three scenarios.", panels, STYLES)


if __name__ == "__main__":
    main()
