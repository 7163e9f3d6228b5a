"""The generate extension: from a JSON object to tensors, and from tensors to a JSON object."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_gateway import generate, v2_json
from tidegate_gateway.errors import EngineFailed, InvalidInput
from tidegate_gateway.models import ANY, Model, TensorSpec, check_request
from tidegate_gateway.requests import FINAL, Response
from tidegate_gateway.tensors import Datatype, Tensor, from_array, to_array


def a_model(*inputs: TensorSpec, max_batch_size: int = 0) -> Model:
    return Model(
        name="text",
        version="1",
        versions=("1",),
        platform="python",
        max_batch_size=max_batch_size,
        inputs=inputs,
        outputs=(TensorSpec("text_output", Datatype.BYTES, (ANY,)),),
        decoupled=True,
    )


TEXT = a_model(
    TensorSpec("text_input", Datatype.BYTES, (ANY,)),
    TensorSpec("max_tokens", Datatype.INT32, (1,), optional=True),
    TensorSpec("matrix", Datatype.FP32, (2, 3), optional=True),
)
BATCHED = a_model(
    TensorSpec("text_input", Datatype.BYTES, (ANY, 1)),
    TensorSpec("values", Datatype.FP32, (ANY, ANY), optional=True),
    max_batch_size=8,
)

# Reading


def read(document: dict[str, Any], model: Model = TEXT) -> dict[str, Any]:
    """The shape and the elements of each input."""
    request = generate.read_request(document, model)
    return {t.name: (t.shape, to_array(t).reshape(-1).tolist()) for t in request.inputs}


def refusal(document: dict[str, Any], model: Model = TEXT) -> str:
    with pytest.raises(InvalidInput) as refused:
        generate.read_request(document, model)
    return refused.value.message


def test_members_with_names_of_inputs_are_inputs() -> None:
    assert read({"text_input": "hey", "max_tokens": 5}) == {
        "text_input": ((1,), [b"hey"]),
        "max_tokens": ((1,), [5]),
    }
    assert read({"text_input": ["a", "ü"]}) == {"text_input": ((2,), [b"a", b"\xc3\xbc"])}
    assert read({"text_input": []}) == {"text_input": ((0,), [])}


def test_a_fixed_shape_needs_no_nesting_and_takes_it() -> None:
    expected = {"matrix": ((2, 3), [1, 2, 3, 4, 5, 6])}
    for data in ([1, 2, 3, 4, 5, 6], [[1, 2, 3], [4, 5, 6]], [[[1], [2], [3]], [[4], [5], [6]]]):
        assert read({"matrix": data}) == expected


def test_where_a_model_has_batches_there_is_one_of_one() -> None:
    assert read({"text_input": "hey", "values": [1, 2, 3]}, BATCHED) == {
        "text_input": ((1, 1), [b"hey"]),
        "values": ((1, 3), [1, 2, 3]),
    }


def test_elements_that_find_no_other_place_are_a_batch() -> None:
    expected = {"text_input": ((2, 1), [b"a", b"b"])}
    assert read({"text_input": ["a", "b"]}, BATCHED) == expected
    assert read({"text_input": [["a"], ["b"]]}, BATCHED) == expected


shapes = st.lists(st.sampled_from([ANY, ANY, 1, 2, 3]), max_size=4).map(tuple)


@settings(deadline=None, database=None, max_examples=200)
@given(shape=shapes, count=st.integers(0, 40))
def test_a_shape_holds_all_elements_and_only_its_innermost_loose_dimension_grows(
    shape: tuple[int, ...], count: int
) -> None:
    model = a_model(TensorSpec("values", Datatype.INT32, shape))
    data = list(range(count))
    fixed = math.prod(size for size in shape if size != ANY)
    fits = count % fixed == 0 if ANY in shape else count == fixed
    if not fits:
        assert refusal({"values": data}, model) == (
            f"input 'values': expected elements for shape {list(shape)}, got {count}"
        )
        return
    request = generate.read_request({"values": data}, model)
    check_request(model, request)
    (tensor,) = request.inputs
    assert to_array(tensor).reshape(-1).tolist() == data
    loose = [found for size, found in zip(shape, tensor.shape, strict=True) if size == ANY]
    assert loose == [1] * (len(loose) - 1) + [count // fixed] * bool(loose)
    # And nested as it is, it is the same.
    assert read({"values": to_array(tensor).tolist()}, model) == read({"values": data}, model) or (
        0 in tensor.shape
    )


def test_all_other_members_are_parameters_wherever_they_stand() -> None:
    request = generate.read_request(
        {
            "id": "7",
            "text_input": "hey",
            "temperature": 0.5,
            "parameters": {"max_tokens": 3, "stream": True, "id": "x"},
        },
        TEXT,
    )
    assert request.id == "7"
    assert request.parameters == {"temperature": 0.5, "stream": True, "id": "x"}
    assert [t.name for t in request.inputs] == ["text_input", "max_tokens"]


def test_an_input_may_have_any_name() -> None:
    model = a_model(
        TensorSpec("id", Datatype.BYTES, (1,)), TensorSpec("parameters", Datatype.INT32, (ANY,))
    )
    assert read({"id": "a", "parameters": [1, 2]}, model) == {
        "id": ((1,), [b"a"]),
        "parameters": ((2,), [1, 2]),
    }
    assert generate.read_request({"id": "a"}, model).id == ""


NEITHER = (
    "expected an input of ['text_input', 'max_tokens', 'matrix'], or a parameter as a string, "
    "number or boolean, got "
)


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({"text_input": 5}, "input 'text_input': expected a string for BYTES at element 0, got 5"),
        ({"text_input": None}, "input 'text_input': expected a string for BYTES at element 0, got "
         "null"),
        ({"text_input": {"a": "b"}}, "input 'text_input': expected a string for BYTES at element "
         "0, got an object"),
        ({"text_input": [["a"], [{}]]}, "input 'text_input': expected a string for BYTES at "
         "element 1, got an object"),
        ({"max_tokens": [1, 2]}, "input 'max_tokens': expected elements for shape [1], got 2"),
        ({"max_tokens": []}, "input 'max_tokens': expected elements for shape [1], got 0"),
        ({"matrix": [1, 2, 3]}, "input 'matrix': expected elements for shape [2, 3], got 3"),
        ({"matrix": [[1, 2], [3, 4], [5, 6]]}, "input 'matrix': expected elements flat or nested "
         "as shape [2, 3], got them nested as [3, 2]"),
        ({"matrix": [[1, 2, 3, 4], [5, 6]]}, "input 'matrix': expected elements, or lists of the "
         "same length in each other, got others in dimension 1"),
        ({"matrix": [1, [2]]}, "input 'matrix': expected elements, or lists of the same length in "
         "each other, got others in dimension 1"),
        ({"max_tokens": 2**40, "other": [], "text_input": 1}, "input 'max_tokens': expected "
         f"-2147483648 to 2147483647 for INT32 at element 0, got {2**40}; member 'other': "
         f"{NEITHER}a list; input 'text_input': expected a string for BYTES at element 0, got 1"),
        ({"other": None}, f"member 'other': {NEITHER}null"),
        ({"parameters": {"parameters": {}}}, f"member 'parameters': {NEITHER}an object"),
        ({"id": 7}, "member 'id': expected a string, got 7"),
        ({"parameters": [1]}, "member 'parameters': expected an object, got a list"),
        ({"max_tokens": 1, "parameters": {"max_tokens": 2}}, "member 'max_tokens': expected once, "
         "got it in 'parameters' as well"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told(document: dict[str, Any], sentence: str) -> None:
    assert refusal(document) == sentence


def test_of_many_faults_the_first_eight_are_told() -> None:
    assert refusal({f"m{number}": None for number in range(20)}).count("; ") == 7


def test_nesting_has_no_depth_that_hurts() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    assert read({"text_input": deep}) == {"text_input": ((1,), [b"x"])}


# Writing


def test_an_output_of_one_element_is_no_list() -> None:
    response = Response(
        "m",
        "3",
        [
            from_array("text", Datatype.BYTES, np.array([b"hey"], object)),
            from_array("both", Datatype.FP32, np.array([[0.5, 2]], np.float32)),
            from_array("none", Datatype.INT8, np.zeros(0, np.int8)),
            from_array("nan", Datatype.FP64, np.array([[np.nan]])),
            from_array("yes", Datatype.BOOL, np.array([True])),
        ],
        id="7",
        parameters={"finish": "length", FINAL: False},
    )
    assert v2_json.dump(generate.write_response(response)) == (
        b'{"id":"7","model_name":"m","model_version":"3","text":"hey","both":[0.5,2.0],"none":[],'
        b'"nan":NaN,"yes":true,"finish":"length"}'
    )


def test_of_two_members_with_one_name_there_is_the_one_that_triton_has() -> None:
    outputs = [
        from_array(name, Datatype.INT8, np.array([1], np.int8))
        for name in ("id", "model_name", "score")
    ]
    response = Response("m", "3", outputs, parameters={"score": 2, "model_version": 9})
    written = generate.write_response(response)
    assert written == {"id": 1, "model_name": "m", "model_version": "3", "score": 2}


def test_text_that_is_none_is_the_engines_failure() -> None:
    response = Response("m", "3", [Tensor("y", Datatype.BYTES, (1,), b"\x01\x00\x00\x00\xff")])
    with pytest.raises(EngineFailed, match="output 'y' is not UTF-8"):
        generate.write_response(response)


@settings(deadline=None, database=None, max_examples=100)
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=4))
def test_text_comes_back_as_it_went(texts: list[str]) -> None:
    body = v2_json.dump({"text_input": texts})
    (tensor,) = generate.read_request(v2_json.parse(body), TEXT).inputs
    written = v2_json.dump(generate.write_response(Response("m", "1", [tensor])))
    expected = texts if len(texts) > 1 else texts[0]
    assert v2_json.parse(written)["text_input"] == expected
