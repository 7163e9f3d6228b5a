"""Assembles a Triton model repository from the committed models and the artefacts in the cache.

A model's folder is made whole under another name and then renamed into place. Its Python is
compiled there and then: Triton takes a model as changed when anything in its folder is, and the
`__pycache__` that the first load would leave behind is enough for a needless reload.
"""

import os
import py_compile
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tidegate_engine.artefacts.errors import ArtefactError
from tidegate_engine.artefacts.store import artefact_path

# The checkout's `services/triton/models`; an image has them elsewhere and says where.
MODELS = Path(__file__).parents[2] / "models"

# Model → path in its folder → file under that of the models, where models or versions share code.
# Not a module to import from the model's folder: the `__pycache__` of that would lie where Triton
# looks for versions.
_SHARED: Mapping[str, Mapping[str, str]] = {
    "image_classifier": {
        "1/model.py": "onnx_classifier.py",
        "2/model.py": "onnx_classifier.py",
    },
    "resnet50_cpp": {"1/model.py": "onnx_classifier.py"},
    "paced": {"2/model.py": "paced/1/model.py"},
    "versioned": {
        f"{version}/model.py": "versioned.py" for version in (1, 2, 3, 4, *range(11, 21))
    },
}
# Model → path in its folder → artefact.
_ARTEFACTS: Mapping[str, Mapping[str, str]] = {
    "image_classifier": {
        "labels.txt": "imagenet_labels.txt",
        "1/model.onnx": "efficientnet_lite0.onnx",
        "2/model.onnx": "efficientnet_lite0_int8.onnx",
    },
    "resnet50_cpp": {
        "labels.txt": "imagenet_labels.txt",
        "1/model.onnx": "efficientnet_lite0_imagenet.onnx",
    },
}


def model_names(sources: Path = MODELS) -> list[str]:
    """The names of the models that can be assembled, in order."""
    return sorted(config.parent.name for config in sources.glob("*/config.pbtxt"))


def assemble(
    target: Path, models: Sequence[str] | None, *, cache: Path, sources: Path = MODELS
) -> None:
    """Puts the models into the repository `target`, whole, in place of their like there.

    Other folders in `target` are left alone. Artefacts are hard links to the cache, or copies
    where it is on another file system.

    Args:
        target: The folder of the repository, made if need be.
        models: Names of models; None for all.
        cache: The cache, with the artefacts built.
        sources: The folder of the committed models.

    Raises:
        ArtefactError: There is no such model, an artefact is not built, or a folder cannot be
            read or written.
    """
    known = model_names(sources)
    names = known if models is None else models
    for name in names:
        if name not in known:
            raise ArtefactError(
                f"There is no model {name!r} in {sources}; there are {', '.join(known) or 'none'}."
            )
    try:
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".assembling-", dir=target) as staging:
            for name in names:
                _assemble_model(Path(staging) / name, sources, cache)
                _move_into_place(Path(staging) / name, target / name)
    except OSError as error:
        raise ArtefactError(f"The repository {target} cannot be assembled: {error}.") from error


def _assemble_model(folder: Path, sources: Path, cache: Path) -> None:
    name = folder.name
    shutil.copytree(sources / name, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for path, shared in _SHARED.get(name, {}).items():
        (folder / path).parent.mkdir(exist_ok=True)
        shutil.copyfile(sources / shared, folder / path)
    for path, artefact in _ARTEFACTS.get(name, {}).items():
        _link(artefact_path(artefact, cache), folder / path)
    for module in folder.rglob("*.py"):
        # By hash and not by time, so that a copy of the repository is as good.
        py_compile.compile(
            str(module),
            doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH,
        )


def _link(artefact: Path, path: Path) -> None:
    if not artefact.exists():
        raise ArtefactError(
            f"The artefact {artefact.name} is not built: run python -m tidegate_engine.artefacts."
        )
    try:
        os.link(artefact, path)
    except OSError:
        shutil.copyfile(artefact, path)


def _move_into_place(folder: Path, place: Path) -> None:
    if place.exists():
        place.rename(folder.with_name(f"{folder.name}.replaced"))
    folder.rename(place)
