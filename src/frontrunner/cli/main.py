"""The command line: a static table of verbs, so that `--help` imports nothing heavy.

Exit codes: 0 done, 1 the run failed, 2 the user can put it right (one sentence says how).
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Sequence

from frontrunner import __version__
from frontrunner.errors import UserError

VERBS = {
    "train": "train every effort level of a recipe in one run",
    "eval": "measure a model's frontier on held-out tasks",
    "report": "write the report of a run, or print its numbers",
    "frontier": "fit lambda per effort level to measured rollouts",
    "serve": "serve a model over HTTP, OpenAI-compatible",
    "tasks": "build, list, show, check, import and export task sets",
    "config": "show what a recipe resolves to, or compare two",
    "doctor": "check this machine and say what to do",
    "sft": "train the small base policy from scratch",
}


_HINTS = {
    errno.ENOSPC: "no space left; free some and continue with --resume",
    errno.EDQUOT: "the disk quota is used up; free some and continue with --resume",
    errno.EACCES: "permission denied; choose another folder or change its permissions",
    errno.EROFS: "the file system is read-only; choose another folder",
}


def parser_of(verb: str) -> argparse.ArgumentParser:
    """The parser of one verb; imports that verb's module only."""
    parser = argparse.ArgumentParser(prog=f"frontrunner {verb}", description=VERBS[verb])
    importlib.import_module(f"frontrunner.cli.{verb}").add_arguments(parser)
    return parser


def overview() -> str:
    width = max(map(len, VERBS))
    lines = [f"  {verb:<{width}}  {summary}" for verb, summary in VERBS.items()]
    head = ["usage: frontrunner VERB ...", "", "Post-trains coding agents at every effort level."]
    tail = "`frontrunner VERB --help` tells more. Start with: frontrunner doctor"
    return "\n".join([*head, "", *lines, "", tail])


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        try:
            print(overview(), flush=True)
        except BrokenPipeError:
            return _quiet_pipe()
        return 0
    verb, *rest = arguments
    if verb == "--version":
        print(f"frontrunner {__version__}")
        return 0
    if verb not in VERBS:
        print(f"frontrunner: unknown verb {verb!r}; one of: {', '.join(VERBS)}", file=sys.stderr)
        return 2
    # Set before any numerical library loads: idle threads sleep instead of spinning where the
    # sandbox needs the same cores.
    if verb != "sft":
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        parser = parser_of(verb)
        # Options may stand between overrides; verbs with sub-verbs cannot be parsed that way.
        mixed = verb in ("train", "eval", "serve", "sft")
        args = parser.parse_intermixed_args(rest) if mixed else parser.parse_args(rest)
        code: int = importlib.import_module(f"frontrunner.cli.{verb}").run(args)
        return code
    except UserError as error:
        print(f"frontrunner: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("frontrunner: interrupted; continue with --resume", file=sys.stderr)
        return 1
    except BrokenPipeError:
        return _quiet_pipe()
    except OSError as error:
        hint = _HINTS.get(error.errno or 0)
        if hint is None:
            raise
        print(f"frontrunner: {error.filename or 'the disk'}: {hint}", file=sys.stderr)
        return 2


def _quiet_pipe() -> int:
    """The reader of our output has gone (`| head`): no traceback for that."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


if __name__ == "__main__":
    sys.exit(main())
