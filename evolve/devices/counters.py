"""Hardware counters that the profiler collects and prompts explain, under the names that NVIDIA's `ncu` uses.

Values are in base units (`ncu --print-units base`): nanoseconds, bytes, and percentages from 0 to 100.
"""

from typing import NamedTuple


class Counter(NamedTuple):
    """A metric of the profiler."""

    name: str
    words: str
    unit: str


STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"

DURATION = Counter("gpu__time_duration.sum", "time of the launch under the profiler", "ns")
COMPUTE = Counter("sm__throughput.avg.pct_of_peak_sustained_elapsed", "arithmetic and issue units, of their peak", "%")
MEMORY = Counter("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed", "memory units, of their peak", "%")
DRAM = Counter("dram__throughput.avg.pct_of_peak_sustained_elapsed", "DRAM, of its peak", "%")
DRAM_READ = Counter("dram__bytes_read.sum", "read from DRAM", "B")
DRAM_WRITTEN = Counter("dram__bytes_write.sum", "written to DRAM", "B")
L2 = Counter("lts__throughput.avg.pct_of_peak_sustained_elapsed", "L2 cache, of its peak", "%")
L2_BYTES = Counter("lts__t_bytes.sum", "moved through the L2 cache", "B")
L2_HITS = Counter("lts__t_sector_hit_rate.pct", "sectors found in the L2 cache", "%")
LOAD_SECTORS = Counter("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "32-byte sectors of global loads", "")
LOAD_REQUESTS = Counter("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum", "global load instructions of warps", "")
STORE_SECTORS = Counter("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum", "32-byte sectors of global stores", "")
STORE_REQUESTS = Counter("l1tex__t_requests_pipe_lsu_mem_global_op_st.sum", "global store instructions of warps", "")
SHARED_WAVES = Counter("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", "passes over shared memory", "")
LOAD_CONFLICTS = Counter("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum", "bank conflicts of loads", "")
STORE_CONFLICTS = Counter("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum", "bank conflicts of stores", "")
LOCAL_SECTORS = Counter("l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum", "32-byte sectors of local loads (spills)", "")
OCCUPANCY = Counter("sm__warps_active.avg.pct_of_peak_sustained_active", "warps resident, of the most possible", "%")
ISSUE = Counter("smsp__issue_active.avg.pct_of_peak_sustained_active", "cycles in which an instruction is issued", "%")
TENSOR = Counter("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active", "tensor cores at work", "%")
LONG_SCOREBOARD = Counter(STALL.format("long_scoreboard"), "warps waiting for global or local memory", "")
SHORT_SCOREBOARD = Counter(STALL.format("short_scoreboard"), "warps waiting for shared memory or special functions", "")
BARRIER = Counter(STALL.format("barrier"), "warps waiting at __syncthreads", "")
MATH_THROTTLE = Counter(STALL.format("math_pipe_throttle"), "warps waiting for a busy arithmetic unit", "")
BLOCKS_BY_REGISTERS = Counter("launch__occupancy_limit_registers", "blocks a multiprocessor has registers for", "")
BLOCKS_BY_SHARED = Counter("launch__occupancy_limit_shared_mem", "blocks a multiprocessor has shared memory for", "")
WAVES = Counter("launch__waves_per_multiprocessor", "rounds in which the grid's blocks run", "")

COUNTERS = (
    DURATION, COMPUTE, MEMORY, DRAM, DRAM_READ, DRAM_WRITTEN, L2, L2_BYTES, L2_HITS, LOAD_SECTORS, LOAD_REQUESTS,
    STORE_SECTORS, STORE_REQUESTS, SHARED_WAVES, LOAD_CONFLICTS, STORE_CONFLICTS, LOCAL_SECTORS, OCCUPANCY, ISSUE,
    TENSOR, LONG_SCOREBOARD, SHORT_SCOREBOARD, BARRIER, MATH_THROTTLE, BLOCKS_BY_REGISTERS, BLOCKS_BY_SHARED, WAVES,
)  # fmt: skip

# Counters that a profile of several launches also holds for each launch.
PER_LAUNCH = (
    DURATION, DRAM_READ, DRAM_WRITTEN, L2_BYTES, LONG_SCOREBOARD, SHORT_SCOREBOARD, BARRIER, MATH_THROTTLE,
)  # fmt: skip


def of_launch(name: str, number: int) -> str:
    """Return the name of a counter of one launch; the first launch has the number 1."""
    return f"{name}[{number}]"
