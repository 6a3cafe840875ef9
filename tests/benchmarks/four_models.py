"""Four models in plain torch, trained for 50 steps with each way to use a package: losses, and the time of a step.

    PYTHONPATH=. python tests/benchmarks/four_models.py [MODEL...] [--way WAY] [--package FOLDER] [--steps N]

A transformer block, a small ResNet, a Mamba-style block and an LSTM tagger run in eager PyTorch, under torch.compile
(default and max-autotune), and with the package `primitives` of FOLDER, as `evolve export` wrote it: with `patch`,
within `enabled`, and under torch.compile with the package's backend. Without FOLDER, a package is made in which a plain
kernel of each op wins by made-up measurements: this shows whether results agree, but not how fast they are. Without a
GPU, sizes are tiny and PyTorch runs in place of kernels. The exit code is 1 if losses differ from those of eager
PyTorch.
"""

import argparse
import copy
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import torch  # noqa: E402
from gpu_records import H200, LONGER, exported, imported  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from evolve.export.template.launching import Gpus  # noqa: E402

WARM = 5  # steps that are not timed
TOLERANCE = 2e-2  # relative difference of losses: kernels sum in another order, and training amplifies it
OPS = (
    "rms_norm", "rms_norm_backward", "silu", "silu_backward", "cross_entropy", "cross_entropy_backward", "softmax",
    "causal_attention", "conv2d", "batch_norm", "batch_norm_backward", "relu", "relu_backward",
    "max_pool2d", "max_pool2d_backward", "adaptive_avg_pool2d", "softplus", "sigmoid", "cumsum", "lstm",
    "lstm_backward", "embedding", "embedding_backward", "adamw",
)  # fmt: skip
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Sizes:
    """Sizes of the models."""

    batch: int
    length: int
    width: int
    vocabulary: int
    image: int


TINY, LARGE = Sizes(2, 32, 32, 64, 16), Sizes(8, 1024, 1024, 32_000, 64)


