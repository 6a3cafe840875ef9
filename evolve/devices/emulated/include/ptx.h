// The instructions of inline PTX that kernels may use here. `ptx.py` turns asm statements into calls of these functions.
#pragma once

namespace evolve::ptx {

// Registers hold the lower half of an address in shared memory, which is enough: all addresses are in two short ranges.
inline char* of_shared(unsigned low) {
    static __thread char near;  // next to the block's static shared memory
    char* dynamic = reinterpret_cast<char*>(EVOLVE_SHARED);
    const unsigned offset = low - unsigned(reinterpret_cast<size_t>(dynamic));
    if (offset < dynamic_bytes) return dynamic + offset;
    return &near + int(low - unsigned(reinterpret_cast<size_t>(&near)));
}

// The words of the four lanes that hold one row of A or one column of B.
struct Four {
    Word of[4];
    Four(const Exchange& exchange, unsigned first) {
        for (int i = 0; i < 4; ++i) of[i] = exchange.words[first + i];
    }
    unsigned lower(int i) const { return unsigned(of[i]); }
    unsigned upper(int i) const { return unsigned(of[i] >> 32); }
};

inline Word pair(unsigned lower, unsigned upper) { return Word(upper) << 32 | lower; }

template <class T> double product(unsigned a, unsigned b) {
    double sum = 0.0;
    for (int half = 0; half < 32; half += 16) {
        sum += double(float(from_word<T>(a >> half & 0xffff))) * double(float(from_word<T>(b >> half & 0xffff)));
    }
    return sum;
}
inline double product_tf32(unsigned a, unsigned b) {  // the last 13 bits are ignored
    return double(from_word<float>(a & 0xffffe000u)) * double(from_word<float>(b & 0xffffe000u));
}

// Both shapes distribute their words in the same way. A word is a pair of 16-bit values along the sum, or a 32-bit
// value.
inline void multiply(double of(unsigned, unsigned), float& d0, float& d1, float& d2, float& d3, unsigned a0, unsigned a1,
                     unsigned a2, unsigned a3, unsigned b0, unsigned b1, float c0, float c1, float c2, float c3) {
    const unsigned row = lane() & ~3u, column = 2 * (lane() % 4);
    const Four first(exchange(0xffffffffu, SHUFFLE, pair(a0, a1)), row);
    const Four second(exchange(0xffffffffu, SHUFFLE, pair(a2, a3)), row);
    const Exchange words = exchange(0xffffffffu, SHUFFLE, pair(b0, b1));
    const Four left(words, 4 * column), right(words, 4 * column + 4);
    double sums[4] = {c0, c1, c2, c3};  // a tensor core drops some of the last bits of a float instead
    for (int i = 0; i < 4; ++i) {
        sums[0] += of(first.lower(i), left.lower(i)) + of(second.lower(i), left.upper(i));
        sums[1] += of(first.lower(i), right.lower(i)) + of(second.lower(i), right.upper(i));
        sums[2] += of(first.upper(i), left.lower(i)) + of(second.upper(i), left.upper(i));
        sums[3] += of(first.upper(i), right.lower(i)) + of(second.upper(i), right.upper(i));
    }
    d0 = float(sums[0]), d1 = float(sums[1]), d2 = float(sums[2]), d3 = float(sums[3]);
}

template <class T, class... W> void mma(float& d0, float& d1, float& d2, float& d3, W... words) {
    multiply(product<T>, d0, d1, d2, d3, words...);
}
template <class... W> void mma_tf32(float& d0, float& d1, float& d2, float& d3, W... words) {
    multiply(product_tf32, d0, d1, d2, d3, words...);
}

// A tile in shared memory, as a descriptor of wgmma names it, in the layout with a swizzle of 128 bytes: pieces of 16
// bytes change places within eight lines of 128. ACROSS says that neighbours in memory differ in the row or column;
// otherwise they differ in what is summed over.
template <class T, bool ACROSS> struct Tile {
    const char* first;
    unsigned leading, stride;
    explicit Tile(unsigned long long descriptor) {
        if (descriptor >> 62 != 1 || (descriptor >> 49 & 7) != 0)
            fail(LAUNCH_ERROR, "wgmma: the emulated device supports only a swizzle of 128 bytes, at multiples of 1024");
        static __thread char near;
        char* dynamic = reinterpret_cast<char*>(EVOLVE_SHARED);
        const unsigned low = unsigned(descriptor & 0x3fff) << 4;
        const unsigned offset = (low - unsigned(reinterpret_cast<size_t>(dynamic))) & 0x3ffff;
        const int beside = int((low - unsigned(reinterpret_cast<size_t>(&near))) << 14) >> 14;
        first = offset < dynamic_bytes ? dynamic + offset : &near + beside;
        leading = unsigned(descriptor >> 16 & 0x3fff) << 4, stride = unsigned(descriptor >> 32 & 0x3fff) << 4;
    }
    float at(unsigned line, unsigned k) const {
        const unsigned offset = ACROSS ? line / 64 * leading + line % 64 * 2 + k / 8 * stride + k % 8 * 128
                                       : line / 8 * stride + line % 8 * 128 + 2 * k;
        const size_t place = reinterpret_cast<size_t>(first) + offset;
        unsigned short value;
        __builtin_memcpy(&value, reinterpret_cast<const char*>(place ^ (place >> 7 & 7) << 4), 2);
        return float(from_word<T>(value));
    }
};

// Each thread computes its own sums at once. A kernel that reads or overwrites data before it has waited fails only on
// a GPU.
template <class T, bool B_ACROSS, class... D>
void multiply_rows(const float (&of_a)[2][16], unsigned long long b, int add, D&... d) {
    constexpr unsigned DEPTH = 16, COLUMNS = 2 * sizeof...(D);
    static_assert(COLUMNS % 8 == 0 && COLUMNS <= 256, "wgmma: n is a multiple of 8 up to 256");
    const Tile<T, B_ACROSS> right(b);
    const unsigned column = 2 * (lane() % 4);
    float* const sums[] = {&d...};
    for (unsigned first = 0; first < COLUMNS; first += 8) {
        for (unsigned next = 0; next < 2; ++next) {
            double low = 0.0, high = 0.0;
            for (unsigned k = 0; k < DEPTH; ++k) {
                const double of_b = double(right.at(first + column + next, k));
                low += of_a[0][k] * of_b, high += of_a[1][k] * of_b;
            }
            float &upper = *sums[first / 2 + next], &lower = *sums[first / 2 + 2 + next];
            upper = float((add ? double(upper) : 0.0) + low), lower = float((add ? double(lower) : 0.0) + high);
        }
    }
}

template <class T, bool A_ACROSS, bool B_ACROSS, class... D>
void multiply_tiles(unsigned long long a, unsigned long long b, int add, D&... d) {
    const Tile<T, A_ACROSS> left(a);
    const unsigned row = ((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x) / 32 % 4 * 16 + lane() / 4;
    float of_a[2][16];
    for (unsigned k = 0; k < 16; ++k) of_a[0][k] = left.at(row, k), of_a[1][k] = left.at(row + 8, k);
    multiply_rows<T, B_ACROSS>(of_a, b, add, d...);
}

// The same with the rows of A in registers: four lanes hold two rows, as pairs of values along the sum.
template <class T, bool B_ACROSS, class... D>
void multiply_registers(unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned long long b, int add, D&... d) {
    const unsigned first = lane() & ~3u;
    const Four early(exchange(0xffffffffu, SHUFFLE, pair(a0, a1)), first);
    const Four late(exchange(0xffffffffu, SHUFFLE, pair(a2, a3)), first);
    float of_a[2][16];
    for (unsigned k = 0; k < 16; ++k) {
        const Four& words = k < 8 ? early : late;
        const unsigned shift = k % 2 * 16;
        of_a[0][k] = float(from_word<T>(words.lower(k % 8 / 2) >> shift & 0xffff));
        of_a[1][k] = float(from_word<T>(words.upper(k % 8 / 2) >> shift & 0xffff));
    }
    multiply_rows<T, B_ACROSS>(of_a, b, add, d...);
}

// The lanes' addresses are exchanged; no lane continues before all lanes have read.
template <int N, bool TRANS, class... R> void load_matrices(unsigned address, R&... to) {
    static_assert(sizeof...(R) == N, "ldmatrix: the number of registers must be that of the matrices");
    const char* place = of_shared(address);
    const unsigned self = lane();
    if (self < 8 * N && reinterpret_cast<size_t>(place) % 16 != 0) fail(LAUNCH_ERROR, "misaligned address of ldmatrix");
    const Exchange all = exchange(0xffffffffu, SHUFFLE, to_word(reinterpret_cast<size_t>(place)));
    unsigned matrix = 0;
    const auto load = [&](auto& one) {
        unsigned short halves[2];
        for (unsigned i = 0; i < 2; ++i) {
            const unsigned row = TRANS ? 2 * (self % 4) + i : self / 4, column = TRANS ? self / 4 : 2 * (self % 4) + i;
            const size_t from = size_t(all.words[8 * matrix + row]);
            __builtin_memcpy(&halves[i], reinterpret_cast<const char*>(from) + 2 * column, 2);
        }
        one = unsigned(halves[1]) << 16 | halves[0];
        ++matrix;
    };
    (load(to), ...);
    exchange(0xffffffffu, SYNC, 0);
}
template <int N> void ldmatrix(unsigned& a, unsigned address) { load_matrices<N, false>(address, a); }
template <int N> void ldmatrix(unsigned& a, unsigned& b, unsigned address) { load_matrices<N, false>(address, a, b); }
template <int N> void ldmatrix(unsigned& a, unsigned& b, unsigned& c, unsigned& d, unsigned address) {
    load_matrices<N, false>(address, a, b, c, d);
}
template <int N> void ldmatrix_trans(unsigned& a, unsigned address) { load_matrices<N, true>(address, a); }
template <int N> void ldmatrix_trans(unsigned& a, unsigned& b, unsigned address) { load_matrices<N, true>(address, a, b); }
template <int N> void ldmatrix_trans(unsigned& a, unsigned& b, unsigned& c, unsigned& d, unsigned address) {
    load_matrices<N, true>(address, a, b, c, d);
}

template <bool FLUSHED> void exp2_approx(float& to, float from) {
    to = exp2f(from);  // of a subnormal number it is 1, flushed or not
    if (FLUSHED && to < 0x1p-126f) to = 0.0f;
}

// Copies at once. A kernel that reads before it has waited fails only on a GPU.
template <class T> void copy_async(unsigned to, const T* from, unsigned bytes, unsigned given) {
    char* place = of_shared(to);
    if ((reinterpret_cast<size_t>(place) | reinterpret_cast<size_t>(from)) % bytes != 0)
        fail(LAUNCH_ERROR, "misaligned address of cp.async");
    if (given > bytes) fail(LAUNCH_ERROR, "cp.async reads %u bytes but writes only %u", given, bytes);
    __builtin_memcpy(place, from, given);
    __builtin_memset(place + given, 0, bytes - given);
}
template <class T> void copy_async(unsigned to, const T* from, unsigned bytes) { copy_async(to, from, bytes, bytes); }
inline void waited(int = 0) {}
inline void wait_for_products(int) { sync_warpgroup(); }

inline Word* barrier_at(unsigned low) {
    char* place = of_shared(low);
    if (reinterpret_cast<size_t>(place) % 8 != 0) fail(LAUNCH_ERROR, "misaligned address of an mbarrier");
    return reinterpret_cast<Word*>(place);
}
inline void init_barrier(unsigned at, unsigned arrivals) { begin_barrier(barrier_at(at), arrivals); }
inline void inval_barrier(unsigned at) { end_barrier(barrier_at(at)); }
inline void arrive(unsigned at, unsigned arrivals = 1) { arrive_at(barrier_at(at), arrivals); }
inline void expect(unsigned at, unsigned bytes) { expect_bytes(barrier_at(at), int(bytes)); }
inline void arrive_and_expect(unsigned at, unsigned bytes) { expect(at, bytes), arrive(at); }
inline void wait_for_phase(unsigned at, unsigned parity) { wait_for(barrier_at(at), parity); }
template <class T> void phase_has_ended(T& ended, unsigned at, unsigned parity) { ended = has_ended(barrier_at(at), parity); }

// Clusters: an operand is the lower half of an address, also in the shared memory of another block.
template <class T> void map_address(T& to, unsigned at, unsigned rank) {
    to = T(reinterpret_cast<size_t>(place_in_block(of_shared(at), rank)));
}
template <class T> void rank_in_cluster(T& to) { to = T(cluster_rank()); }
template <class T> void blocks_of_cluster(T& to) { to = T(cluster_size()); }
template <int BYTES, class T> void store_word(char* to, T value) {
    static_assert(sizeof(T) >= BYTES, "st.shared::cluster: a value of fewer bytes than the instruction stores");
    __builtin_memcpy(to, &value, BYTES);
}
template <int BYTES, class... T> void store_in_cluster(unsigned at, T... values) {
    char* to = shared_in_cluster(at, BYTES * sizeof...(T));
    ((store_word<BYTES>(to, values), to += BYTES), ...);
}
template <int BYTES, class T> void load_word(const char* from, T& value) {
    static_assert(sizeof(T) >= BYTES, "ld.shared::cluster: a variable of fewer bytes than the instruction loads");
    value = T();
    __builtin_memcpy(&value, from, BYTES);
}
// The address comes last.
template <int BYTES, class T> void load_in_cluster(T& value, unsigned at) {
    load_word<BYTES>(shared_in_cluster(at, BYTES), value);
}
template <int BYTES, class T> void load_in_cluster(T& a, T& b, unsigned at) {
    const char* from = shared_in_cluster(at, 2 * BYTES);
    load_word<BYTES>(from, a), load_word<BYTES>(from + BYTES, b);
}
template <int BYTES, class T> void load_in_cluster(T& a, T& b, T& c, T& d, unsigned at) {
    const char* from = shared_in_cluster(at, 4 * BYTES);
    load_word<BYTES>(from, a), load_word<BYTES>(from + BYTES, b);
    load_word<BYTES>(from + 2 * BYTES, c), load_word<BYTES>(from + 3 * BYTES, d);
}
template <int BYTES, class... W> void send_words(unsigned at, const W&... words) {
    char data[BYTES * (sizeof...(W) - 1)];
    char* to = data;
    unsigned left = sizeof...(W), barrier = 0;
    const auto add = [&](auto word) {
        if (--left) __builtin_memcpy(to, &word, BYTES), to += BYTES;
        else barrier = unsigned(word);
    };
    (add(words), ...);
    send(at, data, sizeof data, barrier, 0);
}
inline void arrive_in_cluster(unsigned barrier, unsigned arrivals = 1) { send(0, nullptr, 0, barrier, arrivals); }
inline void cluster_arrive() { arrive_at_cluster(); }
inline void cluster_wait() { wait_for_cluster(); }

// An address as an operand of asm: a pointer or a number.
template <class T> void* address_of(const T* pointer) { return const_cast<T*>(pointer); }
inline void* address_of(unsigned long long number) { return reinterpret_cast<void*>(number); }

template <class A> void bulk_in(unsigned to, A from, unsigned bytes, unsigned barrier) {
    copy_stretch(of_shared(to), static_cast<char*>(address_of(from)), bytes, barrier_at(barrier));
}
template <class A> void bulk_out(A to, unsigned from, unsigned bytes) {
    copy_stretch(of_shared(from), static_cast<char*>(address_of(to)), bytes, nullptr);
}
template <int RANK, class A, class... R> void load_tile(unsigned to, A map, R... rest) {
    static_assert(sizeof...(R) == RANK + 1, "cp.async.bulk.tensor: one coordinate for each dim, then an mbarrier");
    const long long given[] = {(long long)rest...};
    copy_tile(of_shared(to), address_of(map), given, RANK, barrier_at(unsigned(given[RANK])));
}
template <int RANK, class A, class... R> void store_tile(A map, R... rest) {
    static_assert(sizeof...(R) == RANK + 1, "cp.async.bulk.tensor: one coordinate for each dim, then a shared address");
    const long long given[] = {(long long)rest...};
    copy_tile(of_shared(unsigned(given[RANK])), address_of(map), given, RANK, nullptr);
}
inline void commit_group() { commit_copies(); }
inline void wait_group(unsigned newest) { wait_for_copies(newest); }
template <class A> void prefetched(A) {}

}  // namespace evolve::ptx
