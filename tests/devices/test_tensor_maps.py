"""Copies of tiles by tensor maps on every device: swizzles, edges, barriers, and wrong use."""

import pytest
import torch
from device_kernels import EVERY_DEVICE, made, rejected, run

from archive.records import Outcome
from evolve.devices.emulated.device import EmulatedDevice

HELPERS = """
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void begin(unsigned long long* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\\nfence.mbarrier_init.release.cluster;"
        ::"r"(at(barrier)), "r"(arrivals) : "memory");
}
__device__ void expect(unsigned long long* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at(barrier)), "r"(bytes) : "memory");
}
__device__ void arrive(unsigned long long* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at(barrier)) : "memory");
}
__device__ void wait(unsigned long long* barrier, int parity) {
    asm volatile("{\\n.reg .pred done;\\nagain:\\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\\n"
        "@!done bra again;\\n}" ::"r"(at(barrier)), "r"(parity) : "memory");
}
__device__ void load(void* to, const CUtensorMap* map, int column, int row, unsigned long long* barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(at(to)), "l"(map), "r"(column), "r"(row), "r"(at(barrier)) : "memory");
}
__device__ void store(const CUtensorMap* map, int column, int row, const void* from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
        ::"l"(map), "r"(column), "r"(row), "r"(at(from)) : "memory");
}
__device__ void stored() {
    asm volatile("cp.async.bulk.commit_group;\\ncp.async.bulk.wait_group 0;" ::: "memory");
}
"""
MAPS = """
[tensor_maps]
x_map = { tensor = "x", shape = ["rows", "cols"], box = [HIGH, WIDE], swizzle = SWIZZLE }
y_map = { tensor = "y", shape = ["rows", "cols"], box = [HIGH, WIDE], swizzle = SWIZZLE }
"""


def kernel(body: str, parameters: str, high: int, wide: int, swizzle: int = 0, args: str = "", block: int = 64) -> str:
    """Return a kernel with maps of `x` and `y`. `parameters` are those of the entry, `args` the plan's names."""
    maps = MAPS.replace("HIGH", str(high)).replace("WIDE", str(wide)).replace("SWIZZLE", str(swizzle))
    return (
        f'/*---\nop = "test"\n{maps}\n[[launch]]\nentry = "test_entry"\ngrid = [2]\nblock = [{block}]\n'
        f'args = [{args}]\n---*/\n{HELPERS}\nextern "C" __global__ void test_entry({parameters}) {{\n{body}\n}}\n'
    )


def without_map_of_y(text: str) -> str:
    return text[: text.index("y_map = ")] + text[text.index("\n[[launch]]") :]


MAP = "const __grid_constant__ CUtensorMap"
# Both blocks do the same, so that the emulated device copies early in one and late in the other.
LOADED = """
    __shared__ alignas(1024) T tile[HIGH * WIDE];
    __shared__ alignas(8) unsigned long long full;
    if (threadIdx.x == 0) {
        begin(&full, 1);
        expect(&full, sizeof(tile));
        load(tile, &x_map, FROM, &full);
    }
    __syncthreads();
    wait(&full, 0);
    for (int i = threadIdx.x; i < HIGH * WIDE; i += blockDim.x) y[i] = tile[i];
"""


def loaded(x: torch.Tensor, kind: str, high: int, wide: int, swizzle: int, start: tuple[int, int]) -> torch.Tensor:
    """Return the content of shared memory after the copy of a tile whose first element is at `start`, row first."""
    types = {torch.float32: "float", torch.bfloat16: "__nv_bfloat16", torch.uint8: "unsigned char"}
    body = LOADED.replace("HIGH", str(high)).replace("WIDE", str(wide)).replace("T tile", f"{types[x.dtype]} tile")
    body = body.replace("FROM", f"{start[1]}, {start[0]}")
    text = kernel(body, f"{MAP} x_map, y_t* y", high, wide, swizzle, '"x_map", "y"')
    text = without_map_of_y(text)
    y = torch.zeros(high, wide, dtype=x.dtype)
    run(made(kind), text, {"x": x, "y": y}, {"rows": x.shape[0], "cols": x.shape[1]})
    return y


def tile_of(x: torch.Tensor, high: int, wide: int, start: tuple[int, int]) -> torch.Tensor:
    rows, columns = (torch.arange(size) + first for size, first in zip((high, wide), start, strict=True))
    inside = ((rows >= 0) & (rows < x.shape[0]))[:, None] & ((columns >= 0) & (columns < x.shape[1]))[None]
    found = x[rows.clamp(0, x.shape[0] - 1)][:, columns.clamp(0, x.shape[1] - 1)]
    return torch.where(inside, found, torch.zeros((), dtype=x.dtype))


