"""What a model takes and gives, and what is said of requests that do not fit."""

from dataclasses import replace

import pytest

from tidegate_gateway.errors import InvalidInput
from tidegate_gateway.models import ANY, Model, TensorSpec, check_request
from tidegate_gateway.requests import Parameter, Request, Wanted
from tidegate_gateway.tensors import MAX_RANK, Datatype, Tensor

PAIR = Model(
    name="pair",
    version="",
    versions=("1",),
    platform="onnxruntime_onnx",
    max_batch_size=4,
    inputs=(
        TensorSpec("a", Datatype.FP32, (ANY, 2)),
        TensorSpec("b", Datatype.INT8, (ANY, ANY), optional=True),
    ),
    outputs=(
        TensorSpec("sum", Datatype.FP32, (ANY, 2)),
        TensorSpec("product", Datatype.FP32, (ANY, 2)),
    ),
)
UNBATCHED = Model(
    name="unbatched",
    version="",
    versions=("1",),
    platform="python",
    max_batch_size=0,
    inputs=(TensorSpec("x", Datatype.FP32, (ANY, 3)), TensorSpec("scale", Datatype.FP32, ())),
    outputs=(TensorSpec("y", Datatype.FP32, (ANY, 3)),),
)


def a(*shape: int, datatype: Datatype = Datatype.FP32, size: int | None = None) -> Tensor:
    count = 1
    for dimension in shape:
        count *= dimension
    return Tensor("a", datatype, shape, bytes(count * 4 if size is None else size))


def b(*shape: int, size: int) -> Tensor:
    return Tensor("b", Datatype.INT8, shape, bytes(size))


def refusal(model: Model, *inputs: Tensor) -> str:
    with pytest.raises(InvalidInput) as refused:
        check_request(model, Request(model.name, inputs))
    return refused.value.message


@pytest.mark.parametrize(
    "inputs",
    [
        [a(1, 2)],
        [a(4, 2), b(4, 7, size=28)],
        [b(1, 0, size=0), a(1, 2)],
        [a(0, 2)],
    ],
    ids=["without the optional one", "largest batch", "another order", "empty batch"],
)
def test_what_a_model_takes(inputs: list[Tensor]) -> None:
    check_request(PAIR, Request("pair", inputs))


def test_a_scalar_and_a_large_first_dimension_where_there_is_no_batch() -> None:
    inputs = [
        Tensor("x", Datatype.FP32, (100, 3), bytes(1200)),
        Tensor("scale", Datatype.FP32, (), bytes(4)),
    ]
    check_request(UNBATCHED, Request("unbatched", inputs))


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        ([], "input 'a' (FP32 [-1, 2]) is missing"),
        ([b(1, 1, size=1)], "input 'a' (FP32 [-1, 2]) is missing"),
        (
            [a(1, 2), Tensor("c", Datatype.FP32, (1,), bytes(4))],
            "expected inputs of ['a', 'b'], got 'c'",
        ),
        ([a(1, 2), a(1, 2)], "input 'a': expected once, got it twice"),
        ([a(1, 2, datatype=Datatype.INT32)], "input 'a': expected datatype FP32, got INT32"),
        ([a(1, 3)], "input 'a': expected shape [-1, 2], got [1, 3]"),
        ([a(2)], "input 'a': expected shape [-1, 2], got [2]"),
        ([a(1, 2, 1)], "input 'a': expected shape [-1, 2], got [1, 2, 1]"),
        ([a(size=4)], "input 'a': expected shape [-1, 2], got []"),
        ([a(-1, 2, size=8)], "input 'a': expected sizes of 0 or more in its shape, got [-1, 2]"),
        (
            [a(1, 2), b(1, -5, size=0)],
            "input 'b': expected sizes of 0 or more in its shape, got [1, -5]",
        ),
        ([a(5, 2)], "input 'a': expected a batch of at most 4, got 5"),
        ([a(2, 2, size=15)], "input 'a': expected 16 bytes for FP32 [2, 2], got 15"),
    ],
)
def test_an_input_that_does_not_fit_is_told(inputs: list[Tensor], sentence: str) -> None:
    assert refusal(PAIR, *inputs) == f"model 'pair': {sentence}"


def test_all_faults_are_told_at_once() -> None:
    assert refusal(
        PAIR,
        Tensor("c", Datatype.FP32, (1,), bytes(4)),
        b(5, 1, size=4),
    ) == (
        "model 'pair': expected inputs of ['a', 'b'], got 'c'; "
        "input 'b': expected a batch of at most 4, got 5; "
        "input 'b': expected 5 bytes for INT8 [5, 1], got 4; "
        "input 'a' (FP32 [-1, 2]) is missing"
    )


def test_a_thousand_faults_are_not_told() -> None:
    unknown = [Tensor(f"c{i}", Datatype.FP32, (1,), bytes(4)) for i in range(1000)]

    sentence = refusal(PAIR, *unknown)

    assert sentence.endswith("got 'c7'")


