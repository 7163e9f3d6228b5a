"""From an uploaded file to the tensor that an image model wants, off the event loop.

Decoding and resizing are most of what a photo costs, and would hold up every other request if they
ran on the event loop. They run in a few threads (Pillow lets go of the GIL in its C code), with a
bounded number of files waiting for one.

How to preprocess is the model's own business: an image model says it in its configuration, and
`ImageContract` reads it. So a new image model needs no change here.

    image.crop      part of the tighter side that the centred cut keeps, 0 < c <= 1; default 1
    image.resample  nearest, bilinear, bicubic or lanczos; default bilinear
    image.color     RGB, BGR or GRAY; default RGB
    image.mean      one number, or one a channel, on the scale 0 to 255; default 0
    image.std       the same; each value becomes (value - mean) / std; default 1
"""

import asyncio
import io
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, UnidentifiedImageError

from tidegate_gateway.errors import (
    EngineFailed,
    InvalidInput,
    Overloaded,
    PayloadTooLarge,
    UnsupportedMedia,
)
from tidegate_gateway.models import ANY, Model, TensorSpec
from tidegate_gateway.tensors import Datatype, Tensor, from_array

# Formats that people upload from the web. Pillow knows many more, each of them code that would meet
# hostile input for nobody's benefit: a small TIFF file of many tiny strips, or a BMP file of many
# runs, keeps a thread busy for minutes.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF")

_RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
_CHANNELS = {"RGB": 3, "BGR": 3, "GRAY": 1}

# What hides under a transparent pixel is arbitrary; photo viewers show white there.
_BACKGROUND = "white"

# By the EXIF orientation, what turns the picture upright.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# Each 16-bit grey as 8 bits; Pillow would clip to 0-255 what has to be scaled down.
_GREY_8: npt.NDArray[np.uint8] = (np.arange(2**16) / 257).round().astype(np.uint8)

# Progressive JPEG files of real encoders have about ten scans, but a few bytes suffice for one
# more, which costs as much time as any other: a file of 32 MiB could keep a thread busy for hours.
_MAX_SCANS = 100

# In entropy-coded data, the next marker that is no part of that data (stuffing, restarts).
_JPEG_MARKER = re.compile(rb"\xff+([^\x00\x01\xd0-\xd7\xff])", re.DOTALL)
_JPEG_SCAN, _JPEG_END = b"\xda", b"\xd9"

# Pillow's own limit is a process-wide variable that only warns up to twice its value; ours is
# checked from the header, before anything is decoded.
Image.MAX_IMAGE_PIXELS = None


@dataclass(frozen=True, slots=True)
class ImageContract:
    """How a model wants its images.

    Attributes:
        tensor: name of the input.
        datatype: FP32, FP16 or UINT8.
        height, width: pixels.
        channels_first: NCHW or NHWC.
        batched: whether the tensor has a batch dimension.
        crop: part of the tighter side that the centred cut keeps.
        mean, std: one number a channel, on the scale 0 to 255.
    """

    tensor: str
    datatype: Datatype
    height: int
    width: int
    channels_first: bool
    batched: bool
    crop: float
    resample: Image.Resampling
    color: Literal["RGB", "BGR", "GRAY"]
    mean: tuple[float, ...]
    std: tuple[float, ...]


def contract_of(model: Model) -> ImageContract:
    """The image contract that `model` states.

    Raises:
        InvalidInput: the model takes no image.
        EngineFailed: it states a contract that cannot be kept; the message says which part.
    """
    if len(model.inputs) != 1 or not any(key.startswith("image.") for key in model.parameters):
        raise InvalidInput(
            f"model {model.name!r} takes no image: expected one input and parameters image.* in "
            f"its configuration, got inputs {[spec.name for spec in model.inputs]} and parameters "
            f"{sorted(model.parameters)}"
        )
    try:
        return _contract(model.inputs[0], model)
    except ValueError as fault:
        raise EngineFailed(f"model {model.name!r} has an unfit image contract: {fault}") from None


