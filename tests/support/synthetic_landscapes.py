"""SYNTHETIC landscapes: their times come from the model in made_up_gpu.py, and no GPU ran these kernels.

They cover many shapes of landscapes: tiles with illegal corners, unrolling that spills registers, settings that fail,
knobs that hardly matter or are categorical, and workloads with opposite optima.
"""

import math
from dataclasses import replace

from made_up_gpu import Cost, Knobs, Sketch

from reference_ops.op import Workload


def _size(workload: Workload) -> tuple[int, int, int]:
    dims = dict(workload.dims)
    return dims["rows"], dims["cols"], 4 if workload.dtype == "float32" else 2


def _stream(k: Knobs, w: Workload) -> Cost:
    rows, cols, item = _size(w)
    per_thread = k["VEC"] * k["UNROLL"]
    registers = 18 + per_thread * item / 2 * (1.3 if k["UNROLL"] > 4 else 1)
    held = min(registers, 65536 / (k["THREADS"] * k["MIN_BLOCKS"]))
    spills = max(0.0, registers - held)
    narrow = {1: 1.9, 2: 1.35, 4: 1.08, 8: 1.0}[k["VEC"]]
    moved = rows * cols * item * 2
    return Cost(k["grid"], k["THREADS"], moved * (1 + spills / 24), rows * cols * 12 * narrow,
                k["VEC"] * k["UNROLL"] * item, held)  # fmt: skip


def _pair(k: Knobs, w: Workload) -> Cost:
    return _stream({**k, "VEC": 4, "MIN_BLOCKS": 1}, w)


def _ordered(k: Knobs, w: Workload) -> Cost:
    order = (1.05, 1.0, 1.15, 1.08)[k["ORDER"]]
    return replace(_stream(k, w), factor=order * (1.06 if k["EARLY"] == (k["UNROLL"] > 2) else 1.0))


def _staged(k: Knobs, w: Workload) -> Cost:
    order = (1.1, 1.0, 1.25, 1.04)[k["ORDER"]]
    shared = k["STAGED"] * k["THREADS"] * k["VEC"] * k["UNROLL"] * 2
    return replace(_stream(k, w), shared=shared, factor=order * (0.93 if k["STAGED"] and k["VEC"] < 4 else 1.0))


def _rows(k: Knobs, w: Workload) -> Cost:
    rows, cols, item = _size(w)
    threads = k["threads"] * k["groups"]
    held = k["vectors"] * k["together"]
    sync = 1 + 0.04 * math.log2(max(1, k["threads"] / 32)) / k["together"] ** 0.5
    early = 1.0 if k["EARLY"] else 1.06 if cols > 4096 else 0.98
    return Cost(k["grid"], threads, rows * cols * item * 2, rows * cols * 10, held * 16,
                24 + 6 * held, factor=sync * early)  # fmt: skip


def _tiles(k: Knobs, w: Workload) -> Cost:
    rows, cols, item = _size(w)
    m, n, depth = rows, cols, 2048
    bm, bn, bk, stages = k["BM"], k["BN"], k["BK"], k["STAGES"]
    threads = 32 * k["WARPS"]
    accumulators = bm * bn / threads
    moved = (m * n * depth / bm + m * n * depth / bn) * item / 6 + m * n * item
    reuse = 1 + 24 / min(bm, bn) + 6 / (accumulators + 1) + (0.12 if bk == 16 else 0) + (0.05 if bk == 64 else 0)
    overlap = {2: 1.25, 3: 1.06, 4: 1.0}[stages]
    return Cost(k["grid"], threads, moved, m * n * depth / 12 * reuse, stages * 24, 40 + accumulators * 1.1,
                stages * (bm + bn) * bk * item, overlap)  # fmt: skip


def _stencil(k: Knobs, w: Workload) -> Cost:
    rows, cols, item = _size(w)
    tx, ty, per = k["TILE_X"], k["TILE_Y"], k["PER"]
    halo = (tx + 4) * (ty * per + 4) / (tx * ty * per)
    cached = 1.0 if k["STAGED"] else 1.25
    coalesced = 1.0 if tx >= 32 else 1.2 if tx == 16 else 1.6
    shared = (tx + 4) * (ty * per + 4) * 4 if k["STAGED"] else 0
    moved = rows * cols * item * (1 + halo * cached) * coalesced
    return Cost(k["grid"], tx * ty, moved, rows * cols * (40 + 30 / per), per * 4 * (2 if k["STAGED"] else 1),
                20 + 7 * per, shared)  # fmt: skip


