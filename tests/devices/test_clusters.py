"""Clusters of blocks on every device: shared memory of other blocks, barriers, and wrong use."""

import pytest
import torch
from device_kernels import EVERY_DEVICE, made, out_of, rejected

from archive.records import Outcome

HELPERS = """
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ unsigned in_block(const void* p, unsigned rank) {
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at(p)), "r"(rank));
    return there;
}
__device__ void arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ void wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ void begin(unsigned long long* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\\nfence.mbarrier_init.release.cluster;"
        ::"r"(at(barrier)), "r"(arrivals) : "memory");
}
__device__ void expect(unsigned long long* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at(barrier)), "r"(bytes) : "memory");
}
__device__ void wait_at(unsigned long long* barrier, int parity) {
    asm volatile("{\\n.reg .pred done;\\nagain:\\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\\n"
        "@!done bra again;\\n}" ::"r"(at(barrier)), "r"(parity) : "memory");
}
__device__ unsigned rank_of_block() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
"""


def clustered(body: str, size: int = 4, grid: int = 8, block: int = 64) -> str:
    """Return a kernel of clusters whose only tensor is `y`; `body` may use the functions above."""
    return (
        f'/*---\nop = "test"\n\n[[launch]]\nentry = "test_entry"\ngrid = [{grid}]\nblock = [{block}]\n'
        f'args = ["y"]\n---*/\n{HELPERS}\n'
        f'extern "C" __global__ void __cluster_dims__({size}, 1, 1) test_entry(int* y) {{\n{body}\n}}\n'
    )


# The numbers of the threads of the next block, for each block in clusters of four.
OF_NEIGHBOURS = [64 * block + thread for block in (1, 2, 3, 0, 5, 6, 7, 4) for thread in range(64)]
LOADED = """
    __shared__ int held[64];
    held[threadIdx.x] = blockIdx.x * 64 + threadIdx.x;
    arrive(), wait();
    int got;
    asm volatile("ld.shared::cluster.u32 %0, [%1];"
        : "=r"(got) : "r"(in_block(&held[threadIdx.x], (rank_of_block() + 1) % 4)) : "memory");
    y[blockIdx.x * 64 + threadIdx.x] = got;
    arrive(), wait();  // no block ends while another reads its memory
"""
STORED = """
    __shared__ alignas(16) int held[64];
    arrive(), wait();  // all blocks run
    const int value = blockIdx.x * 64 + 2 * threadIdx.x;
    if (threadIdx.x < 32)
        asm volatile("st.shared::cluster.v2.b32 [%0], {%1, %2};"
            ::"r"(in_block(&held[2 * threadIdx.x], (rank_of_block() + 3) % 4)), "r"(value), "r"(value + 1) : "memory");
    arrive(), wait();
    y[blockIdx.x * 64 + threadIdx.x] = held[threadIdx.x];
"""
# Twice, with an mbarrier each: a block may be ahead of the one to which it sends.
SENT = """
    __shared__ alignas(16) int held[2][64];
    __shared__ alignas(8) unsigned long long filled[2];
    if (threadIdx.x == 0) begin(&filled[0], 1), begin(&filled[1], 1);
    arrive(), wait();
    int sum = 0;
    for (int turn = 0; turn < 2; ++turn) {
        if (threadIdx.x == 0) expect(&filled[turn], 256);
        const int value = blockIdx.x * 64 + 4 * threadIdx.x + 1000 * turn, next = (rank_of_block() + 3) % 4;
        if (threadIdx.x < 16)
            asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
                ::"r"(in_block(&held[turn][4 * threadIdx.x], next)), "r"(value), "r"(value + 1), "r"(value + 2),
                "r"(value + 3), "r"(in_block(&filled[turn], next)) : "memory");
        wait_at(&filled[turn], 0);
        sum += held[turn][threadIdx.x];
    }
    y[blockIdx.x * 64 + threadIdx.x] = (sum - 1000) / 2;
    arrive(), wait();
"""


@pytest.mark.parametrize("kind", EVERY_DEVICE)
@pytest.mark.parametrize("body", [LOADED, STORED, SENT], ids=["loaded", "stored", "sent"])
def test_a_block_has_the_values_of_its_neighbour(kind: str, body: str) -> None:
    assert out_of(made(kind), clustered(body), 512) == OF_NEIGHBOURS


@pytest.mark.parametrize("kind", EVERY_DEVICE)
def test_blocks_arrive_at_an_mbarrier_of_the_first(kind: str) -> None:
    body = """
    __shared__ alignas(8) unsigned long long met;
    if (threadIdx.x == 0) begin(&met, 256);
    arrive(), wait();
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(in_block(&met, 0)) : "memory");
    if (rank_of_block() == 0) wait_at(&met, 0), y[blockIdx.x + threadIdx.x] = 1;
    arrive(), wait();
    """
    assert out_of(made(kind), clustered(body), 68) == [1] * 68


