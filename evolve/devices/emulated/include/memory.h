// Loads and stores with cache hints, which have no effect here, and address spaces, which are all the same here.
#pragma once

#define EVOLVE_LOAD(name) template <class T> inline T name(const T* address) { return *address; }
EVOLVE_LOAD(__ldg)
EVOLVE_LOAD(__ldca)
EVOLVE_LOAD(__ldcs)
EVOLVE_LOAD(__ldlu)
#undef EVOLVE_LOAD
// Loads of values that other threads may have just written.
#define EVOLVE_LOAD(name) \
    template <class T> inline T name(const T* address) { \
        evolve::yield(); \
        __atomic_signal_fence(__ATOMIC_SEQ_CST); \
        return *address; \
    }
EVOLVE_LOAD(__ldcg)
EVOLVE_LOAD(__ldcv)
#undef EVOLVE_LOAD
#define EVOLVE_STORE(name) \
    template <class T> inline void name(T* address, typename evolve::Same<T>::type value) { *address = value; }
namespace evolve {
template <class T> struct Same { using type = T; };
}
EVOLVE_STORE(__stcg)
EVOLVE_STORE(__stcs)
EVOLVE_STORE(__stwb)
EVOLVE_STORE(__stwt)
#undef EVOLVE_STORE

inline size_t __cvta_generic_to_shared(const void* address) { return reinterpret_cast<size_t>(address); }
inline size_t __cvta_generic_to_global(const void* address) { return reinterpret_cast<size_t>(address); }
inline unsigned __isGlobal(const void*) { return 1; }

// `extern __shared__ T name[]` becomes a pointer to this.
#ifdef EVOLVE_COOPERATIVE
#define EVOLVE_SHARED evolve::dynamic_shared()
#define EVOLVE_DYNAMIC static thread_local
#else
#define EVOLVE_SHARED evolve::shared_memory
#define EVOLVE_DYNAMIC static
#endif

// A heap would outlive the call. The functions are declared so that a kernel that uses them gets this error.
extern "C" void* malloc(size_t) noexcept(true);
extern "C" void free(void*) noexcept(true);

// Inserted after each declaration of static shared memory: counts it and fills it with garbage, once per block.
#define EVOLVE_POISON(variable) \
    { \
        static __thread evolve::Word evolve_seen = 0; \
        if (evolve_seen != evolve::block_serial) { \
            evolve_seen = evolve::block_serial; \
            evolve::poison((void*)&(variable), sizeof(variable)); \
        } \
    }
