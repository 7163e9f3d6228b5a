"""The InferenceService's bytes, written down by hand from the original design's field numbers."""

from tidegate_proto import inference_pb2

# Key bytes are (field number << 3) | wire type; 2 is "length follows". Shapes are packed varints.
TENSOR = (
    b"\x0a\x01x"  # name = 1
    b"\x12\x03\x01\xac\x02"  # shape = 2: [1, 300]
    b"\x1a\x04\x00\x00\x80\x3f"  # tensor_content = 3: 1.0 as float32, little-endian
)
MESSAGE = (
    b"\x0a\x01m"  # model_name = 1
    b"\x12\x0e" + TENSOR  # inputs or outputs = 2: 14 bytes
)


def test_request_bytes() -> None:
    request = inference_pb2.InferRequest(
        model_name="m",
        inputs=[
            inference_pb2.InferRequest.Tensor(
                name="x", shape=[1, 300], tensor_content=b"\x00\x00\x80\x3f"
            )
        ],
    )

    assert request.SerializeToString() == MESSAGE
    assert inference_pb2.InferRequest.FromString(MESSAGE) == request


def test_response_bytes() -> None:
    response = inference_pb2.InferResponse(
        model_name="m",
        outputs=[
            inference_pb2.InferResponse.Tensor(
                name="x", shape=[1, 300], tensor_content=b"\x00\x00\x80\x3f"
            )
        ],
    )

    assert response.SerializeToString() == MESSAGE
    assert inference_pb2.InferResponse.FromString(MESSAGE) == response


def test_service_has_one_unary_call() -> None:
    service = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"]

    assert service.full_name == "inference.InferenceService"
    assert [
        (m.name, m.input_type.name, m.output_type.name, m.client_streaming, m.server_streaming)
        for m in service.methods
    ] == [("ModelInfer", "InferRequest", "InferResponse", False, False)]
