"""Errors that cross a room's door; a `UserError` is one sentence for a person, no traceback."""

from __future__ import annotations


class UserError(Exception):
    """Something the user can put right: names the file, key or value, and says what to do.

    The command line prints the sentence and exits with code 2.
    """


class SandboxUnavailable(UserError):
    """No sandbox can be started on this machine; the message says what is missing."""


class SandboxError(Exception):
    """The box itself failed (not the code in it). Becomes an `invalid` verdict, never a 0."""