def _contract(spec: TensorSpec, model: Model) -> ImageContract:
    parameters = model.parameters
    color = _choice(parameters, "image.color", "RGB", list(_CHANNELS))
    channels = _CHANNELS[color]
    batched = model.max_batch_size > 0 or len(spec.shape) == 4
    dims = spec.shape[1:] if batched else spec.shape
    if len(dims) != 3:
        raise ValueError(f"expected input dims of 3 (or 4 with the batch), got {list(spec.shape)}")
    channels_first = spec.channels_first if spec.channels_first is not None else dims[0] == channels
    height, width = dims[1:] if channels_first else dims[:2]
    if min(dims) < 1 or dims[0 if channels_first else 2] != channels:
        raise ValueError(f"expected {channels} channels of a fixed size, got {list(spec.shape)}")
    if batched and spec.shape[0] not in {ANY, 1}:
        raise ValueError(f"expected a batch dimension that takes 1, got {list(spec.shape)}")
    if spec.datatype not in (Datatype.FP32, Datatype.FP16, Datatype.UINT8):
        raise ValueError(f"expected input FP32, FP16 or UINT8, got {spec.datatype.name}")
    crop = _numbers(parameters, "image.crop", 1.0, 1)[0]
    if not 0 < crop <= 1:
        raise ValueError(f"expected image.crop above 0 and at most 1, got {crop}")
    std = _numbers(parameters, "image.std", 1.0, channels)
    if 0 in np.asarray(std, dtype=np.float32):
        raise ValueError("expected image.std other than 0")
    return ImageContract(
        tensor=spec.name,
        datatype=spec.datatype,
        height=height,
        width=width,
        channels_first=channels_first,
        batched=batched,
        crop=crop,
        resample=_RESAMPLING[_choice(parameters, "image.resample", "bilinear", list(_RESAMPLING))],
        color=color,  # type: ignore[arg-type]
        mean=_numbers(parameters, "image.mean", 0.0, channels),
        std=std,
    )


def _choice(parameters: Mapping[str, str], key: str, default: str, allowed: list[str]) -> str:
    value = parameters.get(key, default)
    if value not in allowed:
        raise ValueError(f"expected {key} of {', '.join(allowed)}, got {value!r}")
    return value


def _numbers(
    parameters: Mapping[str, str], key: str, default: float, channels: int
) -> tuple[float, ...]:
    parts = parameters.get(key, str(default)).split(",")
    try:
        numbers = tuple(float(part) for part in parts)
    except ValueError:
        numbers = ()
    largest = float(np.finfo(np.float32).max)
    if not all(abs(n) <= largest for n in numbers) or len(numbers) not in {1, channels}:
        allowed = "one number" if channels == 1 else f"one number or {channels}"
        raise ValueError(f"expected {key} as {allowed}, got {parameters[key]!r}")
    return numbers * channels if len(numbers) == 1 else numbers


def decode(file: bytes, max_pixels: int) -> Image.Image:
    """The picture in `file`, upright, in mode RGB, transparency over white, the first frame of an
    animation.

    Raises:
        InvalidInput: the file is empty, truncated or damaged, or made to keep the decoder busy.
        UnsupportedMedia: it is not an image of one of FORMATS.
        PayloadTooLarge: it has more than `max_pixels` pixels.
    """
    if not file:
        raise InvalidInput("the uploaded file is empty: expected an image")
    try:
        image = Image.open(io.BytesIO(file), formats=FORMATS)
    except UnidentifiedImageError:
        raise UnsupportedMedia(
            f"the uploaded file is not an image that can be read: expected {', '.join(FORMATS)}"
        ) from None
    except Exception as error:  # noqa: BLE001 - see _damaged
        raise _damaged(error) from None
    with image:
        pixels = image.width * image.height
        if pixels > max_pixels:
            raise PayloadTooLarge(
                f"the image has {image.width} x {image.height} = {pixels} pixels: expected at "
                f"most {max_pixels} (images.max_pixels)"
            )
        # MPO, several JPEG files one behind another, comes from the same plugin.
        if image.format in ("JPEG", "MPO") and (scans := _jpeg_scans(file)) > _MAX_SCANS:
            raise InvalidInput(f"the image has {scans} scans: expected at most {_MAX_SCANS}")
        try:
            image.load()
            return _to_rgb(_upright(image))
        except Exception as error:  # noqa: BLE001 - see _damaged
            raise _damaged(error) from None


def _damaged(error: Exception) -> InvalidInput:
    # Pillow's plugins raise OSError, SyntaxError, ValueError, struct.error, zlib.error and more for
    # damaged files; all of them mean the same to the client.
    return InvalidInput(
        "the image is truncated or damaged: expected a whole file", detail=repr(error)
    )


