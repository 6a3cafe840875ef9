/*---
op = "relu"
note = "tiles by tensor maps, in and out; the next arrives while one is written"
when = "n < 2147483000"

[tensor_maps]
x_map = { tensor = "x", shape = ["n"], box = [256], swizzle = 0 }
out_map = { tensor = "out", shape = ["n"], box = [256], swizzle = 0 }

[[launch]]
entry = "relu"
grid = ["min(ceil_div(n, 256), 4 * sms)"]
block = [64]
args = ["x_map", "out_map", "out", "n"]
---*/
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void expect(unsigned long long* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at(barrier)), "r"(bytes) : "memory");
}
__device__ void wait(unsigned long long* barrier, int parity) {
    asm volatile("{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(at(barrier)), "r"(parity) : "memory");
}
__device__ void load(void* to, const CUtensorMap* map, int first, unsigned long long* barrier) {
    asm volatile("cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2}], [%3];" ::"r"(at(to)), "l"(map), "r"(first), "r"(at(barrier)) : "memory");
}
__device__ void store(const CUtensorMap* map, int first, const void* from) {
    asm volatile("cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%0, {%1}], [%2];" ::"l"(map), "r"(first), "r"(at(from)) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

extern "C" __global__ void relu(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap out_map, out_t* out, int n) {
    __shared__ alignas(128) x_t tiles[2][256];
    __shared__ alignas(128) out_t result[256];
    __shared__ alignas(8) unsigned long long full[2];
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at(&full[i])) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    const int tiles_of_all = (n + 255) / 256;
    const auto fetch = [&](int tile, int stage) {
        if (threadIdx.x == 0 && tile < tiles_of_all) expect(&full[stage], sizeof(tiles[0])), load(tiles[stage], &x_map, tile * 256, &full[stage]);
    };
    fetch(blockIdx.x, 0);
    int count = 0;
    for (int tile = blockIdx.x; tile < tiles_of_all; tile += gridDim.x, ++count) {
        const int stage = count % 2;
        fetch(tile + gridDim.x, 1 - stage);
        wait(&full[stage], count / 2 % 2);
        if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
        __syncthreads();  // the result may be overwritten
        for (int i = threadIdx.x; i < 256; i += 64) result[i] = tiles[stage][i] < x_t(0.0f) ? out_t(0.0f) : out_t(tiles[stage][i]);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        if (tile < n / 256) {
            if (threadIdx.x == 0) store(&out_map, tile * 256, result);
        } else {  // a copy by the map would write whole pieces of 16 bytes
            for (int i = threadIdx.x; i < n % 256; i += 64) out[tile * 256 + i] = result[i];
        }
    }
    if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
