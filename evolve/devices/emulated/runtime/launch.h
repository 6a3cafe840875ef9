// One launch: runs the blocks of the grid one after the other, or all at once if it is cooperative.
#pragma once
#ifdef __linux__
#include <link.h>
#endif

#include "collectives.h"

namespace evolve {

static Word serials;

// All static shared memory, including variables without poison(), of an OS thread: the one that located it last, or the
// one of a block that runs beside others.
static EVOLVE_LOCAL char* static_shared;
static EVOLVE_LOCAL size_t static_shared_bytes;

static __thread char in_this_thread;

#ifdef __linux__

static int find_static_shared(dl_phdr_info* module, size_t, void*) {
    for (int part = 0; part < module->dlpi_phnum; ++part) {
        char* start = static_cast<char*>(module->dlpi_tls_data);
        size_t bytes = module->dlpi_phdr[part].p_memsz;
        if (module->dlpi_phdr[part].p_type != PT_TLS || !start) continue;
        if (&in_this_thread < start || &in_this_thread >= start + bytes) continue;
        static_shared = start;
        static_shared_bytes = bytes;
        return 1;
    }
    return 0;
}

static void locate_static_shared() {
    static EVOLVE_LOCAL pthread_t located_by;
    if (static_shared && pthread_equal(located_by, pthread_self())) return;
    located_by = pthread_self();
    in_this_thread = 1;  // makes the system allocate the memory
    dl_iterate_phdr(find_static_shared, nullptr);
}

#else  // the system does not tell where the memory is, but it is near this variable

constexpr size_t NEAR = 64 << 10;
static void locate_static_shared() {}

#endif

static void set_up(const Job& launched, Grid* shared_grid) {
    job = &launched;
    grid = shared_grid;
    dynamic_bytes = launched.shared;
    blockDim = launched.block;
    gridDim = launched.grid;
    block->threads = launched.block.x * launched.block.y * launched.block.z;
    for (unsigned number = 0; number < block->threads; ++number) {
        Thread& thread = block->all[number];
        thread.number = number;
        thread.index = {number % blockDim.x, number / blockDim.x % blockDim.y, number / blockDim.x / blockDim.y};
    }
}

static void run_block(Word index) {
    blockIdx = {unsigned(index % gridDim.x), unsigned(index / gridDim.x % gridDim.y),
                unsigned(index / gridDim.x / gridDim.y)};
    // Its low bit selects the garbage, and differs between neighbouring blocks.
    block_serial = (__atomic_add_fetch(&serials, 1, __ATOMIC_RELAXED) << 1) | (~index & 1);
    block->live = block->unstarted = block->threads;
    block->reached = 0;
    block->reversed = unsigned(index & 1);
    block->ahead = unsigned(index >> 1 & 1) ^ job->turn;
    block->ready = nullptr;
    block->at_barrier = block->at_grid_barrier = 0;
    block->counts[SUM] = block->counts[ANY] = 0;
    block->counts[ALL] = 1;
    block->late = unsigned(index & 1) ^ job->turn;
    block->pending = 0;
    memset(block->at_warpgroup, 0, sizeof block->at_warpgroup);
    block->static_shared = 0;
    if (job->shared) fill(dynamic_shared(), job->shared);
#ifndef EVOLVE_COOPERATIVE  // there, the memory also holds the runtime's own variables
    if (static_shared) fill(static_shared, static_shared_bytes);
#endif
    for (unsigned number = 0; number < block->threads; ++number) {
        block->all[number].wait = UNSTARTED;
        block->all[number].group = 0;
        if (number % LANES == 0) {
            unsigned left = block->threads - number;
            block->warps[number / LANES].exited = left < LANES ? ~0u << left : 0u;
        }
    }
    switch_to(block->home, take_fibre()->context);
}

// After a failure, waiting threads are never resumed and their stacks are reused.
static void take_back_fibres() {
    if (block->current->wait == EXITED) give_back(block->current->fibre);
    for (unsigned number = 0; number < block->threads; ++number) {
        Thread& thread = block->all[number];
        if (thread.wait != UNSTARTED && thread.wait != EXITED) give_back(thread.fibre);
    }
}

static Block* new_block() { return static_cast<Block*>(calloc(1, sizeof(Block))); }

// Blocks do not run in ascending order, so that no kernel can rely on that order.
static Word stride_of(Word blocks) {
    auto divisor = [](Word a, Word b) {
        while (b) {
            Word rest = a % b;
            a = b;
            b = rest;
        }
        return a;
    };
    Word stride = Word(double(blocks) * 0.6180339887) | 1;
    while (divisor(stride, blocks) != 1) ++stride;
    return stride;
}

static Failure run_in_turn(const Job& launched, char* message, int size) {
    if (!kept_block) kept_block = new_block();
    block = kept_block;
    locate_static_shared();
    set_up(launched, nullptr);
    Word blocks = Word(gridDim.x) * gridDim.y * gridDim.z, stride = stride_of(blocks), index = blocks - 1;
    for (Word turn = 0; turn < blocks; ++turn) {
        run_block(index);
        if (block->failure) {
            Failure failure = block->failure;
            snprintf(message, size_t(size), "%s", block->message);
            take_back_fibres();
            for (Warp& warp : block->warps) memset(&warp, 0, sizeof warp);
            block->failure = NONE;
            return failure;
        }
        index = (index + stride) % blocks;
    }
    return NONE;
}

#ifdef EVOLVE_COOPERATIVE

struct Resident {
    const Job* job;
    Grid* grid;
    unsigned index, rank;
    Failure failure;
    char message[1024];
    pthread_t thread;
};

// Tells the other blocks of the cluster where this block's shared memory is, and waits until all have done so.
static void meet(unsigned rank) {
    Peer& peer = grid->peers[rank];
    block->peer = &peer;
    peer.regions[0] = {dynamic_shared(), job->shared};
#ifdef __linux__
    locate_static_shared();
    peer.regions[1] = {static_shared, static_shared_bytes};
#else
    peer.regions[1] = {&in_this_thread - NEAR, 2 * NEAR};
#endif
    pthread_mutex_lock(&grid->mutex);
    if (++grid->ready == grid->blocks) pthread_cond_broadcast(&grid->changed);
    while (grid->ready < grid->blocks) pthread_cond_wait(&grid->changed, &grid->mutex);
    pthread_mutex_unlock(&grid->mutex);
}

static void* run_resident(void* argument) {
    Resident& resident = *static_cast<Resident*>(argument);
    block = new_block();
    set_up(*resident.job, resident.grid);
    if (grid->clustered) meet(resident.rank);
    run_block(resident.index);
    resident.failure = block->failure;
    memcpy(resident.message, block->message, sizeof resident.message);
    if (block->failure) take_back_fibres();
    spare_idle_fibres();
    pthread_mutex_lock(&resident.grid->mutex);
    ++resident.grid->finished;
    if (grid->clustered) {
        block->peer->ended = true;
        if (grid->finished < grid->blocks) complete_cluster_barrier();
    }
    pthread_cond_broadcast(&resident.grid->changed);
    pthread_mutex_unlock(&resident.grid->mutex);
    free(block);
    return nullptr;
}

// Runs some blocks at the same time: a whole cooperative grid, or a cluster.
static Failure run_together(const Job& launched, unsigned first, unsigned blocks, bool clustered, char* message, int size) {
    Grid shared_grid = {};
    pthread_mutex_init(&shared_grid.mutex, nullptr);
    pthread_cond_init(&shared_grid.changed, nullptr);
    shared_grid.blocks = blocks, shared_grid.clustered = clustered;
    Resident* residents = static_cast<Resident*>(calloc(blocks, sizeof(Resident)));
    for (unsigned rank = 0; rank < blocks; ++rank) {
        residents[rank].job = &launched;
        residents[rank].grid = &shared_grid;
        residents[rank].index = first + rank, residents[rank].rank = rank;
        if (pthread_create(&residents[rank].thread, nullptr, run_resident, &residents[rank])) {
            fputs("the emulator has no memory for another resident block\n", stderr);
            abort();
        }
    }
    Failure failure = NONE;
    for (unsigned rank = 0; rank < blocks; ++rank) {
        pthread_join(residents[rank].thread, nullptr);
        bool own_failure = residents[rank].failure && strcmp(residents[rank].message, "another block failed") != 0;
        if (!own_failure || failure) continue;
        failure = residents[rank].failure;
        snprintf(message, size_t(size), "%s", residents[rank].message);
    }
    for (Peer& peer : shared_grid.peers) free(peer.inbox);
    free(residents);
    return failure;
}

// Runs the clusters of a grid one after the other, not in ascending order.
static Failure run_clusters(const Job& launched, unsigned cluster, char* message, int size) {
    if (launched.grid.x % cluster || cluster > MOST_BLOCKS) {
        snprintf(message, size_t(size), "a grid of %u blocks in clusters of %u: the clusters must divide the grid, and have "
                 "at most %u blocks", launched.grid.x, cluster, MOST_BLOCKS);
        return LAUNCH_ERROR;
    }
    Word clusters = Word(launched.grid.x) / cluster * launched.grid.y * launched.grid.z;
    Word stride = stride_of(clusters), index = clusters - 1;
    for (Word turn = 0; turn < clusters; ++turn) {
        if (Failure failure = run_together(launched, unsigned(index * cluster), cluster, true, message, size)) return failure;
        index = (index + stride) % clusters;
    }
    return NONE;
}

#endif

}  // namespace evolve

