"""POST /predict and POST /predict/v2 on a real Triton: photos in, labels out, bad input refused."""

import io
import math
from collections.abc import Mapping
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.needs("engine")

CATS = {"tabby", "tiger cat", "Egyptian cat", "lynx"}
FORMATS = "JPEG, PNG, WEBP, GIF"


def upload(client: httpx.Client, file: bytes, **parameters: Any) -> httpx.Response:
    return client.post("/predict", files={"file": ("photo", file)}, params=parameters)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def detail(response: httpx.Response) -> str:
    assert set(response.json()) == {"detail"}, response.text
    return str(response.json()["detail"])


# --- photos in, labels out ----------------------------------------------------------------------


@pytest.mark.parametrize("model", ["image_classifier", "resnet50_cpp"])
@pytest.mark.parametrize(
    ("photo", "expected"),
    [("chelsea.png", CATS), ("coffee.png", {"espresso"}), ("camera.png", {"tripod"})],
)
def test_a_photo_gets_its_label(
    client: httpx.Client,
    photos: Mapping[str, bytes],
    model: str,
    photo: str,
    expected: set[str],
) -> None:
    response = upload(client, photos[photo], model=model)
    assert response.status_code == 200, response.text
    answer = response.json()
    assert list(answer) == ["model_name", "model_version", "predictions", "top"]
    assert (answer["model_name"], answer["model_version"]) == (model, "1")
    assert answer["top"][0]["label"] in expected
    assert np.shape(answer["predictions"]) == (1, 1000)
    assert answer["top"][0]["index"] == int(np.argmax(answer["predictions"][0]))


def test_top_says_how_many_and_its_scores_are_a_softmax(
    client: httpx.Client, photos: Mapping[str, bytes]
) -> None:
    answer = upload(client, photos["coffee.png"], top=1000).json()
    scores = [candidate["score"] for candidate in answer["top"]]
    assert len(scores) == 1000
    assert scores == sorted(scores, reverse=True)
    assert math.isclose(sum(scores), 1, abs_tol=1e-9)
    assert len(upload(client, photos["coffee.png"]).json()["top"]) == 5


@pytest.mark.parametrize("top", ["0", "1001", "many"])
def test_top_out_of_range_is_refused(
    client: httpx.Client, photos: Mapping[str, bytes], top: str
) -> None:
    response = upload(client, photos["coffee.png"], top=top)
    assert response.status_code == 400
    assert detail(response).startswith("query parameter 'top': Input should be ")
    assert detail(response).endswith(f", got {top!r}")


# --- images of every kind -----------------------------------------------------------------------


def best_label(client: httpx.Client, file: bytes) -> str:
    response = upload(client, file, top=1)
    assert response.status_code == 200, response.text
    return str(response.json()["top"][0]["label"])


@pytest.fixture(scope="module")
def coffee(photos: Mapping[str, bytes]) -> Image.Image:
    return Image.open(io.BytesIO(photos["coffee.png"])).convert("RGB")


def test_cmyk_jpeg(client: httpx.Client, coffee: Image.Image) -> None:
    assert best_label(client, encoded(coffee.convert("CMYK"), "JPEG")) == "espresso"


def test_16_bit_grey(client: httpx.Client, photos: Mapping[str, bytes]) -> None:
    grey = np.asarray(Image.open(io.BytesIO(photos["camera.png"])).convert("L"))
    deep = Image.fromarray(grey.astype(np.uint16) * 257)
    assert best_label(client, encoded(deep)) == "tripod"


def test_palette_with_transparency(client: httpx.Client, coffee: Image.Image) -> None:
    palette = coffee.quantize(255)
    assert best_label(client, encoded(palette, transparency=255)) == "espresso"


