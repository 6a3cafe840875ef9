"""Launches through the driver by ctypes, on a made-up driver, which must get the same arguments as from CuPy."""

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_records import H200

from archive import library
from archive.binding import bind
from archive.kernel import Bound, BoundLaunch, BoundMap, Pointer, Pointers, Value
from evolve.devices import object_file
from evolve.devices.cuda import cubin, tensor_maps
from evolve.devices.cuda.translation import source
from evolve.devices.device import RejectedError
from evolve.devices.prelude import cuda_include_dirs
from evolve.export.template import driver, nvrtc
from evolve.export.template.calls import MissingError
from evolve.export.template.driver import Block, Config, DriverError, Program
from evolve.export.template.free import slots
from evolve.export.template.launching import Buffers, Ready
from evolve.export.template.unrolled import Source, Written
from evolve.op_on_device import point
from reference_ops import catalog
from reference_ops.op import Workload

STREAM = 77
ARGUMENTS: tuple[Value, ...] = (
    Pointer("x"), 7, 0.25, Pointers(("x", "out")), 2**40, -3, Pointer("out"), 1e-300, 3_000_000_000,
)  # fmt: skip
SIZES = (8, 4, 4, 16, 8, 4, 8, 8, 4)
C_TYPES = {"float64": "FLOAT64", "float32": "FLOAT32", "float16": "FLOAT16", "bfloat16": "BFLOAT16",
           "int64": "INT64", "int32": "INT32", "int16": "UINT16", "uint8": "UINT8", "bool": "UINT8", "int8": "UINT8",
           "float8_e4m3fn": "UINT8", "float8_e5m2": "UINT8"}  # fmt: skip
ADDRESSES = {"x": 0x7F00_0000_1000, "out": 0x7F00_0000_2000}


@dataclass
class FakeDriver:
    """A driver that accepts everything and records the arguments of its launches. Its first calls return `codes`."""

    codes: list[int] = field(default_factory=list)
    resident: int = 4
    launched: list[tuple[Config, list[bytes]]] = field(default_factory=list)
    bound: int = 0  # number of times that a context was made current
    sizes: tuple[int, ...] = ()
    modules: int = 0  # number of loaded modules
    shared: list[int] = field(default_factory=list)  # sizes of shared memory requested for kernels, in order
    modes: list[int] = field(default_factory=lambda: [0])  # capture modes, in order
    encoded: list[tuple[Any, ...]] = field(default_factory=list)  # tensor maps, as they were requested

    def cuModuleLoadData(self, _module: Any, _image: bytes) -> int:  # noqa: N802
        self.modules += 1
        return 0

    def cuFuncSetAttribute(self, _function: Any, _attribute: int, value: int) -> int:  # noqa: N802
        self.shared.append(value)
        return 0

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:  # noqa: N802
        self.modes.append(mode._obj.value)
        mode._obj.value = self.modes[-2]
        return 0

    def cuLaunchKernelEx(self, config: Any, _function: Any, arguments: Any, _extra: None) -> int:  # noqa: N802
        if self.codes:
            return self.codes.pop(0)
        values = [ctypes.string_at(at, size) for at, size in zip(arguments, self.sizes, strict=True)]
        self.launched.append((Config.from_buffer_copy(config._obj), values))
        return 0

    def cuTensorMapEncodeTiled(self, place: Any, dtype: int, rank: Any, address: Any, *rest: Any) -> int:  # noqa: N802
        assert place.value % tensor_maps.ALIGNMENT == 0
        sizes, strides, box, steps, *modes = rest
        self.encoded.append(
            (dtype, rank.value, address.value, list(sizes), list(strides), list(box), list(steps), modes)
        )
        ctypes.memmove(place, address.value.to_bytes(8, "little"), 8)
        return 0

    def cuTensorMapReplaceAddress(self, place: Any, address: Any) -> int:  # noqa: N802
        self.encoded.append((address.value,))
        ctypes.memmove(place, address.value.to_bytes(8, "little"), 8)
        return 0

    def cuCtxSetCurrent(self, _context: Any) -> int:  # noqa: N802
        self.bound += 1
        return 0

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, found: Any, *_rest: Any) -> int:  # noqa: N802
        found._obj.value = self.resident
        return 0

    def __getattr__(self, _name: str) -> Any:
        return lambda *_: 0


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    found = FakeDriver()
    monkeypatch.setattr(driver, "driver", lambda: found)
    monkeypatch.setattr(driver, "_modules", {})
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _device: STREAM, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    return found


