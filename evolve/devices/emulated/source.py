"""Translation of CUDA C++ for the host's compiler: checks a kernel's source and rewrites it, keeping line numbers."""

import re
from functools import lru_cache

from archive.records import Outcome
from evolve.devices import state
from evolve.devices.device import RejectedError
from evolve.devices.emulated import ptx
from evolve.devices.source_text import Include, includes, masked, spliced_directive, word_beginning

# Their declarations are always included, so kernels' #include lines for them are removed.
HEADERS = frozenset({
    "cuda.h", "cuda_runtime.h", "cuda_runtime_api.h", "cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h",
    "vector_types.h", "vector_functions.h", "device_launch_parameters.h", "device_functions.h", "math_functions.h",
    "math_constants.h", "sm_30_intrinsics.h", "cooperative_groups.h", "cooperative_groups/reduce.h", "math.h",
    "cmath", "stdint.h", "cstdint", "stddef.h", "cstddef", "float.h", "cfloat", "limits.h", "climits", "limits",
    "assert.h", "cassert", "stdio.h", "cstdio", "type_traits", "algorithm", "utility",
})  # fmt: skip
KEPT_HEADER = "cooperative_groups.h"  # the emulator has its own version of this header
# Headers and words that need a GPU; the second part is their description in messages.
DEVICE_HEADERS = re.compile(
    r"mma\.h|cuda/.*|cub/.*|thrust/.*|cute/.*|cutlass/.*|cuda_pipeline.*|cuda_fp[46]\.h|cuda_awbarrier.*"
)
DEVICE_WORDS = (
    (r"\b(?:asm|__asm__|__asm)\b", f"inline PTX (`asm`) other than {ptx.KNOWN}"),
    (r"<<<", "launching kernels from kernels (`<<<`)"),
    (r"\b(?:wmma|nvcuda)\s*::", "tensor cores (`wmma`)"),
    (r"\bcuda\s*::", "the library `cuda::`"),
    (r"\bcub\s*::", "the library `cub::`"),
    (r"\b(?:this_cluster|cluster_group)\b", "clusters of `cooperative_groups` (it has those of inline PTX)"),
    (r"\b(?:tex[123]D\w*|surf[123]D\w*|cudaTextureObject_t|cudaSurfaceObject_t)\b", "textures and surfaces"),
    (r"\b__pipeline_\w+|\bmemcpy_async\b", "asynchronous copies"),
)
# With these, a kernel could read clocks, random numbers and addresses, and change how the processor rounds.
PROCESSOR_BUILTINS = (
    "__builtin_ia32_", "__builtin_aarch64_", "__builtin_arm_", "__builtin_neon_", "__builtin_sve_", "__builtin_cpu_",
    "__builtin_readcyclecounter", "__builtin_readsteadycounter", "__builtin_thread_pointer", "__builtin_frame_address",
    "__builtin_return_address",
)  # fmt: skip
NOT_IN_CUDA = re.compile(r"\b(?:thread_local|_Thread_local|__thread)\b")
# The compiler must reject these words too, because `##` may form them.
POISON = (
    "#pragma GCC poison asm __asm __asm__ thread_local _Thread_local __thread "
    "__has_include __has_include_next __has_embed __DATE__ __TIME__ __TIMESTAMP__"
)
DYNAMIC = re.compile(r"\bextern\b([^;{}()]*(?:\([^;{}]*?\)[^;{}()]*)*?)\b__shared__\b([^;]*);")
QUALIFIERS = re.compile(
    r"\b(?:__align__|alignas|__attribute__|__builtin_align__)\s*\((?:[^()]|\([^()]*\))*\)|\bextern\b"
)
ALIGNAS = re.compile(r"\balignas\s*\((?:[^()\n]|\([^()\n]*\))*\)")
STATIC = re.compile(r"(\bstatic\s+)?\b__shared__\b([^;]*);")
ATTRIBUTE_NAMES = ("__launch_bounds__", "__attribute__", "alignas", "__align__", "__maxnreg__", "__cluster_dims__")


@lru_cache(maxsize=16)  # all workloads have the same source
def translate(source: str, first_line: int) -> str:
    """Return the source for the host's compiler; raise RejectedError for features that the emulator lacks."""
    text = masked(source)
    _check_includes(source, first_line)
    state.check_source(source)
    if match := NOT_IN_CUDA.search(text):
        message = f"error: `{match.group()}` is not supported in device code"
        raise RejectedError(Outcome.COMPILE_ERROR, _at(source, match.start(), first_line, message))
    if found := word_beginning(source, PROCESSOR_BUILTINS):
        message = f"error: `{found[1]}` is a function of the host's processor, not of CUDA"
        raise RejectedError(Outcome.COMPILE_ERROR, _at(source, found[0], first_line, message))
    edits = ptx.translated(source, text)
    for start, end, _ in edits:
        text = text[:start] + re.sub(r"\S", " ", text[start:end]) + text[end:]
    for pattern, meaning in DEVICE_WORDS:
        if match := re.search(pattern, text):
            raise RejectedError(Outcome.UNSUPPORTED, _at(source, match.start(), first_line, _unsupported(meaning)))
    edits += [_without(source, include) for include in includes(source) if include.header != KEPT_HEADER]
    dynamic = [match for match in DYNAMIC.finditer(text) if "[" in match.group(2)]
    edits += [(*match.span(), _dynamic_shared(source, text, match)) for match in dynamic]
    taken = [match.span() for match in dynamic]
    for match in STATIC.finditer(text):
        if not any(start <= match.start() < end for start, end in taken) and not _in_macro(text[: match.start()]):
            edits += _static_shared(text, match)
    for start, end, replacement in sorted(edits, reverse=True):
        source = source[:start] + replacement + source[end:]
    return f'{POISON}\n#line {first_line} "kernel.cu"\n{source}'


