// Atomics, implemented by the host's atomics: in a cooperative launch, blocks really run in parallel.
#pragma once

namespace evolve {

template <int bytes> struct BitsOf;
template <> struct BitsOf<2> { using type = unsigned short; };
template <> struct BitsOf<4> { using type = unsigned; };
template <> struct BitsOf<8> { using type = unsigned long long; };

// Replaces the value by `change(value)` and returns the old one.
template <class T, class F> inline T atomic_change(T* address, F change) {
    using B = typename BitsOf<sizeof(T)>::type;
    yield();
    B* bits = reinterpret_cast<B*>(address);
    B old = __atomic_load_n(bits, __ATOMIC_SEQ_CST), wanted;
    T before;
    do {
        __builtin_memcpy(static_cast<void*>(&before), &old, sizeof old);
        T after = change(before);
        __builtin_memcpy(&wanted, &after, sizeof wanted);
    } while (!__atomic_compare_exchange_n(bits, &old, wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return before;
}

// A GPU's float addition in global memory takes subnormal numbers for zero. In shared memory it does not, which is not
// emulated.
inline float without_subnormal(float value) { return __builtin_fabsf(value) < 0x1p-126f ? value * 0.0f : value; }

}  // namespace evolve

#define EVOLVE_ATOMIC(name, T, expression) \
    inline T name(T* address, T value) { \
        return evolve::atomic_change(address, [value](T old) -> T { return expression; }); \
    } \
    inline T name##_block(T* address, T value) { return name(address, value); } \
    inline T name##_system(T* address, T value) { return name(address, value); }
#define EVOLVE_INTEGERS(name, expression) \
    EVOLVE_ATOMIC(name, int, expression) \
    EVOLVE_ATOMIC(name, unsigned, expression) \
    EVOLVE_ATOMIC(name, unsigned long long, expression)

EVOLVE_ATOMIC(atomicAdd, int, int(unsigned(old) + unsigned(value)))
EVOLVE_ATOMIC(atomicAdd, unsigned, old + value)
EVOLVE_ATOMIC(atomicAdd, unsigned long long, old + value)
EVOLVE_ATOMIC(
    atomicAdd, float, evolve::without_subnormal(evolve::without_subnormal(old) + evolve::without_subnormal(value)))
EVOLVE_ATOMIC(atomicAdd, double, old + value)
EVOLVE_ATOMIC(atomicAdd, __half, __hadd(old, value))
EVOLVE_ATOMIC(atomicAdd, __half2, __hadd2(old, value))
EVOLVE_ATOMIC(atomicAdd, __nv_bfloat16, __hadd(old, value))
EVOLVE_ATOMIC(atomicAdd, __nv_bfloat162, __hadd2(old, value))
EVOLVE_ATOMIC(atomicSub, int, int(unsigned(old) - unsigned(value)))
EVOLVE_ATOMIC(atomicSub, unsigned, old - value)
EVOLVE_INTEGERS(atomicMin, old < value ? old : value)
EVOLVE_ATOMIC(atomicMin, long long, old < value ? old : value)
EVOLVE_INTEGERS(atomicMax, old > value ? old : value)
EVOLVE_ATOMIC(atomicMax, long long, old > value ? old : value)
EVOLVE_INTEGERS(atomicAnd, old & value)
EVOLVE_INTEGERS(atomicOr, old | value)
EVOLVE_INTEGERS(atomicXor, old ^ value)
EVOLVE_INTEGERS(atomicExch, value)
EVOLVE_ATOMIC(atomicExch, float, value)
EVOLVE_ATOMIC(atomicInc, unsigned, old >= value ? 0 : old + 1)
EVOLVE_ATOMIC(atomicDec, unsigned, old == 0 || old > value ? value : old - 1)

#define EVOLVE_CAS(T) \
    inline T atomicCAS(T* address, T compare, T value) { \
        return evolve::atomic_change(address, [compare, value](T old) -> T { return old == compare ? value : old; }); \
    } \
    inline T atomicCAS_block(T* address, T compare, T value) { return atomicCAS(address, compare, value); } \
    inline T atomicCAS_system(T* address, T compare, T value) { return atomicCAS(address, compare, value); }
EVOLVE_CAS(int)
EVOLVE_CAS(unsigned)
EVOLVE_CAS(unsigned long long)
EVOLVE_CAS(unsigned short)

// float2 and float4 are added element by element.
inline float2 atomicAdd(float2* address, float2 value) {
    return make_float2(atomicAdd(&address->x, value.x), atomicAdd(&address->y, value.y));
}
inline float4 atomicAdd(float4* address, float4 value) {
    return make_float4(atomicAdd(&address->x, value.x), atomicAdd(&address->y, value.y),
                       atomicAdd(&address->z, value.z), atomicAdd(&address->w, value.w));
}

#undef EVOLVE_CAS
#undef EVOLVE_INTEGERS
#undef EVOLVE_ATOMIC