def test_exif_rotated_is_turned_upright(client: httpx.Client, coffee: Image.Image) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show it rotated by 270 degrees
    lying = coffee.transpose(Image.Transpose.ROTATE_90)
    upright = upload(client, encoded(coffee, "JPEG", quality=95)).json()["predictions"][0]
    turned = upload(client, encoded(lying, "JPEG", quality=95, exif=exif)).json()
    assert np.corrcoef(upright, turned["predictions"][0])[0, 1] > 0.99


def test_animated_shows_its_first_frame(client: httpx.Client, coffee: Image.Image) -> None:
    black = Image.new("RGB", coffee.size)
    animated = encoded(coffee, "GIF", save_all=True, append_images=[black, black])
    assert best_label(client, animated) == "espresso"


def test_1x1(client: httpx.Client) -> None:
    response = upload(client, encoded(Image.new("RGB", (1, 1), "red")))
    assert response.status_code == 200
    assert np.isfinite(response.json()["predictions"]).all()


def test_20_mb(client: httpx.Client, coffee: Image.Image) -> None:
    file = encoded(coffee.resize((4600, 3067)), compress_level=0)
    assert len(file) > 40 * 2**20
    response = upload(client, file)
    assert (response.status_code, detail(response)) == (
        413,
        "the body: expected at most 33554432 bytes (images.max_upload_bytes), got more",
    )
    file = encoded(coffee.resize((3000, 2334)), compress_level=0)
    assert 20 * 2**20 < len(file) < 32 * 2**20
    assert best_label(client, file) == "espresso"


def test_a_file_just_over_the_limit_says_its_size(client: httpx.Client) -> None:
    response = upload(client, bytes(2**25 + 1))
    assert (response.status_code, detail(response)) == (
        413,
        "the file: expected at most 33554432 bytes (images.max_upload_bytes), got 33554433",
    )


# --- bad uploads --------------------------------------------------------------------------------


def test_an_empty_file_is_refused(client: httpx.Client) -> None:
    response = upload(client, b"")
    assert (response.status_code, detail(response)) == (
        400,
        "the uploaded file is empty: expected an image",
    )


def test_no_image_is_refused(client: httpx.Client) -> None:
    response = upload(client, b"%PDF-1.4 no image")
    assert (response.status_code, detail(response)) == (
        415,
        f"the uploaded file is not an image that can be read: expected {FORMATS}",
    )


def test_a_truncated_image_is_refused(client: httpx.Client, photos: Mapping[str, bytes]) -> None:
    file = photos["coffee.png"]
    response = upload(client, file[: len(file) // 2])
    assert (response.status_code, detail(response)) == (
        400,
        "the image is truncated or damaged: expected a whole file",
    )


def test_a_decompression_bomb_is_refused(client: httpx.Client) -> None:
    bomb = encoded(Image.new("1", (20_000, 20_000)))
    assert len(bomb) < 100_000
    response = upload(client, bomb)
    assert (response.status_code, detail(response)) == (
        413,
        "the image has 20000 x 20000 = 400000000 pixels: expected at most 50000000 "
        "(images.max_pixels)",
    )


def test_a_wrong_field_name_is_refused(client: httpx.Client, photos: Mapping[str, bytes]) -> None:
    response = client.post("/predict", files={"image": ("a", photos["coffee.png"])})
    assert (response.status_code, detail(response)) == (
        400,
        "expected one file in the form field 'file', got a file in 'image'",
    )


def test_two_files_are_refused(client: httpx.Client, photos: Mapping[str, bytes]) -> None:
    file = ("file", ("a.png", photos["coffee.png"]))
    response = client.post("/predict", files=[file, file])
    assert (response.status_code, detail(response)) == (
        400,
        "expected one file in the form field 'file', got a file in 'file', a file in 'file'",
    )


def test_text_in_place_of_a_file_is_refused(client: httpx.Client) -> None:
    response = client.post("/predict", files={"file": (None, "coffee.png")})
    assert (response.status_code, detail(response)) == (
        400,
        "expected one file in the form field 'file', got text in 'file'",
    )


def test_no_file_is_refused(client: httpx.Client) -> None:
    response = client.post(
        "/predict",
        content=b"--x--\r\n",
        headers={"content-type": "multipart/form-data; boundary=x"},
    )
    assert (response.status_code, detail(response)) == (
        400,
        "expected one file in the form field 'file', got an empty form",
    )


@pytest.mark.parametrize(("kind", "got"), [("image/png", "'image/png'"), ("", "'no content type'")])
def test_a_body_that_is_no_form_is_refused(client: httpx.Client, kind: str, got: str) -> None:
    headers = {"content-type": kind} if kind else {}
    response = client.post("/predict", content=b"x", headers=headers)
    assert (response.status_code, detail(response)) == (
        415,
        f"the body: expected multipart/form-data with a file in the field 'file', got {got}",
    )


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data", b"--x--\r\n"),
        ("multipart/form-data; boundary=x", b"no boundary"),
        ("multipart/form-data; boundary=x", b"--x\r\nno header\r\n\r\nabc\r\n--x--\r\n"),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nabc',
        ),
    ],
    ids=["no boundary said", "another boundary", "no header", "cut off"],
)
def test_a_broken_form_is_refused(client: httpx.Client, kind: str, body: bytes) -> None:
    response = client.post("/predict", content=body, headers={"content-type": kind})
    assert response.status_code == 400, response.text
    assert detail(response) == "the body is no whole multipart/form-data"


