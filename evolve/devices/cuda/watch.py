"""The variables of a loaded cubin, compared with what they were before any launch."""

import ctypes

import torch
from cupy.cuda.function import Module
from cupy_backends.cuda.api.driver import CUDADriverError

from evolve.devices.cuda import own
from evolve.devices.object_file import Symbol

# Headers bring hundreds of them, so the GPU itself looks at all of them at once; a block each.
SOURCE = r"""
struct Variable { unsigned char* now; unsigned char* loaded; unsigned long long bytes; };
extern "C" __global__ void compare(const Variable* variables, unsigned char* changed, int first)
{
    Variable variable = variables[blockIdx.x];
    for (unsigned long long i = threadIdx.x; i < variable.bytes; i += blockDim.x) {
        if (first) variable.loaded[i] = variable.now[i];
        else if (variable.loaded[i] != variable.now[i]) changed[blockIdx.x] = 1;
    }
}
"""
THREADS = 64


class Watch:
    """Where the driver has put each variable, and a copy of what was in it; to be made before the first launch."""

    def __init__(self, module: Module, variables: tuple[Symbol, ...], arch: str) -> None:
        found = _placed(module, variables)
        self._names = [variable.name for variable, _ in found]
        self._copies = torch.empty(sum(v.size for v, _ in found), dtype=torch.uint8, device="cuda")
        rows, at = [], self._copies.data_ptr()
        for variable, address in found:
            rows.append([address, at, variable.size])
            at += variable.size
        self._table = torch.tensor(rows, dtype=torch.int64, device="cuda")
        self._changed = torch.zeros(len(rows), dtype=torch.uint8, device="cuda")
        self._compare = own.function(SOURCE, "compare", arch)
        self._launch(first=True)

    def changed(self) -> list[str]:
        """The names of those that are not as they were."""
        self._launch(first=False)
        return [name for name, changed in zip(self._names, self._changed.tolist(), strict=True) if changed]

    def _launch(self, *, first: bool) -> None:
        if not self._names:
            return
        pointers = (self._table, self._changed)
        values = (*(ctypes.c_uint64(tensor.data_ptr()) for tensor in pointers), ctypes.c_int32(first))
        own.launch(self._compare, len(self._names), THREADS, values)


def _placed(module: Module, variables: tuple[Symbol, ...]) -> list[tuple[Symbol, int]]:
    """Each variable and its address. Those that the compiler named, as the text of a printf, lie beside others."""
    addresses = {variable: _address(module, variable) for variable in variables}
    begins = {_section(variable): address - variable.at for variable, address in addresses.items() if address}
    placed = ((v, address or v.at + begins.get(_section(v), -v.at)) for v, address in addresses.items())
    return [(variable, address) for variable, address in placed if address]


def _section(variable: Symbol) -> str:
    return variable.section.name if variable.section else ""


def _address(module: Module, variable: Symbol) -> int:
    try:
        address: int = module.get_global_var(variable.name)
    except CUDADriverError:
        return 0
    return address
