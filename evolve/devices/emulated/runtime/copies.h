// Barriers in shared memory that count arrivals and bytes (mbarrier), and the bulk copies that such barriers and groups
// wait for. In every other block, a copy happens as late as possible: when its thread waits for it,
// or no thread can continue.
#pragma once
#include "block.h"

namespace evolve {

constexpr Word BARRIER_MARK = 0xb1a7, MAP_MARK = 0x70616d2d656c6974;
constexpr int BYTE_BITS = 23, MOST_BYTES = (1 << 20) - 1;

// The content of one word of shared memory: the number of missing arrivals, the arrivals of a whole phase, the missing
// bytes, and the parity of the phase.
struct Counts {
    unsigned missing, arrivals;
    int bytes;
    unsigned parity;
};

static Counts counts_of(const Word* barrier) {
    const Word word = *barrier;
    if (word >> 48 != BARRIER_MARK)
        fail(LAUNCH_ERROR, "block (%u,%u,%u), thread (%u,%u,%u): an mbarrier is used before it is initialised",
             blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
    const int shift = 32 - BYTE_BITS;
    return {unsigned(word & 0xfff), unsigned(word >> 12 & 0xfff), int(unsigned(word >> 24) << shift) >> shift,
            unsigned(word >> 47 & 1)};
}

// Stores the counts. If nothing is missing, the phase ends, and the threads that wait for it continue.
static void update(Word* barrier, Counts counts) {
    const bool ends = !counts.missing && !counts.bytes;
    if (ends) counts.missing = counts.arrivals, counts.parity ^= 1;
    *barrier = BARRIER_MARK << 48 | Word(counts.parity) << 47 | Word(unsigned(counts.bytes) & ((1u << BYTE_BITS) - 1)) << 24 |
               Word(counts.arrivals) << 12 | counts.missing;
    if (!ends) return;
    for (unsigned number = 0; number < block->threads; ++number) {
        Thread& thread = block->all[number];
        if (thread.wait == AT_MBARRIER && thread.place == barrier) make_ready(&thread);
    }
}

void begin_barrier(Word* barrier, unsigned arrivals) {
    if (!arrivals || arrivals > 0xfff) fail(LAUNCH_ERROR, "mbarrier.init: %u arrivals, not 1 to 4095", arrivals);
    *barrier = BARRIER_MARK << 48 | Word(arrivals) << 12 | arrivals;
}

void end_barrier(Word* barrier) {
    counts_of(barrier);
    *barrier = 0;
}

void expect_bytes(Word* barrier, int bytes) {
    Counts counts = counts_of(barrier);
    counts.bytes += bytes;
    if (counts.bytes > MOST_BYTES || counts.bytes < -MOST_BYTES)
        fail(LAUNCH_ERROR, "an mbarrier counts at most %d bytes, not %d", MOST_BYTES, counts.bytes);
    update(barrier, counts);
}

void arrive_at(Word* barrier, unsigned arrivals) {
    Counts counts = counts_of(barrier);
    if (counts.missing < arrivals)
        fail(LAUNCH_ERROR, "block (%u,%u,%u), thread (%u,%u,%u): an mbarrier gets more than its %u arrivals",
             blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z, counts.arrivals);
    counts.missing -= arrivals;
    update(barrier, counts);
}

static void take_messages();

void wait_for(Word* barrier, unsigned parity) {
    take_messages();
    while (counts_of(barrier).parity == (parity & 1)) {
        block->current->place = barrier;
        suspend(AT_MBARRIER);
    }
}

static void check_within(const char* shared, Word bytes) {
    const char* dynamic = dynamic_shared();
    if (shared >= dynamic && shared < dynamic + dynamic_bytes && shared + bytes > dynamic + dynamic_bytes)
        fail(CRASHED, "block (%u,%u,%u): a bulk copy of %llu bytes reaches beyond shared memory", blockIdx.x, blockIdx.y,
             blockIdx.z, bytes);
}

static char* swizzled(char* place, unsigned bytes) {
    const Word address = reinterpret_cast<Word>(place);
    return reinterpret_cast<char*>(address ^ (address >> 7 & (bytes / 16 - 1)) << 4);
}

// A piece of 16 bytes of one line. Elements beyond the tensor are zeros. A piece that begins beyond it is not written, but
// the last piece of a line is written as a whole, as on a GPU.
static void move_piece(const Copy& copy, char* shared, char* line, bool inside, long long first) {
    const TileMap& map = copy.map;
    if (copy.out) {
        if (inside && first >= 0 && first < (long long)map.sizes[0]) memcpy(line + first * map.item_bytes, shared, 16);
        return;
    }
    for (unsigned byte = 0; byte < 16; byte += map.item_bytes, ++first) {
        const bool exists = inside && first >= 0 && first < (long long)map.sizes[0];
        if (exists) memcpy(shared + byte, line + first * map.item_bytes, map.item_bytes);
        else memset(shared + byte, 0, map.item_bytes);
    }
}

static void move_tile(const Copy& copy) {
    const TileMap& map = copy.map;
    const unsigned line_bytes = map.box[0] * map.item_bytes;
    char* shared = copy.shared;
    for (Word row = 0; row < copy.bytes / line_bytes; ++row) {
        char* line = copy.global;
        bool inside = true;
        Word left = row, stride = map.sizes[0] * map.item_bytes;
        for (unsigned dim = 1; dim < map.rank; ++dim) {
            const long long index = copy.at[dim] + (long long)(left % map.box[dim]);
            inside = inside && index >= 0 && index < (long long)map.sizes[dim];
            line += inside ? Word(index) * stride : 0;
            left /= map.box[dim], stride *= map.sizes[dim];
        }
        for (unsigned byte = 0; byte < line_bytes; byte += 16, shared += 16)
            move_piece(copy, map.swizzle ? swizzled(shared, map.swizzle) : shared, line, inside,
                       copy.at[0] + (long long)(byte / map.item_bytes));
    }
}

static void move(const Copy& copy) {
    if (copy.map.rank) move_tile(copy);
    else if (copy.out) memcpy(copy.global, copy.shared, copy.bytes);
    else memcpy(copy.shared, copy.global, copy.bytes);
    if (copy.barrier) expect_bytes(copy.barrier, -int(copy.bytes));
}

static void finish(unsigned index) {
    const Copy copy = block->copies[index];
    --block->pending;
    memmove(block->copies + index, block->copies + index + 1, (block->pending - index) * sizeof copy);
    move(copy);
}

// Finishes one pending copy into shared memory; called when no thread can run.
static bool finish_a_copy() {
    for (unsigned count = 0; count < block->pending; ++count) {
        const unsigned index = block->reversed ? block->pending - 1 - count : count;
        if (block->copies[index].out) continue;
        finish(index);
        return true;
    }
    return false;
}

bool has_ended(Word* barrier, unsigned parity) {
    static EVOLVE_LOCAL unsigned calls;
    take_messages();
    if (counts_of(barrier).parity == (parity & 1)) {
        if (++calls % 64 == 0 || (!block->ready && !block->unstarted)) finish_a_copy();
        yield();
        let_others_run();
    }
    return counts_of(barrier).parity != (parity & 1);
}

static void start(Copy& copy) {
    if (reinterpret_cast<Word>(copy.shared) % (copy.map.rank ? 128 : 16) || reinterpret_cast<Word>(copy.global) % 16 || copy.bytes % 16)
        fail(LAUNCH_ERROR, "block (%u,%u,%u): misaligned bulk copy: addresses and sizes must be multiples of 16, and "
             "shared addresses of tiles multiples of 128", blockIdx.x, blockIdx.y, blockIdx.z);
    check_within(copy.shared, copy.bytes);
    if (copy.barrier) counts_of(copy.barrier);
    copy.thread = block->current->number, copy.group = block->current->group;
    if (!block->late) return move(copy);
    if (block->pending == MOST_COPIES) finish(0);
    block->copies[block->pending++] = copy;
}

void copy_stretch(char* shared, char* global, unsigned bytes, Word* barrier) {
    Copy copy = {};
    copy.shared = shared, copy.global = global, copy.bytes = bytes, copy.barrier = barrier, copy.out = !barrier;
    start(copy);
}

void copy_tile(char* shared, const void* described, const long long* at, unsigned rank, Word* barrier) {
    Copy copy = {};
    memcpy(&copy.map, described, sizeof copy.map);
    if (copy.map.mark != MAP_MARK)
        fail(LAUNCH_ERROR, "a copy of a tile needs the address of a parameter `const __grid_constant__ CUtensorMap`");
    if (copy.map.rank != rank)
        fail(LAUNCH_ERROR, "the tensor map has %u dims, but the instruction is for %u", copy.map.rank, rank);
    for (unsigned dim = 0; dim < rank; ++dim)
        if (!barrier && at[dim] < 0)
            fail(LAUNCH_ERROR, "a stored tile begins at index %lld of a dim: a GPU can load tiles that begin below 0, but "
                 "raises an illegal instruction if one is stored", at[dim]);
    if (at[0] * int(copy.map.item_bytes) % 16)
        fail(LAUNCH_ERROR, "a tile begins at index %lld of the innermost dim: times %u bytes, this must be a multiple "
             "of 16, or a GPU raises an illegal instruction", at[0], unsigned(copy.map.item_bytes));
    copy.shared = shared, copy.global = reinterpret_cast<char*>(copy.map.address);
    copy.barrier = barrier, copy.out = !barrier, copy.bytes = copy.map.item_bytes;
    for (unsigned dim = 0; dim < rank; ++dim) copy.bytes *= copy.map.box[dim], copy.at[dim] = int(at[dim]);
    start(copy);
}

void commit_copies() { ++block->current->group; }

// Finishes this thread's copies out of shared memory, except its newest groups.
void wait_for_copies(unsigned newest) {
    const Thread& thread = *block->current;
    for (unsigned index = 0; index < block->pending;) {
        const Copy& copy = block->copies[index];
        if (copy.out && copy.thread == thread.number && copy.group + newest < thread.group) finish(index);
        else ++index;
    }
}

// Called when the last thread of a block ends, after which its shared memory may belong to another block.
static void check_no_copy_is_under_way() {
    if (!block->pending) return;
    const bool out = block->copies[0].out;
    fail(LAUNCH_ERROR, "block (%u,%u,%u) ends while a bulk copy %s its shared memory is in progress: wait for it%s",
         blockIdx.x, blockIdx.y, blockIdx.z, out ? "out of" : "into", out ? " (cp.async.bulk.wait_group)" : "");
}

}  // namespace evolve
