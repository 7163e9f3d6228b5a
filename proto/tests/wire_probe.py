"""What one implementation of the KServe v2 protocol knows and writes, as JSON on stdout.

    python wire_probe.py describe MODULE…    facts: every message, field, enum, value, RPC, call
    python wire_probe.py write MODULE…       samples of every message, with all of its fields
    python wire_probe.py read MODULE…        stdin: {message: [bytes]}; parsed and written again

Two implementations share descriptor names and cannot be loaded into one process, so this runs once
with the Python of each. It needs the protobuf package only, and the generated MODULEs to look at.
"""

import importlib
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from google.protobuf import message_factory, text_format
from google.protobuf.descriptor import (
    Descriptor,
    EnumDescriptor,
    FieldDescriptor,
    FileDescriptor,
    ServiceDescriptor,
)
from google.protobuf.message import Message

Facts = dict[str, Any]
# A sample: its bytes as hex, its text form, and the names of the fields that it sets.
Sample = dict[str, Any]


# ---- describe ----


def describe(modules: list[ModuleType]) -> Facts:
    """One entry a fact, by kind and full name, so that two descriptions compare key by key."""
    facts: Facts = {}
    for file in _files(modules):
        for message in _messages(file):
            facts |= _message_facts(message)
        for enum in _enums(file):
            facts |= _enum_facts(enum)
        for service in file.services_by_name.values():
            facts |= _service_facts(service)
    for module in modules:
        facts |= _calls(module)
    return facts


def _message_facts(message: Descriptor) -> Facts:
    facts: Facts = {
        f"message {message.full_name}": {"map_entry": message.GetOptions().map_entry},
    }
    for field in message.fields:
        kind = field.message_type or field.enum_type
        facts[f"field {field.full_name}"] = {
            "number": field.number,
            "type": field.type,
            "type_name": kind.full_name if kind else None,
            "repeated": field.is_repeated,
            "packed": field.is_packed,
            "presence": field.has_presence,
            "oneof": field.containing_oneof.name if field.containing_oneof else None,
            "json_name": field.json_name,
            "default": repr(field.default_value),
            "options": str(field.GetOptions()),
        }
    return facts


def _enum_facts(enum: EnumDescriptor) -> Facts:
    values = {f"value {enum.full_name}.{value.name}": value.number for value in enum.values}
    return {f"enum {enum.full_name}": str(enum.GetOptions()), **values}


def _service_facts(service: ServiceDescriptor) -> Facts:
    return {
        f"rpc {method.full_name}": {
            "request": method.input_type.full_name,
            "response": method.output_type.full_name,
            "client_streaming": method.client_streaming,
            "server_streaming": method.server_streaming,
        }
        for method in service.methods
    }


class _RecordingChannel:
    """In the place of a gRPC channel: notes which calls a stub prepares."""

    def __init__(self) -> None:
        self.calls: Facts = {}

    def __getattr__(self, arity: str) -> Any:
        return lambda path, **_: self.calls.update({f"call {path}": arity})


def _calls(module: ModuleType) -> Facts:
    channel = _RecordingChannel()
    for name, stub in vars(module).items():
        if name.endswith("Stub"):
            stub(channel)
    return channel.calls


# ---- write and read ----


def write(modules: list[ModuleType]) -> dict[str, list[Sample]]:
    """Several samples of each message: as many as the largest oneof has members, so that each
    member of each oneof is in one of them."""
    messages = list(_plain_messages(modules))
    count = max(len(oneof.fields) for message in messages for oneof in message.oneofs)
    return {
        message.full_name: [_filled(message, sample) for sample in range(count)]
        for message in messages
    }


def read(modules: list[ModuleType], wire: dict[str, list[str]]) -> dict[str, list[Sample]]:
    """What is made of bytes that the other side has written."""
    return {
        message.full_name: [
            _sample(_class(message).FromString(bytes.fromhex(content)))
            for content in wire[message.full_name]
        ]
        for message in _plain_messages(modules)
    }


def _filled(descriptor: Descriptor, sample: int) -> Sample:
    message = _class(descriptor)()
    _fill(message, sample, itertools.count(1))
    return _sample(message)


