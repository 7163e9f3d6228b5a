"""Building, caching and placing the artefacts, by the command that users and the engine run."""

import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from tidegate_engine.artefacts import ArtefactError, artefact_path, assemble, default_cache
from tidegate_engine.artefacts.quantisation import quantise_weight
from tidegate_engine.artefacts.store import DIGESTS

ENGINE_PYTHON = Path(__file__).parents[3] / ".venvs" / "engine" / "bin" / "python"
COMMAND = ["-m", "tidegate_engine.artefacts"]
LIMIT_S = 120

needs_engine = pytest.mark.needs("engine")


def artefacts(
    *arguments: str | Path, python: str | Path = ENGINE_PYTHON
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, *COMMAND, *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that was empty before it was built; tests leave it whole."""
    folder = tmp_path_factory.mktemp("cache")
    built = artefacts("--cache", folder)
    assert built.returncode == 0, built.stderr
    assert built.stderr.splitlines() == [f"building {name}" for name in DIGESTS]
    return folder


def files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def digests(cache: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files(cache)}


@needs_engine
def test_every_build_into_an_empty_cache_gives_the_bytes_of_the_manifest(
    cache: Path, tmp_path: Path
) -> None:
    assert artefacts("--cache", tmp_path).returncode == 0
    assert digests(tmp_path) == digests(cache) == DIGESTS


@needs_engine
def test_a_whole_cache_is_left_as_it_is_and_needs_no_package(cache: Path) -> None:
    before = {path: path.stat() for path in files(cache)}
    # This Python has neither onnx nor the wheels.
    for python in (ENGINE_PYTHON, sys.executable):
        checked = artefacts("--cache", cache, python=python)
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    after = {path: path.stat() for path in files(cache)}
    assert [(s.st_ino, s.st_mtime_ns) for s in after.values()] == [
        (s.st_ino, s.st_mtime_ns) for s in before.values()
    ]


@needs_engine
@pytest.mark.parametrize("damage", ["changed", "cut short"])
def test_a_damaged_artefact_is_built_again_and_no_other(cache: Path, damage: str) -> None:
    labels = artefact_path("imagenet_labels.txt", cache)
    content = labels.read_bytes()
    labels.chmod(0o644)
    labels.write_bytes(content[:-100] + (b"" if damage == "cut short" else bytes(100)))
    rebuilt = artefacts("--cache", cache)
    assert (rebuilt.returncode, rebuilt.stderr) == (0, "building imagenet_labels.txt\n")
    assert labels.read_bytes() == content


@needs_engine
def test_a_build_that_runs_out_of_room_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    built = subprocess.run(
        [ENGINE_PYTHON, *COMMAND, "--cache", tmp_path],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)),
    )
    assert built.returncode == 1
    assert built.stderr.splitlines()[1:] == [
        "The artefact efficientnet_lite0.onnx cannot be built: [Errno 27] File too large."
    ]
    assert list(files(tmp_path)) == []


@needs_engine
def test_a_build_that_is_killed_leaves_no_part_under_a_final_name(tmp_path: Path) -> None:
    with subprocess.Popen(
        [ENGINE_PYTHON, *COMMAND, "--cache", tmp_path], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line == "building efficientnet_lite0_int8.onnx\n":
                process.send_signal(signal.SIGKILL)
    whole = {name: digest for name, digest in digests(tmp_path).items() if name in DIGESTS}
    assert "efficientnet_lite0.onnx" in whole
    assert whole.items() <= DIGESTS.items()
    assert artefacts("--cache", tmp_path).returncode == 0
    assert digests(tmp_path).items() >= DIGESTS.items()


def test_a_missing_package_is_one_sentence(tmp_path: Path) -> None:
    # This Python has no onnx.
    built = artefacts("--cache", tmp_path, python=sys.executable)
    assert built.returncode == 1
    assert built.stderr.splitlines()[1:] == [
        "Building efficientnet_lite0.onnx needs the Python package onnx, which is not installed: "
        "run this in the engine's environment (uv sync --only-group engine)."
    ]


def test_the_cache_lies_where_the_user_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert default_cache() == Path("/elsewhere/tidegate")
    # The XDG base directory specification: a relative path is to be ignored.
    monkeypatch.setenv("XDG_CACHE_HOME", "elsewhere")
    assert default_cache() == Path("/home/someone/.cache/tidegate")


@needs_engine
def test_the_labels_are_a_thousand_lines_in_class_order(cache: Path) -> None:
    labels = artefact_path("imagenet_labels.txt", cache).read_text().split("\n")
    assert labels.pop() == ""
    assert len(labels) == 1000
    assert all(label == label.strip() != "" for label in labels)
    assert [labels[number] for number in (0, 281, 285, 872, 967, 999)] == [
        "tench",
        "tabby",
        "Egyptian cat",
        "tripod",
        "espresso",
        "toilet tissue",
    ]


def square(photo: Path, resample: Image.Resampling) -> npt.NDArray[np.float32]:
    """The photo's middle, 0.875 of its short side, as RGB pixels [224, 224, 3] in 0–255."""
    with Image.open(photo) as image:
        width, height = image.size
        margin = min(width, height) * 0.875 / 2
        x, y = width / 2, height / 2
        box = (x - margin, y - margin, x + margin, y + margin)
        resized = image.convert("RGB").resize((224, 224), resample, box)
        return np.asarray(resized, np.float32)


# Mean and standard deviation of the colour channels.
NATIVE = np.array([[127, 127, 127], [128, 128, 128]], np.float32)
IMAGENET = np.array([[123.675, 116.28, 103.53], [58.395, 57.12, 57.375]], np.float32)
INFER = """
import os; os.environ["ORT_DISABLE_TELEMETRY"] = "1"
import json, sys, numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
(logits,) = session.run(None, {session.get_inputs()[0].name: numpy.load(sys.argv[2])})
print(json.dumps([[str(row.dtype), list(row.shape), int(row.argmax())] for row in logits]))
"""


@needs_engine
@pytest.mark.parametrize(
    ("model", "resample", "normalisation"),
    [
        ("efficientnet_lite0.onnx", "BICUBIC", NATIVE),
        ("efficientnet_lite0_int8.onnx", "BICUBIC", NATIVE),
        ("efficientnet_lite0_imagenet.onnx", "BILINEAR", IMAGENET),
    ],
)
def test_each_model_knows_what_the_photos_show(
    cache: Path,
    tmp_path: Path,
    model: str,
    resample: str,
    normalisation: npt.NDArray[np.float32],
) -> None:
    photos = [artefact_path(f"{name}.png", cache) for name in ("chelsea", "coffee", "camera")]
    pixels = np.stack([square(photo, Image.Resampling[resample]) for photo in photos])
    mean, std = normalisation
    batch = ((pixels - mean) / std).transpose(0, 3, 1, 2)
    np.save(tmp_path / "batch.npy", batch)
    said = subprocess.run(
        [ENGINE_PYTHON, "-c", INFER, artefact_path(model, cache), tmp_path / "batch.npy"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    ).stdout
    labels = artefact_path("imagenet_labels.txt", cache).read_text().splitlines()
    rows = json.loads(said)
    assert [row[:2] for row in rows] == [["float32", [1000]]] * 3
    cat, coffee, camera = (labels[row[2]] for row in rows)
    assert cat in {"tabby", "tiger cat", "Egyptian cat"}
    assert coffee == "espresso"
    assert camera == "tripod"


def test_quantisation_is_off_by_half_a_step_at_most() -> None:
    weight = np.random.default_rng(7).normal(size=(5, 4, 3, 3)).astype(np.float32)
    weight[2] = 0
    quantised, scale = quantise_weight(weight)
    assert quantised.dtype == np.int8
    assert scale.dtype == np.float32
    assert quantised.shape == weight.shape
    assert scale.shape == (5,)
    largest = np.abs(quantised.astype(int)).max(axis=(1, 2, 3))
    assert largest.tolist() == [127, 127, 0, 127, 127]
    steps = scale.reshape(5, 1, 1, 1)
    assert (np.abs(quantised * steps - weight) <= steps * 0.5001).all()


@needs_engine
def test_a_repository_is_whole_compiled_and_linked_to_the_cache(
    cache: Path, tmp_path: Path
) -> None:
    assembled = artefacts("--cache", cache, "--repository", tmp_path)
    assert (assembled.returncode, assembled.stderr) == (0, "")
    models = {folder.name: folder for folder in tmp_path.iterdir()}
    assert models.keys() == {
        "batching",
        "fragile",
        "identity",
        "image_classifier",
        "paced",
        "raising",
        "repeat",
        "resnet50_cpp",
        "slow",
        "text_stream",
        "versioned",
    }
    for folder in models.values():
        assert (folder / "config.pbtxt").is_file()
        assert (folder / "1" / "model.py").is_file()
        # Beside the versions Triton would take it for one.
        assert not (folder / "__pycache__").exists()
    classifier = models["image_classifier"]
    placed: Mapping[Path, str] = {
        classifier / "labels.txt": "imagenet_labels.txt",
        classifier / "1" / "model.onnx": "efficientnet_lite0.onnx",
        classifier / "2" / "model.onnx": "efficientnet_lite0_int8.onnx",
        models["resnet50_cpp"] / "1" / "model.onnx": "efficientnet_lite0_imagenet.onnx",
    }
    for path, name in placed.items():
        assert path.samefile(artefact_path(name, cache))


IMPORT = """
import importlib, sys
for folder in sys.argv[1:]:
    sys.path.insert(0, folder)
    try:
        importlib.import_module("1.model")
    except ModuleNotFoundError as missing:
        assert missing.name == "triton_python_backend_utils", missing
    sys.path.pop(0)
    sys.modules.pop("1.model", None), sys.modules.pop("1", None)
    importlib.invalidate_caches()
"""


@needs_engine
def test_importing_a_model_as_triton_does_changes_nothing_in_its_folder(
    cache: Path, tmp_path: Path
) -> None:
    assert artefacts("--cache", cache, "--repository", tmp_path).returncode == 0
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    folders = list(tmp_path.iterdir())
    subprocess.run(
        [ENGINE_PYTHON, "-c", IMPORT, *folders], timeout=LIMIT_S, check=True, env=environment
    )
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@needs_engine
def test_assembling_again_replaces_the_named_model_alone(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "slow" / "3").mkdir(parents=True)
    (tmp_path / "mine").mkdir()
    for _ in range(2):
        assembled = artefacts("--cache", cache, "--repository", tmp_path, "--model", "slow")
        assert (assembled.returncode, assembled.stderr) == (0, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "slow"]
    assert sorted(path.name for path in (tmp_path / "slow").iterdir()) == ["1", "config.pbtxt"]


@needs_engine
def test_an_unknown_model_is_one_sentence(cache: Path, tmp_path: Path) -> None:
    target = tmp_path / "repository"
    assembled = artefacts("--cache", cache, "--repository", target, "--model", "resnet")
    assert assembled.returncode == 1
    assert assembled.stderr.startswith("There is no model 'resnet' in ")
    assert assembled.stderr.endswith("; there are batching, fragile, identity, image_classifier, "
                                     "paced, raising, repeat, resnet50_cpp, slow, "
                                     "text_stream, versioned.\n")  # fmt: skip
    assert not target.exists()


def test_assembling_without_the_artefacts_says_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="is not built: run python -m tidegate_engine"):
        assemble(tmp_path / "repository", ["image_classifier"], cache=tmp_path)
    assert list((tmp_path / "repository").iterdir()) == []