@pytest.fixture
def compiler() -> nvrtc.Nvrtc:
    try:
        return nvrtc.nvrtc()
    except MissingError as error:
        pytest.skip(str(error))


def softmax() -> Bound:
    op = catalog.load("softmax")
    kernel = next(one for one in library.shipped("softmax") if not one.plan.when)
    return bind(kernel, point(op, op.gpu[0], H200))


def program(bound: Bound, compiler: nvrtc.Nvrtc, fake: FakeDriver) -> Program:
    image = compiler.compiled(source(bound), H200.arch)
    fake.sizes = cubin.entries(image)[bound.launches[0].entry].parameter_bytes
    return Program(bound, image, H200.sms)


def launch(*, cooperative: bool = False) -> BoundLaunch:
    return BoundLaunch(0, "entry", (3, 2, 1), (64, 2, 1), 1024, ARGUMENTS, cooperative)


def test_arguments_are_packed_as_for_cupy() -> None:
    program = pytest.importorskip("evolve.devices.cuda.program")
    theirs = program.Parameters.of(ARGUMENTS, SIZES)
    for slot, index, name in theirs.pointers:
        slot[index] = ADDRESSES[name]
    block = Block([launch()], [SIZES])
    block.point([ADDRESSES[name] for name in block.names])
    ours = [ctypes.string_at(at, size) for at, size in zip(block.arguments[0], SIZES, strict=True)]
    assert ours == [
        ctypes.string_at(ctypes.addressof(slot), size) for slot, size in zip(theirs.keep, SIZES, strict=True)
    ]


def test_a_number_can_be_set_between_calls() -> None:
    block = Block([launch()], [SIZES])
    block.set(0, 2, 0.5)
    assert ctypes.c_float.from_address(block.arguments[0][2] or 0).value == 0.5


def test_launches_share_the_address_of_a_tensor() -> None:
    block = Block([launch(), launch()], [SIZES, SIZES])
    assert block.names == ["x", "x", "out", "out"]
    assert block.arguments[0][0] == block.arguments[1][0]


MAP = BoundMap("m", "x", "bfloat16", (3, 5, 64), (1, 4, 64), 128)


def test_a_tensor_map_is_encoded_once_and_gets_another_address_only_if_the_tensor_has(fake: FakeDriver) -> None:
    block = Block([replace(launch(), args=(MAP, Pointer("x"), Pointer("out")))], [(128, 8, 8)])
    assert block.names == ["x", "out"]
    place = block.arguments[0][0] or 0
    for address in (0x1000, 0x1000, 0x2000):
        block.point([address, 0x3000])
        assert ctypes.string_at(place, 8) == address.to_bytes(8, "little")
    sizes, strides, box = [64, 5, 3], [128, 640], [64, 4, 1]
    assert fake.encoded == [(9, 3, 0x1000, sizes, strides, box, [1, 1, 1], [0, 3, 2, 0]), (0x2000,)]


def test_a_refused_tensor_map_names_itself(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeDriver, "cuTensorMapEncodeTiled", lambda *_: 1)
    assert not fake.encoded
    block = Block([replace(launch(), args=(MAP,))], [(128,)])
    with pytest.raises(RejectedError, match=r"tensor map `m`: the driver refuses it \(error 1\)"):
        block.point([0x1000])