def _sample(message: Message) -> Sample:
    # The text leaves out what the descriptor does not know, though the bytes keep it.
    return {
        "wire": message.SerializeToString(deterministic=True).hex(),
        "text": text_format.MessageToString(message, as_utf8=True),
        "fields": sorted(field.name for field, _ in message.ListFields()),
    }


def _fill(message: Message, sample: int, numbers: Iterator[int]) -> None:
    """Sets every field, of a oneof the member that is this sample's turn; two elements each."""
    message.SetInParent()
    descriptor: Any = message.DESCRIPTOR  # the stubs give it two types
    for field in sorted(descriptor.fields, key=lambda field: field.number):
        oneof = field.containing_oneof
        if oneof and oneof.fields[sample % len(oneof.fields)].name != field.name:
            continue
        if field.message_type and field.message_type.GetOptions().map_entry:
            _fill_map(getattr(message, field.name), field.message_type, sample, numbers)
        elif field.message_type and field.is_repeated:
            for _ in range(2):
                _fill(getattr(message, field.name).add(), sample, numbers)
        elif field.message_type:
            _fill(getattr(message, field.name), sample, numbers)
        elif field.is_repeated:
            getattr(message, field.name).extend(_value(field, next(numbers)) for _ in range(2))
        else:
            setattr(message, field.name, _value(field, next(numbers)))


def _fill_map(content: Any, entry: Descriptor, sample: int, numbers: Iterator[int]) -> None:
    key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
    for _ in range(2):
        name = _value(key, next(numbers))
        if value.message_type:
            _fill(content[name], sample, numbers)
        else:
            content[name] = _value(value, next(numbers))


def _value(field: FieldDescriptor, number: int) -> Any:
    """A value of the field's type that no other field has, and that only its full width holds."""
    if field.enum_type:
        # One that is written, even where the only known value is the unwritten 0: enums are open.
        choices = [value.number for value in field.enum_type.values if value.number] or [1]
        return choices[number % len(choices)]
    values: dict[int, Any] = {
        FieldDescriptor.TYPE_BOOL: True,
        FieldDescriptor.TYPE_INT32: -(2**30) - number,
        FieldDescriptor.TYPE_INT64: -(2**62) - number,
        FieldDescriptor.TYPE_UINT32: 2**31 + number,
        FieldDescriptor.TYPE_UINT64: 2**63 + number,
        FieldDescriptor.TYPE_FLOAT: number + 0.5,
        FieldDescriptor.TYPE_DOUBLE: number + 2**-40,
        FieldDescriptor.TYPE_STRING: f"{field.name} № {number}",
        FieldDescriptor.TYPE_BYTES: b"\x00\xff" + number.to_bytes(2, "big"),
    }
    return values[field.type]


# ---- descriptors ----


def _files(modules: list[ModuleType]) -> list[FileDescriptor]:
    return [module.DESCRIPTOR for module in modules if hasattr(module, "DESCRIPTOR")]


def _messages(scope: FileDescriptor | Descriptor) -> Iterator[Descriptor]:
    nested = (
        scope.message_types_by_name
        if isinstance(scope, FileDescriptor)
        else scope.nested_types_by_name
    )
    for message in nested.values():
        yield message
        yield from _messages(message)


def _plain_messages(modules: list[ModuleType]) -> Iterator[Descriptor]:
    for file in _files(modules):
        yield from (m for m in _messages(file) if not m.GetOptions().map_entry)


def _enums(file: FileDescriptor) -> Iterator[EnumDescriptor]:
    yield from file.enum_types_by_name.values()
    for message in _messages(file):
        yield from message.enum_types


def _class(message: Descriptor) -> type[Message]:
    return message_factory.GetMessageClass(message)


def main() -> None:
    command, *names = sys.argv[1:]
    modules = [importlib.import_module(name) for name in names]
    answers: dict[str, Callable[[], Facts]] = {
        "describe": lambda: describe(modules),
        "write": lambda: write(modules),
        "read": lambda: read(modules, json.load(sys.stdin)),
    }
    json.dump(answers[command](), sys.stdout)


if __name__ == "__main__":
    main()
