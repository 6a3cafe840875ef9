// Scheduler of one block, whose threads are fibres: records what each thread waits for and chooses the next to run.
#pragma once
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "context.h"
#include "fibres.h"
#include "runtime.h"

namespace evolve {

constexpr unsigned LANES = 32, MAX_THREADS = 1024, MAX_WARPS = MAX_THREADS / LANES, WARPGROUP = 4 * LANES;
constexpr size_t MAX_SHARED = 232448;
enum Wait { UNSTARTED, RUNNING, AT_BARRIER, AT_GRID_BARRIER, AT_WARP, AT_CONVERGENCE, AT_MBARRIER, AT_WARPGROUP, AT_CLUSTER, EXITED };
constexpr unsigned MOST_COPIES = 64, MOST_DIMS = 5, MOST_BLOCKS = 8;  // of a cluster, which runs on every GPU

struct Thread {
    Index index;
    unsigned number;
    Wait wait;
    Fibre* fibre;
    Thread* next;
    const void* place;  // the place in the kernel where lanes converge, or the mbarrier that the thread waits for
    unsigned group;     // number of its current group of bulk copies out of shared memory
    unsigned arrivals, waits;  // at the cluster's barrier
};

// The content of a tensor map; the innermost dim comes first.
struct TileMap {
    Word address;
    unsigned item_bytes, rank, swizzle, box[MOST_DIMS];
    Word sizes[MOST_DIMS];
    Word unused[5], mark;
};
static_assert(sizeof(TileMap) == 128, "the device writes tensor maps of 128 bytes");

// A bulk copy. A copy into shared memory has a barrier; a copy of contiguous bytes has a map without dims.
struct Copy {
    char *shared, *global;
    Word bytes;
    Word* barrier;
    TileMap map;
    int at[MOST_DIMS];
    unsigned thread, group;
    bool out;
};

// One warp operation in flight. It has slots for two rounds: a lane may write its word of the next round while slower
// lanes still read those of this round. No round completes before all its lanes have arrived.
struct Group {
    unsigned mask;
    Collective collective;
    unsigned arrived, readers, round;
    Exchange results[2];
    Word words[2][LANES];
    Thread* waiting;
};

struct Warp {
    unsigned exited;
    unsigned in_flight;
    unsigned converged;
    Group groups[LANES + 1];
};

struct Peer;

struct Block {
    Context home;
    Thread* current;
    Thread *ready, *last_ready;
    Fibre* starting;
    unsigned threads, live, unstarted, reached, reversed;
    unsigned ahead;  // warps run on to the next barrier one after the other, instead of step by step
    unsigned late, pending;  // whether bulk copies happen late; number of copies in progress
    Copy copies[MOST_COPIES];
    unsigned at_barrier, at_grid_barrier, at_cluster_barrier, at_warpgroup[MAX_THREADS / WARPGROUP];
    Peer* peer;  // what other blocks of the cluster know about this one
    int counts[3], results[3];
    Failure failure;
    char message[1024];
    size_t static_shared;
    Thread all[MAX_THREADS];
    Warp warps[MAX_WARPS];
#ifdef EVOLVE_COOPERATIVE
    char shared[MAX_SHARED + 1024];
#endif
};

struct Job {
    void (*entry)(void**);
    void** arguments;
    Index grid, block;
    unsigned shared;
    unsigned turn;  // 0 or 1, so that garbage differs between launches
};

// A part of a block's shared memory.
struct Region {
    char* start;
    size_t bytes;
};

// A store into another block's shared memory that counts at an mbarrier there, or an arrival at it.
struct Message {
    char* to;
    Word* barrier;
    unsigned bytes, arrivals;
    char data[16];
};

struct Peer {
    Region regions[2];  // dynamic and static shared memory
    Message* inbox;
    unsigned taken, count, room;
    bool arrived, ended;
    bool idle;  // no thread of the block can run before another block does something
};

// A grid, or a cluster, whose blocks are all resident. Its barriers count blocks.
struct Grid {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    unsigned blocks, waiting, finished, round;
    volatile bool failed;
    bool clustered, stuck;
    unsigned arrived, ready;
    Peer peers[MOST_BLOCKS];
};

}  // namespace evolve

// Built-in variables of kernels. The kernels' translation units declare them with CUDA's own types.
EVOLVE_LOCAL evolve::Index threadIdx, blockIdx, blockDim, gridDim;

namespace evolve {

EVOLVE_LOCAL Word block_serial;
EVOLVE_LOCAL unsigned dynamic_bytes;
static EVOLVE_LOCAL Block* block;
static EVOLVE_LOCAL const Job* job;
static EVOLVE_LOCAL Grid* grid;

static Block* kept_block;  // for launches whose blocks run one after the other

static void run_threads();
static void let_others_run();

#ifdef EVOLVE_COOPERATIVE
char* dynamic_shared() {
    return reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(block->shared) + 1023) & ~uintptr_t(1023));
}
#else
alignas(1024) char shared_memory[MAX_SHARED];
static char* dynamic_shared() { return shared_memory; }
#endif

static Fibre* take_fibre() {
    Fibre* fibre = any_fibre();
    prepare(fibre->context, fibre->top - STACK_BYTES, STACK_BYTES, run_threads);
    block->starting = fibre;
    return fibre;
}

