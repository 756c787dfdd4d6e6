"""Writes docs/reference/config.md from config.py: `python tools/config_docs.py`, or `make docs`."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any, get_args, get_origin

from annotated_types import Ge, Gt, MinLen
from pydantic.fields import FieldInfo

from frontrunner import config

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "config.md"

INTRO = """\
# Configuration

Every knob of a run. A recipe is a TOML file that names only what differs from these defaults; on
the command line `section.key=value` goes on top, with the value written as in TOML:

    frontrunner train recipes/quickstart.toml train.steps=10 effort.lambdas='[300.0, 120.0, 40.0]'

`frontrunner config show RECIPE` prints every resolved value and where it comes from, and
`frontrunner config diff A B` what differs between two recipes or runs. A run keeps its resolved
configuration in `config.json`, which is accepted wherever a recipe is. Unknown keys, wrong types
and values out of range are errors that name the key.

This page is written by `make docs` from `src/frontrunner/config.py`.
"""


def docstrings() -> dict[str, dict[str, str]]:
    """Class name to field name to the string below the field, with line breaks removed."""
    tree = ast.parse(Path(str(config.__file__)).read_text(encoding="utf-8"))
    found: dict[str, dict[str, str]] = {}
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        fields = found.setdefault(node.name, {})
        for field, below in zip(node.body, node.body[1:], strict=False):
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
                continue
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                fields[field.target.id] = " ".join(str(below.value.value).split())
    return found


def type_name(annotation: Any) -> str:
    """`int`, `list of str`, or the legal words."""
    if get_origin(annotation) is tuple:
        return f"list of {type_name(get_args(annotation)[0])}"
    if isinstance(annotation, type):
        return annotation.__name__
    return " or ".join(f"`{word}`" for word in get_args(annotation))


def bounds(field: FieldInfo) -> str:
    """The range as ` >= 1`, empty without one."""
    parts: list[str] = []
    for rule in field.metadata:
        if isinstance(rule, Ge):
            parts.append(f" >= {rule.ge}")
        elif isinstance(rule, Gt):
            parts.append(f" > {rule.gt}")
        elif isinstance(rule, MinLen):
            parts.append(f", {rule.min_length} or more")
    return "".join(parts)


def section(name: str, kind: type[config.Section], meanings: dict[str, str]) -> str:
    """One section of the page: its sentence and a table of its keys."""
    lines = [f"## [{name}]", "", (kind.__doc__ or "").strip(), ""]
    lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
    for key, field in kind.model_fields.items():
        default = field.get_default(call_default_factory=False)
        shown = json.dumps(list(default) if isinstance(default, tuple) else default)
        legal = type_name(field.annotation) + bounds(field)
        meaning = meanings.get(key, "").replace("|", "\\|")
        lines.append(f"| `{key}` | {legal} | `{shown}` | {meaning} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """The whole page."""
    meanings = docstrings()
    parts = [INTRO]
    for name, field in config.Config.model_fields.items():
        kind = field.annotation
        assert isinstance(kind, type)
        assert issubclass(kind, config.Section)
        parts.append(section(name, kind, meanings[kind.__name__]))
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE.relative_to(ROOT))
