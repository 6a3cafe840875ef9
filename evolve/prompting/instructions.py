"""Instructions beyond C++ that kernels may use, by architecture, with examples of those that ops can need.

A test compiles every example unchanged.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

IN_THE_KERNEL = "// in the kernel:\n"  # the lines before this line in an example are helpers
STREAM, PRODUCT = "stream", "product"  # purposes of instructions: moving data, or matrix products


@dataclass(frozen=True)
class InstructionFamily:
    """A family of instructions: its architectures, its purpose, and examples."""

    name: str
    since: int  # the first architecture with the family, such as 90 for sm_90
    use: str
    words: str
    example: str
    only: str = ""  # the only architecture with the family, if there is only one
    plan: str = ""  # lines that the example needs in the plan; the entry takes `parameter`
    parameter: str = ""

    def on(self, arch: str) -> bool:
        return arch == self.only if self.only else generation(arch) >= self.since


def instructions_section(arch: str, *, products: bool, streams: bool) -> str:
    """Return the section about the instructions of an architecture; empty if it is not known."""
    if not generation(arch):
        return ""
    uses = [use for use, wanted in ((STREAM, streams), (PRODUCT, products)) if wanted]
    lines = [f"# Instructions of {arch}", ALLOWED, f"```cuda\n{SHARED_ADDRESS}```"]
    for one in INSTRUCTIONS:
        if one.use in uses and one.on(arch):
            plan = [f"```toml\n{one.plan}```"] if one.plan else []
            lines += [f"- {one.name}: {one.words}", *plan, f"```cuda\n{one.example}```"]
    return "\n".join([*lines, *_also(arch, uses)])


def _also(arch: str, uses: list[str]) -> Iterator[str]:
    """Yield one line about the instructions of the architecture that have no example."""
    named = [one.name for one in INSTRUCTIONS if one.on(arch) and one.use not in uses]
    if named:
        yield f"Allowed too: {', '.join(named)}."


def generation(arch: str) -> int:
    """Return the number of an architecture, such as 90 for sm_90a; 0 without a number."""
    found = re.match(r"sm_(\d+)", arch)
    return int(found[1]) if found else 0


ALLOWED = """\
Inline PTX (asm volatile) may use everything that this architecture has, except clocks and the registers that \
distinguish calls or places (%smid, %warpid, %gridid). The sanitizer supports clusters and asynchronous copies. \
The examples use:"""

SHARED_ADDRESS = "__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }\n"

INSTRUCTIONS = (
    InstructionFamily(
        "cp.async", 80, STREAM,
        "16 bytes (or 4, 8 with .ca) from global to shared memory, bypassing the registers, so that the next tile is "
        "in flight while this one is used. All bytes must lie in the tensor, even if a fourth operand limits the "
        "read.",
        """\
__device__ void copy16(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at(to)), "l"(from) : "memory");
}
// in the kernel:
copy16(&tile[stage][8 * threadIdx.x], x + 8 * threadIdx.x);
asm volatile("cp.async.commit_group;" ::: "memory");
asm volatile("cp.async.wait_group 1;" ::: "memory");  // all groups but the newest have arrived
__syncthreads();
""",
    ),
    InstructionFamily(
        "cp.async.bulk", 90, STREAM,
        "one thread starts the copy of a contiguous range (addresses and size are multiples of 16); an mbarrier counts "
        "its bytes.",
        """\
__device__ void wait(unsigned barrier, int phase) {
    asm volatile("{\\n.reg .pred done;\\nagain:\\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\\n@!done bra again;\\n}"
        ::"r"(barrier), "r"(phase) : "memory");
}
// in the kernel:
__shared__ alignas(16) x_t row[COUNT];
__shared__ alignas(8) unsigned long long arrived;
if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\\nfence.mbarrier_init.release.cluster;"
        ::"r"(at(&arrived)) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at(&arrived)), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        ::"r"(at(row)), "l"(x), "r"(bytes), "r"(at(&arrived)) : "memory");
}
__syncthreads();  // the barrier exists
wait(at(&arrived), 0);  // used again, its phases are 1, 0, 1, ...
""",
    ),
    InstructionFamily(
        "tensor maps", 90, PRODUCT,
        "one thread starts copies of tiles of a tensor or workspace (TMA), with zeros beyond its edges. The plan "
        "describes it as contiguous, in up to 5 dims, the innermost last; a box has up to 256 elements per side. "
        "Strides and the line of a box are multiples of 16 bytes; narrow `when` where they are not. With a swizzle of"
        " 32, 64 or 128, a line of the box has as many bytes, and for 128, piece p of line r lies at p ^ r % 8, as in"
        " tiles for tensor cores; with 0, lines are contiguous. The map's name is one of `args`, and the entry takes "
        "`const __grid_constant__ CUtensorMap x_map`. Coordinates begin with the innermost, which must be a multiple of"
        " 16 bytes; the others are free. A tile in shared memory begins at a multiple of 128 bytes (1024 with a "
        "swizzle), and the bytes of the whole box count. To store a tile: fence.proxy.async.shared::cta by its "
        "writers, a barrier, then in one thread "
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [map, {column, row}], [tile]; "
        "cp.async.bulk.commit_group; and cp.async.bulk.wait_group 0 before the block ends, or wait_group.read before "
        "the tile changes; no coordinate may be negative. A store writes whole pieces of 16 bytes that begin within "
        "the tensor: write the end of a tensor of one dim without the map if its bytes are no multiple of 16. For "
        "products, let one warp fill a ring of stages, each with an mbarrier `full` (one arrival and the bytes) and "
        "one `empty` (an arrival of each warpgroup that has read it), so that warpgroups only wait and multiply.",
        """\
