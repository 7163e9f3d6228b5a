"""From files of every kind to tensors, and files that are made to do harm."""

import asyncio
import contextlib
import io
import math
import struct
import threading
import tracemalloc
import warnings
import zlib
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageDraw

from tidegate_gateway import images
from tidegate_gateway.errors import (
    EngineFailed,
    InvalidInput,
    Overloaded,
    PayloadTooLarge,
    RequestError,
    UnsupportedMedia,
)
from tidegate_gateway.images import ImageContract, ImageDecoder, contract_of
from tidegate_gateway.models import ANY, Model, TensorSpec
from tidegate_gateway.tensors import Datatype, Tensor, to_array

MAX_PIXELS = 1_000_000

PLAIN = ImageContract(
    tensor="input",
    datatype=Datatype.FP32,
    height=8,
    width=8,
    channels_first=True,
    batched=True,
    crop=1.0,
    resample=Image.Resampling.BILINEAR,
    color="RGB",
    mean=(0.0, 0.0, 0.0),
    std=(1.0, 1.0, 1.0),
)

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def encoded(image: Image.Image, image_format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, image_format, **options)
    return file.getvalue()


def decoded(file: bytes) -> Image.Image:
    return images.decode(file, MAX_PIXELS)


def refused(kind: type[RequestError], file: bytes) -> str:
    with pytest.raises(kind) as caught:
        decoded(file)
    assert type(caught.value) is kind
    return caught.value.message


def scene(width: int = 64, height: int = 48) -> Image.Image:
    """A picture with gradients, edges and a texture: smooth and sharp, as photos are."""
    y, x = np.mgrid[0:height, 0:width]
    red = 127 + 120 * np.sin(x / 7) * np.cos(y / 11)
    green = 255 * x / width
    blue = np.where((x // 5 + y // 6) % 2, 220, 30)
    return Image.fromarray(np.stack([red, green, blue], axis=-1).round().astype(np.uint8))


def corners() -> Image.Image:
    """A picture that looks different in each orientation: 64 x 32, a colour in each quarter, whose
    edges are those of JPEG's blocks."""
    image = Image.new("RGB", (64, 32), WHITE)
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, 31, 15), fill=RED)
    draw.rectangle((32, 0, 63, 15), fill=GREEN)
    draw.rectangle((0, 16, 31, 31), fill=BLUE)
    return image


def close(actual: Image.Image, expected: Image.Image, tolerance: int) -> bool:
    """Whether no channel of any pixel differs by more than `tolerance`."""
    assert actual.mode == expected.mode == "RGB"
    assert actual.size == expected.size
    difference = np.abs(np.asarray(actual, np.int16) - np.asarray(expected, np.int16))
    return int(difference.max()) <= tolerance


# Files made by hand


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">L", len(data)) + kind + data + struct.pack(">L", zlib.crc32(kind + data))


def png(width: int, height: int, depth: int, color: int, row: bytes, *chunks: bytes) -> bytes:
    """A PNG file with that one row of samples, whatever size it claims."""
    header = struct.pack(">LLBBBBB", width, height, depth, color, 0, 0, 0)
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            png_chunk(b"IHDR", header),
            *chunks,
            png_chunk(b"IDAT", zlib.compress(b"\x00" + row)),
            png_chunk(b"IEND", b""),
        ]
    )


def gif_claiming(width: int, height: int) -> bytes:
    """A GIF file with a screen of one pixel, and a first frame larger than that."""
    return (
        b"GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff,\x00\x00\x00\x00"
        + struct.pack("<HH", width, height)
        + b"\x00\x02\x02D\x01\x00;"
    )


def jpeg_with_exif(image: Image.Image, exif: bytes) -> bytes:
    """A JPEG file with `exif` as it is, however broken."""
    plain = encoded(image, "JPEG", quality=95)
    segment = b"\xff\xe1" + struct.pack(">H", 2 + 6 + len(exif)) + b"Exif\x00\x00" + exif
    return plain[:2] + segment + plain[2:]


def exif_directory(*entries: tuple[int, int, int, bytes]) -> bytes:
    """EXIF data with (tag, type, count, 4 bytes) as given."""
    directory = b"".join(struct.pack("<HHL", *entry[:3]) + entry[3] for entry in entries)
    return b"II*\x00\x08\x00\x00\x00" + struct.pack("<H", len(entries)) + directory + bytes(4)


def orientation_tag(value: int) -> tuple[int, int, int, bytes]:
    return (0x0112, 3, 1, struct.pack("<HH", value, 0))


