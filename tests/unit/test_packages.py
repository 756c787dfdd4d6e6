import importlib.util
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tiny_package import CODE, FILES, forget, install, site

from frontrunner.envs import packages
from frontrunner.errors import UserError

__all__ = ["site"]


def test_a_tree_holds_the_package_and_nothing_else(site: Path) -> None:
    tree = packages.materialise("tiny")
    files = {f.relative_to(tree).as_posix() for f in tree.rglob("*") if f.is_file()}
    assert {f for f in files if not f.endswith(".pyc")} == set(FILES)
    assert (tree / "tiny/calc.py").read_text() == CODE
    assert tree.parent == packages.cache_dir() / "trees"
    assert tree.name == f"tiny-1.0-{packages.digest('tiny')[:16]}"


def test_files_are_readable_by_all_and_writable_by_none(site: Path) -> None:
    tree = packages.materialise("tiny")
    assert stat.S_IMODE(tree.stat().st_mode) == 0o755
    assert stat.S_IMODE((tree / "tiny/calc.py").stat().st_mode) == 0o444


def test_bytecode_is_checked_against_the_source(site: Path) -> None:
    file = packages.materialise("tiny") / "tiny/calc.py"
    compiled = Path(importlib.util.cache_from_source(str(file))).read_bytes()
    assert int.from_bytes(compiled[4:8], "little") == 0b11
    assert compiled[8:16] == importlib.util.source_hash(file.read_bytes())


def test_a_file_that_does_not_compile_is_kept(site: Path) -> None:
    install(site, files={**FILES, "tiny/template.py": "class {{ name }}:\n"})
    assert (packages.materialise("tiny") / "tiny/template.py").exists()


def test_many_threads_make_one_tree(site: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        trees = set(pool.map(lambda _: packages.materialise("tiny"), range(16)))
    (tree,) = trees
    assert list(tree.parent.iterdir()) == [tree]


def test_the_address_follows_the_content(site: Path) -> None:
    first = packages.materialise("tiny")
    install(site, files={**FILES, "tiny/calc.py": CODE + "\n"})
    assert packages.materialise("tiny") != first


def test_another_version_is_named_with_the_remedy(site: Path) -> None:
    expected = packages.digest("tiny")
    install(site, version="1.1")
    with pytest.raises(UserError) as error:
        packages.materialise("tiny", "1.0", expected)
    assert str(error.value) == (
        "tiny 1.1 is installed but the task set needs 1.0; pip install tiny==1.0"
    )


def test_changed_files_of_the_same_version_are_refused(site: Path) -> None:
    expected = packages.digest("tiny")
    install(site, files={**FILES, "tiny/calc.py": CODE + "\n"})
    with pytest.raises(UserError, match="its files differ"):
        packages.materialise("tiny", "1.0", expected)


def test_a_cached_tree_needs_no_installation(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree, expected = packages.materialise("tiny"), packages.digest("tiny")
    monkeypatch.setattr("sys.path", [])
    forget()
    assert packages.materialise("tiny", "1.0", expected) == tree


def test_a_missing_package_is_named() -> None:
    with pytest.raises(UserError, match="package no-such-thing is not installed; pip install"):
        packages.materialise("no-such-thing")


def test_compiled_packages_are_refused(site: Path) -> None:
    install(site, files={**FILES, "tiny/fast.so": ""})
    with pytest.raises(UserError, match="not pure Python"):
        packages.materialise("tiny")


def test_a_file_lost_from_the_installation_is_named(site: Path) -> None:
    (site / "tiny/calc.py").unlink()
    with pytest.raises(UserError, match=r"misses .*calc\.py; pip install --force-reinstall tiny"):
        packages.materialise("tiny")


def test_libraries_are_the_installed_requirements() -> None:
    assert packages.libraries("toolz") == ()
    assert "boltons" in packages.libraries("glom")


def test_sources_are_pure_and_pinned() -> None:
    for source in packages.SOURCES:
        assert packages.installed_version(source.name) == source.version
        assert packages.source(source.name) is source
