// Mathematical functions of CUDA: the host's libm under CUDA's names and overloads, and functions that libm lacks.
#pragma once

#define EVOLVE_UNARY(name) \
    extern "C" double name(double) noexcept; \
    extern "C" float name##f(float) noexcept; \
    inline float name(float x) { return name##f(x); } \
    template <class I, class = evolve::integer<I>> inline double name(I x) { return name(double(x)); }
#define EVOLVE_BINARY(name) \
    extern "C" double name(double, double) noexcept; \
    extern "C" float name##f(float, float) noexcept; \
    inline float name(float x, float y) { return name##f(x, y); } \
    template <class A, class B, class = evolve::mixed<A, B>> inline double name(A x, B y) { return name(double(x), double(y)); }

namespace evolve {
template <class T> constexpr int rank = 0;  // 1: integer, 2: float, 3: double
template <> inline constexpr int rank<bool> = 1;
template <> inline constexpr int rank<char> = 1;
template <> inline constexpr int rank<signed char> = 1;
template <> inline constexpr int rank<unsigned char> = 1;
template <> inline constexpr int rank<short> = 1;
template <> inline constexpr int rank<unsigned short> = 1;
template <> inline constexpr int rank<int> = 1;
template <> inline constexpr int rank<unsigned> = 1;
template <> inline constexpr int rank<long> = 1;
template <> inline constexpr int rank<unsigned long> = 1;
template <> inline constexpr int rank<long long> = 1;
template <> inline constexpr int rank<unsigned long long> = 1;
template <> inline constexpr int rank<float> = 2;
template <> inline constexpr int rank<double> = 3;
template <bool condition> struct If {};
template <> struct If<true> { using type = int; };
template <class I> using integer = typename If<rank<I> == 1>::type;
// For two numeric types that are neither both float nor both double: computes in double.
template <class A, class B> using mixed =
    typename If<rank<A> != 0 && rank<B> != 0 && !(rank<A> == 2 && rank<B> == 2) && !(rank<A> == 3 && rank<B> == 3)>::type;
}  // namespace evolve

EVOLVE_UNARY(sqrt) EVOLVE_UNARY(cbrt) EVOLVE_UNARY(exp) EVOLVE_UNARY(exp2) EVOLVE_UNARY(expm1) EVOLVE_UNARY(log)
EVOLVE_UNARY(log2) EVOLVE_UNARY(log10) EVOLVE_UNARY(log1p) EVOLVE_UNARY(logb) EVOLVE_UNARY(sin) EVOLVE_UNARY(cos)
EVOLVE_UNARY(tan) EVOLVE_UNARY(asin) EVOLVE_UNARY(acos) EVOLVE_UNARY(atan) EVOLVE_UNARY(sinh) EVOLVE_UNARY(cosh)
EVOLVE_UNARY(tanh) EVOLVE_UNARY(asinh) EVOLVE_UNARY(acosh) EVOLVE_UNARY(atanh) EVOLVE_UNARY(erf) EVOLVE_UNARY(erfc)
EVOLVE_UNARY(tgamma) EVOLVE_UNARY(lgamma) EVOLVE_UNARY(floor) EVOLVE_UNARY(ceil) EVOLVE_UNARY(trunc)
EVOLVE_UNARY(round) EVOLVE_UNARY(rint) EVOLVE_UNARY(nearbyint) EVOLVE_UNARY(fabs)
EVOLVE_BINARY(pow) EVOLVE_BINARY(fmod) EVOLVE_BINARY(remainder) EVOLVE_BINARY(atan2) EVOLVE_BINARY(hypot)
EVOLVE_BINARY(fdim) EVOLVE_BINARY(fmin) EVOLVE_BINARY(fmax) EVOLVE_BINARY(copysign) EVOLVE_BINARY(nextafter)
#undef EVOLVE_UNARY
#undef EVOLVE_BINARY
inline float pow(float x, int y) { return powf(x, float(y)); }
extern "C" {
double fma(double, double, double) noexcept;
float fmaf(float, float, float) noexcept;
double ldexp(double, int) noexcept;
float ldexpf(float, int) noexcept;
double frexp(double, int*) noexcept;
float frexpf(float, int*) noexcept;
double modf(double, double*) noexcept;
float modff(float, float*) noexcept;
long lrint(double) noexcept;
long lrintf(float) noexcept;
long lround(double) noexcept;
long lroundf(float) noexcept;
int ilogb(double) noexcept;
int ilogbf(float) noexcept;
double j0(double) noexcept;
double j1(double) noexcept;
float j0f(float) noexcept;
float j1f(float) noexcept;
}
inline float fma(float x, float y, float z) { return fmaf(x, y, z); }
inline float ldexp(float x, int power) { return ldexpf(x, power); }
inline float frexp(float x, int* power) { return frexpf(x, power); }
inline float modf(float x, float* whole) { return modff(x, whole); }
inline float scalbnf(float x, int power) { return ldexpf(x, power); }
inline double scalbn(double x, int power) { return ldexp(x, power); }
inline long lrint(float x) { return lrintf(x); }
inline long lround(float x) { return lroundf(x); }
inline long long llrintf(float x) { return lrintf(x); }
inline long long llrint(double x) { return lrint(x); }
inline long long llroundf(float x) { return lroundf(x); }
inline int ilogb(float x) { return ilogbf(x); }

constexpr int abs(int x) { return x < 0 ? -x : x; }
constexpr long abs(long x) { return x < 0 ? -x : x; }
constexpr long long abs(long long x) { return x < 0 ? -x : x; }
inline float abs(float x) { return fabsf(x); }
inline double abs(double x) { return fabs(x); }
constexpr long long llabs(long long x) { return x < 0 ? -x : x; }
constexpr long labs(long x) { return x < 0 ? -x : x; }

#define EVOLVE_LEAST(T) \
    constexpr T min(T a, T b) { return b < a ? b : a; } \
    constexpr T max(T a, T b) { return a < b ? b : a; }
#define EVOLVE_LEAST_MIXED(T, A, B) \
    constexpr T min(A a, B b) { return min((T)a, (T)b); } \
    constexpr T min(B a, A b) { return min((T)a, (T)b); } \
    constexpr T max(A a, B b) { return max((T)a, (T)b); } \
    constexpr T max(B a, A b) { return max((T)a, (T)b); }
EVOLVE_LEAST(int) EVOLVE_LEAST(unsigned) EVOLVE_LEAST(long) EVOLVE_LEAST(unsigned long)
EVOLVE_LEAST(long long) EVOLVE_LEAST(unsigned long long)
EVOLVE_LEAST_MIXED(unsigned, int, unsigned) EVOLVE_LEAST_MIXED(unsigned long, long, unsigned long)
EVOLVE_LEAST_MIXED(unsigned long long, long long, unsigned long long)
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(float a, double b) { return fmin(double(a), b); }
inline double min(double a, float b) { return fmin(a, double(b)); }
inline double max(float a, double b) { return fmax(double(a), b); }
inline double max(double a, float b) { return fmax(a, double(b)); }
inline int umin(unsigned a, unsigned b) { return int(min(a, b)); }
inline int umax(unsigned a, unsigned b) { return int(max(a, b)); }
#undef EVOLVE_LEAST
#undef EVOLVE_LEAST_MIXED

#define EVOLVE_TEST(name, ...) \
    inline bool name(float x) { return __VA_ARGS__(x); } \
    inline bool name(double x) { return __VA_ARGS__(x); }
EVOLVE_TEST(isnan, __builtin_isnan)
EVOLVE_TEST(isinf, __builtin_isinf)
EVOLVE_TEST(isfinite, __builtin_isfinite)
EVOLVE_TEST(signbit, __builtin_signbit)
EVOLVE_TEST(isnormal, __builtin_isnormal)
#undef EVOLVE_TEST
inline int __isnanf(float x) { return __builtin_isnan(x); }
inline int __isinff(float x) { return __builtin_isinf(x); }
inline int __isnan(double x) { return __builtin_isnan(x); }
inline int __isinf(double x) { return __builtin_isinf(x); }
inline int __finitef(float x) { return __builtin_isfinite(x); }
inline int __finite(double x) { return __builtin_isfinite(x); }

#include "intrinsics.h"
