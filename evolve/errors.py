"""UserError, the exception for errors that the user can correct. A bad kernel gets an Evaluation instead."""


class UserError(Exception):
    """An error that the user can correct: the message says what is wrong, the hint what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
