// Integer and bit intrinsics, bit casts, and conversions with a rounding mode.
#pragma once

inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
    x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
    x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
    x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(x);
}
inline unsigned long long __brevll(unsigned long long x) {
    return (unsigned long long)__brev(unsigned(x)) << 32 | __brev(unsigned(x >> 32));
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    unsigned long long bytes = (unsigned long long)y << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        unsigned pick = selector >> 4 * i & 0xf, byte = unsigned(bytes >> 8 * (pick & 7)) & 0xff;
        if (pick & 8) byte = byte & 0x80 ? 0xff : 0;
        result |= byte << 8 * i;
    }
    return result;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return unsigned(((unsigned long long)high << 32 | low) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return unsigned(((unsigned long long)high << 32 | low) >> (shift & 31));
}
inline unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned shift) {
    return shift >= 32 ? low : __funnelshift_l(low, high, shift);
}
inline unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned shift) {
    return shift >= 32 ? high : __funnelshift_r(low, high, shift);
}
inline int __mul24(int x, int y) { return int(unsigned(x << 8 >> 8) * unsigned(y << 8 >> 8)); }
inline unsigned __umul24(unsigned x, unsigned y) { return (x & 0xffffffu) * (y & 0xffffffu); }
inline int __mulhi(int x, int y) { return int((long long)x * y >> 32); }
inline unsigned __umulhi(unsigned x, unsigned y) { return unsigned((unsigned long long)x * y >> 32); }
inline long long __mul64hi(long long x, long long y) { return (long long)((__int128)x * y >> 64); }
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return (unsigned long long)((unsigned __int128)x * y >> 64);
}
inline int __hadd(int x, int y) { return int(((long long)x + y) >> 1); }
inline int __rhadd(int x, int y) { return int(((long long)x + y + 1) >> 1); }
inline unsigned __uhadd(unsigned x, unsigned y) { return unsigned(((unsigned long long)x + y) >> 1); }
inline unsigned __urhadd(unsigned x, unsigned y) { return unsigned(((unsigned long long)x + y + 1) >> 1); }
inline unsigned __sad(int x, int y, unsigned z) { return z + (x > y ? unsigned(x) - unsigned(y) : unsigned(y) - unsigned(x)); }
inline unsigned __usad(unsigned x, unsigned y, unsigned z) { return z + (x > y ? x - y : y - x); }

inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; ++i) c += int((signed char)(a >> 8 * i)) * int((signed char)(b >> 8 * i));
    return c;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 4; ++i) c += (a >> 8 * i & 0xff) * (b >> 8 * i & 0xff);
    return c;
}
inline int __dp4a(char4 a, char4 b, int c) { return c + a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }
inline int __dp2a_lo(int a, int b, int c) { return c + short(a) * (signed char)b + short(a >> 16) * (signed char)(b >> 8); }
inline int __dp2a_hi(int a, int b, int c) {
    return c + short(a) * (signed char)(b >> 16) + short(a >> 16) * (signed char)(b >> 24);
}

// Operations on the four bytes or two halves of a word.
#define EVOLVE_BYTES(name, T, bits, expression) \
    inline unsigned name(unsigned x, unsigned y) { \
        unsigned result = 0; \
        for (int shift = 0; shift < 32; shift += bits) { \
            int a = (T)(x >> shift), b = (T)(y >> shift); \
            result |= (unsigned(expression) & (0xffffffffu >> (32 - bits))) << shift; \
        } \
        return result; \
    }
EVOLVE_BYTES(__vadd4, unsigned char, 8, a + b)
EVOLVE_BYTES(__vsub4, unsigned char, 8, a - b)
EVOLVE_BYTES(__vadd2, unsigned short, 16, a + b)
EVOLVE_BYTES(__vsub2, unsigned short, 16, a - b)
EVOLVE_BYTES(__vmaxs4, signed char, 8, a > b ? a : b)
EVOLVE_BYTES(__vmins4, signed char, 8, a < b ? a : b)
EVOLVE_BYTES(__vmaxu4, unsigned char, 8, a > b ? a : b)
EVOLVE_BYTES(__vminu4, unsigned char, 8, a < b ? a : b)
EVOLVE_BYTES(__vmaxs2, short, 16, a > b ? a : b)
EVOLVE_BYTES(__vmins2, short, 16, a < b ? a : b)
EVOLVE_BYTES(__vcmpeq4, unsigned char, 8, a == b ? ~0 : 0)
EVOLVE_BYTES(__vcmpgtu4, unsigned char, 8, a > b ? ~0 : 0)
#undef EVOLVE_BYTES