def jpeg_of_scans(extra: int) -> bytes:
    """A progressive JPEG file whose last scan is there `extra` times more."""
    file = encoded(scene(), "JPEG", progressive=True)
    last = file.rindex(b"\xff\xda")
    return file[:-2] + file[last:-2] * extra + file[-2:]


# Decoding: what is taken


@pytest.mark.parametrize(
    ("image_format", "options", "tolerance"),
    [
        ("PNG", {}, 0),
        ("WEBP", {"lossless": True}, 0),
        ("JPEG", {"quality": 100, "subsampling": 0}, 4),
        ("JPEG", {"quality": 100, "subsampling": 0, "progressive": True}, 4),
    ],
)
def test_each_format_is_read(image_format: str, options: dict[str, Any], tolerance: int) -> None:
    assert close(decoded(encoded(scene(), image_format, **options)), scene(), tolerance)


def test_a_palette_is_read() -> None:
    expected = corners()  # four colours, which a palette keeps exactly

    for image_format in ("GIF", "PNG"):
        file = encoded(expected.convert("P", palette=Image.Palette.ADAPTIVE), image_format)
        assert close(decoded(file), expected, 0), image_format


@pytest.mark.parametrize("mode", ["1", "L"])
@pytest.mark.parametrize("image_format", ["PNG", "GIF"])
def test_grey_and_bilevel_are_read(mode: str, image_format: str) -> None:
    grey = scene().convert(mode)

    assert close(decoded(encoded(grey, image_format)), grey.convert("RGB"), 0)


def test_cmyk_is_read() -> None:
    """JPEG files of this kind are inverted, as Adobe wrote them first."""
    picture = Image.new("RGB", (16, 16), (200, 100, 50))
    file = encoded(picture.convert("CMYK"), "JPEG")
    assert b"Adobe" in file

    assert close(decoded(file), picture, 3)


def test_16_bit_grey_is_scaled_and_not_clipped() -> None:
    values = np.array([[0, 127, 129, 255, 256, 257, 32768, 65279, 65535]], dtype=np.uint16)

    picture = np.asarray(decoded(encoded(Image.fromarray(values), "PNG")))

    assert picture[0, :, 0].tolist() == [0, 0, 1, 1, 1, 1, 128, 254, 255]
    assert (picture == picture[:, :, :1]).all()