def test_an_unknown_model_is_refused(client: httpx.Client, photos: Mapping[str, bytes]) -> None:
    response = upload(client, photos["coffee.png"], model="nobody")
    assert (response.status_code, detail(response)) == (404, "no engine has model 'nobody'")


def test_a_model_that_takes_no_image_is_refused(
    client: httpx.Client, photos: Mapping[str, bytes]
) -> None:
    response = upload(client, photos["coffee.png"], model="raising")
    assert response.status_code == 400
    assert detail(response).startswith(
        "model 'raising' takes no image: expected one input and parameters image.* in its "
        "configuration"
    )


@pytest.mark.parametrize("timeout", ["0", "-1", "soon", "1e3", "inf", ""])
def test_a_timeout_that_is_no_number_is_refused(client: httpx.Client, timeout: str) -> None:
    response = client.post("/predict/v2", content=b"{}", headers={"tidegate-timeout": timeout})
    assert (response.status_code, detail(response)) == (
        400,
        f"tidegate-timeout: expected decimal seconds above 0, such as 2.5, got {timeout!r}",
    )


# --- POST /predict/v2 ---------------------------------------------------------------------------


def test_tensors_as_json(client: httpx.Client) -> None:
    response = client.post(
        "/predict/v2",
        json={
            "model_name": "slow",
            "inputs": [{"name": "input", "shape": [2], "datatype": "FP32", "data": [1.5, -2]}],
            "outputs": [{"name": "output"}],
        },
    )
    assert response.status_code == 200, response.text
    assert response.json() == {
        "status": "success",
        "data": {
            "model_name": "slow",
            "model_version": "1",
            "outputs": [{"name": "output", "datatype": "FP32", "shape": [2], "data": [1.5, -2.0]}],
        },
    }


def test_without_a_name_the_default_model_is_meant(client: httpx.Client) -> None:
    response = client.post("/predict/v2", json={"inputs": []})
    assert (response.status_code, detail(response)) == (
        400,
        "model 'image_classifier': input 'input' (FP32 [-1, 3, 224, 224]) is missing",
    )


@pytest.mark.parametrize(("name", "got"), [(None, "null"), (3, "3"), ("", "an empty one")])
def test_a_model_name_that_is_no_name_is_refused(
    client: httpx.Client, name: object, got: str
) -> None:
    response = client.post("/predict/v2", json={"model_name": name, "inputs": []})
    assert (response.status_code, detail(response)) == (
        400,
        f"the request: expected member 'model_name' as a string, got {got}",
    )