@lru_cache(maxsize=16)
def entries(source: str) -> tuple[str, ...]:
    """Return the names of the `__global__` functions in a source."""
    text = re.sub(r"\b(?:" + "|".join(ATTRIBUTE_NAMES) + r")\s*\((?:[^()]|\([^()]*\))*\)", " ", masked(source))
    return tuple(dict.fromkeys(re.findall(r"\b__global__\b[^(){};]*?\b(\w+)\s*\(", text)))


@lru_cache(maxsize=16)
def clusters(source: str) -> dict[str, str]:
    """Return the sizes in `__cluster_dims__` as C++, for each `__global__` function that has them."""
    text, found = masked(source), {}
    for match in re.finditer(r"\b__global__\b", text):
        header = text[match.end() :].partition("{")[0]
        dims = re.search(r"\b__cluster_dims__\s*\(((?:[^()]|\([^()]*\))*)\)", header)
        plain = re.sub(r"\b(?:" + "|".join(ATTRIBUTE_NAMES) + r")\s*\((?:[^()]|\([^()]*\))*\)", " ", header)
        name = re.search(r"\b(\w+)\s*\(", plain)
        if dims and name:
            found[name[1]] = dims[1]
    return found


def _check_includes(source: str, first_line: int) -> None:
    if (position := spliced_directive(source)) is not None:
        message = "error: the name of a preprocessor directive is split across lines"
        raise RejectedError(Outcome.COMPILE_ERROR, _at(source, position, first_line, message))
    for include in includes(source):
        if include.plain and include.header in HEADERS:
            continue
        if DEVICE_HEADERS.fullmatch(include.header):
            message = _unsupported(f"the header <{include.header}>")
            raise RejectedError(Outcome.UNSUPPORTED, _at(source, include.start, first_line, message))
        message = (
            f"error: cannot open source file {include.header or include.written[:80]!r}; "
            f"kernels may include {', '.join(sorted(HEADERS))}"
        )
        raise RejectedError(Outcome.COMPILE_ERROR, _at(source, include.start, first_line, message))


def _without(source: str, include: Include) -> tuple[int, int, str]:
    return include.start, include.end, "\n" * source.count("\n", include.start, include.end)


def _unsupported(meaning: str) -> str:
    return f"the emulated device has no {meaning}; only a GPU can run this kernel"


def _at(source: str, position: int, first_line: int, message: str) -> str:
    line = source.count("\n", 0, position)
    written = source.split("\n")[line].strip()
    return f"kernel.cu:{first_line + line}: {message}\n    {written}"


def _dynamic_shared(source: str, text: str, match: re.Match[str]) -> str:
    """Return `extern __shared__ T name[];` as a pointer to the block's dynamic shared memory."""
    declared = QUALIFIERS.sub(" ", f"{match.group(1)} {match.group(2)}")
    parts = re.fullmatch(r"(.*?)(\w+)\s*\[\s*\]\s*(.*)", " ".join(declared.split()))
    if parts is None:
        return source[match.start() : match.end()]
    kind, name, rest = parts.groups()
    storage = "" if _in_function(text[: match.start()]) else "EVOLVE_DYNAMIC "
    lines = "\n" * source.count("\n", *match.span())
    return f"{storage}{kind} (*const {name}){rest} = reinterpret_cast<{kind} (*){rest}>(EVOLVE_SHARED);{lines}"


def _static_shared(text: str, match: re.Match[str]) -> list[tuple[int, int, str]]:
    """Return the edits that drop a redundant `static` and fill the variable with garbage after its declaration."""
    edits = [(*match.span(1), "")] if match.group(1) else []
    # unlike NVRTC, the host's compiler requires this word first
    for alignment in ALIGNAS.finditer(text, *match.span()):
        qualifiers = re.search(r"(?:\b(?:volatile|const)\s+)*$", text[: match.start()])
        first = qualifiers.start() if qualifiers else match.start()
        edits += [(*alignment.span(), " " * len(alignment.group())), (first, first, f"{alignment.group()} ")]
    if _in_function(text[: match.start()]):
        poison = "".join(f" EVOLVE_POISON({name})" for name in _names(match.group(2)))
        edits.append((match.end(), match.end(), poison))
    return edits


def _in_macro(before: str) -> bool:
    return before.replace("\\\n", "  ").rpartition("\n")[2].lstrip().startswith("#")


def _in_function(before: str) -> bool:
    """Return whether the end of this text is inside a function, judging by the braces that are still open."""
    opened: list[int] = []
    for match in re.finditer(r"[{}]", before):
        if match.group() == "{":
            opened.append(match.start())
        elif opened:
            opened.pop()
    return not all(re.search(r"\b(?:namespace(?:\s+\w+)?|extern)\s*$", before[:start]) for start in opened)


def _names(declaration: str) -> list[str]:
    """Return the names of the variables that a declaration without initialisers declares."""
    plain = QUALIFIERS.sub(" ", declaration)
    while (shorter := re.sub(r"<[^<>]*>|\[[^\[\]]*\]|\([^()]*\)", "", plain)) != plain:
        plain = shorter
    names = [re.search(r"(\w+)\s*$", part) for part in plain.split(",")]
    return [name.group(1) for name in names if name] if all(names) and "=" not in plain else []