@pytest.mark.parametrize(
    ("color", "samples", "expected"),
    [
        (2, (65535, 32768, 256), (255, 128, 1)),
        (4, (32768, 65535), (128, 128, 128)),
        (4, (0, 0), WHITE),
        (6, (65535, 0, 0, 65535), RED),
        (6, (65535, 0, 0, 0), WHITE),
    ],
    ids=["RGB", "grey, opaque", "grey, transparent", "RGBA, opaque", "RGBA, transparent"],
)
def test_16_bit_png_of_other_kinds(
    color: int, samples: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    row = struct.pack(f">{len(samples)}H", *samples)

    assert decoded(png(1, 1, 16, color, row)).getpixel((0, 0)) == expected


def test_white_lies_under_transparency() -> None:
    image = Image.new("RGBA", (3, 1))
    for x, alpha in enumerate((255, 51, 0)):
        image.putpixel((x, 0), (100, 0, 200, alpha))
    # 51 is a fifth: 0.2 x 100 + 0.8 x 255, and so on.
    expected = [(100, 0, 200), (224, 204, 244), WHITE]

    picture = decoded(encoded(image, "PNG"))

    assert [picture.getpixel((x, 0)) for x in range(3)] == expected


def test_white_lies_under_transparent_grey() -> None:
    image = Image.new("LA", (2, 1))
    image.putpixel((0, 0), (40, 255))
    image.putpixel((1, 0), (40, 0))

    picture = decoded(encoded(image, "PNG"))

    assert [picture.getpixel((x, 0)) for x in range(2)] == [(40, 40, 40), WHITE]


@pytest.mark.parametrize(
    ("color", "depth", "row", "transparent"),
    [
        (0, 8, b"\x05", struct.pack(">H", 5)),
        (0, 1, b"\x00", struct.pack(">H", 0)),
        (2, 8, b"\x01\x02\x03", struct.pack(">HHH", 1, 2, 3)),
    ],
    ids=["grey", "bilevel", "RGB"],
)
def test_white_lies_under_a_transparent_colour(
    color: int, depth: int, row: bytes, transparent: bytes
) -> None:
    file = png(1, 1, depth, color, row, png_chunk(b"tRNS", transparent))

    assert decoded(file).getpixel((0, 0)) == WHITE


def test_white_lies_under_a_transparent_palette() -> None:
    image = Image.new("P", (4, 1))
    image.putpalette([*RED, *GREEN, *BLUE, 0, 0, 0])
    image.putdata([0, 1, 2, 3])
    files = {
        "each colour with its own": encoded(image, "PNG", transparency=bytes([255, 0, 255, 0])),
        "one colour": encoded(image, "PNG", transparency=1),
        "GIF": encoded(image, "GIF", transparency=1),
    }

    for kind, file in files.items():
        pixels = [decoded(file).getpixel((x, 0)) for x in range(3)]
        assert pixels == [RED, WHITE, BLUE], kind


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_turned_upright(image_format: str, orientation: int) -> None:
    # What has to be done to an upright picture so that the orientation, as EXIF defines it by where
    # the first row and the first column of the file are seen, turns it back.
    stored_as = {
        1: lambda upright: upright,
        2: lambda upright: upright[:, ::-1],
        3: lambda upright: upright[::-1, ::-1],
        4: lambda upright: upright[::-1],
        5: lambda upright: upright.transpose(1, 0, 2),
        6: lambda upright: np.rot90(upright, 1),
        7: lambda upright: np.rot90(upright, 2).transpose(1, 0, 2),
        8: lambda upright: np.rot90(upright, -1),
    }
    stored = Image.fromarray(np.ascontiguousarray(stored_as[orientation](np.asarray(corners()))))
    exif = Image.Exif()
    exif[0x0112] = orientation

    picture = decoded(encoded(stored, image_format, exif=exif))

    assert picture.size == (64, 32)
    for at, color in {(8, 8): RED, (56, 8): GREEN, (8, 24): BLUE, (56, 24): WHITE}.items():
        difference = np.abs(np.array(picture.getpixel(at)) - np.array(color)).max()
        assert difference <= 8, at


@pytest.mark.parametrize("kind", ["unknown orientation", "far away", "cut", "garbage", "empty"])
def test_a_picture_is_whole_without_its_exif_data(kind: str) -> None:
    broken = {
        "unknown orientation": exif_directory(orientation_tag(9)),
        "far away": b"II*\x00\xff\xff\xff\x7f",
        "cut": exif_directory(orientation_tag(6))[:-8],
        "garbage": b"garbage, garbage",
        "empty": b"",
    }
    file = jpeg_with_exif(corners(), broken[kind])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, of odd data
        assert decoded(file).size == (64, 32)


@pytest.mark.parametrize(
    "odd",
    [
        (0x0100, 11, 1, struct.pack("<f", 1e30)),
        (0x0101, 9, 1, struct.pack("<l", -5)),
        (0x8769, 2, 4, b"abc\x00"),
        (0x8825, 4, 1, struct.pack("<L", 8)),
        (0x8769, 4, 1, struct.pack("<L", 9_999_999)),
        (0x9999, 99, 1, bytes(4)),
        (0x010F, 2, 100, struct.pack("<L", 99_999)),
    ],
    ids=["float as width", "negative", "text for data", "loop", "far away", "type", "too long"],
)
def test_odd_exif_data_does_not_hide_the_orientation(odd: tuple[int, int, int, bytes]) -> None:
    file = jpeg_with_exif(corners(), exif_directory(orientation_tag(6), odd))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert decoded(file).size == (32, 64)


@pytest.mark.parametrize(
    ("image_format", "options"),
    [("GIF", {}), ("WEBP", {"lossless": True}), ("PNG", {}), ("MPO", {})],
)
def test_the_first_frame_of_many_is_taken(image_format: str, options: dict[str, Any]) -> None:
    """MPO is what some phones and cameras write as .jpg: JPEG files one behind another."""
    frames = [Image.new("RGB", (16, 16), color) for color in (RED, GREEN, BLUE)]
    file = encoded(frames[0], image_format, save_all=True, append_images=frames[1:], **options)

    assert close(decoded(file), frames[0], 2 if image_format == "MPO" else 0)


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (500, 1), (2, 3)])
@pytest.mark.parametrize("crop", [1.0, 0.875, 1e-6])
@pytest.mark.parametrize("resample", list(images._RESAMPLING.values()))
def test_tiny_and_narrow_pictures_fill_the_tensor(
    size: tuple[int, int], crop: float, resample: Image.Resampling
) -> None:
    file = encoded(Image.new("RGB", size, (10, 20, 30)), "PNG")
    contract = replace(PLAIN, crop=crop, resample=resample)

    array = to_array(images.to_tensor(file, contract, MAX_PIXELS))

    assert array.shape == (1, 3, 8, 8)
    assert (array == np.array([10, 20, 30]).reshape(1, 3, 1, 1)).all()


