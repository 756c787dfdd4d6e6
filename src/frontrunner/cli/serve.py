"""`frontrunner serve MODEL [section.key=value ...]`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="model folder, `base`, `smollm2`, or a finished run")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    parser.add_argument(
        "--recipe", type=Path, help="settings: a TOML recipe or a run's config.json"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000, help="0 chooses a free one")
    parser.add_argument("--max-queue", type=int, default=1024, help="waiting requests before 429")


def run(args: argparse.Namespace) -> int:
    from frontrunner.config import build, load, parse_override
    from frontrunner.errors import UserError

    model, recipe = args.model, args.recipe
    if (Path(model) / "model" / "config.json").is_file():  # a run: its model, its settings
        recipe = recipe or Path(model) / "config.json"
        model = str(Path(model) / "model")
    overrides = [f"model.path={json.dumps(model)}", *args.overrides]
    if recipe:
        config = load(recipe, overrides)
    else:
        tree: dict[str, dict[str, object]] = {}
        for section, key, value in map(parse_override, overrides):
            tree.setdefault(section, {})[key] = value
        config = build(tree, "command line")
    try:
        from frontrunner.backends.serving import open_server
        from frontrunner.engine.server.app import serve
    except ModuleNotFoundError as error:
        raise UserError(
            f"the server needs the package {error.name}: pip install 'frontrunner[serve]'"
        ) from None
    server = open_server(config, max_queue=args.max_queue)

    def ready(address: str) -> None:
        print(f"serving {server.prompter.name} at {address}/v1", flush=True)

    serve(server, args.host, args.port, ready)
    return 0
