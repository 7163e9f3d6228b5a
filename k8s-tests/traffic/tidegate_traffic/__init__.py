"""An open-loop load generator that checks every answer and never retries.

Requests are due at fixed times, whatever becomes of those before them, and latency counts from the
time a request was due: a system that stalls cannot slow its own test down and so hide the stall
("coordinated omission"). What cannot be sent, because too much is in flight already, is counted as
a failure. The report tells outcome, model, version, engine and gateway of every request, second by
second; `evidence` judges whether it proves what a test claims.

    python -m tidegate_traffic run plan.json      sends, and prints the report
    python -m tidegate_traffic ask report         asks one that runs (its control port)

`LocalTraffic` runs one as a child process, `Control` talks to one wherever it runs.
"""

from tidegate_traffic.driver import Control, LocalTraffic
from tidegate_traffic.evidence import Expectation, Fault, missing
from tidegate_traffic.report import Report

__all__ = ["Control", "Expectation", "Fault", "LocalTraffic", "Report", "missing"]