def test_a_long_name_is_not_echoed_whole() -> None:
    sentence = refusal(PAIR, Tensor("c" * 100_000, Datatype.FP32, (1,), bytes(4)))

    assert sentence.startswith("model 'pair': expected inputs of ['a', 'b'], got 'ccc")
    assert sentence.endswith("ccc…")
    assert len(sentence) == 1001


@pytest.mark.parametrize("size", [2**62, -(2**62)])
def test_a_hostile_rank_is_neither_multiplied_out_nor_echoed(size: int) -> None:
    hostile = Tensor("a", Datatype.FP32, (size,) * (MAX_RANK + 1), b"")

    assert refusal(PAIR, hostile) == (
        f"model 'pair': input 'a': expected shape [-1, 2], got {MAX_RANK + 1} dimensions"
    )


def test_sizes_beyond_64_bits_are_counted_right() -> None:
    model = Model("m", "", (), "", 0, (TensorSpec("x", Datatype.FP32, (ANY, ANY)),), ())

    # Their product is 2**124; in 64 bits it would be 0, which an empty tensor has.
    assert refusal(model, Tensor("x", Datatype.FP32, (2**62, 2**62), b"")) == (
        f"model 'm': input 'x': expected {2**126} bytes for FP32 [{2**62}, {2**62}], got 0"
    )


def check(*outputs: Wanted, model: Model = PAIR, **parameters: Parameter) -> None:
    check_request(model, Request("pair", [a(1, 2)], outputs=outputs, parameters=parameters))


@pytest.mark.parametrize(
    "outputs",
    [(), (Wanted("sum"),), (Wanted("product"), Wanted("sum")), (Wanted("sum", classes=3),)],
)
def test_what_a_model_gives(outputs: tuple[Wanted, ...]) -> None:
    check(*outputs)


def test_an_unknown_output_is_told() -> None:
    with pytest.raises(InvalidInput) as refused:
        check(Wanted("sum"), Wanted("difference"), Wanted("Sum"))

    assert refused.value.message == (
        "model 'pair': expected outputs of ['sum', 'product'], got 'difference'; "
        "expected outputs of ['sum', 'product'], got 'Sum'"
    )


def test_there_are_no_classes_in_strings() -> None:
    words = replace(PAIR, outputs=(TensorSpec("words", Datatype.BYTES, (ANY,)),))

    check(Wanted("words"), model=words)
    with pytest.raises(InvalidInput) as refused:
        check(Wanted("words", classes=1), model=words)

    assert refused.value.message == (
        "model 'pair': output 'words': expected numbers to find classes in, got a model that gives "
        "BYTES"
    )


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"sequence_id": -1}, "parameter 'sequence_id': expected a whole number of 64 bits or a "
         "string, got -1"),
        ({"sequence_id": 1.5}, "parameter 'sequence_id': expected a whole number of 64 bits or a "
         "string, got 1.5"),
        ({"sequence_id": "s" * 129}, "parameter 'sequence_id': expected at most 128 characters, "
         f"got '{'s' * 129}'"),
        ({"sequence_start": 1}, "parameter 'sequence_start': expected true or false, got 1"),
        ({"sequence_end": "yes"}, "parameter 'sequence_end': expected true or false, got 'yes'"),
        ({"priority": 2**64}, f"parameter 'priority': expected a whole number of 64 bits, got "
         f"{2**64}"),
        ({"timeout": True}, "parameter 'timeout': expected a whole number of 64 bits, got True"),
        ({"triton_final_response": True}, "parameter 'triton_final_response': expected no name "
         "that begins with triton_, got True"),
    ],
)  # fmt: skip
def test_a_parameter_of_another_type_is_told(
    parameters: dict[str, Parameter], sentence: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_request(PAIR, Request("pair", [a(1, 2)], parameters=parameters))

    assert refused.value.message == f"model 'pair': {sentence}"


def test_parameters_that_are_right() -> None:
    check(
        sequence_id=2**64 - 1,
        sequence_start=True,
        priority=0,
        timeout=1,
        triton_enable_empty_final_response=False,
        own=1.5,
    )
    check(sequence_id="s" * 128, sequence_end=False)


def test_faults_of_inputs_outputs_and_parameters_are_told_together() -> None:
    with pytest.raises(InvalidInput) as refused:
        check_request(
            PAIR,
            Request("pair", [a(1, 3)], outputs=[Wanted("nothing")], parameters={"timeout": "1"}),
        )

    assert refused.value.message == (
        "model 'pair': parameter 'timeout': expected a whole number of 64 bits, got '1'; "
        "input 'a': expected shape [-1, 2], got [1, 3]; "
        "expected outputs of ['sum', 'product'], got 'nothing'"
    )