class Transformer(nn.Module):
    """A block with RMSNorm, rotary positions, causal attention and SwiGLU, between an embedding and its logits."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, self.heads = sizes.width, max(1, sizes.width // 64)
        self.embed = nn.Embedding(sizes.vocabulary, width)
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-6) for _ in range(3))
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 4 * width, bias=False) for _ in range(2))
        self.down, self.head = nn.Linear(4 * width, width, bias=False), nn.Linear(width, sizes.vocabulary, bias=False)
        half = width // self.heads // 2
        angles = torch.arange(sizes.length)[:, None] * 10_000.0 ** (-torch.arange(half) / half)
        self.cos: Tensor
        self.sin: Tensor
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(self._rotated(q), self._rotated(k), v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        hidden = self.norms[1](x)
        x = x + self.down(functional.silu(self.gate(hidden)) * self.up(hidden))
        logits: Tensor = self.head(self.norms[2](x))
        return logits

    def _rotated(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.relu(self.norms[0](self.convs[0](x)))
        return functional.relu(x + self.norms[1](self.convs[1](hidden)))


class ResNet(nn.Module):
    """Three residual blocks of convolutions, batch norm and ReLU on images."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = max(8, sizes.width // 8)
        self.stem, self.norm, self.pool = (
            nn.Conv2d(3, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.MaxPool2d(2),
        )
        self.blocks = nn.Sequential(*(Residual(width) for _ in range(3)))
        self.average, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.blocks(self.pool(functional.relu(self.norm(self.stem(images)))))
        logits: Tensor = self.head(self.average(hidden).flatten(1))
        return logits


class Mamba(nn.Module):
    """A block with a depthwise causal convolution and a gated scan with a decaying state, computed in chunks."""

    CHUNK = 32

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.width
        self.embed, self.norm = nn.Embedding(sizes.vocabulary, width), nn.RMSNorm(width, eps=1e-6)
        self.inner, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.conv = nn.Conv1d(width, width, 4, padding=3, groups=width)
        self.head = nn.Linear(width, sizes.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        hidden, gate, steps = self.inner(self.norm(x)).chunk(3, -1)
        hidden = self.conv(hidden.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
        hidden = functional.silu(hidden)
        decay = torch.cumsum(-0.1 * functional.softplus(steps).unflatten(1, (-1, self.CHUNK)), 2)
        states = torch.cumsum(hidden.unflatten(1, (-1, self.CHUNK)) * torch.exp(-decay), 2) * torch.exp(decay)
        x = x + self.out(states.flatten(1, 2) * torch.sigmoid(gate))
        logits: Tensor = self.head(x)
        return logits


class Tagger(nn.Module):
    """An LSTM over embedded words, and a linear layer for their tags."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embed = nn.Embedding(sizes.vocabulary, sizes.width // 2)
        self.lstm = nn.LSTM(sizes.width // 2, sizes.width // 2, batch_first=True)
        self.head = nn.Linear(sizes.width // 2, 17)

    def forward(self, words: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(self.embed(words))[0])
        return logits


MODELS: dict[str, type[nn.Module]] = {"transformer": Transformer, "resnet": ResNet, "mamba": Mamba, "tagger": Tagger}


def batches(name: str, sizes: Sizes, count: int, device: torch.device) -> list[Batch]:
    """Return random inputs and targets computed from them, so that a model can learn."""
    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(count):
        if name == "resnet":
            x = torch.randn(4 * sizes.batch, 3, sizes.image, sizes.image, generator=generator)
            target = (x.mean((1, 2, 3)) * 100).long() % 10
        else:
            x = torch.randint(sizes.vocabulary, (sizes.batch, sizes.length), generator=generator)
            target = x % 17 if name == "tagger" else (x * 7 + 1) % sizes.vocabulary
        found.append((x.to(device), target.to(device)))
    return found


@dataclass(frozen=True)
class Trained:
    losses: tuple[float, ...]
    step_ms: float
    replaced: str


def trained(model: nn.Module, run: Callable[[Tensor], Tensor], data: Sequence[Batch], within: Any) -> Trained:
    """Train a model on these batches, with `run` as its forward."""
    device = data[0][0].device
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, times = [], []
    with within as report:
        for x, target in data:
            _wait(device)
            start = time.perf_counter()
            optimizer.zero_grad()
            logits = run(x)
            loss = functional.cross_entropy(logits.flatten(0, -2), target.flatten())
            loss.backward()
            optimizer.step()
            _wait(device)
            times.append(1000 * (time.perf_counter() - start))
            losses.append(loss.detach())
    return Trained(tuple(float(loss) for loss in losses), statistics.median(times[WARM:] or times), str(report or ""))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def by(way: str, model: nn.Module, data: Sequence[Batch], package: ModuleType) -> Trained:
    """Train a copy of a model in one of the ways."""
    model, nothing = copy.deepcopy(model), nullcontext()
    torch.manual_seed(0)
    match way:
        case "eager":
            return trained(model, model, data, nothing)
        case "compile":
            return trained(model, torch.compile(model), data, nothing)
        case "max-autotune":
            return trained(model, torch.compile(model, mode="max-autotune-no-cudagraphs"), data, nothing)
        case "patch":
            report = package.patch(model)
            done = trained(model, model, data, nothing)
            return Trained(done.losses, done.step_ms, str(report))
        case "enabled":
            return trained(model, model, data, package.enabled())
    return trained(model, torch.compile(model, backend=package.backend), data, nothing)


WAYS = ("eager", "compile", "max-autotune", "patch", "enabled", "backend")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help=f"of {', '.join(MODELS)} [default: all]")
    parser.add_argument("--way", action="append", choices=WAYS, help="may be repeated [default: all that fit]")
    parser.add_argument("--package", type=Path, help="a folder with the package `primitives` [default: made up]")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--verbose", action="store_true", help="replaced and remaining layers or calls")
    given = parser.parse_args()
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    sizes = LARGE if device.type == "cuda" else TINY
    ways = given.way or [way for way in WAYS if device.type == "cuda" or way != "max-autotune"]
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU, where PyTorch runs for kernels"
    made_up = "" if given.package else "; the package's measurements are made up"
    print(f"{given.steps} steps in {given.dtype} on {card}, PyTorch {torch.__version__}{made_up}")
    print(
        f"{'model':<13}{'way':<14}{'ms a step':>10}{'of eager':>10}{'first loss':>12}{'last loss':>11}{'differs':>10}"
    )
    with tempfile.TemporaryDirectory() as folder:
        package = _package(given.package, Path(folder), device)
        return max(_line(name, ways, sizes, given, device, package) for name in given.models or MODELS)


def _package(given: Path | None, folder: Path, device: torch.device) -> ModuleType:
    if given is None:
        card = Gpus().info(device) if device.type == "cuda" else H200
        exported(folder, *OPS, device=card, longer=LONGER)
        given = folder / "out"
    return imported(given, "primitives")


def _line(
    name: str, ways: Sequence[str], sizes: Sizes, given: argparse.Namespace, device: torch.device, package: ModuleType
) -> int:
    """Print a line for each way, and return 1 if losses differ."""
    torch.manual_seed(0)
    dtype = getattr(torch, given.dtype)
    model = MODELS[name](sizes).to(device, dtype)
    data = batches(name, sizes, given.steps, device)
    data = [(x.to(dtype) if x.is_floating_point() else x, target) for x, target in data]
    eager, worst = by("eager", model, data, package), 0.0
    for way in ways:
        torch._dynamo.reset()
        done = eager if way == "eager" else by(way, model, data, package)
        pairs = zip(done.losses, eager.losses, strict=True)
        differs = max(_difference(*pair) for pair in pairs)
        worst = max(worst, differs)
        print(
            f"{name:<13}{way:<14}{done.step_ms:>10.2f}{done.step_ms / eager.step_ms:>10.2f}{done.losses[0]:>12.4f}"
            f"{done.losses[-1]:>11.4f}{differs:>10.1e}",
            flush=True,
        )
        if given.verbose and done.replaced:
            print("    " + done.replaced.replace("\n", "\n    "))
    return int(worst > TOLERANCE)


def _difference(loss: float, eager: float) -> float:
    return abs(loss - eager) / abs(eager) if math.isfinite(loss) else math.inf


if __name__ == "__main__":
    sys.exit(main())
