"""Settings of a process: from its command line, else its environment, else their defaults.

A process declares a class of `ProcessSettings` whose fields are groups of `Group` or single values,
and loads it. A setting `port` of the group `http` is the argument `--http.port`, and the variable
`<env_prefix>HTTP__PORT`. One that cannot be used stops the start, by name and with what is allowed;
so does a variable that was surely meant as a setting and is none.
"""

import difflib
import os
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import BaseSettings, CliApp, SettingsConfigDict, SettingsError

Port = Annotated[int, Field(ge=0, le=65535)]
"""A port, or 0, of which the setting says what it means."""
FixedPort = Annotated[int, Field(ge=1, le=65535)]
"""A port that others must know beforehand."""
Seconds = Annotated[float, Field(gt=0, le=86400)]
LogLevel = Literal["debug", "info", "warning", "error"]

_DELIMITER = "__"


class InvalidSettings(Exception):
    """Settings that cannot be used; the message has a line for each, with what is allowed."""


class Group(BaseModel):
    """Settings that belong together; the text under each is its description."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class LogSettings(Group):
    """The log, on standard error: one JSON object a line."""

    level: LogLevel = "info"
    """Least severe records that are written."""


class ProcessSettings(BaseSettings):
    """All settings of a process, which gives its `env_prefix` and `cli_prog_name`."""

    model_config = SettingsConfigDict(
        env_nested_delimiter=_DELIMITER,
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
        use_attribute_docstrings=True,
        cli_kebab_case=False,
        cli_hide_none_type=True,
    )


S = TypeVar("S", bound=ProcessSettings)


def load(settings: type[S], arguments: list[str]) -> S:
    """The settings of this process, from its `arguments` and its environment.

    Raises:
        InvalidSettings: naming each setting at fault and what is allowed.
        SystemExit: after `--help`, or an argument that does not exist.
    """
    unknown = list(_unknown_variables(settings, os.environ))
    if unknown:
        raise InvalidSettings("\n".join(unknown))
    try:
        return CliApp.run(settings, cli_args=arguments)
    except ValidationError as error:
        lines = (
            f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}, "
            f"got {fault['input']!r}"
            for fault in error.errors()
        )
        raise InvalidSettings("\n".join(lines)) from None
    except SettingsError as error:
        raise InvalidSettings(str(error)) from None


def _unknown_variables(
    settings: type[ProcessSettings], environment: Mapping[str, str]
) -> Iterator[str]:
    """A line for each variable that was surely meant as a setting and is none.

    Only names with the nested delimiter are judged: Kubernetes adds variables such as
    TIDEGATE_PORT_8080_TCP to every pod beside a Service named tidegate.
    """
    prefix = settings.model_config.get("env_prefix", "")
    known = {name.upper().replace(".", _DELIMITER) for name in _names(settings)}
    for variable in sorted(environment):
        name = variable.upper().removeprefix(prefix)
        if name != variable.upper() and _DELIMITER in name and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {prefix}{close[0]}?" if close else ""
            yield f"{variable}: no such setting{hint}"


def _names(settings: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Group):
            yield from _names(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