def test_the_largest_picture_allowed_is_taken() -> None:
    file = encoded(Image.new("L", (1000, 1000), 77), "PNG")

    assert decoded(file).size == (1000, 1000)
    assert "1000 x 1001 = 1001000 pixels" in refused(
        PayloadTooLarge, encoded(Image.new("L", (1000, 1001)), "PNG")
    )


# Decoding: what is refused


def test_an_empty_file() -> None:
    assert refused(InvalidInput, b"") == "the uploaded file is empty: expected an image"


@pytest.mark.parametrize(
    "file",
    [
        b"\x00",
        b"hello",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%PDF-1.7\n",
        b"PK\x03\x04" + bytes(100),
        b"P6 1 1 255 abc",
        encoded(scene(), "BMP"),
        encoded(scene(), "TIFF"),
        bytes(10_000),
    ],
    ids=["zero byte", "text", "svg", "pdf", "zip", "ppm", "bmp", "tiff", "zeros"],
)
def test_a_file_that_is_no_image_of_ours(file: bytes) -> None:
    assert refused(UnsupportedMedia, file) == (
        "the uploaded file is not an image that can be read: expected JPEG, PNG, WEBP, GIF"
    )


@pytest.mark.parametrize("image_format", images.FORMATS)
@pytest.mark.parametrize("part", [0.5, 0.9])
def test_a_truncated_file(image_format: str, part: float) -> None:
    file = encoded(scene(), image_format)

    assert refused(InvalidInput, file[: int(len(file) * part)]) == (
        "the image is truncated or damaged: expected a whole file"
    )


