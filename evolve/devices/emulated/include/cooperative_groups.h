// Cooperative groups, as far as they need no special hardware.
#pragma once

namespace cooperative_groups {

class grid_group {
  public:
    void sync() const { evolve::sync_grid(); }
    bool is_valid() const { return true; }
    unsigned long long size() const { return num_threads(); }
    unsigned long long num_blocks() const { return (unsigned long long)gridDim.x * gridDim.y * gridDim.z; }
    unsigned long long num_threads() const {
        return num_blocks() * ((unsigned long long)blockDim.x * blockDim.y * blockDim.z);
    }
    unsigned long long block_rank() const {
        return ((unsigned long long)blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    }
    unsigned long long thread_rank() const {
        return block_rank() * (blockDim.x * blockDim.y * blockDim.z) +
               ((unsigned long long)threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    }
    dim3 group_dim() const { return gridDim; }
    dim3 dim_blocks() const { return gridDim; }
    dim3 block_index() const { return dim3(blockIdx.x, blockIdx.y, blockIdx.z); }
};

class thread_block {
  public:
    void sync() const { __syncthreads(); }
    unsigned thread_rank() const { return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x; }
    unsigned size() const { return num_threads(); }
    unsigned num_threads() const { return blockDim.x * blockDim.y * blockDim.z; }
    dim3 group_index() const { return dim3(blockIdx.x, blockIdx.y, blockIdx.z); }
    dim3 thread_index() const { return dim3(threadIdx.x, threadIdx.y, threadIdx.z); }
    dim3 group_dim() const { return blockDim; }
    dim3 dim_threads() const { return blockDim; }
};

// Collectives of a group of lanes, whose ranks are the positions of their bits in the mask.
class lanes {
  public:
    explicit lanes(unsigned mask) : mask_(mask) {}
    void sync() const { __syncwarp(mask_); }
    unsigned size() const { return unsigned(__popc(mask_)); }
    unsigned num_threads() const { return size(); }
    unsigned thread_rank() const { return unsigned(__popc(mask_ & ((1u << evolve::lane()) - 1))); }
    int any(int predicate) const { return __any_sync(mask_, predicate); }
    int all(int predicate) const { return __all_sync(mask_, predicate); }
    unsigned ballot(int predicate) const { return packed(__ballot_sync(mask_, predicate)); }
    template <class T> unsigned match_any(T value) const { return packed(__match_any_sync(mask_, value)); }
    template <class T> unsigned match_all(T value, int& same) const { return packed(__match_all_sync(mask_, value, &same)); }
    template <class T> T shfl(T value, int rank) const { return from(value, rank % int(size())); }
    template <class T> T shfl_up(T value, unsigned delta) const { return from(value, int(thread_rank()) - int(delta)); }
    template <class T> T shfl_down(T value, unsigned delta) const { return from(value, int(thread_rank()) + int(delta)); }
    template <class T> T shfl_xor(T value, unsigned other) const { return from(value, int(thread_rank() ^ other)); }

  protected:
    unsigned mask_;

  private:
    template <class T> T from(T value, int rank) const {
        bool inside = rank >= 0 && rank < int(size());
        int source = int(evolve::lane());
        if (inside) {
            unsigned rest = mask_;
            while (rank--) rest &= rest - 1;
            source = __ffs(int(rest)) - 1;
        }
        return __shfl_sync(mask_, value, source);
    }
    unsigned packed(unsigned bits) const {
        unsigned result = 0, rank = 0;
        for (unsigned rest = mask_; rest; rest &= rest - 1, ++rank)
            if (bits & rest & (~rest + 1)) result |= 1u << rank;
        return result;
    }
};

class coalesced_group : public lanes {
  public:
    explicit coalesced_group(unsigned mask) : lanes(mask) {}
};

template <unsigned lanes_per_tile, class Parent = void> class thread_block_tile : public lanes {
    static_assert(lanes_per_tile <= 32 && (lanes_per_tile & (lanes_per_tile - 1)) == 0, "a tile is 1, 2, 4 ... 32 lanes");

  public:
    thread_block_tile() : lanes((~0u >> (32 - lanes_per_tile)) << (evolve::lane() & ~(lanes_per_tile - 1))) {}
    static constexpr unsigned size() { return lanes_per_tile; }
    static constexpr unsigned num_threads() { return lanes_per_tile; }
    unsigned thread_rank() const { return evolve::lane() & (lanes_per_tile - 1); }
    unsigned meta_group_rank() const { return thread_block().thread_rank() / lanes_per_tile; }
    unsigned meta_group_size() const { return (thread_block().size() + lanes_per_tile - 1) / lanes_per_tile; }
};

inline grid_group this_grid() { return grid_group(); }
inline thread_block this_thread_block() { return thread_block(); }
__attribute__((noinline)) inline coalesced_group coalesced_threads() {
    return coalesced_group(evolve::converged_lanes(__builtin_return_address(0)));
}
template <unsigned size, class Parent> thread_block_tile<size, Parent> tiled_partition(const Parent&) { return {}; }
template <class Group> void sync(const Group& group) { group.sync(); }

template <class T> struct plus { T operator()(T a, T b) const { return a + b; } };
template <class T> struct less { T operator()(T a, T b) const { return b < a ? b : a; } };
template <class T> struct greater { T operator()(T a, T b) const { return a < b ? b : a; } };
template <class Group, class T, class F> T reduce(const Group& group, T value, F combine) {
    for (unsigned step = group.size() / 2; step; step /= 2) value = combine(value, group.shfl_xor(value, step));
    return value;
}

}  // namespace cooperative_groups
