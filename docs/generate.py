"""Writes docs/settings.md from the gateway's settings; `make generate` runs it."""

import sys
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tidegate_gateway.settings import Settings

_HEAD = """# Settings of the gateway

Made from `services/gateway/tidegate_gateway/settings.py` by `make generate`.

A setting is an argument of `python -m tidegate_gateway` or a variable of its environment; the
argument wins. A bad one stops the start with its name and what is allowed.
"""


def settings_page() -> str:
    """The page, in Markdown."""
    top, groups = [], []
    for name, field in Settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            groups.append(_section(name, field.annotation))
        else:
            top.append(_row(f"--{name}", f"TIDEGATE_{name}".upper(), field))
    return "\n".join([_HEAD, _table(top), *groups])


def _section(name: str, group: type[BaseModel]) -> str:
    rows = [
        _row(f"--{name}.{key}", f"TIDEGATE_{name}__{key}".upper(), field)
        for key, field in group.model_fields.items()
    ]
    return f"## {name}\n\n{' '.join((group.__doc__ or '').split())}\n\n{_table(rows)}"


def _table(rows: list[str]) -> str:
    return "\n".join(["| setting | default | meaning |", "|---|---|---|", *rows, ""])


def _row(argument: str, variable: str, field: FieldInfo) -> str:
    default = "none" if field.default is None else f"`{field.default}`"
    meaning = " ".join((field.description or "").split()).replace("|", "\\|")
    return f"| `{argument}`<br>`{variable}` | {default} | {meaning} |"


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "settings.md").write_text(
        settings_page()
    )
