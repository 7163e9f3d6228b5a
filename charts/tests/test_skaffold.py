"""skaffold.yaml against what the chart and the Dockerfiles really have.

Skaffold itself is not run: it comes from no package registry.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SKAFFOLD = yaml.safe_load((ROOT / "skaffold.yaml").read_text())
PROFILES = {profile["name"]: profile for profile in SKAFFOLD["profiles"]}


def artifacts(profile: str) -> list[dict[str, Any]]:
    patches = PROFILES[profile]["patches"]
    assert all(patch["path"] == "/build/artifacts/-" for patch in patches)
    return [*SKAFFOLD["build"]["artifacts"], *(patch["value"] for patch in patches)]


def release(profile: str) -> dict[str, Any]:
    (only,) = PROFILES[profile]["deploy"]["helm"]["releases"]
    found: dict[str, Any] = only
    return found


def test_the_profiles_are_cpu_and_gpu() -> None:
    assert set(PROFILES) == {"cpu", "gpu"}


@pytest.mark.parametrize("profile", PROFILES)
def test_every_dockerfile_is_there_and_copies_what_is_there(profile: str) -> None:
    for artifact in artifacts(profile):
        dockerfile = ROOT / artifact["context"] / artifact["docker"]["dockerfile"]
        sources = re.findall(r"^COPY (?!--from)(?:--\S+ )*(.+) \S+$", dockerfile.read_text(), re.M)
        for source in " ".join(sources).split():
            assert (ROOT / source).exists(), f"{dockerfile} copies {source}"


@pytest.mark.parametrize("profile", PROFILES)
def test_every_value_that_is_set_is_one_of_the_chart(profile: str) -> None:
    chart = ROOT / release(profile)["chartPath"]
    values = yaml.safe_load((chart / "values.yaml").read_text())
    for path in [*release(profile)["setValueTemplates"], *release(profile).get("setValues", {})]:
        place = values
        for key in path.split("."):
            assert key in place, f"{path} is no value of the chart"
            place = place[key]
    for file in release(profile)["valuesFiles"]:
        assert (ROOT / file).is_file()


@pytest.mark.parametrize("profile", PROFILES)
def test_every_image_that_is_set_is_built(profile: str) -> None:
    built = {
        artifact["image"].replace("/", "_").replace("-", "_") for artifact in artifacts(profile)
    }
    templates = " ".join(release(profile)["setValueTemplates"].values())
    named = set(re.findall(r"IMAGE_(?:REPO|TAG|DIGEST)_(\w+)", templates))
    assert named == built


def test_the_forwarded_ports_are_the_services() -> None:
    values = yaml.safe_load((ROOT / "charts" / "tidegate" / "values.yaml").read_text())
    service = values["gateway"]["service"]
    ports = {forward["port"] for forward in SKAFFOLD["portForward"]}
    assert ports == {service["httpPort"], service["grpcPort"]}
    assert {forward["resourceName"] for forward in SKAFFOLD["portForward"]} == {"tidegate-gateway"}
