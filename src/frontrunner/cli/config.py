"""`frontrunner config show RECIPE` and `frontrunner config diff A B`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    show = verbs.add_parser("show", help="every resolved value and where it comes from")
    show.add_argument("recipe", type=Path)
    show.add_argument("overrides", nargs="*", metavar="section.key=value")
    show.add_argument("--json", action="store_true")
    diff = verbs.add_parser("diff", help="what differs between two recipes or runs")
    diff.add_argument("a", type=Path)
    diff.add_argument("b", type=Path)
    diff.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> int:
    return _show(args) if args.verb == "show" else _diff(args)


def _show(args: argparse.Namespace) -> int:
    from frontrunner.config import load, parse_override, read_tree

    config = load(args.recipe, args.overrides)
    tree = config.model_dump(mode="json")
    if args.json:
        print(json.dumps(tree, indent=1))
        return 0
    given = read_tree(args.recipe)
    overridden = {parse_override(o)[:2] for o in args.overrides}
    for section, values in tree.items():
        print(f"[{section}]")
        for key, value in values.items():
            if (section, key) in overridden:
                origin = "override"
            else:
                origin = "recipe" if key in given.get(section, {}) else "default"
            print(f"{key} = {json.dumps(value)}".ljust(58) + f"  # {origin}")
        print()
    return 0


def _diff(args: argparse.Namespace) -> int:
    from frontrunner.config import load

    trees = []
    for path in (args.a, args.b):
        source = path / "config.json" if path.is_dir() else path
        trees.append(load(source).model_dump(mode="json"))
    a, b = trees
    changed = {
        f"{section}.{key}": [a[section][key], b[section][key]]
        for section in a
        for key in a[section]
        if a[section][key] != b[section][key]
    }
    if args.json:
        print(json.dumps(changed, indent=1))
        return 0
    for name, (old, new) in changed.items():
        print(f"{name}: {json.dumps(old)} -> {json.dumps(new)}")
    if not changed:
        print("no difference")
    return 0
