/*---
op = "gelu"
note = "fools a compiler without a memory limit: seven macros of sixteen copies each make 2^28 statements"
dtypes = ["float32"]

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: compile error, timed out, crashed
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define A sum += x[0]; sum += x[0]; sum += x[0]; sum += x[0]; sum += x[0]; sum += x[0]; sum += x[0]; sum += x[0]; sum += x[0]; sum += x[0]; sum += x[0]; sum += x[0]; sum += x[0]; sum += x[0]; sum += x[0]; sum += x[0];
#define B A A A A A A A A A A A A A A A A
#define C B B B B B B B B B B B B B B B B
#define D C C C C C C C C C C C C C C C C
#define E D D D D D D D D D D D D D D D D
#define F E E E E E E E E E E E E E E E E
#define G F F F F F F F F F F F F F F F F

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    float sum = 0.0f;
    G
    out[0] = sum;
}