def test_structures_are_laid_out_as_in_cudas_header(tmp_path: Path) -> None:
    header = next((one for one in cuda_include_dirs() if (one / "cuda.h").is_file()), None)
    compiler = shutil.which("g++")
    if header is None or compiler is None:
        pytest.skip("needs cuda.h and g++")
    names = {"grid": "gridDimX", "block": "blockDimX", "shared": "sharedMemBytes", "stream": "hStream",
             "attributes": "attrs", "count": "numAttrs"}  # fmt: skip
    of_config = [f"offsetof(CUlaunchConfig, {c}) == {getattr(Config, name).offset}" for name, c in names.items()]
    attribute = driver._Attribute
    rest = [f"offsetof(CUlaunchAttribute, value) == {attribute.value.offset}",
            f"sizeof(CUlaunchAttribute) == {ctypes.sizeof(attribute)}",
            f"sizeof(CUlaunchConfig) == {ctypes.sizeof(Config)}",
            f"CU_LAUNCH_ATTRIBUTE_COOPERATIVE == {driver.COOPERATIVE}",
            f"CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES == {driver.MOST_SHARED}",
            f"CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES == {driver.STATIC_SHARED}",
            f"CU_STREAM_CAPTURE_MODE_RELAXED == {driver.RELAXED}",
            f"sizeof(CUtensorMap) == {tensor_maps.BYTES} && {tensor_maps.ALIGNMENT} % alignof(CUtensorMap) == 0",
            *(f"CU_TENSOR_MAP_SWIZZLE_{n}B == {code}" for n, code in tensor_maps.SWIZZLES.items() if n),
            f"CU_TENSOR_MAP_SWIZZLE_NONE == {tensor_maps.SWIZZLES[0]}",
            f"CU_TENSOR_MAP_INTERLEAVE_NONE == {tensor_maps.PLAIN}",
            f"CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE == {tensor_maps.ZEROS}",
            f"CU_TENSOR_MAP_L2_PROMOTION_L2_128B == {tensor_maps.SECTORS}",
            *(f"CU_TENSOR_MAP_DATA_TYPE_{c} == {tensor_maps.TYPES[name]}" for name, c in C_TYPES.items())]  # fmt: skip
    code = "\n".join(
        ["#include <cstddef>", "#include <cuda.h>", *(f"static_assert({one});" for one in of_config + rest)]
    )
    (tmp_path / "layout.cpp").write_text(code)
    done = subprocess.run(
        [compiler, "-std=c++17", "-fsyntax-only", f"-I{header}", str(tmp_path / "layout.cpp")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_package_compiles_to_the_machine_code_that_was_measured(compiler: nvrtc.Nvrtc) -> None:
    measured = pytest.importorskip("evolve.devices.cuda.compiler").compile_cubin(softmax(), H200.arch)
    ours = compiler.compiled(source(softmax()), H200.arch)
    assert cubin.entries(ours) == measured.entries
    codes = [
        {one.name: one.data for one in object_file.sections(image) if one.name.startswith(".text.")}
        for image in (ours, measured.image)
    ]
    assert codes[0] == codes[1]


def test_a_source_that_does_not_compile_is_an_error_with_the_compilers_message(compiler: nvrtc.Nvrtc) -> None:
    with pytest.raises(nvrtc.CompileError, match=r"kernel.cu\(1\): error: identifier .nothing. is undefined"):
        compiler.compiled('extern "C" __global__ void f() { nothing(); }', H200.arch)


def test_a_call_gives_the_driver_its_tensors_on_the_current_stream(compiler: nvrtc.Nvrtc, fake: FakeDriver) -> None:
    op, bound = catalog.load("softmax"), softmax()
    ready = Ready(program(bound, compiler, fake), torch.device("cpu", 0), Buffers.of(op, op.gpu[0], bound), ())
    x = torch.zeros(op.shape(op.inputs[0], op.gpu[0]), dtype=torch.bfloat16)
    (out,) = ready.launch((x,), {})
    ((config, values),) = fake.launched
    assert (config.stream, tuple(config.grid), tuple(config.block)) == (
        STREAM,
        bound.launches[0].grid,
        bound.launches[0].block,
    )
    assert [int.from_bytes(one, "little") for one in values[:2]] == [x.data_ptr(), out.data_ptr()]


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "sum"])
def test_a_plan_gives_the_driver_the_same_arguments_as_a_call(
    compiler: nvrtc.Nvrtc, fake: FakeDriver, name: str
) -> None:
    op = catalog.load(name)
    workload = next(one for one in op.gpu if one.dtype == "float32")
    kernel = next(one for one in library.shipped(name) if not one.plan.when)
    bound = bind(kernel, point(op, workload, H200))
    ready = Ready(
        program(bound, compiler, fake), torch.device("cpu", 0), Buffers.of(op, workload, bound), slots(op, kernel)
    )
    inputs = tuple(torch.empty(op.shape(spec, workload)) for spec in op.inputs)
    parameters = dict(workload.parameters)
    outputs = ready.launch(inputs, parameters)
    sources = [Source(at, 0, tuple(x.shape)) for at, x in enumerate(inputs)]
    written = [Written(tuple(x.shape), x.stride(), x.dtype, at == 0) for at, x in enumerate(outputs)]
    out = ready.planned(sources, written, parameters)(*inputs)
    assert (out.shape, out.stride(), out.dtype) == (outputs[0].shape, outputs[0].stride(), outputs[0].dtype)
    (config, called), (of_plan, planned) = fake.launched
    assert (of_plan.stream, *of_plan.grid, *of_plan.block) == (STREAM, *config.grid, *config.block)
    own = {x.data_ptr() for x in outputs}
    alike = [a == b for a, b in zip(called, planned, strict=True)]
    assert [int.from_bytes(one, "little") in own for one in called] == [not same for same in alike]
    assert out.data_ptr().to_bytes(8, "little") in planned