@pytest.mark.parametrize("image_format", images.FORMATS)
def test_a_file_cut_anywhere_is_the_clients_fault(image_format: str) -> None:
    file = encoded(scene(24, 16), image_format)
    for size in range(1, len(file), max(1, len(file) // 60)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                decoded(file[:size])
            except (InvalidInput, UnsupportedMedia):
                continue
        # Only what lies behind the pixels may be missing.
        assert size > len(file) * 0.9


@pytest.mark.parametrize("image_format", images.FORMATS)
def test_damaged_bytes_are_never_the_gateways_fault(image_format: str) -> None:
    file = encoded(scene(24, 16), image_format)
    random = np.random.default_rng(20240607)
    for _ in range(60):
        damaged = bytearray(file)
        for at in random.integers(0, len(file), 4):
            damaged[at] = random.integers(0, 256)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                images.to_tensor(bytes(damaged), PLAIN, MAX_PIXELS)
            except (InvalidInput, UnsupportedMedia, PayloadTooLarge) as error:
                assert "Traceback" not in error.message


@pytest.mark.parametrize(
    ("file", "size"),
    [
        (png(100_000, 100_000, 8, 2, b""), "100000 x 100000 = 10000000000"),
        (png(2**31 - 1, 2**31 - 1, 8, 2, b""), f"{2**31 - 1} x {2**31 - 1} = {(2**31 - 1) ** 2}"),
        (gif_claiming(65_535, 65_535), "65535 x 65535 = 4294836225"),
        (encoded(Image.new("L", (5000, 5000)), "WEBP", lossless=True), "5000 x 5000 = 25000000"),
        (encoded(Image.new("L", (5000, 5000)), "JPEG"), "5000 x 5000 = 25000000"),
    ],
    ids=["PNG", "largest PNG", "GIF", "WEBP", "JPEG"],
)
def test_a_decompression_bomb_is_refused_before_it_goes_off(file: bytes, size: str) -> None:
    assert len(file) < 400_000
    tracemalloc.start()
    try:
        message = refused(PayloadTooLarge, file)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert message == (f"the image has {size} pixels: expected at most 1000000 (images.max_pixels)")
    assert peak < 4 * 2**20


def test_a_decompression_bomb_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(self: Image.Image) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(Image.Image, "load", load)

    refused(PayloadTooLarge, png(100_000, 100_000, 8, 2, b""))


@pytest.mark.parametrize("kind", [b"zTXt", b"iCCP"])
def test_text_that_decompresses_without_end_is_refused(kind: bytes) -> None:
    bomb = png_chunk(kind, b"a\x00\x00" + zlib.compress(bytes(5_000_000)))

    assert refused(InvalidInput, png(1, 1, 8, 2, b"\x01\x02\x03", bomb)) == (
        "the image is truncated or damaged: expected a whole file"
    )


def test_a_jpeg_of_endless_scans_is_refused() -> None:
    """A scan of a few bytes costs as much time as any other."""
    own = images._jpeg_scans(jpeg_of_scans(0))
    assert 2 <= own <= 12
    assert images._jpeg_scans(encoded(scene(), "JPEG")) == 1

    assert decoded(jpeg_of_scans(5)).size == scene().size
    assert refused(InvalidInput, jpeg_of_scans(200)) == (
        f"the image has {own + 200} scans: expected at most 100"
    )


def test_scans_of_a_thumbnail_do_not_count() -> None:
    thumbnail = jpeg_of_scans(200)[:60_000]

    assert decoded(jpeg_with_exif(corners(), b"II*\x00\x08\x00\x00\x00" + bytes(6) + thumbnail))


# The contract


def model(
    parameters: dict[str, str] | None = None,
    shape: tuple[int, ...] = (ANY, 3, 224, 224),
    *,
    datatype: Datatype = Datatype.FP32,
    max_batch_size: int = 8,
    channels_first: bool | None = None,
) -> Model:
    spec = TensorSpec("input", datatype, shape, channels_first=channels_first)
    return Model(
        name="m",
        version="",
        versions=("1",),
        platform="",
        max_batch_size=max_batch_size,
        inputs=(spec,),
        outputs=(TensorSpec("output", Datatype.FP32, (ANY, 1000)),),
        parameters={"image.crop": "1"} if parameters is None else parameters,
    )


def test_a_contract_is_read_whole() -> None:
    stated = contract_of(
        model(
            {
                "image.crop": "0.875",
                "image.resample": "bicubic",
                "image.color": "BGR",
                "image.mean": "123.7, 116.3,103.5",
                "image.std": "58",
                "scores": "softmax",
            }
        )
    )

    assert stated == ImageContract(
        tensor="input",
        datatype=Datatype.FP32,
        height=224,
        width=224,
        channels_first=True,
        batched=True,
        crop=0.875,
        resample=Image.Resampling.BICUBIC,
        color="BGR",
        mean=(123.7, 116.3, 103.5),
        std=(58.0, 58.0, 58.0),
    )


def test_what_a_contract_does_not_say() -> None:
    stated = contract_of(model({"image.color": "RGB"}))

    assert (stated.crop, stated.resample, stated.color) == (1, Image.Resampling.BILINEAR, "RGB")
    assert (stated.mean, stated.std) == ((0, 0, 0), (1, 1, 1))


@pytest.mark.parametrize(
    ("shape", "max_batch_size", "channels_first", "expected"),
    [
        ((ANY, 3, 20, 30), 8, None, (True, True, 20, 30)),
        ((ANY, 20, 30, 3), 8, None, (True, False, 20, 30)),
        ((3, 20, 30), 0, None, (False, True, 20, 30)),
        ((20, 30, 3), 0, None, (False, False, 20, 30)),
        ((1, 3, 20, 30), 0, None, (True, True, 20, 30)),
        ((ANY, 3, 20, 3), 8, False, (True, False, 3, 20)),
        ((ANY, 3, 20, 3), 8, True, (True, True, 20, 3)),
    ],
)
def test_where_the_sizes_are(
    shape: tuple[int, ...],
    max_batch_size: int,
    channels_first: bool | None,
    expected: tuple[bool, bool, int, int],
) -> None:
    stated = contract_of(
        model(shape=shape, max_batch_size=max_batch_size, channels_first=channels_first)
    )

    assert (
        stated.batched,
        stated.channels_first,
        stated.height,
        stated.width,
    ) == expected


def test_one_channel_where_the_colour_is_grey() -> None:
    stated = contract_of(model({"image.color": "GRAY", "image.mean": "128"}, (ANY, 1, 28, 28)))

    assert (stated.mean, stated.std, stated.channels_first) == ((128,), (1,), True)


@pytest.mark.parametrize(
    ("parameters", "fault"),
    [
        ({"image.crop": "0"}, "expected image.crop above 0 and at most 1, got 0.0"),
        ({"image.crop": "1.01"}, "expected image.crop above 0 and at most 1, got 1.01"),
        ({"image.crop": "-1"}, "expected image.crop above 0 and at most 1, got -1.0"),
        ({"image.crop": "nan"}, "expected image.crop as one number, got 'nan'"),
        ({"image.crop": "1,1,1"}, "expected image.crop as one number, got '1,1,1'"),
        ({"image.crop": "most"}, "expected image.crop as one number, got 'most'"),
        ({"image.mean": "1,2"}, "expected image.mean as one number or 3, got '1,2'"),
        ({"image.mean": ""}, "expected image.mean as one number or 3, got ''"),
        ({"image.mean": "1,,2"}, "expected image.mean as one number or 3, got '1,,2'"),
        ({"image.mean": "inf"}, "expected image.mean as one number or 3, got 'inf'"),
        ({"image.mean": "1e300"}, "expected image.mean as one number or 3, got '1e300'"),
        ({"image.std": "1,2,x"}, "expected image.std as one number or 3, got '1,2,x'"),
        ({"image.std": "1,0,1"}, "expected image.std other than 0"),
        ({"image.std": "1e-300"}, "expected image.std other than 0"),
        ({"image.color": "rgb"}, "expected image.color of RGB, BGR, GRAY, got 'rgb'"),
        (
            {"image.resample": "area"},
            "expected image.resample of nearest, bilinear, bicubic, lanczos, got 'area'",
        ),
        (
            {"image.color": "GRAY"},
            "expected 1 channels of a fixed size, got [-1, 3, 224, 224]",
        ),
    ],
)
def test_an_unfit_parameter_is_the_models_fault(parameters: dict[str, str], fault: str) -> None:
    with pytest.raises(EngineFailed) as failed:
        contract_of(model(parameters))

    assert failed.value.message == f"model 'm' has an unfit image contract: {fault}"


@pytest.mark.parametrize(
    ("unfit", "fault"),
    [
        (
            model(shape=(ANY, 3, ANY, ANY)),
            "expected 3 channels of a fixed size, got [-1, 3, -1, -1]",
        ),
        (model(shape=(ANY, 3, 0, 224)), "expected 3 channels of a fixed size, got [-1, 3, 0, 224]"),
        (
            model(shape=(ANY, 4, 224, 224)),
            "expected 3 channels of a fixed size, got [-1, 4, 224, 224]",
        ),
        (
            model(shape=(ANY, 224, 224, 3), channels_first=True),
            "expected 3 channels of a fixed size, got [-1, 224, 224, 3]",
        ),
        (model(shape=(ANY, 224)), "expected input dims of 3 (or 4 with the batch), got [-1, 224]"),
        (model(shape=(224, 224), max_batch_size=0), "expected input dims of 3 (or 4 with the batch)"
         ", got [224, 224]"),
        (
            model(shape=(8, 3, 224, 224), max_batch_size=0),
            "expected a batch dimension that takes 1, got [8, 3, 224, 224]",
        ),
        (model(datatype=Datatype.INT8), "expected input FP32, FP16 or UINT8, got INT8"),
    ],
)  # fmt: skip
def test_an_unfit_input_is_the_models_fault(unfit: Model, fault: str) -> None:
    with pytest.raises(EngineFailed) as failed:
        contract_of(unfit)

    assert failed.value.message == f"model 'm' has an unfit image contract: {fault}"


def test_a_model_that_takes_no_image() -> None:
    with pytest.raises(InvalidInput) as refusal:
        contract_of(model({"scores": "softmax"}))
    assert refusal.value.message == (
        "model 'm' takes no image: expected one input and parameters image.* in its "
        "configuration, got inputs ['input'] and parameters ['scores']"
    )

    two = replace(model(), inputs=model().inputs * 2)
    with pytest.raises(InvalidInput, match=r"got inputs \['input', 'input'\]"):
        contract_of(two)


# Preprocessing


class Kernel(NamedTuple):
    """What a pixel is worth at a distance, in output pixels, and from which distance nothing."""

    worth: Callable[[float], float]
    reach: int


def cubic(distance: float) -> float:
    """Keys' kernel with a = -0.5, which Pillow's bicubic is."""
    x, a = abs(distance), -0.5
    if x < 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * a if x < 2 else 0.0


def triangle(distance: float) -> float:
    return max(0.0, 1 - abs(distance))


def weights(size: int, length: float, out: int, kernel: Kernel) -> npt.NDArray[np.float64]:
    """[out, size]: what each pixel of a line is worth in each pixel of its resampled middle.

    Where a picture shrinks, its kernel is that much wider, so that no pixel is left out.
    """
    start, scale = (size - length) / 2, length / out
    widened = max(scale, 1.0)
    matrix = np.zeros((out, size))
    for row in range(out):
        center = start + (row + 0.5) * scale
        for column in range(size):
            if abs(column + 0.5 - center) < kernel.reach * widened:
                matrix[row, column] = kernel.worth((column + 0.5 - center) / widened)
        matrix[row] /= matrix[row].sum()
    return matrix


def reference(
    image: Image.Image, crop: float, out: tuple[int, int], kernel: Kernel
) -> npt.NDArray[np.float64]:
    """The centred crop resampled to (height, width), in floating point: [height, width, 3]."""
    pixels = np.asarray(image, dtype=np.float64)
    height, width = pixels.shape[:2]
    # The largest box of the wanted proportions that fits, and of that the part `crop`.
    box_height = min(height, width * out[0] / out[1]) * crop
    box_width = box_height * out[1] / out[0]
    down = weights(height, box_height, out[0], kernel)
    across = weights(width, box_width, out[1], kernel)
    resampled: npt.NDArray[np.float64] = np.einsum("yh,xw,hwc->yxc", down, across, pixels)
    return resampled.clip(0, 255)


@pytest.mark.parametrize("size", [(90, 60), (61, 97), (30, 20)], ids=["wide", "tall", "enlarged"])
@pytest.mark.parametrize("out", [(24, 24), (16, 28)], ids=["square", "oblong"])
@pytest.mark.parametrize("crop", [1.0, 0.875])
@pytest.mark.parametrize(
    ("resample", "kernel"),
    [
        (Image.Resampling.BICUBIC, Kernel(cubic, 2)),
        (Image.Resampling.BILINEAR, Kernel(triangle, 1)),
    ],
    ids=["bicubic", "bilinear"],
)
def test_crop_and_resize_agree_with_a_reference(
    size: tuple[int, int],
    out: tuple[int, int],
    crop: float,
    resample: Image.Resampling,
    kernel: Kernel,
) -> None:
    contract = replace(
        PLAIN,
        height=out[0],
        width=out[1],
        crop=crop,
        resample=resample,
        channels_first=False,
        batched=False,
    )

    difference = np.abs(
        images.preprocess(scene(*size), contract) - reference(scene(*size), crop, out, kernel)
    )

    # Pillow rounds to whole numbers after each of its two passes, and clips in between.
    assert difference.mean() < 0.5
    assert np.quantile(difference, 0.99) < 1.5


@pytest.mark.parametrize("target", [224, 299, 300])
def test_no_size_of_a_picture_is_in_the_way_of_the_crop(target: int) -> None:
    """Rounding must not put the box a hair outside the picture: 29 x 36 once did."""
    contract = replace(PLAIN, height=target, width=target, resample=Image.Resampling.NEAREST)
    for side in range(1, 400, 3):
        for size in ((side, side + 7), (side + 7, side), (side, side)):
            assert images.preprocess(Image.new("RGB", size), contract).shape[2:] == (target, target)


def one_pixel(contract: ImageContract) -> npt.NDArray[Any]:
    """The tensor of a picture of one colour, which its contract makes one pixel."""
    file = encoded(Image.new("RGB", (5, 5), (10, 20, 30)), "PNG")
    tensor = images.to_tensor(file, replace(contract, height=1, width=1), MAX_PIXELS)
    assert tensor.name == "input"
    assert tensor.datatype is contract.datatype
    return to_array(tensor)


def test_mean_and_std_are_those_of_each_channel() -> None:
    contract = replace(PLAIN, mean=(5.0, 0.0, 33.0), std=(2.0, 10.0, -3.0))

    assert one_pixel(contract).tolist() == [[[[2.5]], [[2.0]], [[1.0]]]]


def test_mean_and_std_follow_the_channels_in_bgr() -> None:
    contract = replace(PLAIN, color="BGR", mean=(0.0, 10.0, 0.0), std=(1.0, 1.0, 10.0))

    assert one_pixel(contract).tolist() == [[[[30.0]], [[10.0]], [[1.0]]]]


def test_grey_is_weighed_as_the_eye_does() -> None:
    contract = replace(PLAIN, color="GRAY", mean=(0.0,), std=(1.0,))

    # ITU-R 601: 0.299 x 10 + 0.587 x 20 + 0.114 x 30
    assert one_pixel(contract).tolist() == [[[[18.0]]]]


@pytest.mark.parametrize(
    ("channels_first", "batched", "shape"),
    [
        (True, True, (1, 3, 8, 6)),
        (False, True, (1, 8, 6, 3)),
        (True, False, (3, 8, 6)),
        (False, False, (8, 6, 3)),
    ],
)
def test_channels_and_batch_are_where_the_contract_says(
    channels_first: bool, batched: bool, shape: tuple[int, ...]
) -> None:
    contract = replace(
        PLAIN,
        height=8,
        width=6,
        channels_first=channels_first,
        batched=batched,
        resample=Image.Resampling.NEAREST,
    )
    picture = scene(6, 8)

    tensor = images.to_tensor(encoded(picture, "PNG"), contract, MAX_PIXELS)

    assert tensor.shape == shape
    array = to_array(tensor)
    array = array[0] if batched else array
    array = array.transpose(1, 2, 0) if channels_first else array
    assert (array == np.asarray(picture)).all()


def test_uint8_is_rounded_and_clipped() -> None:
    contract = replace(PLAIN, datatype=Datatype.UINT8, mean=(11.0, 0.0, 0.0), std=(1.0, 0.05, 4.0))

    # -1 is clipped to 0, 400 to 255; 7.5 is rounded to the even 8.
    assert one_pixel(contract).tolist() == [[[[0]], [[255]], [[8]]]]


def test_fp16_beyond_its_range_is_infinite() -> None:
    contract = replace(PLAIN, datatype=Datatype.FP16, std=(1.0, 1e-6, 1.0))

    assert one_pixel(contract).tolist() == [[[[10.0]], [[math.inf]], [[30.0]]]]


# The threads


class Gate:
    """Stands in for `to_tensor`, and holds its thread until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.opened = threading.Event()
        self.files: list[bytes] = []

    def __call__(self, file: bytes, contract: ImageContract, max_pixels: int) -> Tensor:
        self.files.append(file)
        self.entered.release()
        assert self.opened.wait(20)
        return Tensor(contract.tensor, contract.datatype, (0,), b"")

    async def has_entered(self) -> None:
        assert await asyncio.to_thread(self.entered.acquire, timeout=20)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    held = Gate()
    monkeypatch.setattr(images, "to_tensor", held)
    return held


async def decoded_as_soon_as_there_is_room(decoder: ImageDecoder, file: bytes) -> None:
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(Overloaded):
                await decoder.decode(file, PLAIN)
                return
            await turns()


async def turns(count: int = 20) -> None:
    """Let everything happen that is ready to."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_files_are_decoded_off_the_event_loop() -> None:
    decoder = ImageDecoder(threads=1, max_waiting=0, max_pixels=MAX_PIXELS)
    file = encoded(scene(), "PNG")

    tensor = await decoder.decode(file, PLAIN)

    assert tensor == images.to_tensor(file, PLAIN, MAX_PIXELS)
    decoder.close()


async def test_a_refusal_comes_through_and_frees_the_place() -> None:
    decoder = ImageDecoder(threads=1, max_waiting=0, max_pixels=MAX_PIXELS)

    for _ in range(3):
        with pytest.raises(InvalidInput, match="is empty"):
            await decoded_as_soon_as_there_is_room(decoder, b"")
    decoder.close()


async def test_one_file_too_many_is_refused_at_once(gate: Gate) -> None:
    decoder = ImageDecoder(threads=2, max_waiting=1, max_pixels=MAX_PIXELS)
    held = [asyncio.create_task(decoder.decode(bytes([i]), PLAIN)) for i in range(3)]
    await gate.has_entered()
    await gate.has_entered()

    with pytest.raises(Overloaded) as overloaded:
        await decoder.decode(b"one too many", PLAIN)
    assert overloaded.value.message == (
        "1 images are waiting to be decoded already (images.max_waiting); try again later"
    )
    assert len(gate.files) == 2

    gate.opened.set()
    await asyncio.gather(*held)
    assert gate.files == [b"\x00", b"\x01", b"\x02"]
    await decoded_as_soon_as_there_is_room(decoder, b"there is room again")
    decoder.close()


async def test_a_cancelled_request_keeps_its_thread_until_that_is_done(gate: Gate) -> None:
    decoder = ImageDecoder(threads=1, max_waiting=0, max_pixels=MAX_PIXELS)
    running = asyncio.create_task(decoder.decode(b"first", PLAIN))
    await gate.has_entered()

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await turns()
    with pytest.raises(Overloaded):
        await decoder.decode(b"second", PLAIN)

    gate.opened.set()
    await decoded_as_soon_as_there_is_room(decoder, b"third")
    assert gate.files == [b"first", b"third"]
    decoder.close()


async def test_a_cancelled_request_that_waits_frees_its_place_and_its_file(gate: Gate) -> None:
    decoder = ImageDecoder(threads=1, max_waiting=1, max_pixels=MAX_PIXELS)
    running = asyncio.create_task(decoder.decode(b"first", PLAIN))
    await gate.has_entered()

    for _ in range(50):
        waiting = asyncio.create_task(decoder.decode(b"impatient", PLAIN))
        await turns(2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    # Nothing of them is left behind to be decoded, or to be held in memory until it is.
    assert decoder._executor._work_queue.qsize() == 0
    patient = asyncio.create_task(decoder.decode(b"patient", PLAIN))
    await turns()

    gate.opened.set()
    await asyncio.gather(running, patient)
    assert gate.files == [b"first", b"patient"]
    decoder.close()


async def test_places_are_given_in_the_order_of_arrival(gate: Gate) -> None:
    decoder = ImageDecoder(threads=1, max_waiting=20, max_pixels=MAX_PIXELS)
    tasks = [asyncio.create_task(decoder.decode(bytes([i]), PLAIN)) for i in range(20)]
    await gate.has_entered()

    gate.opened.set()
    await asyncio.gather(*tasks)

    assert all(earlier < later for earlier, later in pairwise(gate.files))
    decoder.close()
