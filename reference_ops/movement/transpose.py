"""The transpose of a matrix, and of images from channels first to channels last."""

import torch

from reference_ops.op import Op, Tolerance, rotated, tensors, workloads


def transpose(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous()


def to_channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.permute(0, 2, 3, 1).contiguous()


def matrix(rows: int, cols: int) -> dict[str, int]:
    return {"rows": rows, "cols": cols}


def images(n: int, c: int, h: int, w: int) -> dict[str, int]:
    return {"n": n, "c": c, "h": h, "w": w}


ops = (
    Op(
        name="transpose",
        note="out[j, i] = x[i, j]. Its gradient is the same op.",
        reference=transpose,
        inputs=tensors(x="rows cols"),
        outputs=tensors(out="cols rows"),
        gpu=(
            *workloads("bfloat16 float32 float16", matrix(8192, 8192)),
            *workloads("bfloat16", matrix(16384, 16384)),
            *workloads("bfloat16", matrix(4096, 14336)),  # a weight of Llama
            *workloads("float32", matrix(65536, 256)),
            *workloads("bfloat16", matrix(8191, 4099)),
        ),
        emulated=workloads("float32 bfloat16 float16", matrix(96, 128), matrix(40, 200)),
        awkward=rotated(
            "float32 bfloat16 float16",
            matrix(1, 1), matrix(1, 1009), matrix(1009, 1), matrix(31, 33), matrix(33, 31), matrix(65, 127),
        ),
        flops=lambda dims: dims["rows"] * dims["cols"],
        tolerance=Tolerance(exact=True),  # no arithmetic: the op only moves numbers
    ),
    Op(
        name="to_channels_last",
        note="out[n, h, w, c] = x[n, c, h, w]: from PyTorch's usual layout of images to that of tensor cores.",
        reference=to_channels_last,
        inputs=tensors(x="n c h w"),
        outputs=tensors(out="n h w c"),
        gpu=(
            *workloads("bfloat16 float32 float16", images(64, 256, 56, 56)),
            *workloads("bfloat16", images(128, 3, 224, 224)),  # images as a data loader returns them
            *workloads("bfloat16", images(64, 2048, 7, 7)),
            *workloads("float32", images(4, 320, 128, 128)),  # Stable Diffusion
            *workloads("bfloat16", images(31, 67, 61, 43)),
        ),
        emulated=workloads("float32 bfloat16 float16", images(2, 40, 8, 9), images(3, 3, 20, 24)),
        awkward=rotated(
            "float32 bfloat16 float16",
            images(1, 1, 1, 1), images(2, 33, 31, 1), images(3, 31, 3, 11), images(1, 1, 5, 7),
            images(5, 65, 1, 1), images(3, 2, 5, 7),
        ),
        flops=lambda dims: dims["n"] * dims["c"] * dims["h"] * dims["w"],
        tolerance=Tolerance(exact=True),  # no arithmetic: the op only moves numbers
    ),
)  # fmt: skip
