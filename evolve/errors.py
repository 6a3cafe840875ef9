"""Errors: UserError, for errors that the user can correct, and kinds of failures that are not exceptions."""

import re


class UserError(Exception):
    """Raised for an error that the user can correct: the message says what is wrong, and the hint says what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


VARYING = re.compile(r"\S*\d\S*")


def kind_of(failure: str) -> str:
    """Return the reason for a failure without numbers and ids, so that failures of one kind have equal reasons."""
    return VARYING.sub("#", failure)
