// Interface between kernels and the runtime. Ordinary launches run on one OS thread with plain state.
// Cooperative launches run each block on a separate OS thread.
#pragma once

#ifdef EVOLVE_COOPERATIVE
#define EVOLVE_LOCAL __thread
#else
#define EVOLVE_LOCAL
#endif
#define EVOLVE_EXPORT __attribute__((visibility("default")))

namespace evolve {

using Size = decltype(sizeof(0));
using Word = unsigned long long;

struct Index {
    unsigned x, y, z;
};

enum Failure { NONE, LAUNCH_ERROR, CRASHED, ILLEGAL, COMPILE_ERROR };
enum Collective { SYNC, SHUFFLE, VOTE, MATCH, REDUCE };
enum Count { SUM, ALL, ANY };

// The words of the lanes of one warp operation, and which lanes took part.
struct Exchange {
    const Word* words;
    unsigned present;
};

[[noreturn]] void fail(Failure failure, const char* format, ...) __attribute__((format(printf, 2, 3)));
void sync_block();
int count_block(Count count, int predicate);
void sync_grid();
void sync_warpgroup();
Exchange exchange(unsigned mask, Collective collective, Word word);
unsigned converged_lanes(const void* place);
unsigned lane();
void yield();
void poison(void* variable, Size bytes);
#ifdef EVOLVE_COOPERATIVE
char* dynamic_shared();
#else
extern char shared_memory[];
#endif
void begin_barrier(Word* barrier, unsigned arrivals);
void end_barrier(Word* barrier);
void expect_bytes(Word* barrier, int bytes);
void arrive_at(Word* barrier, unsigned arrivals);
void wait_for(Word* barrier, unsigned parity);
bool has_ended(Word* barrier, unsigned parity);
void copy_stretch(char* shared, char* global, unsigned bytes, Word* barrier);
void copy_tile(char* shared, const void* described, const long long* at, unsigned rank, Word* barrier);
unsigned cluster_rank();
unsigned cluster_size();
char* place_in_block(char* own, unsigned rank);
char* shared_in_cluster(unsigned low, unsigned bytes);
void send(unsigned low, const void* data, unsigned bytes, unsigned barrier, unsigned arrivals);
void arrive_at_cluster();
void wait_for_cluster();
void commit_copies();
void wait_for_copies(unsigned newest);
Word clock_ticks();
Word global_nanoseconds();
int print(const char* format, ...) __attribute__((format(printf, 1, 2)));

extern EVOLVE_LOCAL Word block_serial;  // differs for every block that runs, and is never 0
extern EVOLVE_LOCAL unsigned dynamic_bytes;

}  // namespace evolve