// Runs one launch; returns a Failure and writes its reason to `message`. `stacks` points to the process's idle stacks.
extern "C" EVOLVE_EXPORT int evolve_launch(void (*entry)(void**), const unsigned* sizes, unsigned shared, int cooperative,
                                           unsigned cluster, void** arguments, char* message, int size, void** stacks) {
    using namespace evolve;
    static Word launches;
    unsigned turn = unsigned(++launches * 0x9e3779b97f4a7c15ull >> 63);  // 1 0 1 0 0 1 0 1 1 0, without a period
    Job launched = {entry, arguments, {sizes[0], sizes[1], sizes[2]}, {sizes[3], sizes[4], sizes[5]}, shared, turn};
    Fibre** process = reinterpret_cast<Fibre**>(stacks);
#ifdef EVOLVE_COOPERATIVE
    if (cooperative || cluster) {
        spare_fibres = taken_from(process);
        unsigned blocks = launched.grid.x * launched.grid.y * launched.grid.z;
        Failure failure = cluster ? run_clusters(launched, cluster, message, size)
                                  : run_together(launched, 0, blocks, false, message, size);
        leave_to(process, spare_fibres);
        return failure;
    }
#endif
    (void)cooperative, (void)cluster;
    idle_fibres = taken_from(process);
    Failure failure = run_in_turn(launched, message, size);
    leave_to(process, idle_fibres);
    return failure;
}
