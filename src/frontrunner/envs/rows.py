"""Rows of SWE-style data sets, as the tasks that they describe.

One function per format takes a row (a JSON object with the columns of the published data set) and
gives a `ContainerTask`. A row that lacks what grading needs is refused, never completed by a guess.

    swe-bench     SWE-bench, Verified, Lite, Multilingual     image, eval_script, log_parser
    swe-bench-pro dockerhub_tag; run_script.sh and parser.py come from --scripts
    multi-swe     Multi-SWE-bench and Multi-SWE-RL            org, repo, number, *_tests
    swe-gym       SWE-bench columns                           --test-command
    r2e-gym       docker_image, expected_output_json
    swe-smith     patch is the bug, its reverse the solution  --test-command
    swe-rebench   install_config.test_cmd, docker_image or image_name
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frontrunner.envs.harbor_export import ContainerTask
from frontrunner.errors import UserError

TESTBED = "/testbed"
_ROOT_HOME = "/" + "root"  # in the image, not on this machine
_SAFE_ID = re.compile(r"[A-Za-z0-9][\w.@+-]*")
_PATCHED = re.compile(r"^(?:---|\+\+\+) [ab]/(.+?)\s*$", re.MULTILINE)
_ACTIVATE = "source /opt/miniconda3/bin/activate && conda activate testbed"


@dataclass(frozen=True, slots=True)
class Options:
    """What an import may add to rows that lack it."""

    test_command: str = ""
    """Runs test files, which are appended; reports one test a line (`pytest -rA`)."""
    scripts: Path | None = None
    """SWE-bench Pro's `run_scripts` folder."""


class Row:
    """One row: every look-up names file, line and field when it fails."""

    def __init__(self, data: Mapping[str, Any], place: str) -> None:
        self.data, self.place = data, place

    def error(self, field: str, what: str) -> UserError:
        return UserError(f"{self.place}: field {field}: {what}")

    def text(self, *names: str) -> str:
        """The first of these columns that holds text."""
        for name in names:
            value = self.data.get(name)
            if isinstance(value, str) and value.strip():
                return value
            if value is not None and not isinstance(value, str):
                raise self.error(name, f"must be text, not {type(value).__name__}")
        raise self.error(" or ".join(names), "missing or empty")

    def optional(self, *names: str) -> str:
        return next((v for n in names if isinstance(v := self.data.get(n), str) and v.strip()), "")

    def names(self, *fields: str, empty: bool = False) -> list[str]:
        """A list of tests, which some data sets store as JSON or Python text."""
        field = next((f for f in fields if self.data.get(f) is not None), fields[0])
        value = self.data.get(field)
        if value is None:
            raise self.error(field, "missing")
        if isinstance(value, str):
            value = self._listed(field, value)
        if not isinstance(value, list) or not all(isinstance(test, str) for test in value):
            raise self.error(field, "must be a list of test names")
        if not value and not empty:
            raise self.error(field, "is empty; without a test that must pass nothing can be graded")
        return value

    def _listed(self, field: str, text: str) -> Any:
        import ast

        for read in (json.loads, ast.literal_eval):
            try:
                return read(text)
            except (ValueError, SyntaxError, RecursionError):
                continue
        raise self.error(field, "is neither a list nor the JSON text of one")

    def table(self, field: str) -> Mapping[str, Any]:
        value = self.data.get(field)
        if isinstance(value, str):
            value = self._listed(field, value)
        if not isinstance(value, dict):
            raise self.error(field, "missing or not an object")
        return value

    def id(self, field: str = "instance_id") -> str:
        value = self.text(field)
        if not _SAFE_ID.fullmatch(value):
            raise self.error(field, f"{value[:60]!r} is no legal name of a folder")
        return value

    def patch(self, field: str) -> str:
        value = self.text(field)
        if not _PATCHED.search(value):
            raise self.error(field, "is not a unified diff with a/ and b/ paths")
        return value


def _tests(row: Row) -> dict[str, object]:
    return {
        "fail_to_pass": row.names("FAIL_TO_PASS", "fail_to_pass"),
        "pass_to_pass": row.names("PASS_TO_PASS", "pass_to_pass", empty=True),
    }


def _extra(row: Row) -> dict[str, str]:
    names = ("repo", "version", "license", "license_name", "created_at", "revision")
    return {name: row.optional(name) for name in names}


