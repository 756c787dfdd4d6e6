"""Parsing Python in threads.

CPython up to 3.13 counts the recursion of tree building once for all threads, so that two parsers
at work end in `SystemError: AST constructor recursion depth mismatch` now and then
(python/cpython#106905). Gradings run in threads, and one at a time gets to parse.
"""

from __future__ import annotations

import ast
import threading

_lock = threading.Lock()


def parse(source: str | bytes) -> ast.Module:
    """`ast.parse`, by one thread at a time."""
    with _lock:
        return ast.parse(source)