def _split(k: Knobs, w: Workload) -> Cost:
    rows, cols, item = _size(w)
    threads = 32 * k["WARPS"]
    together = 1 + 0.02 * k["SPLIT"] * math.log2(k["SPLIT"] + 1)
    return Cost(k["grid"], threads, rows * cols * item + rows * k["SPLIT"] * 64, rows * cols * (2 + 16 / k["VEC"]),
                k["VEC"] * item * k["UNROLL"], 20 + k["VEC"] * k["UNROLL"] * item / 3, factor=together)  # fmt: skip


def _count(k: Knobs, w: Workload) -> Cost:
    rows, cols, item = _size(w)
    threads = k["THREADS"]
    contention = 1 + 6 / k["COPIES"] * (threads / 256) ** 0.5 * (0.4 if k["MATCH"] else 1) + 0.3 * k["MATCH"]
    merging = 1 + 0.03 * k["COPIES"] * (4 / k["ITEMS"])
    return Cost(k["grid"], threads, rows * cols * item, rows * cols * 4 * contention * merging, 4 * k["ITEMS"],
                24 + 2 * k["ITEMS"], 1024 * 4 * k["COPIES"])  # fmt: skip


def _select(k: Knobs, w: Workload) -> Cost:
    rows, cols, item = _size(w)
    threads = 32 * k["split"] * k["groups"]
    merge = 1 + 0.06 * math.log2(k["split"]) + 0.08 * k["loads"]
    return Cost(k["grid"], threads, rows * cols * item, rows * cols * 9 * merge, 16 * k["loads"], 40 + 9 * k["loads"])


def _scan(k: Knobs, w: Workload) -> Cost:
    rows, cols, item = _size(w)
    threads, items, way = k["THREADS"], k["ITEMS"], k["WAY"]
    passes = {0: 3.0, 1: 2.05, 2: 2.0, 3: 2.4}[way]  # 0: three passes; 1: look-back; 2: look-back by warps; 3: raking
    waiting = 1 + {0: 0.0, 1: 0.3 * 256 / threads / items**0.5, 2: 0.15 * 256 / threads, 3: 0.1}[way]
    conflicts = 1.35 if way == 3 and items % 2 == 0 and not k["PAD"] else 1.02 if k["PAD"] else 1.0
    return Cost(k["grid"], threads, rows * cols * item * passes, rows * cols * 14 * waiting, items * item,
                22 + 3.2 * items, threads * items * 4 if way else 0, conflicts * waiting**0.5)  # fmt: skip


