"""What the project says about itself is true: commands, links, pins, and what is shipped."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from project_tree import PACKAGE, ROOT, project_files

from frontrunner import __version__
from frontrunner.cli.main import VERBS
from frontrunner.envs.packages import SOURCES

PAGES = sorted(p for p in project_files() if p.suffix == ".md")
TARGET = re.compile(r"^([a-z]+):", re.MULTILINE)
NAME = re.compile(r"^[A-Za-z0-9._-]+")


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def project() -> dict[str, Any]:
    tree: dict[str, Any] = tomllib.loads(text("pyproject.toml"))["project"]
    return tree


def pins() -> dict[str, str]:
    lines = [line for line in text("constraints.txt").splitlines() if not line.startswith("#")]
    pairs = (line.split("==") for line in lines if line)
    return {normal(name): version for name, version in pairs}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_rules_fit_on_two_pages() -> None:
    assert len(text("AGENTS.md").splitlines()) <= 120


@pytest.mark.parametrize("page", ["AGENTS.md", "README.md", "docs/tutorials/quickstart.md"])
def test_make_commands_in_the_documentation_exist(page: str) -> None:
    targets = set(TARGET.findall(text("Makefile")))
    named = set(re.findall(r"(?:`|^    )make ([a-z]+)", text(page), re.MULTILINE))
    assert named
    assert named <= targets, f"{page} names {sorted(named - targets)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_verbs_in_the_documentation_exist(page: Path) -> None:
    lines = page.read_text(encoding="utf-8")
    named = set(re.findall(r"(?:^    |`|bin/)frontrunner ([a-z]+)", lines, re.MULTILINE))
    assert named <= set(VERBS), f"unknown: {sorted(named - set(VERBS))}"


def test_every_verb_has_its_section_in_the_reference() -> None:
    sections = set(re.findall(r"^## (\w+)$", text("docs/reference/cli.md"), re.MULTILINE))
    assert set(VERBS) <= sections


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not link.startswith(("http", "#")):
            assert (page.parent / link.partition("#")[0]).exists(), f"{page.name} links to {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_recipes_in_the_documentation_exist(page: Path) -> None:
    for name in set(re.findall(r"recipes/[\w.-]+\.toml", page.read_text(encoding="utf-8"))):
        assert (ROOT / name).is_file(), f"{page.name} names {name}"


def test_packages_that_tasks_come_from_are_required_exactly() -> None:
    required = set(project()["dependencies"])
    assert {f"{source.name}=={source.version}" for source in SOURCES} <= required


def test_every_requirement_is_pinned() -> None:
    extras = project()["optional-dependencies"].values()
    lines = [*project()["dependencies"], *(line for extra in extras for line in extra)]
    names = {normal(match[0]) for line in lines if (match := NAME.match(line))}
    assert names <= set(pins()), f"not in constraints.txt: {sorted(names - set(pins()))}"


def test_pins_are_plain_releases() -> None:
    wrong = [f"{n}=={v}" for n, v in pins().items() if not re.fullmatch(r"\d+(\.\d+)*", v)]
    assert not wrong, "local versions and paths are not on every index"


def test_every_requirement_has_its_reason() -> None:
    log = text("docs/log.md")
    names = [match[0] for line in project()["dependencies"] if (match := NAME.match(line))]
    assert [name for name in names if name not in log] == []


def test_the_version_is_in_the_changelog() -> None:
    assert f"## {__version__}" in text("CHANGELOG.md")


def test_the_package_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()
