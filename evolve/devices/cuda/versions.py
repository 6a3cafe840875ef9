"""Which NVRTC is loaded. Needs no GPU."""


def nvrtc_version() -> str:
    """Such as 13.0; an ImportError or a RuntimeError says why there is none."""
    from cupy.cuda import nvrtc

    major, minor = nvrtc.getVersion()
    return f"{major}.{minor}"