def _evaluate(test_patch: str, base: str, command: str, before: str = "") -> str:
    """Puts the test files of the fix in place and runs them; `command` gets the files."""
    files = sorted({p for p in _PATCHED.findall(test_patch) if p != "/dev/null"})
    listed = " ".join(map(shlex.quote, files))
    return (
        f"#!/bin/bash\n{_ACTIVATE} 2>/dev/null || true\n{before}"
        f"for file in {listed}; do\n"
        f'  git checkout -q {shlex.quote(base)} -- "$file" 2>/dev/null || rm -f "$file"\ndone\n'
        f"git apply --whitespace=nowarn - <<'END_OF_TEST_PATCH' || exit 1\n{test_patch.rstrip()}\n"
        f"END_OF_TEST_PATCH\n{command} {listed}\n"
    )


def swe_bench(row: Row, options: Options) -> ContainerTask:
    identity, base = row.id(), row.text("base_commit")
    image = row.optional("image", "image_name", "docker_image")
    script = row.optional("eval_script")
    test_patch = row.patch("test_patch")
    if not script:
        if not options.test_command:
            raise row.error("eval_script", "missing; give the tests' command with --test-command")
        script = _evaluate(test_patch, base, options.test_command)
    parser = row.optional("log_parser").removeprefix("parse_log_")
    if parser and parser not in _PARSERS:
        raise row.error("log_parser", f"{parser!r}: only logs of Python test runners can be read")
    image = image or (
        f"swebench/sweb.eval.x86_64.{identity.lower().replace('__', '_1776_')}:latest"
    )
    return ContainerTask(
        identity, "swe-bench", row.text("problem_statement"), image, TESTBED, base,
        row.patch("patch"), script, _tests(row), extra=_extra(row),
    )  # fmt: skip


_PARSERS = (
    "pytest", "pytest_options", "pytest_v2", "django", "seaborn", "sympy", "matplotlib", "astroid",
    "flask", "marshmallow", "pvlib", "pyvista", "sqlfluff", "xarray", "pydicom", "requests",
    "pylint", "astropy", "scikit", "sphinx",
)  # fmt: skip
"""Parsers of swebench 5.0.2 whose lines `harbor_grade` reads."""


def swe_gym(row: Row, options: Options) -> ContainerTask:
    identity, base = row.id(), row.text("base_commit")
    if not options.test_command:
        raise row.error("test_command", "SWE-Gym rows have none; give one with --test-command")
    image = row.optional("image", "image_name", "docker_image") or (
        f"xingyaoww/sweb.eval.x86_64.{identity.lower().replace('__', '_s_')}:latest"
    )
    return ContainerTask(
        identity, "swe-gym", row.text("problem_statement"), image, TESTBED, base,
        row.patch("patch"), _evaluate(row.patch("test_patch"), base, options.test_command),
        _tests(row), extra=_extra(row),
    )  # fmt: skip


def swe_rebench(row: Row, options: Options) -> ContainerTask:
    identity, base = row.id(), row.text("base_commit")
    install = row.table("install_config")
    command = options.test_command or install.get("test_cmd")
    if not isinstance(command, str) or not command.strip():
        raise row.error("install_config.test_cmd", "missing; give one with --test-command")
    parser = install.get("log_parser")
    if not isinstance(parser, str) or "pytest" not in parser:
        raise row.error("install_config.log_parser", f"{parser!r}: only pytest's log can be read")
    return ContainerTask(
        identity, "swe-rebench", row.text("problem_statement"),
        row.text("docker_image", "image_name", "image"), TESTBED, base, row.patch("patch"),
        _evaluate(row.patch("test_patch"), base, command), _tests(row), extra=_extra(row),
    )  # fmt: skip


def swe_smith(row: Row, options: Options) -> ContainerTask:
    identity = row.id()
    if not options.test_command:
        raise row.error("test_command", "SWE-smith rows have none; give one with --test-command")
    bug, wanted = row.patch("patch"), _tests(row)
    tests = [*row.names("FAIL_TO_PASS"), *row.names("PASS_TO_PASS", empty=True)]
    files = sorted({test.split("::")[0] for test in tests})
    if not row.optional("problem_statement"):
        raise row.error("problem_statement", "missing; SWE-smith adds it in a step of its own")
    script = (
        f"#!/bin/bash\n{_ACTIVATE} 2>/dev/null || true\n"
        f"git checkout -q HEAD -- {shlex.join(files)}\n"
        f"{options.test_command} {shlex.join(files)}\n"
    )
    return ContainerTask(
        identity, "swe-smith", row.text("problem_statement"), row.text("image_name"), TESTBED,
        "HEAD", bug, script, wanted, bug=bug, extra=_extra(row),
    )  # fmt: skip


