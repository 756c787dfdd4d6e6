from pathlib import Path

import pytest

from frontrunner.envs.workspace import ToolError, Workspace, folded, symbols

CODE = '''\
import os


def area(width, height=1):
    """Area.

    of a box
    """

    return width * height


class Box:
    def __init__(self, side):
        self.side = side

    def grow(
        self,
        by,
    ):
        self.side += by
        self.side += by
'''


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    tree = tmp_path / "tree"
    (tree / "shapes" / "__pycache__").mkdir(parents=True)
    (tree / "shapes" / "box.py").write_text(CODE)
    (tree / "shapes" / "again.py").write_text(
        "def twice():\n    pass\n\n\ndef twice():\n    pass\n"
    )
    (tmp_path / "secret.py").write_text("secret = 1\n")
    (tree / "shapes" / "link.py").symlink_to(tmp_path / "secret.py")
    return Workspace(tree, {"shapes/box.py": CODE.replace("width * height", "width + height")})


def test_symbols_are_qualified_and_end_with_their_code() -> None:
    found = {s.name: (s.first, s.stop) for s in symbols("x.py", CODE)}
    methods = {"Box.__init__": (13, 15), "Box.grow": (16, 22)}
    assert found == {"area": (3, 10), "Box": (12, 22), **methods}


def test_symbols_survive_syntax_errors_and_strings_that_look_like_code() -> None:
    text = 'def f(:\n    """\ndef not_me():\n    """\n    return 1\n'
    assert [s.name for s in symbols("x.py", text)] == ["f"]


def test_view_folds_the_docstring_and_shows_the_bug(workspace: Workspace) -> None:
    assert workspace.view("area") == "1 def area(width, height=1):\n2     return width + height"


def test_folded_keeps_code_after_a_one_line_docstring() -> None:
    lines = ["def f():", '    "One."', "    return 1"]
    assert folded(lines, 0, 3) == [0, 2]


def test_edit_refers_to_the_last_view(workspace: Workspace) -> None:
    with pytest.raises(ToolError, match="view the code first"):
        workspace.edit("+", "*")
    workspace.view("area")
    assert workspace.edit("+", "*") == "2     return width * height"
    assert workspace.submission == {"shapes/box.py": CODE}


@pytest.mark.parametrize(
    ("old", "message"),
    [("-", "does not occur"), ("height", "occurs 2 times"), ("", "does not occur")],
)
def test_edits_that_are_not_clear_are_refused(workspace: Workspace, old: str, message: str) -> None:
    workspace.view("area")
    with pytest.raises(ToolError, match=message):
        workspace.edit(old, "*")
    assert workspace.submission == {}


def test_undo_takes_the_last_edit_back(workspace: Workspace) -> None:
    with pytest.raises(ToolError, match="no edit"):
        workspace.undo()
    workspace.view("area")
    workspace.edit("+", "*")
    workspace.edit("*", "-")
    workspace.undo()
    assert workspace.submission == {"shapes/box.py": CODE}
    workspace.undo()
    assert workspace.submission == {}


def test_undo_leaves_no_trace_of_a_file_without_bug(workspace: Workspace) -> None:
    workspace.view("shapes/again.py", 2, 2)
    workspace.edit("pass", "return")
    assert workspace.submission != {}
    workspace.undo()
    assert workspace.submission == {}


def test_view_of_a_file_numbers_its_own_lines(workspace: Workspace) -> None:
    assert workspace.view("shapes/box.py", 10, 11) == "10     return width + height\n11 "
    workspace.edit("+", "*")
    with pytest.raises(ToolError, match="not occur in the last view"):
        workspace.edit("def", "class")  # line 9 is not shown


@pytest.mark.parametrize(
    "path", ["../secret.py", "/etc/passwd", "shapes/../../secret.py", "shapes/link.py"]
)
def test_paths_stay_inside_the_tree(workspace: Workspace, path: str) -> None:
    with pytest.raises(ToolError):
        workspace.view(path if path.endswith(".py") else f"{path}/x.py")


def test_a_tree_behind_a_link_can_be_read(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(workspace.tree)
    assert "def area" in Workspace(tmp_path / "alias", {}).read("shapes/box.py")


def test_names_that_are_missing_or_ambiguous_are_explained(workspace: Workspace) -> None:
    with pytest.raises(ToolError, match="no such definition"):
        workspace.view("volume")
    with pytest.raises(ToolError, match=r"2 definitions: .*line 1, .*line 5"):
        workspace.view("twice")


def test_search_reads_the_edited_text(workspace: Workspace) -> None:
    assert workspace.search("width +") == "shapes/box.py:10: return width + height"
    with pytest.raises(ToolError, match="does not occur"):
        workspace.search("width *")
    with pytest.raises(ToolError, match="give some text"):
        workspace.search(" ")


def test_list_hides_bytecode(workspace: Workspace) -> None:
    assert workspace.list() == "shapes/"
    assert workspace.list("shapes").split("\n") == ["again.py", "box.py", "link.py"]
    with pytest.raises(ToolError, match="no such folder"):
        workspace.list("nowhere")
