"""Errors that are ours or the user's. A bad kernel is never an exception: it is an Evaluation."""


class UserError(Exception):
    """Something the user can put right: what happened, and what to do next."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