@pytest.mark.parametrize("kind", EVERY_DEVICE)
@pytest.mark.parametrize(
    ("dtype", "high", "wide", "start"),
    [
        (torch.float32, 8, 16, (0, 0)),
        (torch.bfloat16, 5, 24, (3, 8)),
        (torch.uint8, 4, 32, (-2, -16)),  # there are zeros before the first row and column,
        (torch.float32, 8, 32, (30, 28)),  # and beyond the last
    ],
)
def test_a_tile_is_copied_row_by_row_with_zeros_beyond_the_tensor(
    kind: str, dtype: torch.dtype, high: int, wide: int, start: tuple[int, int]
) -> None:
    x = (torch.arange(32 * 48) % 251).reshape(32, 48).to(dtype)
    assert torch.equal(loaded(x, kind, high, wide, 0, start), tile_of(x, high, wide, start))


@pytest.mark.parametrize("kind", EVERY_DEVICE)
@pytest.mark.parametrize("swizzle", [32, 64, 128])
def test_a_swizzle_exchanges_the_pieces_of_16_bytes_of_each_line(kind: str, swizzle: int) -> None:
    wide, pieces = swizzle // 4, swizzle // 16
    x = torch.arange(32.0 * wide).reshape(32, wide)
    found = loaded(x, kind, 32, wide, swizzle, (0, 0)).reshape(32, pieces, 4)
    for line in range(32):
        change = line * swizzle // 128 % pieces  # the bits of the address from 128 on
        wanted = x.reshape(32, pieces, 4)[line, [piece ^ change for piece in range(pieces)]]
        assert torch.equal(found[line], wanted)


STORED = """
    __shared__ alignas(1024) float tile[8 * 32];
    for (int i = threadIdx.x; i < 8 * 32; i += blockDim.x) tile[i] = i;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0 && blockIdx.x == 0) {
        store(&y_map, FROM, tile);
        stored();
    }
"""


@pytest.mark.parametrize("kind", EVERY_DEVICE)
@pytest.mark.parametrize("start", [(0, 0), (5, 4), (30, 12), (40, 0)])
def test_a_stored_tile_changes_only_elements_of_the_tensor(kind: str, start: tuple[int, int]) -> None:
    y = torch.full((32, 40), -1.0)
    text = kernel(STORED.replace("FROM", f"{start[1]}, {start[0]}"), f"{MAP} y_map", 8, 32, 0, '"y_map"')
    run(made(kind), text, {"x": torch.zeros(32, 40), "y": y}, {"rows": 32, "cols": 40})
    wanted = torch.full((32, 40), -1.0)
    for row in range(8):
        for column in range(32):
            to = row + start[0], column + start[1]
            if 0 <= to[0] < 32 and 0 <= to[1] < 40:
                wanted[to] = row * 32 + column
    assert torch.equal(y, wanted)


PARTLY_STORED = """
    __shared__ alignas(128) float tile[32];
    tile[threadIdx.x % 32] = threadIdx.x % 32;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0 && blockIdx.x == 0) {
        asm volatile("cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%0, {%1}], [%2];"
            ::"l"(&y_map), "r"(0), "r"(at(tile)) : "memory");
        stored();
    }
"""


@pytest.mark.parametrize("kind", EVERY_DEVICE)
@pytest.mark.parametrize(("size", "written"), [(1, 4), (6, 8), (8, 8), (31, 32)])
def test_the_last_piece_of_16_bytes_of_a_stored_tile_is_written_as_a_whole(kind: str, size: int, written: int) -> None:
    y = torch.full((40,), -1.0)
    text = kernel(PARTLY_STORED, f"{MAP} y_map", 8, 32, 0, '"y_map"')
    text = text.replace('shape = ["rows", "cols"], box = [8, 32]', 'shape = ["size"], box = [32]')
    run(made(kind), text, {"x": torch.zeros(40), "y": y}, {"size": size})
    assert torch.equal(y, torch.tensor([float(i) if i < written else -1.0 for i in range(40)]))


RING = """
    __shared__ alignas(1024) float ring[2][4 * 32];
    __shared__ alignas(8) unsigned long long full[2], empty[2];
    if (threadIdx.x == 0)
        for (int i = 0; i < 2; ++i) begin(&full[i], 1), begin(&empty[i], 32);
    __syncthreads();
    if (threadIdx.x >= 32) {
        if (threadIdx.x == 32)
            for (int step = 0; step < 9; ++step) {
                wait(&empty[step % 2], step / 2 % 2 ^ 1);
                expect(&full[step % 2], sizeof(ring[0]));
                load(ring[step % 2], &x_map, 0, 4 * step, &full[step % 2]);
            }
    } else {
        float sum = 0.0f;
        for (int step = 0; step < 9; ++step) {
            wait(&full[step % 2], step / 2 % 2);
            for (int row = 0; row < 4; ++row) sum += ring[step % 2][row * 32 + threadIdx.x];
            arrive(&empty[step % 2]);
        }
        y[threadIdx.x] = sum;
    }
"""


