// Barriers and warp operations, and the report about a block in which no thread can continue.
#pragma once
#include <sched.h>
#include <time.h>

#include "cluster.h"

namespace evolve {

[[noreturn]] void fail(Failure failure, const char* format, ...) {
    if (grid) __atomic_store_n(&grid->failed, true, __ATOMIC_SEQ_CST);
    block->failure = failure;
    va_list values;
    va_start(values, format);
    vsnprintf(block->message, sizeof block->message, format, values);
    va_end(values);
    switch_to(block->current->fibre->context, block->home);
    __builtin_unreachable();
}

static unsigned count_waiting(Wait wait) {
    unsigned count = 0;
    for (unsigned number = 0; number < block->threads; ++number) count += block->all[number].wait == wait;
    return count;
}

// Writes which lanes the first unfinished warp operation waits for, such as "4,5 of warp 2".
static void describe_missing(char* text, size_t bytes) {
    for (unsigned number = 0; number < block->threads; number += LANES) {
        const Warp& warp = block->warps[number / LANES];
        for (const Group& group : warp.groups) {
            if (!group.arrived) continue;
            size_t used = 0;
            for (unsigned lane = 0; lane < LANES; ++lane)
                if ((group.mask & ~group.arrived & ~warp.exited) >> lane & 1)
                    used += size_t(snprintf(text + used, bytes - used, used ? ",%u" : "%u", lane));
            snprintf(text + used, bytes - used, " of warp %u", number / LANES);
            return;
        }
    }
}

// Writes the arrivals and bytes that are missing at the mbarrier for which the first thread waits.
static void describe_barrier(char* text, size_t bytes) {
    for (unsigned number = 0; number < block->threads; ++number) {
        const Thread& thread = block->all[number];
        if (thread.wait != AT_MBARRIER) continue;
        const Counts counts = counts_of(static_cast<const Word*>(thread.place));
        snprintf(text, bytes, "%u arrivals and %d bytes", counts.missing, counts.bytes);
        return;
    }
}

[[noreturn]] static void report_deadlock() {
    char text[512] = "";
    size_t used = 0;
    auto add = [&](unsigned threads, const char* format, const char* missing) {
        if (!threads || used >= sizeof text) return;
        char part[256];
        snprintf(part, sizeof part, format, missing);
        used += size_t(snprintf(text + used, sizeof text - used, "%s%u thread%s %s", used ? ", " : "", threads,
                                threads == 1 ? " waits" : "s wait", part));
    };
    char missing[160] = "";
    describe_missing(missing, sizeof missing);
    add(count_waiting(AT_BARRIER), "at __syncthreads", "");
    add(count_waiting(AT_WARP), "at a warp operation that lanes %s never reach", missing);
    add(count_waiting(AT_GRID_BARRIER), "at grid.sync()", "");
    add(count_waiting(AT_CLUSTER), "at barrier.cluster.wait, before which not all blocks arrive", "");
    add(count_waiting(AT_WARPGROUP), "at wgmma.wait_group, which not all four warps reach", "");
    describe_barrier(missing, sizeof missing);
    add(count_waiting(AT_MBARRIER), "at an mbarrier at which %s are missing", missing);
    fail(LAUNCH_ERROR, "deadlock in block (%u,%u,%u): %s", blockIdx.x, blockIdx.y, blockIdx.z, text);
}

static void check_abandoned() {
    if (grid && __atomic_load_n(&grid->failed, __ATOMIC_RELAXED)) fail(LAUNCH_ERROR, "another block failed");
}

// Waits for the other blocks. The last thread of a block to arrive calls this for all of them.
static void pass_grid_barrier() {
    pthread_mutex_lock(&grid->mutex);
    unsigned round = grid->round;
    if (++grid->waiting == grid->blocks) {
        grid->waiting = 0;
        ++grid->round;
        pthread_cond_broadcast(&grid->changed);
    }
    while (grid->round == round && !grid->failed && !grid->finished) pthread_cond_wait(&grid->changed, &grid->mutex);
    bool passed = grid->round != round, ended = grid->finished && !grid->failed;
    pthread_mutex_unlock(&grid->mutex);
    if (!passed && ended) fail(LAUNCH_ERROR, "deadlock: some blocks wait at grid.sync() and others have ended");
    if (!passed) fail(LAUNCH_ERROR, "another block failed");
    block->at_grid_barrier = 0;
    make_all_ready(AT_GRID_BARRIER);
}

void sync_block() {
    if (++block->at_barrier == block->live) {
        complete_barrier();
        return;
    }
    suspend(AT_BARRIER);
}

int count_block(Count count, int predicate) {
    block->counts[SUM] += predicate != 0;
    block->counts[ALL] &= predicate != 0;
    block->counts[ANY] |= predicate != 0;
    sync_block();
    return block->results[count];
}

void sync_grid() {
    if (!grid || grid->clustered) fail(LAUNCH_ERROR, "grid.sync() needs `cooperative = true` in the launch");
    ++block->at_grid_barrier;
    suspend(AT_GRID_BARRIER);
}

// No warp of a warpgroup continues before all four have arrived, because they multiply together.
void sync_warpgroup() {
    const unsigned group = block->current->number / WARPGROUP;
    if (++block->at_warpgroup[group] < WARPGROUP) return suspend(AT_WARPGROUP);
    block->at_warpgroup[group] = 0;
    for (unsigned number = group * WARPGROUP; number < (group + 1) * WARPGROUP && number < block->threads; ++number)
        if (block->all[number].wait == AT_WARPGROUP) make_ready(&block->all[number]);
}

unsigned lane() { return block->current->number % LANES; }

static Group& group_of(Warp& warp, unsigned mask, Collective collective) {
    Group* idle = nullptr;
    for (Group& group : warp.groups) {
        if (group.mask == mask && group.collective == collective) return group;
        if (!idle && !group.arrived && !group.readers) idle = &group;
    }
    idle->mask = mask;
    idle->collective = collective;
    return *idle;
}

Exchange exchange(unsigned mask, Collective collective, Word word) {
    Thread* thread = block->current;
    Warp& warp = block->warps[thread->number / LANES];
    unsigned lane = thread->number % LANES;
    if (!(mask >> lane & 1))
        fail(LAUNCH_ERROR, "block (%u,%u,%u), thread (%u,%u,%u): lane %u calls a warp operation whose mask 0x%08x leaves it out",
             blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z, lane, mask);
    Group& group = group_of(warp, mask, collective);
    unsigned round = group.round;
    if (!group.arrived) ++warp.in_flight;
    group.arrived |= 1u << lane;
    group.words[round & 1][lane] = word;
    if (is_complete(warp, group)) {
        complete_group(warp, group);
    } else {
        // The ready queue uses the thread's link only after the thread has left the group's list.
        thread->next = group.waiting;
        group.waiting = thread;
        suspend(AT_WARP);
    }
    --group.readers;
    return group.results[round & 1];
}

unsigned converged_lanes(const void* place) {
    Thread* thread = block->current;
    thread->place = place;
    suspend(AT_CONVERGENCE);
    return block->warps[thread->number / LANES].converged;
}

// Lets other threads run from time to time, because this one may be spinning.
void yield() {
    static EVOLVE_LOCAL unsigned calls;
    unsigned call = ++calls;
    if (grid && call % 16 == 0) {
        check_abandoned();
        sched_yield();
    }
    if (call % 1024 == 0) let_others_run();
}

static void let_others_run() {
    if (!block->ready && !block->unstarted) return;
    Thread* thread = block->current;
    if (!block->unstarted) {
        make_ready(thread);
        suspend(RUNNING);
        return;
    }
    Fibre* fibre = take_fibre();
    make_ready(thread);
    switch_to(thread->fibre->context, fibre->context);
    resume(thread);
}

// Fills memory with garbage, which reads as NaN or a huge number in any type and differs between blocks and launches.
static void fill(void* memory, Size bytes) { memset(memory, (block_serial & 1 ? 0xfe : 0x7e) | job->turn, bytes); }

void poison(void* variable, Size bytes) {
    fill(variable, bytes);
    block->static_shared += bytes;
    if (block->static_shared > 48 << 10)
        fail(COMPILE_ERROR, "ptxas: the kernel uses too much static shared memory (%zu bytes, 49152 are allowed); "
             "declare the rest as `extern __shared__`, and its size as `shared` in the launch", block->static_shared);
    if (block->static_shared + dynamic_bytes > MAX_SHARED)
        fail(ILLEGAL, "%zu bytes of static and %u of dynamic shared memory exceed the limit of %zu",
             block->static_shared, dynamic_bytes, MAX_SHARED);
}

static Word nanoseconds(clockid_t clock) {
    timespec now;
    clock_gettime(clock, &now);
    return Word(now.tv_sec) * 1000000000ull + Word(now.tv_nsec);
}

Word clock_ticks() { return nanoseconds(CLOCK_MONOTONIC); }
Word global_nanoseconds() { return nanoseconds(CLOCK_REALTIME); }

int print(const char* format, ...) {
    static int left = 64 << 10;  // characters that a program may print
    char text[1024];
    va_list values;
    va_start(values, format);
    int size = vsnprintf(text, sizeof text, format, values);
    va_end(values);
    if (__atomic_sub_fetch(&left, size, __ATOMIC_RELAXED) > 0) fputs(text, stderr);
    return size;
}

}  // namespace evolve