def _jpeg_scans(file: bytes) -> int:
    at, scans = 2, 0
    while (marker := _JPEG_MARKER.search(file, at)) and marker[1] != _JPEG_END:
        scans += marker[1] == _JPEG_SCAN
        # Past the marker's own segment, whose length counts its own two bytes.
        at = marker.end() + int.from_bytes(file[marker.end() : marker.end() + 2], "big")
    return scans


def _upright(image: Image.Image) -> Image.Image:
    try:
        method = _UPRIGHT.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # noqa: BLE001 - as in _damaged, but a picture is whole without its EXIF data
        method = None
    return image if method is None else image.transpose(method)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "I;16":
        return Image.fromarray(_GREY_8[np.asarray(image)]).convert("RGB")
    if image.has_transparency_data:
        upper = image.convert("RGBA")
        flat = Image.new("RGB", upper.size, _BACKGROUND)
        flat.paste(upper, mask=upper)
        return flat
    return image if image.mode == "RGB" else image.convert("RGB")


def preprocess(image: Image.Image, contract: ImageContract) -> npt.NDArray[np.float32]:
    """The centred crop of `image` (mode RGB) in the size, colours and scale of `contract`.

    Returns:
        float32, [channels, height, width] or [height, width, channels] as the contract says, with
        a batch dimension of 1 in front where the model has one.
    """
    scale = contract.crop * min(image.width / contract.width, image.height / contract.height)
    # Multiplied back, a size may come out a rounding error larger than it is.
    width = min(scale * contract.width, image.width)
    height = min(scale * contract.height, image.height)
    left, top = (image.width - width) / 2, (image.height - height) / 2
    if contract.color == "GRAY":
        image = image.convert("L")
    resized = image.resize(
        (contract.width, contract.height),
        contract.resample,
        box=(left, top, left + width, top + height),
    )
    pixels = np.asarray(resized, dtype=np.float32).reshape(contract.height, contract.width, -1)
    if contract.color == "BGR":
        pixels = pixels[:, :, ::-1]
    mean: npt.NDArray[np.float32] = np.asarray(contract.mean, dtype=np.float32)
    std: npt.NDArray[np.float32] = np.asarray(contract.std, dtype=np.float32)
    values: npt.NDArray[np.float32] = np.divide(np.subtract(pixels, mean), std)
    if contract.channels_first:
        values = values.transpose(2, 0, 1)
    return values[np.newaxis] if contract.batched else values


def to_tensor(file: bytes, contract: ImageContract, max_pixels: int) -> Tensor:
    """The input tensor for the picture in `file`; raises what `decode` raises."""
    values = preprocess(decode(file, max_pixels), contract)
    if contract.datatype is Datatype.UINT8:
        values = values.round().clip(0, 255)
    return from_array(contract.tensor, contract.datatype, values)


class ImageDecoder:
    """Runs `to_tensor` in a bounded number of threads, with a bounded number of files waiting."""

    def __init__(self, *, threads: int, max_waiting: int, max_pixels: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="decode")
        self._idle = asyncio.Semaphore(threads)
        self._limit = threads + max_waiting
        self._max_waiting = max_waiting
        self._max_pixels = max_pixels
        self._held = 0

    async def decode(self, file: bytes, contract: ImageContract) -> Tensor:
        """The input tensor for the picture in `file`.

        Raises:
            Overloaded: as many files as allowed are waiting already.
            InvalidInput, UnsupportedMedia, PayloadTooLarge: as `decode`.
        """
        if self._held >= self._limit:
            raise Overloaded(
                f"{self._max_waiting} images are waiting to be decoded already "
                "(images.max_waiting); try again later"
            )
        self._held += 1
        try:
            # Waiting here and not in the executor's queue, which would keep the file of a request
            # that was cancelled until a thread comes to it.
            await self._idle.acquire()
        except BaseException:
            self._held -= 1
            raise
        future = self._executor.submit(to_tensor, file, contract, self._max_pixels)
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(self._release))
        return await asyncio.wrap_future(future)

    def _release(self) -> None:
        # A request that was cancelled frees its thread when that is done, and no earlier.
        self._held -= 1
        self._idle.release()

    def close(self) -> None:
        """Stop the threads; those that still decode finish first."""
        self._executor.shutdown(cancel_futures=True)
