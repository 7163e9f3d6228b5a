"""What is asked and what is answered, in the domain's words, and the rules of its parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from tidegate_gateway.errors import InvalidInput, NotOffered
from tidegate_gateway.tensors import Tensor

Parameter = bool | int | str | float

ENGINES_CHOICE = ""
"""The version of a request that leaves it to the routing table, and without one to the engine."""

FINAL = "triton_final_response"
"""Parameter of the answers in a stream: whether it is the last one to its request. Of a decoupled
model none has to be: with the request's parameter triton_enable_empty_final_response, an answer
without outputs is then the last one."""

# Characters.
_LONGEST_SEQUENCE = 128

_MOST_64_BITS = 2**64 - 1

# More than any model has; beyond 32 bits Triton counts wrong.
_MOST_CLASSES = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Wanted:
    """An output that is asked for.

    Attributes:
        classes: 0 for the tensor itself; else so many of its best classes, each as
            `score:index` or `score:index:label` (the classification extension).
    """

    name: str
    classes: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """One inference.

    Attributes:
        version: the version wanted, or ENGINES_CHOICE.
        inputs: the tensors sent.
        outputs: the tensors wanted; all of them when empty.
        id: the client's own name for the request; the answer carries it.
        parameters: passed on to the engine.
    """

    model: str
    inputs: Sequence[Tensor]
    version: str = ENGINES_CHOICE
    outputs: Sequence[Wanted] = ()
    id: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)

    @property
    def sequence(self) -> str:
        """What names the sequence that it is part of; "" for none, as Triton has it."""
        name = self.parameters.get("sequence_id", 0)
        return "" if name in (0, "") else str(name)


@dataclass(frozen=True, slots=True)
class Response:
    """An answer to a Request; `version` is the one that answered ("" where the engine's protocol
    does not say)."""

    model: str
    version: str
    outputs: Sequence[Tensor]
    id: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One class that an image may show.

    Attributes:
        index: its place in the model's output.
        label: its name, or None where the model has no labels.
        score: as the model's parameter `scores` says: softmax, or as it is.
    """

    index: int
    label: str | None
    score: float


@dataclass(frozen=True, slots=True)
class Classification:
    """What an image shows.

    Attributes:
        version: as in Response.
        predictions: the whole output tensor, batch first.
        top: the best candidates, best first.
    """

    model: str
    version: str
    predictions: npt.NDArray[Any]
    top: Sequence[Candidate]


def classes_wanted(output: str, parameters: Mapping[str, object]) -> int:
    """How many classes of an output its own `parameters` ask for; 0 for the tensor itself.

    What the protocol does not know is passed over, as Triton does: clients write what they mean for
    themselves (`content_type`, say) there.

    Raises:
        InvalidInput: `classification` is no whole number above 0.
        NotOffered: the output is to go to shared memory.
    """
    refuse_shared_memory(f"output {output!r}", parameters)
    classes = parameters.get("classification", 0)
    if type(classes) is not int or not 0 <= classes <= _MOST_CLASSES:
        raise InvalidInput(
            f"output {output!r}: expected parameter 'classification' as a whole number of 1 to "
            f"{_MOST_CLASSES}, got {classes!r}"
        )
    return classes


def refuse_shared_memory(tensor: str, parameters: Mapping[str, object]) -> None:
    """Raise NotOffered where a tensor is to come from, or go to, memory that only an engine on the
    client's own machine could share."""
    for key in parameters:
        if key.startswith("shared_memory_"):
            raise NotOffered(f"{tensor}: shared memory is not offered; send the tensor itself")


def parameter_faults(parameters: Mapping[str, Parameter]) -> list[str]:
    """What is wrong with the parameters of a request, by the types that Triton has for those that
    it knows. Others are the model's own."""
    faults = []
    for key, value in parameters.items():
        expected = _expected(key, value)
        if expected:
            faults.append(f"parameter {key!r}: expected {expected}, got {value!r}")
    return faults


def _expected(key: str, value: Parameter) -> str:
    """What `key` should have been; "" where `value` is right."""
    is_number = type(value) is int and 0 <= value <= _MOST_64_BITS
    match key:
        case "sequence_id":
            if isinstance(value, str):
                is_short = len(value) <= _LONGEST_SEQUENCE
                return "" if is_short else f"at most {_LONGEST_SEQUENCE} characters"
            return "" if is_number else "a whole number of 64 bits or a string"
        case "priority" | "timeout":
            return "" if is_number else "a whole number of 64 bits"
        case "sequence_start" | "sequence_end" | "triton_enable_empty_final_response":
            return "" if isinstance(value, bool) else "true or false"
        case _:
            return "no name that begins with triton_" if key.startswith("triton_") else ""