@pytest.mark.parametrize("kind", EVERY_DEVICE)
def test_a_warp_loads_tiles_into_a_ring_buffer_that_another_warp_reads(kind: str) -> None:
    torch.manual_seed(0)
    x, y = torch.randint(-9, 9, (34, 32)).float(), torch.zeros(32)
    text = kernel(RING, f"{MAP} x_map, float* y", 4, 32, 0, '"x_map", "y"')
    run(made(kind), without_map_of_y(text), {"x": x, "y": y}, {"rows": 34, "cols": 32})
    assert torch.equal(y, x.sum(0))


@pytest.fixture(scope="module")
def device() -> EmulatedDevice:
    return EmulatedDevice()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("&x_map, 0, 0", "&x_map, 7, 0", "begins at index 7 of the innermost dim"),
        (
            "expect(&full, sizeof(tile))",
            "expect(&full, 2 * sizeof(tile))",
            "at which 0 arrivals and 1024 bytes are missing",
        ),
        ("begin(&full, 1)", "begin(&full, 2)", "at which 1 arrivals and 0 bytes are missing"),
        ("begin(&full, 1);", "", "before it is initialised"),
        ("wait(&full, 0);\n", "", "ends while a bulk copy into its shared memory is in progress"),
        ("load(tile,", "load(tile + 4,", "shared addresses of tiles multiples of 128"),
        ("&x_map", "(const CUtensorMap*)y", "needs the address of a parameter"),
    ],
)
def test_a_wrong_use_of_barriers_and_copies_is_reported(device: EmulatedDevice, old: str, new: str, said: str) -> None:
    body = LOADED.replace("HIGH * WIDE", "8 * 32").replace("T tile", "float tile").replace("FROM", "0, 0")
    assert old in body
    text = kernel(body.replace(old, new), f"{MAP} x_map, float* y", 8, 32, 0, '"x_map", "y"')
    error = rejected(device, text, {"x": torch.zeros(8, 32), "y": torch.zeros(8, 32)}, rows=8, cols=32)
    assert (error.outcome, said in error.log) == (Outcome.LAUNCH_ERROR, True), error.log


def test_a_tile_that_is_read_before_its_copy_completes_is_garbage(device: EmulatedDevice) -> None:
    x, y = torch.ones(8, 32), torch.zeros(8, 32)
    body = LOADED.replace("HIGH * WIDE", "8 * 32").replace("T tile", "float tile").replace("FROM", "0, 0")
    lines = body.strip().split("\n")
    body = "\n".join([*lines[:-2], lines[-1].replace("y[i] =", "if (blockIdx.x == LATE) y[i] ="), lines[-2]])
    found = []
    for late in (0, 1):
        text = kernel(body.replace("LATE", str(late)), f"{MAP} x_map, float* y", 8, 32, 0, '"x_map", "y"')
        run(device, text, {"x": x, "y": y}, {"rows": 8, "cols": 32})
        found.append(torch.equal(x, y))
    assert found in ([True, False], [False, True])


@pytest.mark.parametrize("start", [(-3, 0), (0, -8)])
def test_a_stored_tile_that_begins_below_zero_is_reported(device: EmulatedDevice, start: tuple[int, int]) -> None:
    text = kernel(STORED.replace("FROM", f"{start[1]}, {start[0]}"), f"{MAP} y_map", 8, 32, 0, '"y_map"')
    error = rejected(device, text, {"x": torch.zeros(8, 32), "y": torch.zeros(8, 32)}, rows=8, cols=32)
    assert f"begins at index {min(start)} of a dim" in error.log


def test_a_store_without_a_wait_is_reported(device: EmulatedDevice) -> None:
    body = STORED.replace("FROM", "0, 0").replace("stored();", "").replace("&& blockIdx.x == 0", "")
    text = kernel(body, f"{MAP} y_map", 8, 32, 0, '"y_map"')
    error = rejected(device, text, {"x": torch.zeros(8, 32), "y": torch.zeros(8, 32)}, rows=8, cols=32)
    assert "out of its shared memory is in progress" in error.log


@pytest.mark.parametrize("kind", EVERY_DEVICE)
def test_a_map_of_more_elements_than_its_tensor_has_is_malformed(kind: str) -> None:
    text = kernel("", f"{MAP} y_map", 8, 32, 0, '"y_map"')
    error = rejected(made(kind), text, {"x": torch.zeros(8, 32), "y": torch.zeros(8, 32)}, rows=9, cols=32)
    assert error.outcome is Outcome.MALFORMED
    assert "`y_map` has the shape [9, 32], `y` has 256 elements" in error.log


@pytest.mark.parametrize("kind", EVERY_DEVICE)
@pytest.mark.parametrize("parameter", ["const CUtensorMap* y_map", "int y_map", "const float* y_map"])
def test_an_entry_with_a_parameter_of_another_type_than_the_map_is_malformed(kind: str, parameter: str) -> None:
    text = kernel("", parameter, 8, 32, 0, '"y_map"')
    error = rejected(made(kind), text, {"x": torch.zeros(8, 32), "y": torch.zeros(8, 32)}, rows=8, cols=32)
    assert error.outcome is Outcome.MALFORMED
    assert "`const __grid_constant__ CUtensorMap y_map`" in error.log
