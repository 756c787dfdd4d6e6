import io
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from report_run import make_rollout, write_run

from frontrunner.errors import UserError
from frontrunner.report.console import ConsoleTracker
from frontrunner.report.html import ending, points, render, usd, write_report
from frontrunner.report.run_files import read_run
from frontrunner.report.summary import headline, read_summary
from frontrunner.report.tracker import JsonlTracker, read_rows
from frontrunner.types import Verdict


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "finished"
    write_run(path, num_tasks=12, num_steps=12)
    write_report(path)
    return path


class Tags(HTMLParser):
    """Collects tags and attributes, and checks that elements nest."""

    void = ("meta", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.urls: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.urls += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href")]
        self.ids += [v or "" for k, v in attrs if k == "id"]
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.void:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.void:
            assert self.open.pop() == tag


def test_the_page_is_self_contained_and_well_formed(run_dir: Path) -> None:
    text = (run_dir / "report.html").read_text()
    page = Tags()
    page.feed(text)
    assert page.open == []
    assert all(url.startswith("#") for url in page.urls)
    assert not {"script", "link", "iframe", "img"} & set(page.seen)
    assert "@import" not in text and not re.search(r"url\((?!#)", text)
    assert len(page.ids) == len(set(page.ids))
    assert {url[1:] for url in page.urls} <= set(page.ids)
    assert (run_dir / "frontier.png").read_bytes()[:4] == b"\x89PNG"


def test_the_same_files_give_the_same_bytes(run_dir: Path) -> None:
    before = (run_dir / "report.html").read_bytes(), (run_dir / "frontier.png").read_bytes()
    write_report(run_dir)
    assert before == (
        (run_dir / "report.html").read_bytes(),
        (run_dir / "frontier.png").read_bytes(),
    )


def test_the_page_shows_what_was_measured(run_dir: Path) -> None:
    text = (run_dir / "report.html").read_text()
    data = json.loads((run_dir / "frontier.json").read_text())
    for level in data["levels"]:
        assert points(level["delta_j"]["mean"]) in text
        assert usd(level["base"]["cost_usd"]) in text
    assert "Where \N{GREEK SMALL LETTER LAMDA} comes from" in text
    assert "Entropy" in text and "tests failed" in text


def test_model_output_is_escaped(run_dir: Path) -> None:
    run = read_run(run_dir)
    evil = "<script>alert(1)</script>"
    rollout = make_rollout(np.random.default_rng(0), 1, "low", 0.5, 3.0, text=evil)
    rollout = replace(rollout, task_id=evil, verdict=Verdict("graded", 0.0, evil))
    text = render(replace(run, base=[rollout], name=evil))
    assert "<script" not in text and "&lt;script&gt;" in text


def test_a_run_in_progress_still_renders(tmp_path: Path) -> None:
    write_run(tmp_path / "run", num_tasks=12, num_steps=3, finished=False)
    (tmp_path / "run/metrics.jsonl").unlink()
    text = write_report(tmp_path / "run").read_text()
    assert "not yet" in text and "Latest training rollouts" in text


@pytest.mark.parametrize(
    "name", ["config.json", "frontier.json", "metrics.jsonl", "eval/base.jsonl"]
)
def test_a_missing_file_is_named(run_dir: Path, tmp_path: Path, name: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run_dir, copy)
    (copy / name).unlink()
    with pytest.raises(UserError, match=re.escape(name)):
        write_report(copy)


def test_broken_files_are_named_with_the_line(run_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(run_dir, tmp_path / "copy")
    (tmp_path / "copy/eval/base.jsonl").write_text('{"task_id": 1}\n')
    with pytest.raises(UserError, match=r"base\.jsonl, line 1, is not a rollout"):
        write_report(tmp_path / "copy")
    with pytest.raises(UserError, match="no run directory"):
        read_summary(tmp_path / "nowhere")


def test_summary_has_exactly_the_published_keys(run_dir: Path) -> None:
    data = read_summary(run_dir)
    assert set(data) == {"levels", "wall_seconds", "seed", "config_hash"}
    for level in data["levels"]:
        assert set(level) == {
            *("name", "lambda", "base", "final"),
            *("delta_success", "delta_cost_usd", "delta_j"),
        }
        for measured in (level["base"], level["final"]):
            assert set(measured) == {"success", "cost_usd", "num_tasks", "num_rollouts"}
        assert set(level["delta_j"]) == {"mean", "low", "high"}


def frontier(*deltas: tuple[float, float, float]) -> dict[str, object]:
    keys = ("low", "mean", "high")
    return {
        "levels": [
            {"name": f"e{i}", "delta_j": dict(zip(keys, d, strict=True))}
            for i, d in enumerate(deltas)
        ]
    }


def test_headline_says_no_more_than_the_intervals() -> None:
    up, flat, down = (0.01, 0.04, 0.07), (-0.01, 0.02, 0.05), (-0.05, -0.03, -0.01)
    assert headline(frontier(up, up)).startswith("The frontier moved up at all 2 effort levels")
    assert "up at 1 of 2" in headline(frontier(up, flat))
    assert "up at 1 and down at 1 of 2" in headline(frontier(up, down))
    assert headline(frontier(flat, flat)).startswith("No clear move")
    assert "e0 +4.0" in headline(frontier(up))


def test_money_has_no_exponent() -> None:
    assert usd(0.0000123) == "$0.0000123" and usd(12.83) == "$12.8" and usd(0.0) == "$0.00"
    assert usd(1234.5) == "$1,234" and usd(-0.5) == "\N{MINUS SIGN}$0.500"
    assert usd(0.25, True) == "+$0.250"


def test_endings_group_free_text() -> None:
    rollout = make_rollout(np.random.default_rng(0), 1, "low", 1.0, 3.0)
    graded = replace(rollout, verdict=Verdict("graded", 0.0, "tampering: conftest.py"))
    assert ending(graded) == "tampering"
    assert ending(replace(graded, status="max_turns")) == "max turns, tampering"
    invalid = replace(rollout, verdict=Verdict("invalid", 0.0, "box"))
    assert ending(invalid) == "invalid (not counted)"


def test_tracker_survives_a_kill_and_a_resume(tmp_path: Path) -> None:
    path = tmp_path / "logs/metrics.jsonl"
    tracker = JsonlTracker(path, fsync=True)
    for step in range(1, 6):
        tracker.log(step, {"loss": 1.0 / step, "bad": float("nan")})
    tracker.close()
    with path.open("a") as file:
        file.write('{"step": 6, "lo')
    assert [row["step"] for row in read_rows(path)] == [1, 2, 3, 4, 5]
    tracker = JsonlTracker(path)
    tracker.truncate_after(3)
    tracker.log(4, {"loss": 9.0})
    tracker.close()
    rows = read_rows(path)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert rows[-1]["loss"] == 9.0 and rows[0]["bad"] is None


def test_a_file_that_is_one_torn_line_becomes_empty(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step"' + " " * 100_000)
    JsonlTracker(path).close()
    assert path.read_bytes() == b""
    path.write_text("nonsense\n")
    with pytest.raises(UserError, match="line 1"):
        read_rows(path)


def test_a_pipe_gets_one_plain_line_per_step() -> None:
    stream = io.StringIO()
    console = ConsoleTracker(["low", "high"], 200, stream=stream)
    console.log(12, {"effort/low/success": 0.41, "effort/low/cost": 0.0021})
    console.close()
    assert stream.getvalue() == "step 12/200  low S 41.0% C $0.0021\n"


def test_a_terminal_gets_a_table() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    console = ConsoleTracker(["low", "high"], 200, stream=stream)
    console.log(12, {"effort/low/success": 0.41})
    console.log(13, {"effort/high/success": 0.52})
    console.close()
    assert "41.0%" in stream.getvalue() and "52.0%" in stream.getvalue()
