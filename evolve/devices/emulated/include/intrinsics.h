// Functions of CUDA beyond libm: fast forms (exact here), rounding modes, and special functions.
#pragma once

inline float rsqrtf(float x) { return float(1.0 / sqrt(double(x))); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float rcbrtf(float x) { return float(1.0 / cbrt(double(x))); }
inline double rcbrt(double x) { return 1.0 / cbrt(x); }
inline float exp10f(float x) { return float(pow(10.0, double(x))); }
inline float exp10(float x) { return exp10f(x); }
inline double exp10(double x) { return pow(10.0, x); }

// sin(pi x) and cos(pi x), with x reduced before it is multiplied by pi, so that whole numbers are exact.
inline double sinpi(double x) {
    double rest = fmod(fabs(x), 2.0), sign = x < 0 ? -1.0 : 1.0;
    if (rest >= 1.0) rest -= 1.0, sign = -sign;
    if (rest > 0.5) rest = 1.0 - rest;
    return rest == 0.0 ? copysign(0.0, x) : sign * sin(rest * CUDART_PI);
}
inline double cospi(double x) {
    double rest = fmod(fabs(x), 2.0);
    if (rest > 1.0) rest = 2.0 - rest;
    return rest == 0.5 ? 0.0 : rest < 0.25 ? cos(rest * CUDART_PI) : sin((0.5 - rest) * CUDART_PI);
}
inline float sinpif(float x) { return float(sinpi(double(x))); }
inline float cospif(float x) { return float(cospi(double(x))); }
inline float sinpi(float x) { return sinpif(x); }
inline float cospi(float x) { return cospif(x); }
inline void sincosf(float x, float* sine, float* cosine) { *sine = sinf(x), *cosine = cosf(x); }
inline void sincos(double x, double* sine, double* cosine) { *sine = sin(x), *cosine = cos(x); }
inline void sincos(float x, float* sine, float* cosine) { sincosf(x, sine, cosine); }
inline void sincospif(float x, float* sine, float* cosine) { *sine = sinpif(x), *cosine = cospif(x); }
inline void sincospi(double x, double* sine, double* cosine) { *sine = sinpi(x), *cosine = cospi(x); }
inline void __sincosf(float x, float* sine, float* cosine) { sincosf(x, sine, cosine); }

inline double normcdf(double x) { return 0.5 * erfc(-x * M_SQRT1_2); }
inline float normcdff(float x) { return float(normcdf(double(x))); }
inline double erfcx(double x) { return x < 25 ? exp(x * x) * erfc(x) : (1 - 1 / (2 * x * x)) / (x * 1.7724538509055160273); }
inline float erfcxf(float x) { return float(erfcx(double(x))); }

// Inverse of erf: Newton's method starting from a rational approximation, applied to erfc if erf is near one.
inline double erfinv(double y) {
    if (!(fabs(y) < 1.0)) return fabs(y) == 1.0 ? copysign(HUGE_VAL, y) : NAN;
    double tail = log1p(-y * y), a = 2 / (CUDART_PI * 0.147) + tail / 2;
    double x = copysign(sqrt(sqrt(a * a - tail / 0.147) - a), y), magnitude = fabs(y);
    for (int step = 0; step < 4; ++step) {
        double t = fabs(x);
        double error = magnitude < 0.5 ? erf(t) - magnitude : (1 - magnitude) - erfc(t);
        double slope = M_2_SQRTPI * exp(-t * t);
        double move = error / slope;
        x = copysign(t - move / (1 + t * move), y);
    }
    return x;
}
inline float erfinvf(float y) { return float(erfinv(double(y))); }
inline double erfcinv(double y) { return erfinv(1.0 - y); }
inline float erfcinvf(float y) { return float(erfcinv(double(y))); }
inline double normcdfinv(double y) { return M_SQRT2 * erfinv(2.0 * y - 1.0); }
inline float normcdfinvf(float y) { return float(normcdfinv(double(y))); }

inline float norm3df(float a, float b, float c) { return float(sqrt(double(a) * a + double(b) * b + double(c) * c)); }
inline float rhypotf(float x, float y) { return float(1.0 / hypot(double(x), double(y))); }
inline float fdividef(float x, float y) { return x / y; }
inline float __fdividef(float x, float y) { return x / y; }
inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1.f) : 0.f; }
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return exp10f(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline float __tanhf(float x) { return tanhf(x); }
inline float __frsqrt_rn(float x) { return rsqrtf(x); }

namespace evolve {
// Intrinsics with a rounding mode are never fused with other operations. The compiler fuses all others, as NVRTC does.
template <typename T>
inline T apart(T x) {
    volatile T kept = x;
    return kept;
}
}  // namespace evolve

// In double, these are exact before the final rounding, except for division and root, whose errors are corrected.
#define EVOLVE_ROUNDED(suffix, rounding) \
    inline float __fadd_##suffix(float x, float y) { \
        x = evolve::apart(x), y = evolve::apart(y); \
        float sum = x + y; \
        float part = sum - x; \
        return evolve::rounded(sum, double((x - (sum - part)) + (y - part)), evolve::rounding); \
    } \
    inline float __fsub_##suffix(float x, float y) { return __fadd_##suffix(x, -y); } \
    inline float __fmul_##suffix(float x, float y) { \
        double exact = double(x) * double(y); \
        return evolve::apart(evolve::rounded(float(exact), exact - float(exact), evolve::rounding)); \
    } \
    inline float __fmaf_##suffix(float x, float y, float z) { \
        float nearest = fmaf(x, y, z); \
        return evolve::rounded(nearest, fma(double(x), double(y), double(z) - nearest), evolve::rounding); \
    } \
    inline float __fdiv_##suffix(float x, float y) { \
        float nearest = x / y; \
        double rest = fma(-double(nearest), double(y), double(x)); \
        return evolve::rounded(nearest, y < 0 ? -rest : rest, evolve::rounding); \
    } \
    inline float __frcp_##suffix(float x) { return __fdiv_##suffix(1.f, x); } \
    inline float __fsqrt_##suffix(float x) { \
        float nearest = sqrtf(x); \
        return evolve::rounded(nearest, fma(-double(nearest), double(nearest), double(x)), evolve::rounding); \
    }
EVOLVE_ROUNDED(rn, NEAREST)
EVOLVE_ROUNDED(rz, TO_ZERO)
EVOLVE_ROUNDED(ru, UP)
EVOLVE_ROUNDED(rd, DOWN)
#undef EVOLVE_ROUNDED
inline double __dadd_rn(double x, double y) { return evolve::apart(x) + evolve::apart(y); }
inline double __dsub_rn(double x, double y) { return evolve::apart(x) - evolve::apart(y); }
inline double __dmul_rn(double x, double y) { return evolve::apart(x * y); }
inline double __ddiv_rn(double x, double y) { return x / y; }
inline double __drcp_rn(double x) { return 1.0 / x; }
inline double __dsqrt_rn(double x) { return sqrt(x); }
inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }
