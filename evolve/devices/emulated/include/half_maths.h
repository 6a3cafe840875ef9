// Functions of half and bfloat16 that CUDA's own headers define for device compilation only.
#pragma once

namespace evolve {
template <class H> inline H narrowed(float x);
template <> inline __half narrowed<__half>(float x) { return __float2half_rn(x); }
template <> inline __nv_bfloat16 narrowed<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }
inline float widened(__half x) { return __half2float(x); }
inline float widened(__nv_bfloat16 x) { return __bfloat162float(x); }
inline float reciprocal(float x) { return 1.f / x; }
// Rounds once to 16 bits: in double the product of two 16-bit numbers is exact, and the sum nearly always.
inline float to_odd(double x) {
    float nearest = float(x);
    double error = x - double(nearest);
    if (error == 0 || nearest - nearest != 0 || (same_bits<unsigned>(nearest) & 1)) return nearest;
    return beside(nearest, error > 0 ? 1 : -1);
}
template <class H> inline H multiplied_added(H a, H b, H c) {
    return narrowed<H>(to_odd(double(widened(a)) * double(widened(b)) + double(widened(c))));
}
template <class H> inline H at_least_zero(H x) { return widened(x) < 0 ? narrowed<H>(0.f) : x; }
template <class H> inline H saturated_unit(H x) { return narrowed<H>(__saturatef(widened(x))); }
}  // namespace evolve

#define EVOLVE_HALF(H, H2, name, function) \
    inline H h##name(H x) { return evolve::narrowed<H>(function(evolve::widened(x))); } \
    inline H2 h2##name(H2 x) { return H2(h##name(H(x.x)), h##name(H(x.y))); }
#define EVOLVE_TO_INTEGER(H, name, to, I) \
    inline I __##name##2##to##_rn(H x) { return evolve::saturated<I>(__builtin_rintf(evolve::widened(x))); } \
    inline I __##name##2##to##_ru(H x) { return evolve::saturated<I>(__builtin_ceilf(evolve::widened(x))); } \
    inline I __##name##2##to##_rd(H x) { return evolve::saturated<I>(__builtin_floorf(evolve::widened(x))); }
#define EVOLVE_HALVES(H, H2, name) \
    EVOLVE_HALF(H, H2, exp, expf) EVOLVE_HALF(H, H2, exp2, exp2f) EVOLVE_HALF(H, H2, exp10, exp10f) \
    EVOLVE_HALF(H, H2, log, logf) EVOLVE_HALF(H, H2, log2, log2f) EVOLVE_HALF(H, H2, log10, log10f) \
    EVOLVE_HALF(H, H2, sin, sinf) EVOLVE_HALF(H, H2, cos, cosf) EVOLVE_HALF(H, H2, tanh, tanhf) \
    EVOLVE_HALF(H, H2, tanh_approx, tanhf) EVOLVE_HALF(H, H2, sqrt, sqrtf) EVOLVE_HALF(H, H2, rsqrt, rsqrtf) \
    EVOLVE_HALF(H, H2, rcp, evolve::reciprocal) EVOLVE_HALF(H, H2, ceil, ceilf) EVOLVE_HALF(H, H2, floor, floorf) \
    EVOLVE_HALF(H, H2, trunc, truncf) EVOLVE_HALF(H, H2, rint, rintf) \
    EVOLVE_TO_INTEGER(H, name, int, int) EVOLVE_TO_INTEGER(H, name, uint, unsigned) \
    EVOLVE_TO_INTEGER(H, name, short, short) EVOLVE_TO_INTEGER(H, name, ushort, unsigned short) \
    EVOLVE_TO_INTEGER(H, name, ll, long long) EVOLVE_TO_INTEGER(H, name, ull, unsigned long long) \
    inline H __hfma(H a, H b, H c) { return evolve::multiplied_added<H>(a, b, c); } \
    inline H __hfma_relu(H a, H b, H c) { return evolve::at_least_zero<H>(__hfma(a, b, c)); } \
    inline H __hfma_sat(H a, H b, H c) { return evolve::saturated_unit<H>(__hfma(a, b, c)); } \
    inline H2 __hfma2(H2 a, H2 b, H2 c) { return H2(__hfma(H(a.x), H(b.x), H(c.x)), __hfma(H(a.y), H(b.y), H(c.y))); } \
    inline H2 __hfma2_relu(H2 a, H2 b, H2 c) { \
        return H2(__hfma_relu(H(a.x), H(b.x), H(c.x)), __hfma_relu(H(a.y), H(b.y), H(c.y))); \
    } \
    inline H2 __hfma2_sat(H2 a, H2 b, H2 c) { \
        return H2(__hfma_sat(H(a.x), H(b.x), H(c.x)), __hfma_sat(H(a.y), H(b.y), H(c.y))); \
    } \
    inline H2 __hcmadd(H2 a, H2 b, H2 c) { \
        H real = __hfma(__hneg(H(a.y)), H(b.y), __hfma(H(a.x), H(b.x), H(c.x))); \
        H imaginary = __hfma(H(a.y), H(b.x), __hfma(H(a.x), H(b.y), H(c.y))); \
        return H2(real, imaginary); \
    }
EVOLVE_HALVES(__half, __half2, half)
EVOLVE_HALVES(__nv_bfloat16, __nv_bfloat162, bfloat16)
#undef EVOLVE_HALVES
#undef EVOLVE_TO_INTEGER
#undef EVOLVE_HALF
