"""What README and docs/ say is so: links lead somewhere, commands run, pages are current."""

import json
import re
import runpy
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tidegate_gateway.local import LocalGateway

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)#]+)")


def test_the_settings_page_is_current() -> None:
    generated = runpy.run_path(str(ROOT / "docs" / "generate.py"))["settings_page"]()
    assert (ROOT / "docs" / "settings.md").read_text() == generated, "run `make generate`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text()) if "://" not in link]
    broken = [link for link in links if not (page.parent / link).exists()]
    assert broken == []


def test_the_readme_fits_a_screen_and_names_real_targets() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 70
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"(?:^|`)make ([a-z-]+)", readme, re.MULTILINE))
    assert {"demo", "test", "help"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:.*## ", makefile, re.MULTILINE), target


def test_each_feature_of_the_protocol_names_a_test_that_is_there() -> None:
    page = (ROOT / "docs" / "protocol.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and ".py" in line]
    assert len(rows) > 40
    for row in rows:
        for name, _, test in re.findall(r"`((?:clients/)?test_\w+\.py)(::(test_\w+))?`", row):
            source = (Path(__file__).parent / name).read_text()
            assert not test or f"def {test}(" in source, (name, test)
        assert re.search(r"`(clients/)?test_\w+\.py", row), row


@pytest.mark.needs("engine", "curl")
def test_the_commands_of_the_api_page_run(
    gateway: LocalGateway, photos: Mapping[str, bytes], tmp_path: Path
) -> None:
    (tmp_path / "photo.jpg").write_bytes(photos["coffee.png"])
    page = (ROOT / "docs" / "api.md").read_text()
    commands = [c for c in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "curl" in c]
    assert len(commands) == 3
    answers = []
    for command in commands:
        words = shlex.split(command.replace("http://127.0.0.1:8080", gateway.http_url))
        done = subprocess.run(
            [*words, "--silent", "--show-error"],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            timeout=60,
        )
        answers.append(json.loads(done.stdout))
    assert answers[0]["top"][0]["label"] == "espresso"
    assert answers[1]["outputs"][0]["data"] == [1.5, -2.0]
    assert answers[2]["OUTPUT_BYTES"] == "three short words"
