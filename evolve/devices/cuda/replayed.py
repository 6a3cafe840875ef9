"""The process that NVIDIA's tools watch: runs the kernel of a folder once. Without PyTorch, to start fast."""

import ctypes
import signal
import sys
from pathlib import Path

from cupy.cuda import runtime

from evolve.devices.cuda import replay
from evolve.devices.cuda.program import loaded, prepared
from evolve.devices.cuda.replay import Buffer, Parcel


def run(packed: Parcel) -> None:
    """Every buffer is an allocation of its own, so that the first byte outside one is known to be outside."""
    runtime.setDevice(packed.device)
    addresses = {buffer.name: _placed(buffer) for buffer in packed.buffers}
    module = loaded(packed.image)
    launches = [prepared(module, step.launch, step.parameter_bytes, step.static_shared) for step in packed.steps]
    for launch in launches:
        launch.enqueue(addresses.__getitem__, 0)
    runtime.deviceSynchronize()


def main() -> None:
    folder, mark, seconds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    signal.alarm(seconds)  # the end of us, should the tool be killed without us
    run(replay.read(folder))
    (folder / mark).touch()


def _placed(buffer: Buffer) -> int:
    address: int = runtime.malloc(max(1, buffer.nbytes))
    if buffer.contents:
        runtime.memcpy(address, _address(buffer.contents), buffer.nbytes, runtime.memcpyHostToDevice)
    elif buffer.zero and buffer.nbytes:
        runtime.memset(address, 0, buffer.nbytes)
    return address


def _address(contents: bytes) -> int:
    return ctypes.cast(ctypes.c_char_p(contents), ctypes.c_void_p).value or 0


if __name__ == "__main__":
    main()