__device__ void wait(unsigned barrier, int phase) {
    asm volatile("{\\n.reg .pred done;\\nagain:\\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\\n@!done bra again;\\n}"
        ::"r"(barrier), "r"(phase) : "memory");
}
// in the kernel:
__shared__ alignas(1024) x_t tile[64 * 64];
__shared__ alignas(8) unsigned long long full;
if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\\nfence.mbarrier_init.release.cluster;"
        ::"r"(at(&full)) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
        ::"r"(at(&full)), "r"((int)sizeof(tile)) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];"
        ::"r"(at(tile)), "l"(&x_map), "r"(column), "r"(row), "r"(at(&full)) : "memory");
}
__syncthreads();  // the barrier exists
wait(at(&full), 0);
""",
        plan="""\
[tensor_maps]
x_map = { tensor = "x", shape = ["rows", "cols"], box = [64, 64], swizzle = 128 }
""",
        parameter="const __grid_constant__ CUtensorMap x_map",
    ),
    InstructionFamily(
        "clusters", 90, STREAM,
        "up to 8 neighbouring blocks synchronise and read each other's shared memory. `__cluster_dims__(SIZE, 1, 1)` "
        "is between `void` and the entry's name, with a knob as SIZE; the grid is a multiple of it.",
        """\
__device__ float of_block(const float* mine, int rank) {
    unsigned there;
    float value;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at(mine)), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(there) : "memory");
    return value;
}
__device__ void meet() {
    asm volatile("barrier.cluster.arrive.release.aligned;\\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// in the kernel:
if (threadIdx.x == 0) part = sum;  // __shared__ float part
meet();
sum = 0.0f;
for (int rank = 0; rank < SIZE; ++rank) sum += of_block(&part, rank);
meet();  // no block may end while another reads its memory
""",
    ),
    InstructionFamily(
        "mma.sync", 80, PRODUCT,
        "a warp multiplies 16x16 by 16x8 in bf16 (or .f16; m16n8k8 with .tf32). Lane l, g = l / 4, t = 2 * (l % 4): "
        "a[0] holds A[g][t, t+1], a[1] A[g+8][t..], a[2] A[g][t+8..], a[3] A[g+8][t+8..]; b[0] B[t, t+1][g], b[1] "
        "B[t+8, t+9][g]; d[0], d[1] D[g][t, t+1], d[2], d[3] D[g+8][t..]. <mma.h> has wmma.",
        """\
__device__ void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
""",
    ),
    InstructionFamily(
        "wgmma", 90, PRODUCT,
        "four warps multiply tiles in shared memory: A [64, k] by B [n, k] (both with k contiguous), n a multiple of "
        "8 up to 256 with n / 2 sums per thread. Here n = 8, a row is 64 bf16 values (128 bytes), tiles begin at "
        "multiples of 1024 bytes, and the 16-byte piece p of row r lies at byte 128 * r + 16 * (p ^ r % 8). Warp w, "
        "lane l hold rows 16 * w + l / 4 (d[0], d[1]) and 8 further (d[2], d[3]), columns 2 * (l % 4) and the next. "
        "If B is [k, n] with n contiguous, the last 0 is a 1: a line then holds 64 columns of one k, 64 k follow "
        "each other, blocks of 64 columns are 8192 bytes apart (512 << 16 in place of 1 << 16), and 16 of k are 2048 "
        "bytes. A may be in registers: {%4, %5, %6, %7}, pairs as in mma.sync, in place of its descriptor, and one "
        "0 less at the end; sums packed in pairs are such a factor of the next product. Code between a "
        "product and its wait runs in parallel only if a branch or loop on its result comes before "
        "wgmma.wait_group, because the compiler moves waits up, and only if it does not use the product's registers. "
        "Blocks that fetch tiles of 128 x 64 and 64 x 256 by cp.async, two steps ahead, reach 74 % of cuBLAS at 4096 "
        "cubed; with tensor maps they reach 100 %. For float32, scale each row of A and column of B by a power of two "
        "to a largest value near 2^15, split both into a high half and a low one times 2^11, and add high * high and "
        "2^-11 * (high * low + low * high) to float32 sums after every 64 terms, because sums in tensor cores "
        "lose bits. This is 2.7 times as fast as PyTorch.",
        """\
__device__ unsigned long long tile_at(const void* tile) {
    return 1ull << 62 | 64ull << 32 | 1ull << 16 | (at(tile) & 0x3ffff) >> 4;
}
__device__ void multiply(float (&d)[4], unsigned long long a, unsigned long long b) {
    asm volatile("{\\n.reg .pred add;\\nsetp.ne.b32 add, %6, 0;\\n"
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, add, 1, 1, 0, 0;\\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b), "r"(1));
}
// in the kernel:
asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // by each thread after it has written to the tiles
__syncthreads();
asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
for (int k = 0; k < 4; ++k) multiply(d, tile_at(a_tile) + 2 * k, tile_at(b_tile) + 2 * k);  // 16 of k are 32 bytes
asm volatile("wgmma.commit_group.sync.aligned;\\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
""",
        only="sm_90a",
    ),
)  # fmt: skip
