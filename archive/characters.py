"""Hidden characters, which may control a terminal, or make it show text in another order than a compiler reads."""

import re

# Control characters except tab and newline (C0, DEL, C1), those that change the text direction, and lone surrogates.
HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def hidden(text: str) -> re.Match[str] | None:
    """Return the first hidden character of a text, if there is one."""
    return HIDDEN.search(text)


def hidden_in_name(name: str) -> re.Match[str] | None:
    """Return the first hidden character of a name. In names, tabs and newlines are hidden characters, too."""
    return HIDDEN.search(name) or re.search(r"[\t\n]", name)


def described(found: re.Match[str]) -> str:
    """Return a description of a hidden character, which must not be printed itself."""
    code = ord(found.group())
    if 0xD800 <= code <= 0xDFFF:
        return f"the lone surrogate U+{code:04X}"
    kind = "control character" if code < 0xA0 else "character that changes the text direction"
    return f"the {kind} U+{code:04X}"


def escaped(text: str) -> str:
    r"""Return the text with hidden characters escaped, as in \u001b, so that they are visible, and JSON stays valid."""
    return HIDDEN.sub(lambda found: f"\\u{ord(found.group()):04x}", text)
