"""The tools a coding agent has, as one text command a turn, and the environment that runs them.

    list [FOLDER] | view | view NAME | view FILE [FIRST LAST] | search TEXT
    edit OLD => NEW | undo | test | submit

A command is the first line of the message that starts with a tool's name; text around it is the
agent's reasoning and costs tokens like everything else.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from frontrunner.envs.workspace import ToolError, Workspace
from frontrunner.protocols import TestReport

HELP = """Commands, one per message:
view - show the function that the task names, with numbered lines
view NAME - show another function or class
view FILE [FIRST LAST] - show lines of a file
search TEXT - find text in the project
list [FOLDER] - list files
edit OLD => NEW - replace OLD, which occurs once in the last view, by NEW
undo - take the last edit back
test - run the tests
submit - hand in the work"""

TOOLS = ("list", "view", "search", "edit", "undo", "test", "submit")
_COMMAND = re.compile(rf"^\s*({'|'.join(TOOLS)})\b[ \t]*(.*?)\s*$", re.MULTILINE)
EDIT = re.compile(r"(.+?) => ?(.*)", re.DOTALL)
_NUMBER = re.compile(r"\d{1,6}")
REFERENCE_SECONDS = 0.01
"""Reference duration of every tool but `test`, for pricing."""


@dataclass(frozen=True, slots=True)
class Command:
    tool: str
    argument: str


def parse(text: str) -> Command | None:
    """The command in a message, or None."""
    match = _COMMAND.search(text)
    return Command(match[1], match[2]) if match else None


def describe_report(report: TestReport, num_tests: int) -> str:
    """What the agent reads after `test`."""
    if report.timed_out:
        return "failed: the tests did not finish in time"
    if report.exited_early:
        return "failed: the test process ended early"
    bad = sum(outcome not in ("passed", "skipped") for outcome in report.outcomes.values())
    bad += num_tests - len(report.outcomes)
    if bad == 0:
        return "passed"
    return f"failed {bad} of {num_tests}: {report.message[:200]}" if report.message else "failed"


RunTests = Callable[[dict[str, str | None]], TestReport]


class BugFixEnvironment:
    """One task being worked on; implements `protocols.Environment`.

    `focus` is the definition that the user's message names, which a bare `view` shows;
    `run_tests` gets the edited files and runs the task's tests in the sandbox.
    """

    def __init__(
        self,
        workspace: Workspace,
        run_tests: RunTests,
        *,
        focus: str,
        num_tests: int,
        test_seconds: float,
    ) -> None:
        self.workspace = workspace
        self._focus = focus
        self._run_tests = run_tests
        self._num_tests = num_tests
        self._test_seconds = test_seconds

    @property
    def submission(self) -> dict[str, str | None]:
        return self.workspace.submission

    def act(self, text: str) -> tuple[str, str, float]:
        """Run the message's command; returns (tool, observation, reference seconds)."""
        command = parse(text)
        if command is None:
            return "malformed", "no command found; one of: " + ", ".join(TOOLS), REFERENCE_SECONDS
        if command.tool == "submit":
            return "submit", "", 0.0
        if command.tool == "test":
            report = self._run_tests(dict(self.workspace.edits))
            seconds = report.wall_seconds if report.timed_out else self._test_seconds
            return "test", describe_report(report, self._num_tests), seconds
        try:
            observation = self._text_tool(command)
        except ToolError as error:
            observation = f"error: {error}"
        return command.tool, observation, REFERENCE_SECONDS

    def _text_tool(self, command: Command) -> str:
        argument = command.argument
        match command.tool:
            case "list":
                return self.workspace.list(argument or ".")
            case "view":
                words = argument.split() or [self._focus]
                if len(words) > 3 or not all(_NUMBER.fullmatch(w) for w in words[1:]):
                    raise ToolError("view: write `view`, `view NAME` or `view FILE [FIRST LAST]`")
                bounds = [int(w) for w in words[1:3]] + [None, None]
                return self.workspace.view(words[0], bounds[0], bounds[1])
            case "search":
                return self.workspace.search(argument)
            case "undo":
                return self.workspace.undo()
            case _:
                match = EDIT.fullmatch(argument)
                if match is None:
                    raise ToolError("edit: write `edit OLD => NEW`")
                return self.workspace.edit(match[1], match[2])
