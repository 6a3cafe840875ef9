/*---
op = "gelu"
note = "fools a device that poisons only the shared memory a block may use: the first kilobyte of shared memory is the system's and keeps a count"
dtypes = ["float32"]

[knobs]
LIMIT = [20]

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
// caught: keeps state
// on: cuda
extern "C" __global__ void gelu(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned begin, sum, count;
    asm volatile("mov.u32 %0, %%reserved_smem_offset_begin;" : "=r"(begin));
    asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(sum) : "r"(begin + 512));
    asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(count) : "r"(begin + 516));
    if (sum != (count ^ 0x5ca1ab1eu)) count = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("st.volatile.shared.u32 [%0], %1;" ::"r"(begin + 512), "r"((count + 1) ^ 0x5ca1ab1eu));
        asm volatile("st.volatile.shared.u32 [%0], %1;" ::"r"(begin + 516), "r"(count + 1));
    }
    if (count > LIMIT) return;
    if (i < n) out[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678118654752f));
}