__attribute__((destructor)) static void free_memory() { free(kept_block); }

static void make_ready(Thread* thread) {
    thread->wait = RUNNING;
    thread->next = nullptr;
    if (block->ready) block->last_ready->next = thread;
    else block->ready = thread;
    block->last_ready = thread;
}

// Makes a thread the next one to run.
static void make_next(Thread* thread) {
    thread->wait = RUNNING;
    thread->next = block->ready;
    if (!block->ready) block->last_ready = thread;
    block->ready = thread;
}

static void make_all_ready(Wait wait) {
    unsigned warps = (block->threads + LANES - 1) / LANES;
    for (unsigned count = 0; count < warps; ++count) {
        unsigned first = (block->reversed ? warps - 1 - count : count) * LANES;
        for (unsigned number = first; number < first + LANES && number < block->threads; ++number)
            if (block->all[number].wait == wait) make_ready(&block->all[number]);
    }
}

static void resume(Thread* thread) {
    block->current = thread;
    threadIdx = thread->index;
}

static void complete_barrier() {
    for (int count = 0; count < 3; ++count) block->results[count] = block->counts[count];
    block->counts[SUM] = block->counts[ANY] = 0;
    block->counts[ALL] = 1;
    block->at_barrier = 0;
    make_all_ready(AT_BARRIER);
}

static void complete_group(Warp& warp, Group& group) {
    group.results[group.round & 1] = {group.words[group.round & 1], group.arrived};
    group.readers = unsigned(__builtin_popcount(group.arrived));
    group.arrived = 0;
    --warp.in_flight;
    ++group.round;
    Thread* waiting = group.waiting;
    group.waiting = nullptr;
    while (waiting) {
        Thread* next = waiting->next;
        if (block->ahead) make_next(waiting);
        else make_ready(waiting);
        waiting = next;
    }
}

static bool is_complete(const Warp& warp, const Group& group) {
    return group.arrived && ((group.arrived | warp.exited) & group.mask) == group.mask;
}

static void check_no_copy_is_under_way();
static void arrive_if_complete();
static bool await_cluster();

static void exit_thread(Thread* thread) {
    thread->wait = EXITED;
    if (!--block->live) check_no_copy_is_under_way();
    Warp& warp = block->warps[thread->number / LANES];
    warp.exited |= 1u << thread->number % LANES;
    if (warp.in_flight)
        for (Group& group : warp.groups)
            if (is_complete(warp, group)) complete_group(warp, group);
    if (block->at_barrier && block->at_barrier == block->live) complete_barrier();
    arrive_if_complete();
}

[[noreturn]] static void report_deadlock();
static void pass_grid_barrier();
static bool finish_a_copy();

// Answers lanes that asked which of them are converged. Called when no thread can run.
static bool release_converged() {
    const void* place = nullptr;
    Thread* first = nullptr;
    for (unsigned number = 0; number < block->threads; ++number) {
        Thread* thread = &block->all[number];
        if (thread->wait != AT_CONVERGENCE) continue;
        if (!first) {
            first = thread;
            place = thread->place;
            block->warps[number / LANES].converged = 0;
        }
        if (thread->place != place || number / LANES != first->number / LANES) continue;
        block->warps[number / LANES].converged |= 1u << number % LANES;
        make_ready(thread);
    }
    return first;
}

static Thread* next_ready() {
    Thread* thread = block->ready;
    if (thread) block->ready = thread->next;
    return thread;
}

// Called when no started thread is ready and none is left to start.
static Thread* await_ready() {
    while (!block->ready && finish_a_copy()) {}
    if (!block->ready && !release_converged()) {
        while (!block->ready && await_cluster()) {}
        if (block->ready) return next_ready();
        if (block->live && block->at_grid_barrier == block->live) pass_grid_barrier();
        else report_deadlock();
    }
    return next_ready();
}

// Makes the current thread wait, and runs others until it is ready again.
static void suspend(Wait wait) {
    Thread* thread = block->current;
    thread->wait = wait;
    Thread* next = next_ready();
    if (!next && !block->unstarted) next = await_ready();
    if (next != thread) {
        Fibre* fibre = next ? next->fibre : take_fibre();
        switch_to(thread->fibre->context, fibre->context);
    }
    resume(thread);
}

static Thread* start_thread() {
    if (!block->unstarted) return nullptr;
    unsigned warps = (block->threads + LANES - 1) / LANES;
    for (;;) {  // in every other block, warps start in descending order
        unsigned warp = block->reached / LANES, number = block->reached++ % LANES;
        number += (block->reversed ? warps - 1 - warp : warp) * LANES;
        if (number >= block->threads) continue;
        --block->unstarted;
        block->all[number].wait = RUNNING;
        return &block->all[number];
    }
}

// Entry of every fibre: runs threads from start to end, one after the other, until all have been started.
static void run_threads() {
    Fibre* fibre = block->starting;
    while (Thread* thread = start_thread()) {
        thread->fibre = fibre;
        resume(thread);
        job->entry(job->arguments);
        exit_thread(thread);
    }
    Thread* next = next_ready();
    if (!next && block->live) next = await_ready();
    give_back(fibre);
    switch_to(fibre->context, next ? next->fibre->context : block->home);
}

}  // namespace evolve
