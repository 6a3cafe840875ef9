"""Addresses of pages. They are the same whether pages are served or written into one file, and they do not change."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

OVERVIEW, RUNS = "", "runs"


def op_page(op: str, device: str = "") -> str:
    """Return the address of an op, on the device with this key or on its first device."""
    return "/".join(["op", quote(op, safe=""), *([quote(device, safe="")] if device else [])])


def kernel_page(kernel_id: str) -> str:
    return f"kernel/{quote(kernel_id, safe='')}"


def kernel_file(kernel_id: str) -> str:
    return f"{kernel_page(kernel_id)}.cu"


def run_page(run: str) -> str:
    return f"run/{quote(run, safe='')}"


def kernels_compared(a: str, b: str) -> str:
    return f"compare/kernels/{quote(a, safe='')}/{quote(b, safe='')}"


def runs_compared(a: str, b: str) -> str:
    return f"compare/runs/{quote(a, safe='')}/{quote(b, safe='')}"


def devices_compared(op: str) -> str:
    return f"compare/devices/{quote(op, safe='')}"


class Absent(Exception):  # noqa: N818 - an answer, not an error
    """Raised when there is no page at an address."""

    def __init__(self, title: str, message: str) -> None:
        super().__init__(title)
        self.title, self.message = title, message


class Moved(Exception):  # noqa: N818 - an answer, not an error
    """Raised when the page is at another address, such as that of the whole id."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address


class Links(Protocol):
    """Function that turns the address of a page into a link."""

    def __call__(self, address: str) -> str:
        """Return the link, or an empty string if there is no such page."""


def served(address: str) -> str:
    """Return a link to a page of the server."""
    return f"/{address}"


@dataclass(frozen=True)
class Without:
    """Links, without those to pages that cannot be made."""

    links: Links
    absent: Collection[str]  # addresses of the pages that are left out

    def __call__(self, address: str) -> str:
        return "" if address in self.absent else self.links(address)


@dataclass(frozen=True)
class InOneFile:
    """Links between the pages of one file, which holds only some pages."""

    pages: Collection[str]

    def __call__(self, address: str) -> str:
        return f"#/{address}" if address in self.pages else ""