def _turn(k: Knobs, w: Workload) -> Cost:
    rows, cols, item = _size(w)
    tile, pad = k["TILE"], k["PAD"]
    conflicts = {0: 2.2, 1: 1.0, 2: 1.25, 4: 1.4}[pad] if k["SWIZZLE"] == 0 else 1.04 + 0.05 * pad
    line = max(1.0, 128 / (tile * item)) ** 0.7
    return Cost(k["grid"], k["THREADS"], rows * cols * item * 2 * line, rows * cols * 6 * conflicts,
                item * k["VEC"] * max(1, tile * tile // k["THREADS"] // k["VEC"]) ** 0.7,
                20 + tile * tile / k["THREADS"] * 1.5, tile * (tile + pad) * item, 0.6 + 0.4 * conflicts)  # fmt: skip


def _attend(k: Knobs, w: Workload) -> Cost:
    rows, cols, item = _size(w)
    bq, bk, threads = k["BQ"], k["BK"], 32 * k["WARPS"]
    registers = 48 + bq * bk / threads * 0.8 + bq * 128 / threads * 0.5
    rescale = 1 + 5 / bk + 3 / bq * k["WARPS"] / 4
    kept = 0.94 if k["KEEP_Q"] else 1.0
    shared = (bq * (0 if k["KEEP_Q"] else 1) + bk * 2 * k["STAGES"]) * 128 * item
    return Cost(k["grid"], threads, rows * cols * item * (2 + 2048 / bq), rows * cols * 64 * rescale * kept,
                16 * k["STAGES"], registers + (24 if k["KEEP_Q"] else 0), shared)  # fmt: skip


ROWS_LET = '''vec = "16 // itemsize(x)"
threads = "min(1024, 32 * ceil_div(cols, 32 * vec * ROW_LOADS))"
groups = "max(1, BLOCK // threads)"
vectors = "ceil_div(cols, threads * vec)"
together = "max(1, LOADS // vectors)"'''
SELECT_LET = '''loads = "min(UNROLL, ceil_div(cols * itemsize(x), 512))"
split = "max(1, min(max(SPLIT, sms * FILL // rows), min(ceil_div(cols * itemsize(x), 512 * loads), 32)))"
groups = "max(1, WARPS // split)"'''

SKETCHES = (
    Sketch(
        "made_up_stream",
        "THREADS = [256, 64, 128, 512, 1024]\nVEC = [4, 1, 2, 8]\nUNROLL = [4, 1, 2, 8, 16]\nMIN_BLOCKS = [1, 2, 4, 8]",
        _stream, [(8192, 8192)], grid="ceil_div(rows * cols, THREADS * VEC * UNROLL)",
        require='"THREADS * MIN_BLOCKS <= 2048"', mentions="THREADS VEC UNROLL MIN_BLOCKS",
    ),
    Sketch(
        "made_up_rows",
        "ROW_LOADS = [2, 1, 4, 8]\nBLOCK = [128, 64, 256, 512]\nLOADS = [2, 1, 4, 8, 16]\nEARLY = [1, 0]",
        _rows, [(65536, 256), (8192, 4096), (4096, 16384), (1024, 8192)], plan=ROWS_LET, block="threads * groups",
        grid="ceil_div(rows, groups * together)", mentions="EARLY",
        require='"vectors * vec * together <= 64", "threads * groups <= 1024"',
    ),
    Sketch(
        "made_up_tiles",
        "BM = [64, 32, 128, 256]\nBN = [64, 32, 128, 256]\nBK = [32, 16, 64]\nSTAGES = [2, 3, 4]\n"
        "WARPS = [4, 1, 2, 8, 16]",
        _tiles, [(4096, 4096), (512, 4096), (1024, 1024)], block="32 * WARPS",
        grid="ceil_div(rows, BM) * ceil_div(cols, BN)", shared="STAGES * (BM + BN) * BK * itemsize(x)",
        require='"BM * BN <= 8192 * WARPS", "BM * BN >= 128 * WARPS"', mentions="BM BN BK STAGES WARPS",
        fails=lambda k: "wrong" if k["WARPS"] == 16 and k["BK"] == 16 else "",
    ),
    Sketch(
        "made_up_stencil",
        "TILE_X = [32, 8, 16, 64, 128]\nTILE_Y = [8, 1, 2, 4, 16]\nPER = [2, 1, 4, 8]\nSTAGED = [1, 0]",
        _stencil, [(4096, 4096), (512, 640)], dtypes="float32", block="TILE_X * TILE_Y",
        grid="ceil_div(cols, TILE_X) * ceil_div(rows, TILE_Y * PER)", require='"TILE_X * TILE_Y >= 32"',
        mentions="TILE_X TILE_Y PER STAGED",
    ),
    Sketch(
        "made_up_split",
        "SPLIT = [4, 1, 2, 8, 16, 32]\nWARPS = [4, 1, 2, 8]\nVEC = [4, 2, 8]\nUNROLL = [2, 1, 4, 8]",
        _split, [(128, 16384), (1024, 8192), (4096, 4096), (16384, 1024), (50304, 4096)],
        block="32 * WARPS", grid="ceil_div(rows, WARPS) * SPLIT", mentions="SPLIT WARPS VEC UNROLL",
    ),
    Sketch(
        "made_up_count",
        "THREADS = [256, 128, 512, 1024]\nITEMS = [4, 1, 2, 8, 16, 32]\nCOPIES = [1, 2, 4, 8, 16, 32]\nMATCH = [0, 1]",
        _count, [(4096, 8192), (64, 8192)], dtypes="float32", grid="ceil_div(rows * cols, THREADS * ITEMS)",
        shared="4096 * COPIES", mentions="THREADS ITEMS COPIES MATCH",
        fails=lambda k: "crashed" if k["MATCH"] and k["THREADS"] == 1024 else "",
    ),
    Sketch(
        "made_up_select",
        "UNROLL = [4, 1, 2, 8]\nWARPS = [4, 2, 8, 16]\nSPLIT = [1, 2, 4, 8]\nFILL = [16, 8, 32, 64]",
        _select, [(128, 32768), (4096, 4096), (32768, 1024)], plan=SELECT_LET, block="32 * split * groups",
        grid="ceil_div(rows, groups)", require='"split * groups <= 32"',
    ),
    Sketch(
        "made_up_scan",
        "THREADS = [256, 64, 128, 512, 1024]\nITEMS = [8, 2, 4, 11, 15, 16, 24]\nWAY = [0, 1, 2, 3]\nPAD = [0, 1]",
        _scan, [(1, 1 << 26), (1, 1 << 20)], dtypes="float32", grid="ceil_div(cols, THREADS * ITEMS)",
        shared="min(WAY, 1) * THREADS * ITEMS * 4", mentions="THREADS ITEMS WAY PAD",
        fails=lambda k: "timed out" if k["WAY"] == 1 and k["THREADS"] == 64 else "",
    ),
    Sketch(
        "made_up_turn",
        "TILE = [32, 16, 64, 128]\nTHREADS = [256, 64, 128, 512, 1024]\nVEC = [1, 2, 4]\nPAD = [0, 1, 2, 4]\n"
        "SWIZZLE = [0, 1]",
        _turn, [(8192, 8192)], grid="ceil_div(rows, TILE) * ceil_div(cols, TILE)",
        shared="TILE * (TILE + PAD) * itemsize(x)", require='"TILE * TILE >= THREADS * VEC"',
        mentions="TILE THREADS VEC PAD SWIZZLE",
    ),
    Sketch(
        "made_up_attend",
        "BQ = [64, 16, 32, 128]\nBK = [64, 16, 32, 128]\nWARPS = [4, 1, 2, 8]\nSTAGES = [1, 2, 3]\nKEEP_Q = [0, 1]",
        _attend, [(32768, 128), (4096, 128)], block="32 * WARPS", grid="ceil_div(rows, BQ)",
        shared="(BQ * (1 - KEEP_Q) + BK * 2 * STAGES) * 256", require='"BQ >= 16 * WARPS"', luck=0.03,
        mentions="BQ BK WARPS STAGES KEEP_Q",
    ),
    Sketch("made_up_pair", "THREADS = [32, 64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024]\n"
           "UNROLL = [1, 2, 4, 3, 5, 6, 7, 8, 10, 12, 14, 16]",
        _pair, [(2048, 2048)], dtypes="float32",
        grid="ceil_div(rows * cols, THREADS * 4 * UNROLL)", mentions="THREADS UNROLL"),
    Sketch(
        "made_up_six",
        "THREADS = [256, 128, 512]\nVEC = [4, 1, 2, 8]\nUNROLL = [1, 2, 4, 8]\nMIN_BLOCKS = [1, 2, 4]\n"
        "EARLY = [0, 1]\nORDER = [0, 1, 2, 3]",
        _ordered,
        [(8192, 4096), (256, 4096)], grid="ceil_div(rows * cols, THREADS * VEC * UNROLL)",
        require='"THREADS * MIN_BLOCKS <= 2048"', mentions="THREADS VEC UNROLL MIN_BLOCKS EARLY ORDER",
    ),
    Sketch(
        "made_up_wide",
        "THREADS = [256, 64, 128, 512, 1024]\nVEC = [2, 1, 4, 8]\nUNROLL = [1, 2, 4, 8, 16]\nMIN_BLOCKS = [1, 2, 4]\n"
        "STAGED = [0, 1]\nORDER = [0, 1, 2, 3]",
        _staged,
        [(8192, 8192), (256, 4096), (64, 1024), (1024, 4096), (50000, 1000)],
        grid="ceil_div(rows * cols, THREADS * VEC * UNROLL)", shared="STAGED * THREADS * VEC * UNROLL * 2",
        require='"THREADS * MIN_BLOCKS <= 2048"', mentions="THREADS VEC UNROLL MIN_BLOCKS STAGED ORDER",
    ),
)  # fmt: skip
