// Clusters: the blocks of one cluster run at the same time, each on its own OS thread. A block changes the mbarriers of
// another by a message, which the other takes when it looks at its mbarriers or none of its threads can run.
#pragma once
#include "copies.h"

namespace evolve {

#ifdef EVOLVE_COOPERATIVE

// The block's shared memory that holds a place, or null.
static const Region* region_of(const Peer& peer, const char* place) {
    for (const Region& region : peer.regions)
        if (place >= region.start && place < region.start + region.bytes) return &region;
    return nullptr;
}

static void need_cluster(const char* what) {
    if (!grid || !grid->clustered) fail(LAUNCH_ERROR, "%s needs an entry with __cluster_dims__", what);
}

unsigned cluster_rank() { return grid && grid->clustered ? unsigned(block->peer - grid->peers) : 0; }
unsigned cluster_size() { return grid && grid->clustered ? grid->blocks : 1; }

char* place_in_block(char* own, unsigned rank) {
    need_cluster("mapa");
    if (rank >= grid->blocks) fail(CRASHED, "mapa: the cluster has no block %u, but %u blocks", rank, grid->blocks);
    const Region* region = region_of(*block->peer, own);
    if (!region) region = &block->peer->regions[0];  // the address is computed only, or its use will be reported
    return grid->peers[rank].regions[region - block->peer->regions].start + (own - region->start);
}

// Registers hold the lower half of an address, also for the shared memory of other blocks.
static char* place_of(unsigned low, unsigned* rank) {
    for (unsigned number = 0; number < grid->blocks; ++number)
        for (const Region& region : grid->peers[number].regions) {
            const unsigned offset = low - unsigned(reinterpret_cast<Word>(region.start));
            if (offset >= region.bytes) continue;
            *rank = number;
            return region.start + offset;
        }
    fail(CRASHED, "block (%u,%u,%u): an address of shared::cluster is in no block's shared memory", blockIdx.x, blockIdx.y,
         blockIdx.z);
}

char* shared_in_cluster(unsigned low, unsigned bytes) {
    need_cluster("shared::cluster");
    unsigned rank = 0;
    char* place = place_of(low, &rank);
    if (reinterpret_cast<Word>(place) % bytes) fail(LAUNCH_ERROR, "misaligned address of shared::cluster");
    if (__atomic_load_n(&grid->peers[rank].ended, __ATOMIC_ACQUIRE))
        fail(CRASHED, "the shared memory of block %u of the cluster is used after that block has ended", rank);
    return place;
}

void send(unsigned low, const void* data, unsigned bytes, unsigned barrier, unsigned arrivals) {
    need_cluster("st.async or an arrival at another block's mbarrier");
    Message message = {};
    unsigned rank = 0, target = 0;
    message.barrier = reinterpret_cast<Word*>(place_of(barrier, &target));
    if (bytes) {
        message.to = shared_in_cluster(low, bytes);
        place_of(low, &rank);
        if (rank != target) fail(LAUNCH_ERROR, "st.async: the data and the mbarrier are in different blocks");
        memcpy(message.data, data, bytes);
    }
    message.bytes = bytes, message.arrivals = arrivals;
    Peer& peer = grid->peers[target];
    pthread_mutex_lock(&grid->mutex);
    const bool ended = peer.ended;
    if (!ended) {
        if (peer.count == peer.room) {
            peer.room = peer.room ? 2 * peer.room : 64;
            peer.inbox = static_cast<Message*>(realloc(peer.inbox, peer.room * sizeof(Message)));
        }
        peer.inbox[peer.count++] = message;
        peer.idle = false;
        pthread_cond_broadcast(&grid->changed);
    }
    pthread_mutex_unlock(&grid->mutex);
    if (ended) fail(CRASHED, "a store reaches block %u of the cluster after that block has ended", target);
}

// Takes one message, and returns whether there was one.
static bool take_message() {
    Peer& peer = *block->peer;
    pthread_mutex_lock(&grid->mutex);
    const bool some = peer.taken < peer.count;
    Message message = {};
    if (some) message = peer.inbox[peer.taken++];
    if (peer.taken == peer.count) peer.taken = peer.count = 0;
    pthread_mutex_unlock(&grid->mutex);
    if (!some) return false;
    if (message.bytes) {
        memcpy(message.to, message.data, message.bytes);
        expect_bytes(message.barrier, -int(message.bytes));
    }
    if (message.arrivals) arrive_at(message.barrier, message.arrivals);
    return true;
}

static void take_messages() {
    if (grid && grid->clustered)
        while (take_message()) {}
}

// A block arrives when all its threads that have not ended have arrived. Called with the mutex held.
static void complete_cluster_barrier() {
    if (grid->arrived + grid->finished < grid->blocks) return;
    grid->arrived = 0;
    for (unsigned number = 0; number < grid->blocks; ++number) grid->peers[number].arrived = grid->peers[number].idle = false;
    ++grid->round;
    pthread_cond_broadcast(&grid->changed);
}

static void arrive_if_complete() {
    if (!block->at_cluster_barrier || block->at_cluster_barrier < block->live || block->peer->arrived) return;
    block->at_cluster_barrier = 0;
    pthread_mutex_lock(&grid->mutex);
    block->peer->arrived = true;
    ++grid->arrived;
    complete_cluster_barrier();
    pthread_mutex_unlock(&grid->mutex);
}

void arrive_at_cluster() {
    need_cluster("barrier.cluster");
    Thread* thread = block->current;
    if (thread->arrivals > thread->waits) fail(LAUNCH_ERROR, "barrier.cluster.arrive twice without a wait in between");
    ++thread->arrivals;
    ++block->at_cluster_barrier;
    arrive_if_complete();
}

void wait_for_cluster() {
    need_cluster("barrier.cluster");
    Thread* thread = block->current;
    if (thread->arrivals == thread->waits) fail(LAUNCH_ERROR, "barrier.cluster.wait before barrier.cluster.arrive");
    ++thread->waits;
    while (int(__atomic_load_n(&grid->round, __ATOMIC_ACQUIRE) - thread->waits) < 0) suspend(AT_CLUSTER);
    take_messages();
}

static bool can_continue() {
    for (unsigned number = 0; number < block->threads; ++number) {
        const Thread& thread = block->all[number];
        if (thread.wait == AT_CLUSTER && int(grid->round - thread.waits) >= 0) return true;
    }
    return false;
}

static bool nothing_can_change() {
    for (unsigned number = 0; number < grid->blocks; ++number)
        if (!grid->peers[number].idle && !grid->peers[number].ended) return false;
    return true;
}

// Waits for other blocks of the cluster. Called when no thread of this block can run. Returns false if none ever will.
static bool await_cluster() {
    if (!grid || !grid->clustered) return false;
    Peer& peer = *block->peer;
    pthread_mutex_lock(&grid->mutex);
    while (!grid->failed && !grid->stuck && peer.taken == peer.count && !can_continue()) {
        peer.idle = true;
        grid->stuck = nothing_can_change();
        if (grid->stuck) pthread_cond_broadcast(&grid->changed);
        else pthread_cond_wait(&grid->changed, &grid->mutex);
    }
    const bool failed = grid->failed, stuck = grid->stuck;
    peer.idle = false;
    pthread_mutex_unlock(&grid->mutex);
    if (failed) fail(LAUNCH_ERROR, "another block failed");
    if (stuck) return false;
    take_messages();
    const unsigned round = __atomic_load_n(&grid->round, __ATOMIC_ACQUIRE);
    for (unsigned number = 0; number < block->threads; ++number) {
        Thread& thread = block->all[number];
        if (thread.wait == AT_CLUSTER && int(round - thread.waits) >= 0) make_ready(&thread);
    }
    return true;
}

#else

[[noreturn]] static void need_cluster() { fail(LAUNCH_ERROR, "barrier.cluster and the like need an entry with __cluster_dims__"); }
unsigned cluster_rank() { return 0; }
unsigned cluster_size() { return 1; }
char* place_in_block(char*, unsigned) { need_cluster(); }
char* shared_in_cluster(unsigned, unsigned) { need_cluster(); }
void send(unsigned, const void*, unsigned, unsigned, unsigned) { need_cluster(); }
void arrive_at_cluster() { need_cluster(); }
void wait_for_cluster() { need_cluster(); }

static void take_messages() {}
static void arrive_if_complete() {}
static bool await_cluster() { return false; }

#endif

}  // namespace evolve