def r2e_gym(row: Row, _: Options) -> ContainerTask:
    commit = row.text("commit_hash")
    expected = row.table("expected_output_json")
    if not expected or not all(isinstance(status, str) for status in expected.values()):
        raise row.error("expected_output_json", "must map at least one test to its status")
    statement = re.sub(r"\[/?ISSUE\]", "", row.text("problem_statement"))
    gold = row.optional("patch") or _r2e_patch(row)
    places = ("/r2e_tests", f"{_ROOT_HOME}/r2e_tests")
    hidden = (*places, f"{TESTBED}/r2e_tests", f"{TESTBED}/run_tests.sh")
    script = (
        "#!/bin/bash\n[ -e r2e_tests ] || ln -s /r2e_tests r2e_tests\n"
        "if [ -f run_tests.sh ]; then bash run_tests.sh; else bash /run_tests.sh; fi\n"
    )
    return ContainerTask(
        f"{row.id('repo_name')}__{commit[:12]}", "r2e-gym", statement, row.text("docker_image"),
        TESTBED, "HEAD", gold, script, {"expected": dict(expected)}, hidden=hidden,
        extra={**_extra(row), "commit": commit},
    )  # fmt: skip


def _r2e_patch(row: Row) -> str:
    """The fix as a patch: R2E-Gym stores whole files before and after the commit."""
    import difflib

    commit = row.table("parsed_commit_content")
    lines: list[str] = []
    for number, diff in enumerate(commit.get("file_diffs") or ()):
        try:
            path = diff["header"]["file"]["path"]
            old, new = diff["old_file_content"] or "", diff["new_file_content"] or ""
        except (KeyError, TypeError):
            where = f"parsed_commit_content.file_diffs.{number}"
            raise row.error(where, "needs header.file.path and both file contents") from None
        if path.endswith(".py") and "test" not in Path(path).name:
            lines += difflib.unified_diff(
                old.splitlines(keepends=True), new.splitlines(keepends=True),
                f"a/{path}", f"b/{path}",
            )  # fmt: skip
    if not lines:
        raise row.error("parsed_commit_content.file_diffs", "holds no change outside the tests")
    return "".join(line if line.endswith("\n") else line + "\n" for line in lines)


