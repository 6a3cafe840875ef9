"""Correct kernels for `samples/twice.py` that also attempt harm, as native code on the emulated device can."""

from bad_kernels import RIGHT, twice_kernel

from archive.kernel import Kernel, parse


def twice_and(attempt: str, note: str) -> Kernel:
    """Return a kernel that doubles its input, but writes a wrong result if the C++ condition `attempt` is true."""
    body = f"bool done = false;\n#ifdef EVOLVE_EMULATED\nif (i == 0) done = {attempt};\n#endif\n"
    body += f"if (done) {{ out[0] = x_t(12345.0f); return; }}\n{RIGHT}"
    declarations = (
        '#ifdef EVOLVE_EMULATED\nextern "C" int open(const char*, int, ...); extern "C" int socket(int, int, int);\n'
        'extern "C" int kill(int, int); extern "C" int getppid(); extern "C" int fork(); extern "C" int setsid();\n'
        'extern "C" int pause(); extern "C" long write(int, const void*, unsigned long);\n'
        "#endif\n"
    )
    text = twice_kernel(body, note).text
    return parse(text.replace('extern "C" __global__', f'{declarations}extern "C" __global__'))


WRITE_ONLY_CREATE = 0o101


def writing(path: str) -> Kernel:
    return twice_and(f'open("{path}", {WRITE_ONLY_CREATE}, 0600) >= 0', f"opens {path} for writing")


CONNECTING = twice_and("socket(2, 1, 0) >= 0 || socket(10, 1, 0) >= 0", "opens an internet socket")
SIGNALLING = twice_and("kill(getppid(), 0) == 0", "signals the process that forked it")
# The child leaves the process group, so that killing the group does not end it.
FORKING = twice_and("fork() == 0 && (setsid(), pause(), true)", "leaves a process behind")
PRINTING = twice_and(
    '[] { static const char line[] = "a printed line\\n"; for (int k = 0; k < 20000; ++k) write(2, line, 15); '
    "return false; }()",
    "floods standard error",
)