namespace evolve {
template <class To, class From> inline To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "sizes differ");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}

// Converts to an integer as a GPU does: saturates, and turns NaN into zero (in 64 bits into the lowest number).
template <class I, class F> inline I saturated(F x) {
    constexpr bool is_signed = I(-1) < I(0);
    constexpr int bits = int(sizeof(I)) * 8 - is_signed;
    constexpr I high = I(~0ull >> (64 - bits)), low = is_signed ? I(-high - 1) : I(0);
    const F limit = F(1ull << (bits - 1)) * F(2);
    if (x != x) return sizeof(I) == 8 ? I(1ull << 63) : I(0);
    if (x >= limit) return high;
    if (x < F(low)) return low;
    return I(x);
}
}  // namespace evolve

inline int __float_as_int(float x) { return evolve::same_bits<int>(x); }
inline unsigned __float_as_uint(float x) { return evolve::same_bits<unsigned>(x); }
inline float __int_as_float(int x) { return evolve::same_bits<float>(x); }
inline float __uint_as_float(unsigned x) { return evolve::same_bits<float>(x); }
inline long long __double_as_longlong(double x) { return evolve::same_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return evolve::same_bits<double>(x); }
inline int __double2hiint(double x) { return int(__double_as_longlong(x) >> 32); }
inline int __double2loint(double x) { return int(__double_as_longlong(x)); }
inline double __hiloint2double(int high, int low) {
    return __longlong_as_double((long long)((unsigned long long)unsigned(high) << 32 | unsigned(low)));
}

#define EVOLVE_TO_INTEGER(from, F, to, I) \
    inline I __##from##2##to##_rn(F x) { return evolve::saturated<I>(F(__builtin_rint(x))); } \
    inline I __##from##2##to##_rz(F x) { return evolve::saturated<I>(F(__builtin_trunc(x))); } \
    inline I __##from##2##to##_ru(F x) { return evolve::saturated<I>(F(__builtin_ceil(x))); } \
    inline I __##from##2##to##_rd(F x) { return evolve::saturated<I>(F(__builtin_floor(x))); }
EVOLVE_TO_INTEGER(float, float, int, int)
EVOLVE_TO_INTEGER(float, float, uint, unsigned)
EVOLVE_TO_INTEGER(float, float, ll, long long)
EVOLVE_TO_INTEGER(float, float, ull, unsigned long long)
EVOLVE_TO_INTEGER(double, double, int, int)
EVOLVE_TO_INTEGER(double, double, uint, unsigned)
EVOLVE_TO_INTEGER(double, double, ll, long long)
EVOLVE_TO_INTEGER(double, double, ull, unsigned long long)
#undef EVOLVE_TO_INTEGER

namespace evolve {
inline float beside(float x, int steps) {  // the float `steps` above (below, if negative)
    if (x == 0) return same_bits<float>(steps > 0 ? 1u : 0x80000001u);
    return same_bits<float>(same_bits<int>(x) + (x > 0 ? steps : -steps));
}
enum Rounding { NEAREST, TO_ZERO, UP, DOWN };
// Rounds `nearest` in the given direction; `error` is the exact value minus `nearest`.
inline float rounded(float nearest, double error, Rounding rounding) {
    if (error == 0 || rounding == NEAREST || nearest - nearest != 0) return nearest;
    if (rounding == UP || (rounding == TO_ZERO && nearest < 0)) return error > 0 ? beside(nearest, 1) : nearest;
    return error < 0 ? beside(nearest, -1) : nearest;
}
}  // namespace evolve

#define EVOLVE_TO_FLOAT(from, I) \
    inline float __##from##2float_rn(I x) { return float(x); } \
    inline float __##from##2float_rz(I x) { return evolve::rounded(float(x), double((long double)x - float(x)), evolve::TO_ZERO); } \
    inline float __##from##2float_ru(I x) { return evolve::rounded(float(x), double((long double)x - float(x)), evolve::UP); } \
    inline float __##from##2float_rd(I x) { return evolve::rounded(float(x), double((long double)x - float(x)), evolve::DOWN); }
EVOLVE_TO_FLOAT(int, int)
EVOLVE_TO_FLOAT(uint, unsigned)
EVOLVE_TO_FLOAT(ll, long long)
EVOLVE_TO_FLOAT(ull, unsigned long long)
EVOLVE_TO_FLOAT(double, double)
#undef EVOLVE_TO_FLOAT
inline double __int2double_rn(int x) { return x; }
inline double __uint2double_rn(unsigned x) { return x; }
inline double __ll2double_rn(long long x) { return double(x); }
inline double __ull2double_rn(unsigned long long x) { return double(x); }