@pytest.mark.parametrize("kind", EVERY_DEVICE)
def test_work_may_lie_between_the_arrival_and_the_wait(kind: str) -> None:
    body = """
    __shared__ int count;
    if (threadIdx.x == 0) count = 0;
    arrive();
    int own = threadIdx.x;
    wait();
    if (threadIdx.x == 0)
        for (unsigned rank = 0; rank < 4; ++rank)
            if (rank == rank_of_block())
                asm volatile("st.shared::cluster.u32 [%0], %1;"
                    ::"r"(in_block(&count, 3 - rank)), "r"(rank + 1) : "memory");
    arrive();
    own += 1;
    wait();
    if (own == 1) y[blockIdx.x] = count;
    """
    assert out_of(made(kind), clustered(body), 8) == [4, 3, 2, 1, 4, 3, 2, 1]


def test_a_launch_without_clusters_may_come_before_one_with_them() -> None:
    kernel = clustered(LOADED).replace(
        '\n[[launch]]\nentry = "test_entry"',
        '\n[[launch]]\nentry = "first"\ngrid = [8]\nblock = [64]\nargs = ["y"]\n\n[[launch]]\nentry = "test_entry"',
    )
    kernel += 'extern "C" __global__ void first(int* y) { y[blockIdx.x * 64 + threadIdx.x] = -1; }\n'
    assert out_of(made("emulated"), kernel, 512) == OF_NEIGHBOURS


@pytest.mark.parametrize(
    ("body", "outcome", "words"),
    [
        ("__shared__ int held; arrive(), wait(); in_block(&held, 4);", Outcome.CRASHED, "no block 4, but 4 blocks"),
        ("arrive(); arrive();", Outcome.LAUNCH_ERROR, "twice without a wait"),
        ("wait();", Outcome.LAUNCH_ERROR, "wait before barrier.cluster.arrive"),
        ("__shared__ alignas(8) unsigned long long b; begin(&b, 2); arrive(), wait(); wait_at(&b, 0);",
         Outcome.LAUNCH_ERROR, "deadlock"),
        ("if (rank_of_block() == 2) __trap(); arrive(), wait();", Outcome.CRASHED, "__trap"),
    ],
)  # fmt: skip
def test_wrong_use_is_reported(body: str, outcome: Outcome, words: str) -> None:
    error = rejected(made("emulated"), clustered(body), {"y": torch.zeros(8, dtype=torch.int32)})
    assert (error.outcome, words in error.log) == (outcome, True), error.log


def test_a_store_into_a_block_that_has_ended_is_reported() -> None:
    body = """
    __shared__ int held;
    arrive(), wait();
    if (rank_of_block() == 1) return;
    for (int turn = 0; turn < 100000; ++turn) {
        asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(in_block(&held, 1)), "r"(turn) : "memory");
        __nanosleep(1);
    }
    """
    error = rejected(made("emulated"), clustered(body), {"y": torch.zeros(8, dtype=torch.int32)})
    assert error.outcome is Outcome.CRASHED
    assert "after that block has ended" in error.log


def test_the_barrier_of_a_cluster_needs_clusters() -> None:
    kernel = clustered("arrive(), wait();").replace("__cluster_dims__(4, 1, 1) ", "")
    error = rejected(made("emulated"), kernel, {"y": torch.zeros(8, dtype=torch.int32)})
    assert "__cluster_dims__" in error.log


@pytest.mark.parametrize(("size", "grid"), [(4, 6), (16, 16)])
def test_clusters_must_divide_the_grid_and_have_at_most_eight_blocks(size: int, grid: int) -> None:
    error = rejected(made("emulated"), clustered("", size, grid), {"y": torch.zeros(8, dtype=torch.int32)})
    assert error.outcome is Outcome.LAUNCH_ERROR
    assert "must divide the grid" in error.log


def test_an_address_beyond_shared_memory_may_be_mapped_but_not_used() -> None:
    body = """
    __shared__ int held[64];
    arrive(), wait();
    const unsigned beyond = in_block(held + (1 << 24), 1);
    if (USED) asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(beyond), "r"(1) : "memory");
    y[blockIdx.x] = 7;
    arrive(), wait();
    """
    assert out_of(made("emulated"), clustered(body.replace("USED", "y[0] == 5")), 8) == [7] * 8
    error = rejected(
        made("emulated"), clustered(body.replace("USED", "true")), {"y": torch.zeros(8, dtype=torch.int32)}
    )
    assert (error.outcome, "in no block's shared memory" in error.log) == (Outcome.CRASHED, True)
