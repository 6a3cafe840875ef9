// Warp shuffles, votes, matches and reductions over the lanes that a mask names.
#pragma once

namespace evolve {

template <class T> Word to_word(T value) {
    static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8, "warp operations take 2, 4 or 8 bytes");
    Word word = 0;
    __builtin_memcpy(&word, &value, sizeof value);
    return word;
}

template <class T> T from_word(Word word) {
    T value;
    __builtin_memcpy(static_cast<void*>(&value), &word, sizeof value);
    return value;
}

// A lane that reads from a non-participating lane gets a word of ones, which is NaN or -1.
template <class T> T pick(const Exchange& exchange, int source) {
    bool present = exchange.present >> source & 1;
    return from_word<T>(present ? exchange.words[source] : ~Word(0));
}

template <class T> constexpr bool can_shuffle = false;
template <> inline constexpr bool can_shuffle<int> = true;
template <> inline constexpr bool can_shuffle<unsigned> = true;
template <> inline constexpr bool can_shuffle<long> = true;
template <> inline constexpr bool can_shuffle<unsigned long> = true;
template <> inline constexpr bool can_shuffle<long long> = true;
template <> inline constexpr bool can_shuffle<unsigned long long> = true;
template <> inline constexpr bool can_shuffle<float> = true;
template <> inline constexpr bool can_shuffle<double> = true;
template <> inline constexpr bool can_shuffle<__half> = true;
template <> inline constexpr bool can_shuffle<__half2> = true;
template <> inline constexpr bool can_shuffle<__nv_bfloat16> = true;
template <> inline constexpr bool can_shuffle<__nv_bfloat162> = true;

// Promotes small integers, as CUDA's overloads do.
template <class T> struct Promoted { using type = T; };
template <> struct Promoted<bool> { using type = int; };
template <> struct Promoted<char> { using type = int; };
template <> struct Promoted<signed char> { using type = int; };
template <> struct Promoted<unsigned char> { using type = int; };
template <> struct Promoted<short> { using type = int; };
template <> struct Promoted<unsigned short> { using type = int; };
template <class T> using promoted = typename Promoted<T>::type;

template <class T> T shuffle(unsigned mask, T value, int width, int source_of(int, int, int), int operand) {
    static_assert(can_shuffle<T>, "this type cannot be shuffled");
    Exchange words = exchange(mask, SHUFFLE, to_word(value));
    int self = int(lane()), source = source_of(self, operand, width);
    return source == self ? value : pick<T>(words, source);
}

}  // namespace evolve

template <class T> evolve::promoted<T> __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    return evolve::shuffle<evolve::promoted<T>>(mask, value, width, [](int self, int from, int size) {
        return (self & ~(size - 1)) | (from & (size - 1));
    }, source);
}

template <class T> evolve::promoted<T> __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    return evolve::shuffle<evolve::promoted<T>>(mask, value, width, [](int self, int by, int size) {
        return (self & (size - 1)) < by ? self : self - by;
    }, int(delta & 31));
}

template <class T> evolve::promoted<T> __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    return evolve::shuffle<evolve::promoted<T>>(mask, value, width, [](int self, int by, int size) {
        return (self & (size - 1)) + by >= size ? self : self + by;
    }, int(delta & 31));
}

template <class T> evolve::promoted<T> __shfl_xor_sync(unsigned mask, T value, int other, int width = 32) {
    return evolve::shuffle<evolve::promoted<T>>(mask, value, width, [](int self, int by, int size) {
        int source = self ^ by;
        return source > (self | (size - 1)) ? self : source;
    }, other & 31);
}

inline void __syncwarp(unsigned mask = 0xffffffffu) { evolve::exchange(mask, evolve::SYNC, 0); }

inline unsigned __ballot_sync(unsigned mask, int predicate) {
    evolve::Exchange votes = evolve::exchange(mask, evolve::VOTE, predicate != 0);
    unsigned ballot = 0;
    for (int source = 0; source < 32; ++source)
        if (votes.present >> source & 1) ballot |= unsigned(votes.words[source]) << source;
    return ballot;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
inline int __uni_sync(unsigned mask, int predicate) {
    unsigned ballot = __ballot_sync(mask, predicate);
    return ballot == 0 || __ballot_sync(mask, !predicate) == 0;
}

// Returns the lanes that are converged here; noinline, so that each call in a kernel has its own address.
__attribute__((noinline)) inline unsigned __activemask() { return evolve::converged_lanes(__builtin_return_address(0)); }

template <class T> unsigned __match_any_sync(unsigned mask, T value) {
    evolve::Word own = evolve::to_word(value);
    evolve::Exchange words = evolve::exchange(mask, evolve::MATCH, own);
    unsigned same = 0;
    for (int source = 0; source < 32; ++source)
        if ((words.present >> source & 1) && words.words[source] == own) same |= 1u << source;
    return same;
}

template <class T> unsigned __match_all_sync(unsigned mask, T value, int* all_same) {
    evolve::Word own = evolve::to_word(value);
    evolve::Exchange words = evolve::exchange(mask, evolve::MATCH, own);
    *all_same = 1;
    for (int source = 0; source < 32; ++source)
        if ((words.present >> source & 1) && words.words[source] != own) *all_same = 0;
    return *all_same ? words.present : 0u;
}

namespace evolve {
template <class T> T reduce(unsigned mask, T value, T combine(T, T)) {
    Exchange words = exchange(mask, REDUCE, to_word(value));
    T result = value;
    int self = int(lane());
    for (int source = 0; source < 32; ++source)
        if (source != self && (words.present >> source & 1)) result = combine(result, from_word<T>(words.words[source]));
    return result;
}
}  // namespace evolve

#define EVOLVE_REDUCE(name, T, expression) \
    inline T name(unsigned mask, T value) { return evolve::reduce<T>(mask, value, [](T a, T b) -> T { return expression; }); }
EVOLVE_REDUCE(__reduce_add_sync, unsigned, a + b)
EVOLVE_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
EVOLVE_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
EVOLVE_REDUCE(__reduce_and_sync, unsigned, a & b)
EVOLVE_REDUCE(__reduce_or_sync, unsigned, a | b)
EVOLVE_REDUCE(__reduce_xor_sync, unsigned, a ^ b)
EVOLVE_REDUCE(__reduce_add_sync, int, int(unsigned(a) + unsigned(b)))
EVOLVE_REDUCE(__reduce_min_sync, int, a < b ? a : b)
EVOLVE_REDUCE(__reduce_max_sync, int, a > b ? a : b)
#undef EVOLVE_REDUCE
