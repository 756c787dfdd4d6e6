"""The house rules that a machine can check: small files and functions, few knobs, clean text."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from project_tree import ROOT, parse, project_files, source_files

from frontrunner.config import Config

MAX_FILE_LINES = 399
MAX_FUNCTION_LINES = 59
MAX_FIELDS = 100
UNFINISHED = re.compile("TO" + "DO|FIX" + "ME|XX" + "X")
MACHINE_PATH = re.compile(r"(?<![\w.~$}*-])/(?:root|work)(?:/|\b(?!\.))|/home/(?!USER|agent)\w+/")
TEXT = {".py", ".md", ".toml", ".txt", ".json", ".yml", ".yaml", ".cfg", ".html", ""}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def python_files() -> list[Path]:
    return [p for p in project_files() if p.suffix == ".py"]


def test_files_are_short() -> None:
    sizes = {relative(p): len(lines(p)) for p in python_files()}
    long = {name: size for name, size in sizes.items() if size > MAX_FILE_LINES}
    assert not long, f"split by decision: {long}"


def test_functions_are_short() -> None:
    long = {
        f"{relative(path)}:{node.lineno} {node.name}": size
        for path in python_files()
        for node in ast.walk(parse(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (size := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION_LINES
    }
    assert not long, f"split by decision: {long}"


def test_the_config_has_few_knobs() -> None:
    tree = Config().model_dump()
    assert sum(len(section) for section in tree.values()) <= MAX_FIELDS


def test_nothing_is_left_unfinished() -> None:
    found = [
        f"{relative(path)}:{number}"
        for path in source_files()
        for number, line in enumerate(lines(path), start=1)
        if UNFINISHED.search(line)
    ]
    assert not found


def test_source_is_ascii() -> None:
    found = [relative(p) for p in source_files() if not p.read_bytes().isascii()]
    assert not found


def test_no_file_names_a_path_of_one_machine() -> None:
    found = [
        f"{relative(path)}:{number}: {line.strip()[:80]}"
        for path in project_files()
        if path.suffix in TEXT
        for number, line in enumerate(text_lines(path), start=1)
        if MACHINE_PATH.search(line)
    ]
    assert not found, "\n".join(found)


def text_lines(path: Path) -> list[str]:
    """The lines of a text file, and none of a binary one."""
    try:
        return lines(path)
    except UnicodeDecodeError:
        return []


def test_the_path_rule_itself() -> None:
    bad = ["/ro" + "ot/x", "/wo" + "rk/main", '"/ho' + 'me/ann/models"', "cd /wo" + "rk"]
    good = ["network/main", "~/work/x", "src/work/a.py", "$HOME/.cache", "/home/USER/x"]
    assert all(MACHINE_PATH.search(text) for text in bad)
    assert not any(MACHINE_PATH.search(text) for text in good)
