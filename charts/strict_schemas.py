"""Writes JSON schemas of Kubernetes' objects that refuse unknown fields, for kubeconform.

    python charts/strict_schemas.py SWAGGER_JSON FOLDER

They are made from Kubernetes' own description of its API, `api/openapi-spec/swagger.json` in its
source, so that nothing is fetched and the version is that of the test cluster. A file is named
`<kind>-<first part of the group>-<version>.json`, without the group for the core API.
"""

import json
import sys
from pathlib import Path
from typing import Any

# Described in the swagger as strings, while manifests may hold numbers.
_STRING_OR_NUMBER = ("IntOrString", "resource.Quantity")


def schemas(swagger: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """File name → schema, for each kind that is of one group and version."""
    definitions = {name: _strict(name, d) for name, d in swagger["definitions"].items()}
    made = {}
    for name, definition in swagger["definitions"].items():
        kinds = definition.get("x-kubernetes-group-version-kind", ())
        # Shared ones, such as DeleteOptions, are no manifests.
        if len(kinds) != 1:
            continue
        parts = (kinds[0]["kind"], kinds[0]["group"].partition(".")[0], kinds[0]["version"])
        file_name = "-".join(part for part in parts if part).lower() + ".json"
        needed = _reachable(name, definitions)
        made[file_name] = definitions[name] | {"definitions": {n: definitions[n] for n in needed}}
    return made


def _strict(name: str, definition: dict[str, Any]) -> dict[str, Any]:
    if name.endswith(_STRING_OR_NUMBER):
        return {"type": ["string", "number"]}
    if "properties" not in definition:
        return definition
    return {"additionalProperties": False} | definition


def _reachable(name: str, definitions: dict[str, dict[str, Any]]) -> set[str]:
    found, todo = set[str](), [name]
    while todo:
        here = todo.pop()
        if here not in found:
            found.add(here)
            todo += _references(definitions[here])
    return found


def _references(schema: object) -> list[str]:
    if isinstance(schema, list):
        return [name for member in schema for name in _references(member)]
    if not isinstance(schema, dict):
        return []
    own = [ref.rpartition("/")[2]] if isinstance(ref := schema.get("$ref"), str) else []
    return own + [name for member in schema.values() for name in _references(member)]


def main() -> None:
    """Write them; says how many."""
    swagger, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    made = schemas(json.loads(swagger.read_text()))
    for file_name, schema in made.items():
        (folder / file_name).write_text(json.dumps(schema))
    print(f"{len(made)} schemas in {folder}")


if __name__ == "__main__":
    main()