def test_a_plan_points_the_tensor_maps_at_the_tensors_of_each_call(compiler: nvrtc.Nvrtc, fake: FakeDriver) -> None:
    op = catalog.load("gemm")
    workload = next(one for one in op.gpu if one.dtype == "bfloat16")
    kernel = next(one for one in library.shipped("gemm") if one.plan.tensor_maps)
    bound = bind(kernel, point(op, workload, H200))
    ready = Ready(program(bound, compiler, fake), torch.device("cpu", 0), Buffers.of(op, workload, bound), ())
    calls = [tuple(torch.empty(op.shape(spec, workload), dtype=torch.bfloat16) for spec in op.inputs) for _ in "ab"]
    shape = op.shape(op.outputs[0], workload)
    sources = [Source(at, 0, tuple(x.shape)) for at, x in enumerate(calls[0])]
    plan = ready.planned(sources, [Written(shape, (shape[1], 1), torch.bfloat16, is_wanted=True)], {})
    for inputs in (*calls, calls[1]):
        out = plan(*inputs)
        addresses = [int.from_bytes(value[:8], "little") for value in fake.launched[-1][1]]
        assert addresses == [*[x.data_ptr() for x in inputs], out.data_ptr()]
    assert [len(one) > 1 for one in fake.encoded[:3]] == [True] * 3


def test_a_plan_launches_a_kernel_whose_workspace_is_empty_at_these_sizes(
    compiler: nvrtc.Nvrtc, fake: FakeDriver
) -> None:
    op = catalog.load("affine_grid_backward")
    kernel = next(one for one in library.shipped(op.name) if one.plan.workspace)
    workload = Workload("float32", (("batch", 8192), ("h", 4), ("w", 4)), ())
    bound = bind(kernel, point(op, workload, H200))
    assert not any(one.elements for one in bound.workspace)
    ready = Ready(program(bound, compiler, fake), torch.device("cpu", 0), Buffers.of(op, workload, bound), ())
    grad = torch.empty(op.shape(op.inputs[0], workload))
    written = Written(op.shape(op.outputs[0], workload), (6, 3, 1), torch.float32, is_wanted=True)
    out = ready.planned([Source(0, 0, tuple(grad.shape))], [written], {})(grad)
    ((_, values),) = fake.launched
    assert [int.from_bytes(one, "little") for one in values[:3]] == [grad.data_ptr(), out.data_ptr(), 0]


