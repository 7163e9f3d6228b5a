"""The next routing table, from what was decided for each model: pure.

All that is decided in one round becomes one table. A part that would make the table one that nobody
can read, or that no ConfigMap can hold, is left out and said: the other models go on.
"""

from collections.abc import Mapping
from dataclasses import replace

from tidegate_operator.resources import table_text
from tidegate_operator.situation import Decision, Wait, Write
from tidegate_table.document import InvalidTable, Table, read

MOST_BYTES = 1_000_000
"""Largest table as JSON, in bytes. A ConfigMap holds 1 MiB, and has other members:
https://kubernetes.io/docs/concepts/configuration/configmap/#motivation"""


def next_table(
    table: Table, decisions: Mapping[str, Decision]
) -> tuple[Table | None, dict[str, Decision]]:
    """The table that is to be written, or None where nothing is, and the decisions as they come
    true: a write that cannot be made has become a wait that says why."""
    drafted, done = replace(table, revision=table.revision + 1), dict(decisions)
    for model, decision in decisions.items():
        if isinstance(decision, Write):
            tried = _with(drafted, model, decision)
            if fault := _fault(tried):
                done[model] = Wait("TableRefused", f"{decision.message}: {fault}")
            else:
                drafted = tried
    writes = any(isinstance(decision, Write) for decision in done.values())
    return (drafted if writes else None), done


def _with(table: Table, model: str, decision: Write) -> Table:
    models, loads = dict(table.models), dict(table.loads)
    if decision.routes is None:
        models.pop(model, None)
    else:
        models[model] = decision.routes
    if decision.loads is None:
        loads.pop(model, None)
    else:
        loads[model] = decision.loads
    # Another name of a model that is gone is no name any more.
    aliases = {alias: name for alias, name in table.aliases.items() if name in models}
    return replace(table, models=models, loads=loads, aliases=aliases)


def _fault(table: Table) -> str:
    content = table_text(table).encode()
    if len(content) > MOST_BYTES:
        return f"expected a routing table of at most {MOST_BYTES} bytes, got {len(content)}"
    try:
        read(content)
    except InvalidTable as invalid:
        return str(invalid)
    return ""
