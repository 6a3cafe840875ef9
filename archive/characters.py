"""Characters that no reader sees: they steer terminals, or show a text in another order than a compiler reads it."""

import re

# Controls but tab and newline (C0, DEL, C1), what turns the direction of writing, and halves of characters.
HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def hidden(text: str) -> re.Match[str] | None:
    """The first of them."""
    return HIDDEN.search(text)


def hidden_in_name(name: str) -> re.Match[str] | None:
    """As `hidden`, where tabs and newlines have no place either."""
    return HIDDEN.search(name) or re.search(r"[\t\n]", name)


def described(found: re.Match[str]) -> str:
    """In words, because it must not be shown itself."""
    code = ord(found.group())
    if 0xD800 <= code <= 0xDFFF:
        return f"half a character (U+{code:04X})"
    kind = "control character" if code < 0xA0 else "character that turns the direction of writing"
    return f"the {kind} U+{code:04X}"


def escaped(text: str) -> str:
    r"""The text with these characters spelled out, as in \u001b: so they are read, and JSON that holds them is JSON."""
    return HIDDEN.sub(lambda found: f"\\u{ord(found.group()):04x}", text)
