"""The images: which there are, and what their Dockerfiles have in common with the lock file."""

import re
import tomllib
from pathlib import Path

import pytest

import images

ROOT = Path(__file__).parents[2]
LOCKED = tomllib.loads((ROOT / "uv.lock").read_text())["package"]


@pytest.mark.parametrize("image", images.IMAGES.values(), ids=lambda image: image.name)
def test_every_dockerfile_is_there_and_runs_as_a_user_by_number(image: images.Image) -> None:
    text = (ROOT / image.dockerfile).read_text()
    assert re.findall(r"^USER (.+)$", text, re.MULTILINE)[-1] == "65532:65532"
    assert "\nENTRYPOINT [" in text


def test_what_is_pinned_by_hand_is_what_the_lock_file_has() -> None:
    versions = {(package["name"], package["version"]) for package in LOCKED}
    pins = re.findall(
        r"\b(numpy|onnxruntime)==(\S+)", (ROOT / "services/triton/Dockerfile").read_text()
    )
    assert len(pins) == 2
    for pin in pins:
        assert pin in versions


def test_an_unknown_image_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert images.main(["gatway"]) == 1
    assert capsys.readouterr().err == (
        "images: expected images of gateway, triton-cpu, triton, loader, operator, traffic, "
        "got gatway\n"
    )


def test_without_a_builder_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(
        images.ImageError, match="start a docker engine, or apt-get install buildah"
    ):
        images.builder()
