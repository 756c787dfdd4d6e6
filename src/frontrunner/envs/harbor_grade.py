"""Grades a test log inside a task's container; copied into `tests/` of every folder we write.

    python3 grade.py tests.json LOG REWARD_JSON

`tests.json` holds `fail_to_pass` and `pass_to_pass` (names), or `expected` (name -> status, which
must be met exactly, as R2E-Gym has it), or nothing: then every test must pass. Without any test in
the log no reward is written, which Harbor and we read as a failed verifier, never as 0.
Standard library only, and Python 3.6: it runs with whatever the image has.
"""

import json
import re
import sys
from pathlib import Path

_STATUS = "PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS"
_PATTERNS = (
    # cargo test, go test -v, pytest -rA, pytest -v, Django's and sympy's runner
    re.compile(r"^test (?P<name>\S+) \.\.\. (?P<status>ok|FAILED|ignored)$"),
    re.compile(r"^--- (?P<status>PASS|FAIL|SKIP): (?P<name>\S+)"),
    re.compile(r"^(?P<status>%s) +(?P<name>.+?)(?: - .*)?$" % _STATUS),  # noqa: UP031
    re.compile(r"^(?P<name>\S.*?) +(?P<status>%s)(?: +\[ *\d+%%\])?$" % _STATUS),  # noqa: UP031
    re.compile(r"^(?P<name>\S.*?) \.\.\. (?P<status>ok|FAIL|ERROR|skipped\b.*)$"),
    re.compile(r"^(?P<name>test_\w+) (?P<status>ok|F|E|f|s)(?: +\[.*\])?$"),
)
_NAMES = {"ok": "PASSED", "PASS": "PASSED", "F": "FAILED", "FAIL": "FAILED", "E": "ERROR"}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def statuses(log: str) -> "dict[str, str]":
    """Status per test; where a test is reported twice, the worse one counts."""
    found: dict[str, str] = {}
    for line in _COLOUR.sub("", log).splitlines():
        for pattern in _PATTERNS:
            match = pattern.match(line.strip())
            if match is None:
                continue
            name, status = match.group("name"), match.group("status")
            status = (
                "SKIPPED" if status[0] in "si" or status == "SKIP" else _NAMES.get(status, status)
            )
            if found.get(name) not in ("FAILED", "ERROR"):
                found[name] = status
            break
    return found


def _short(name: str) -> str:
    """`tests/test_a.py::TestX::test_y` as R2E-Gym names it: `TestX.test_y`."""
    return ".".join(name.split("::")[1:]) or name


def solved(wanted: "dict[str, object]", found: "dict[str, str]") -> bool:
    """Whether the log shows what the task asks for; a test that is not in it has not passed."""
    expected = wanted.get("expected")
    if isinstance(expected, dict):
        short = {_short(name): status for name, status in found.items()}
        return short == {name.split(" - ")[0]: status for name, status in expected.items()}

    def status(test: str) -> str:
        # SWE-bench cuts parametrised names at the first blank: then all that begin so must agree.
        cut = [found[name] for name in found if name.split()[0] == test and "[" in test]
        return found.get(test) or (cut[0] if len(set(cut)) == 1 else "")

    fail, keep = wanted.get("fail_to_pass"), wanted.get("pass_to_pass")
    if isinstance(fail, list) and isinstance(keep, list):
        fixed = all(status(test) == "PASSED" for test in fail)
        return fixed and all(status(test) in ("PASSED", "SKIPPED", "XFAIL") for test in keep)
    return all(status in ("PASSED", "SKIPPED", "XFAIL") for status in found.values())


def main() -> int:
    wanted, log, reward = (Path(argument) for argument in sys.argv[1:4])
    found = statuses(log.read_text(encoding="utf-8", errors="replace"))
    if not found:
        sys.stderr.write("no test was reported; see %s\n" % log)  # noqa: UP031
        return 1
    value = float(solved(json.loads(wanted.read_text(encoding="utf-8")), found))
    reward.write_text(json.dumps({"reward": value}), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
