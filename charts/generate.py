"""Writes what the chart takes from elsewhere; `make generate` runs it.

- into values.schema.json, what `gateway.settings` may hold: the gateway's own settings;
- into README.md, the table of all values: values.yaml with its comments.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate_gateway.settings import Settings

CHART = Path(__file__).parent / "tidegate"

# The chart's containers and Services have fixed addresses.
_OF_THE_CHART = {"http": {"host", "port"}, "grpc": {"host", "port"}, "admin": {"host", "port"}}
# What the chart itself reads; null would take them away.
_NEEDED = {"": ["drain", "engine"], "drain": ["delay_s", "grace_s"]}
# What a schema for Helm keeps of pydantic's; defaults and words would only repeat docs/settings.md.
_KEPT = (
    *("type", "enum", "pattern", "minLength", "maxLength"),
    *("minimum", "exclusiveMinimum", "maximum"),
)

_TABLE = re.compile(r"(?<=<!-- values -->\n\n).*?(?=\n<!-- /values -->)", re.DOTALL)
_KEY = re.compile(r"(?P<indent> *)(?P<name>\w+):(?: (?P<value>\S.*))?")


@dataclass(frozen=True, slots=True)
class Value:
    """One value of values.yaml.

    Attributes:
        path: its names from the top, with dots between.
        comment: what stands above it; "" for nothing.
        default: what stands behind the colon; "" where lines follow instead.
    """

    path: str
    comment: str
    default: str


def values(text: str) -> Iterator[Value]:
    """The values in the text of a values.yaml, in its order; members of lists are left out."""
    parents: list[str] = []
    comment: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            comment.append(stripped.lstrip("# "))
            continue
        if (found := _KEY.fullmatch(line)) and not _inside_list(line, parents):
            parents[len(found["indent"]) // 2 :] = [found["name"]]
            yield Value(".".join(parents), " ".join(comment), found["value"] or "")
        comment = []


def _inside_list(line: str, parents: list[str]) -> bool:
    # `- key:` is no key itself; what follows it is indented by two more than its list's name is.
    return (len(line) - len(line.lstrip())) // 2 > len(parents)


def settings_schema() -> dict[str, Any]:
    """The schema of `gateway.settings`, draft 7, in which nothing unknown is allowed."""
    whole = Settings.model_json_schema()
    groups = whole["$defs"]
    properties = {}
    for name, member in whole["properties"].items():
        if "$ref" in member:
            group = groups[member["$ref"].rpartition("/")[2]]
            properties[name] = _object(
                name,
                {
                    key: _leaf(field)
                    for key, field in group["properties"].items()
                    if key not in _OF_THE_CHART.get(name, ())
                },
            )
        else:
            properties[name] = _leaf(member)
    return _object("", {name: schema for name, schema in properties.items() if schema})


def _object(name: str, properties: dict[str, Any]) -> dict[str, Any]:
    if not properties:
        return {}
    made = {"type": "object", "additionalProperties": False, "properties": properties}
    return made | ({"required": _NEEDED[name]} if name in _NEEDED else {})


def _leaf(field: dict[str, Any]) -> dict[str, Any]:
    # What may be null in the gateway may be left out here.
    for choice in field.get("anyOf", ()):
        if choice["type"] != "null":
            return _leaf(choice)
    return {key: field[key] for key in _KEPT if key in field}


def schema_text(text: str) -> str:
    """values.schema.json with the gateway's settings as they are now."""
    schema = json.loads(text)
    schema["definitions"]["settings"] = settings_schema()
    return json.dumps(schema, indent=2) + "\n"


def readme_text(text: str, values_yaml: str) -> str:
    """README.md with the table of the values as they are now."""
    rows = [
        f"| `{value.path}` | {f'`{value.default}`' if value.default else ''} | {value.comment} |"
        for value in values(values_yaml)
        if value.comment
    ]
    table = "\n".join(["| value | default | meaning |", "|---|---|---|", *rows, ""])
    return _TABLE.sub(lambda _: table, text)


def main() -> None:
    """Write both files anew."""
    schema, readme = CHART / "values.schema.json", CHART / "README.md"
    schema.write_text(schema_text(schema.read_text()))
    readme.write_text(readme_text(readme.read_text(), (CHART / "values.yaml").read_text()))


if __name__ == "__main__":
    main()
