"""Archive of kernels, proposals and evaluations: their formats, and their store."""


class ArchiveError(Exception):
    """Raised when a file is not an archive, cannot be opened, or is damaged."""