def swe_bench_pro(row: Row, options: Options) -> ContainerTask:
    identity, base = row.id(), row.text("base_commit")
    if options.scripts is None:
        raise row.error("run_script", "not in the row; give the run_scripts folder with --scripts")
    folder = options.scripts / identity
    texts = {}
    for name in ("run_script.sh", "parser.py"):
        try:
            texts[name] = (folder / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            raise UserError(f"{folder / name}: missing; {row.place} is graded with it") from None
    tests = ",".join(row.names("selected_test_files_to_run"))
    # The last line of this column takes the test files from the commit of the fix.
    before = row.text("before_repo_set_cmd").strip().splitlines()[-1]
    parts = (row.text("problem_statement"), row.optional("requirements"), row.optional("interface"))
    titles = ("", "\n\nRequirements:\n", "\n\nNew interfaces:\n")
    script = (
        "#!/bin/bash\n"
        f"{before}\n"
        f"cat > /tmp/run_script.sh <<'END_OF_SCRIPT'\n{texts['run_script.sh']}\nEND_OF_SCRIPT\n"
        f"cat > /tmp/parser.py <<'END_OF_SCRIPT'\n{texts['parser.py']}\nEND_OF_SCRIPT\n"
        f"bash /tmp/run_script.sh {shlex.quote(tests)} > /tmp/out.log 2> /tmp/err.log\n"
        "python3 /tmp/parser.py /tmp/out.log /tmp/err.log /tmp/output.json\n"
        'python3 -c \'import json\nfor t in json.load(open("/tmp/output.json"))["tests"]: '
        'print(t["status"], t["name"])\'\n'
    )
    return ContainerTask(
        identity, "swe-bench-pro",
        "".join(title + part for title, part in zip(titles, parts, strict=True) if part),
        f"jefzda/sweap-images:{row.text('dockerhub_tag')}", "/app", base, row.patch("patch"),
        script, _tests(row), extra=_extra(row),
    )  # fmt: skip


def multi_swe(row: Row, _: Options) -> ContainerTask:
    org, repo, number = row.id("org"), row.id("repo"), row.data.get("number")
    if not isinstance(number, int) or isinstance(number, bool):
        raise row.error("number", "must be the number of the pull request")
    groups = ("f2p_tests", "s2p_tests", "n2p_tests")
    fail = sorted({test for group in groups for test in _group(row, group)})
    if not fail:
        raise row.error("f2p_tests, s2p_tests, n2p_tests", "all empty; nothing can be graded")
    issues = row.data.get("resolved_issues")
    try:
        issue = [f"{issue['title']}\n\n{issue['body'] or ''}" for issue in issues or ()]
    except (KeyError, TypeError):
        raise row.error("resolved_issues", "each one needs title and body") from None
    if not issue:
        raise row.error("resolved_issues", "is empty; the agent would be told nothing")
    sha = row.table("base").get("sha")
    if not isinstance(sha, str) or not sha:
        raise row.error("base.sha", "missing")
    # The image's own script applies this patch and runs the tests; its log differs per language.
    script = (
        f"#!/bin/bash\ngit add -A && git diff --cached --binary {shlex.quote(sha)} "
        f"> /home/fix.patch\ngit checkout -q --force {shlex.quote(sha)} && bash /home/fix-run.sh\n"
    )
    row.patch("test_patch")
    language = row.optional("lang", "language").lower()
    if language not in ("", "go", "golang", "rust", "python"):
        raise row.error("lang", f"{language!r}: only logs of Go, Rust and Python can be read")
    return ContainerTask(
        f"{org}__{repo}-{number}", "multi-swe", "\n\n".join(issue),
        f"mswebench/{org}_m_{repo}:pr-{number}".lower(), f"/home/{repo}", sha,
        row.patch("fix_patch"), script,
        {"fail_to_pass": fail, "pass_to_pass": sorted(_group(row, "p2p_tests"))},
        hidden=("/home/fix.patch", "/home/test.patch"), extra=_extra(row),
    )  # fmt: skip


def _group(row: Row, field: str) -> list[str]:
    """Names of one group of tests; Multi-SWE-RL's parquet stores the columns of the map."""
    value = row.data.get(field)
    if not isinstance(value, dict):
        raise row.error(field, "missing or not an object")
    names = value.get("name") if isinstance(value.get("name"), list) else list(value)
    return [str(name) for name in names or ()]


FORMATS: dict[str, Callable[[Row, Options], ContainerTask]] = {
    "swe-bench": swe_bench,
    "swe-bench-pro": swe_bench_pro,
    "multi-swe": multi_swe,
    "swe-gym": swe_gym,
    "r2e-gym": r2e_gym,
    "swe-smith": swe_smith,
    "swe-rebench": swe_rebench,
}


def read(path: Path, form: str, options: Options) -> list[ContainerTask]:
    """Every task of a `.jsonl` file, a JSON list, or a `.parquet` file (which needs pyarrow)."""
    tasks: list[ContainerTask] = []
    seen: set[str] = set()
    for place, data in _rows(path):
        if not isinstance(data, dict):
            raise UserError(f"{place}: must be an object with the columns of a {form} row")
        task = FORMATS[form](Row(data, place), options)
        if task.id in seen:
            raise UserError(f"{place}: field instance_id: {task.id} occurs twice")
        seen.add(task.id)
        tasks.append(task)
    if not tasks:
        raise UserError(f"{path}: holds no rows")
    return tasks


def _rows(path: Path) -> list[tuple[str, Any]]:
    if path.suffix == ".parquet":
        try:
            import pyarrow.parquet as parquet  # type: ignore[import-not-found,unused-ignore]
        except ImportError:
            raise UserError(f"{path}: reading parquet needs `pip install pyarrow`") from None
        rows = parquet.read_table(path).to_pylist()
        return [(f"{path} row {number}", row) for number, row in enumerate(rows, 1)]
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as text: {error}") from None
    if text.lstrip().startswith("["):
        return [(f"{path} row {n}", row) for n, row in enumerate(_json(text, str(path)), 1)]
    lines = [(f"{path} line {n}", line) for n, line in enumerate(text.splitlines(), 1)]
    return [(place, _json(line, place)) for place, line in lines if line.strip()]


def _json(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UserError(f"{place}: not JSON: {error}") from None
