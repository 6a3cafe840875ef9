"""Archive of kernels, proposals and evaluations: their formats, and the store that keeps them."""


class ArchiveError(Exception):
    """Raised when a file is not an archive, cannot be opened, or is damaged."""
