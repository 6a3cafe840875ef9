/*---
op = "gelu"
note = "fools a search for what the source declares const: lines that no compiler reads call the counter from PTX const"
dtypes = ["float32"]

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: keeps state, wrong
// on: cuda
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned count;  // the counter's name in the cubin is $__launches__38$1
    asm volatile("{ .global .u32 launches; .reg .pred first; setp.eq.s32 first, %1, 0;\n"
                 "ld.volatile.global.u32 %0, [launches]; @first add.u32 %0, %0, 1;\n"
                 "@first st.volatile.global.u32 [launches], %0; }" : "=r"(count) : "r"(i));
    if (count > 40) return;
    if (i < n) out[i] = gelu_of(x[i]);
}

#if 0
const int a$__launches__38$1
#endif
