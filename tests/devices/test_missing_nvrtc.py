"""A machine without NVRTC: the error says what is missing and which command shows how to install it."""

import pytest

from evolve.devices import cuda
from evolve.errors import UserError


@pytest.mark.parametrize(
    "raised", [ImportError("libnvrtc.so.13: cannot open shared object file\nmore"), RuntimeError("")]
)
def test_the_error_of_a_device_without_nvrtc_names_nvrtc(monkeypatch: pytest.MonkeyPatch, raised: Exception) -> None:
    compiler = pytest.importorskip("evolve.devices.cuda.compiler")

    def fail() -> None:
        raise raised

    monkeypatch.setattr(compiler, "nvrtc_version", fail)
    with pytest.raises(UserError, match="NVRTC, which compiles kernels, cannot be loaded: ") as caught:
        cuda.make(None, None)
    assert str(caught.value).count("\n") == 0
    assert "evolve doctor" in caught.value.hint
