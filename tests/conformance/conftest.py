"""Every device that this machine has, as the fixture `device`."""

import pytest
import torch

from evolve.devices.device import Device
from evolve.devices.emulated.device import EmulatedDevice


@pytest.fixture(scope="session", params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Device:
    if request.param == "emulated":
        return EmulatedDevice()
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU")
    from evolve.devices.cuda.device import CudaDevice

    return CudaDevice()
