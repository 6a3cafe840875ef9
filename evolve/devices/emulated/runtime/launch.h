// One launch: runs the blocks of the grid one after the other, or all at once if it is cooperative.
#pragma once
#ifdef __linux__
#include <link.h>
#endif

#include "collectives.h"

namespace evolve {

static Word serials;

// All static shared memory, including variables without poison(), of the OS thread that located it last.
static char* static_shared;
static size_t static_shared_bytes;

#if defined(__linux__) && !defined(EVOLVE_COOPERATIVE)

static __thread char in_this_thread;

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
    static pthread_t located_by;
    if (static_shared && pthread_equal(located_by, pthread_self())) return;
    located_by = pthread_self();
    in_this_thread = 1;  // makes the system allocate the memory
    dl_iterate_phdr(find_static_shared, nullptr);
}

#else  // each block has its own OS thread, which begins with fresh memory

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
    if (static_shared) fill(static_shared, static_shared_bytes);
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
    Word index;
    Failure failure;
    char message[1024];
    pthread_t thread;
};

static void* run_resident(void* argument) {
    Resident& resident = *static_cast<Resident*>(argument);
    block = new_block();
    set_up(*resident.job, resident.grid);
    run_block(resident.index);
    resident.failure = block->failure;
    memcpy(resident.message, block->message, sizeof resident.message);
    if (block->failure) take_back_fibres();
    spare_idle_fibres();
    free(block);
    pthread_mutex_lock(&resident.grid->mutex);
    ++resident.grid->finished;
    pthread_cond_broadcast(&resident.grid->changed);
    pthread_mutex_unlock(&resident.grid->mutex);
    return nullptr;
}

static Failure run_together(const Job& launched, char* message, int size) {
    unsigned blocks = launched.grid.x * launched.grid.y * launched.grid.z;
    Grid shared_grid = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, blocks, 0, 0, 0, false};
    Resident* residents = static_cast<Resident*>(calloc(blocks, sizeof(Resident)));
    for (unsigned index = 0; index < blocks; ++index) {
        residents[index].job = &launched;
        residents[index].grid = &shared_grid;
        residents[index].index = index;
        if (pthread_create(&residents[index].thread, nullptr, run_resident, &residents[index])) {
            fputs("the emulator has no memory for another resident block\n", stderr);
            abort();
        }
    }
    Failure failure = NONE;
    for (unsigned index = 0; index < blocks; ++index) {
        pthread_join(residents[index].thread, nullptr);
        bool own_failure = residents[index].failure && strcmp(residents[index].message, "another block failed") != 0;
        if (!own_failure || failure) continue;
        failure = residents[index].failure;
        snprintf(message, size_t(size), "%s", residents[index].message);
    }
    free(residents);
    return failure;
}

#endif

}  // namespace evolve

// Runs one launch; returns a Failure and writes its reason to `message`. `stacks` points to the process's idle stacks.
extern "C" EVOLVE_EXPORT int evolve_launch(void (*entry)(void**), const unsigned* sizes, unsigned shared, int cooperative,
                                           void** arguments, char* message, int size, void** stacks) {
    using namespace evolve;
    static Word launches;
    unsigned turn = unsigned(++launches * 0x9e3779b97f4a7c15ull >> 63);  // 1 0 1 0 0 1 0 1 1 0, without a period
    Job launched = {entry, arguments, {sizes[0], sizes[1], sizes[2]}, {sizes[3], sizes[4], sizes[5]}, shared, turn};
    Fibre** process = reinterpret_cast<Fibre**>(stacks);
#ifdef EVOLVE_COOPERATIVE
    if (cooperative) {
        spare_fibres = taken_from(process);
        Failure failure = run_together(launched, message, size);
        leave_to(process, spare_fibres);
        return failure;
    }
#endif
    (void)cooperative;
    idle_fibres = taken_from(process);
    Failure failure = run_in_turn(launched, message, size);
    leave_to(process, idle_fibres);
    return failure;
}