def test_a_plan_has_separate_arguments_in_each_thread(
    compiler: nvrtc.Nvrtc, fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    op, bound = catalog.load("softmax"), softmax()
    first, other = (torch.zeros(op.shape(op.inputs[0], op.gpu[0]), dtype=torch.bfloat16) for _ in range(2))
    written = Written(tuple(first.shape), first.stride(), first.dtype, is_wanted=True)
    waiting = [other]

    def slowly(*arguments: Any) -> int:
        """Launch while another thread launches the same plan, as it may: Python's lock is not held."""
        if waiting:
            plan(waiting.pop())
        return FakeDriver.cuLaunchKernelEx(fake, *arguments)

    monkeypatch.setattr(fake, "cuLaunchKernelEx", slowly)
    ready = Ready(program(bound, compiler, fake), torch.device("cpu", 0), Buffers.of(op, op.gpu[0], bound), ())
    plan = ready.planned([Source(0, 0, tuple(first.shape))], [written], {})
    plan(first)
    read = [int.from_bytes(values[0], "little") for _, values in fake.launched]
    assert read == [other.data_ptr(), first.data_ptr()]


def test_a_thread_without_a_context_gets_that_of_pytorch(compiler: nvrtc.Nvrtc, fake: FakeDriver) -> None:
    loaded = program(softmax(), compiler, fake)
    fake.codes.append(201)
    loaded.enqueue([16, 32], 0)
    assert (fake.bound, len(fake.launched)) == (1, 1)


def test_a_launch_that_fails_is_an_error_with_the_drivers_code(compiler: nvrtc.Nvrtc, fake: FakeDriver) -> None:
    loaded = program(softmax(), compiler, fake)
    fake.codes.append(700)
    with pytest.raises(DriverError, match="a kernel cannot be launched: error 700 of CUDA's driver"):
        loaded.enqueue([16, 32], 0)


def test_sizes_that_share_a_cubin_share_its_module(compiler: nvrtc.Nvrtc, fake: FakeDriver) -> None:
    program(softmax(), compiler, fake)
    program(softmax(), compiler, fake)
    assert fake.modules == 1


def test_a_kernel_keeps_the_largest_requested_shared_memory(fake: FakeDriver) -> None:
    module = driver.Module(b"image")
    for shared in (60_000, 100_000, 1000, 80_000):
        module.function("entry", shared)
    assert fake.shared == [60_000, 100_000]


def test_modules_are_loaded_during_captures_of_other_threads(fake: FakeDriver) -> None:
    with driver.despite_captures():
        assert fake.modes[-1] == driver.RELAXED
    assert fake.modes == [0, driver.RELAXED, 0]


@pytest.mark.parametrize(("offered", "loads"), [(12020, False), (12030, True), (13000, True)])
def test_drivers_load_during_a_capture_since_cuda_12_3(
    monkeypatch: pytest.MonkeyPatch, offered: int, loads: bool
) -> None:
    monkeypatch.setattr(driver, "offered", lambda: offered)
    assert driver.loads_in_captures() == loads


def test_a_driver_that_is_too_old_is_named_as_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())
    with pytest.raises(MissingError, match="driver is too old: it has no cuLaunchKernelEx"):
        driver.driver.__wrapped__()


def test_a_cooperative_launch_is_passed_to_the_driver_as_one() -> None:
    config = Config.of(launch(cooperative=True))
    assert (config.count, config.attributes[0].id, config.attributes[0].value) == (1, driver.COOPERATIVE, 1)


def test_a_cooperative_grid_that_cannot_be_resident_is_refused(fake: FakeDriver) -> None:
    with pytest.raises(RejectedError, match="a cooperative grid of 6 blocks, but only 4 can be resident"):
        driver._check_residency(launch(cooperative=True), ctypes.c_void_p(), sms=1)


def test_without_a_driver_the_error_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "LIBRARY", "libabsent.so.1")
    with pytest.raises(MissingError, match="there is no NVIDIA driver"):
        driver.driver.__wrapped__()
