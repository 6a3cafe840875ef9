/*---
op = "softmax"
note = "infinity and NaN are constants of the program, and the sum starts as NaN until there is a first element"
when = "cols <= 4352"

[[launch]]
entry = "softmax"
grid = ["ceil_div(rows, 64)"]
block = [64]
args = ["x", "out", "rows", "cols"]
---*/
constexpr float LOWEST = -INFINITY, NONE = NAN;
static_assert(LOWEST < 0.0f && NONE != NONE, "both are known to the compiler");

extern "C" __global__ void softmax(const x_t* x, out_t* out, int rows, int cols) {
    const int row = blockIdx.x * 64 + threadIdx.x;
    if (row >= rows) return;
    const x_t* in = x + (long long)row * cols;
    float largest = LOWEST, sum = NONE, piece = 0.0f;
    for (int col = 0; col < cols; ++col) largest = fmaxf(largest, float(in[col]));
    for (int col = 0; col < cols; ++col) {
        const float term = expf(float(in[col]) - largest);
        piece += term;
        if (col % 64 != 63 && col != cols - 1) continue;
        sum = col < 64 ? piece : sum + piece;  // not `sum != sum`: a term may be NaN as well
        piece = 0.0f;
    }
    for (int col = 0; col < cols; ++col) out[(long long)row * cols + col] = out_t(expf(float(in[col]) - largest) / sum);
}
