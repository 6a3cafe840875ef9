/*---
op = "softmax"
note = "tiles of sixteen lanes from cooperative groups, one row each"
dtypes = ["float32"]
when = "cols <= 65536"

[[launch]]
entry = "softmax"
grid = ["ceil_div(rows, 16)"]
block = [256]
args = ["x", "out", "rows", "cols"]
---*/
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

namespace cg = cooperative_groups;

extern "C" __global__ void softmax(const x_t* x, out_t* out, int rows, int cols) {
    const auto tile = cg::tiled_partition<16>(cg::this_thread_block());
    const int row = blockIdx.x * 16 + threadIdx.x / 16;
    if (row >= rows) return;
    const x_t* from = x + (long long)row * cols;
    float most = -INFINITY, sum = 0.0f;
    for (int col = tile.thread_rank(); col < cols; col += 16) most = fmaxf(most, from[col]);
    most = cg::reduce(tile, most, cg::greater<float>());
    for (int col = tile.thread_rank(); col < cols; col += 16) sum += expf(from[col] - most);
    sum = cg::reduce(tile, sum, cg::plus<float>());
    for (int col = tile.thread_rank(); col < cols; col += 16) {
        out[(long long)row * cols + col] = expf(from[col] - most) / sum;
    }
}
