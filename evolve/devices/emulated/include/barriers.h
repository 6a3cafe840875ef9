// Barriers of a block, fences, traps, clocks and printf.
#pragma once

inline void __syncthreads() { evolve::sync_block(); }
inline int __syncthreads_count(int predicate) { return evolve::count_block(evolve::SUM, predicate); }
inline int __syncthreads_and(int predicate) { return evolve::count_block(evolve::ALL, predicate); }
inline int __syncthreads_or(int predicate) { return evolve::count_block(evolve::ANY, predicate); }

inline void __threadfence() {
    evolve::yield();
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

inline void __nanosleep(unsigned) { evolve::yield(); }
inline long long clock64() { return static_cast<long long>(evolve::clock_ticks()); }
inline long clock() { return static_cast<long>(evolve::clock_ticks()); }
inline unsigned long long __globaltimer() { return evolve::global_nanoseconds(); }

namespace evolve {
[[noreturn]] inline void trap(const char* what, const char* text, const char* file, int line) {
    fail(CRASHED, "block (%u,%u,%u), thread (%u,%u,%u): %s%s at %s(%d)", blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x,
         threadIdx.y, threadIdx.z, what, text, file, line);
}
}  // namespace evolve
#define __trap() evolve::trap("__trap()", "", __FILE__, __LINE__)
#define __brkpt() evolve::trap("__brkpt()", "", __FILE__, __LINE__)
#undef assert
#define assert(condition) \
    ((condition) ? (void)0 : evolve::trap("assertion failed: ", #condition, __FILE__, __LINE__))
#define printf evolve::print
#define __builtin_assume(condition) ((void)0)
#define __assume(condition) ((void)0)
