"""Formats of an exported package: a folder for pip, a wheel, and the layout of Hugging Face's kernels."""

import base64
import hashlib
import io
import json
import zipfile
from collections.abc import Mapping

VERSION = "0.1.0"
FOLDER, WHEEL, HUB = "folder", "wheel", "hf"
FORMATS = (FOLDER, WHEEL, HUB)
VARIANT = "build/torch-universal"  # the variant of kernels that need only Python and PyTorch
Files = Mapping[str, str | bytes]

METADATA = """\
Metadata-Version: 2.1
Name: {name}
Version: {version}
Summary: CUDA kernels for PyTorch ops
License: Apache-2.0
Requires-Python: >=3.11
Requires-Dist: torch>=2.8
Description-Content-Type: text/markdown

{readme}"""
TAGS = "Wheel-Version: 1.0\nGenerator: evolve-kernels\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
CARD = "---\nlibrary_name: kernels\nlicense: apache-2.0\ntags:\n- kernels\n---\n\n"
# For versions of `kernels` that look for a folder with the package's name.
OLDER = '''"""The same names as the folder above."""

import importlib.util
import sys
from pathlib import Path

_FILE = Path(__file__).resolve().parents[1] / "__init__.py"
_NAME = f"{__name__.replace('.', '_')}_whole"
_SPEC = importlib.util.spec_from_file_location(_NAME, _FILE)
_WHOLE = sys.modules[_NAME] = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_WHOLE)
__all__ = _WHOLE.__all__


def __getattr__(name):
    return getattr(_WHOLE, name)
'''


def written(form: str, name: str, files: Files) -> Files:
    """Return the files to write in a format. `files` are those of the folder format."""
    if form == WHEEL:
        return {f"{name}-{VERSION}-py3-none-any.whl": _wheel(name, files)}
    return _hub(name, files) if form == HUB else files


def mark(form: str, name: str) -> str:
    """Return the file by which an earlier export of this format is recognized in a folder."""
    marks = {FOLDER: f"{name}/manifest.json", HUB: f"{VARIANT}/manifest.json"}
    return marks.get(form, f"{name}-{VERSION}-py3-none-any.whl")


def replaced(form: str, name: str) -> str:
    """Return the part of an earlier export that is deleted first."""
    return {FOLDER: name, HUB: "build"}.get(form, "")


def _wheel(name: str, files: Files) -> bytes:
    """Return a wheel. Equal files give equal wheels."""
    info = f"{name}-{VERSION}.dist-info"
    inside = {path: _bytes(content) for path, content in files.items() if path.startswith(f"{name}/")}
    inside[f"{info}/METADATA"] = METADATA.format(name=name, version=VERSION, readme=_text(files["README.md"])).encode()
    inside[f"{info}/WHEEL"] = TAGS.encode()
    digests = {path: hashlib.sha256(content).digest() for path, content in inside.items()}
    lines = [f"{path},sha256={_unpadded(digest)},{len(inside[path])}" for path, digest in digests.items()]
    inside[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""]).encode()
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in inside.items():
            entry = zipfile.ZipInfo(path)  # a fixed date in 1980, so that the file does not depend on the time
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return whole.getvalue()


def _hub(name: str, files: Files) -> Files:
    """Return the files of a repository of kernels: the package in the variant's folder, with metadata and digests."""
    inside = {path.removeprefix(f"{name}/"): content for path, content in files.items() if path.startswith(f"{name}/")}
    inside[f"{name}/__init__.py"] = OLDER
    digests = {path: hashlib.sha256(_bytes(content)).hexdigest() for path, content in sorted(inside.items())}
    inside["digests.json"] = json.dumps(digests, indent=1) + "\n"
    inside["metadata.json"] = json.dumps({"version": 1, "license": "apache-2.0", "python-depends": []}, indent=1) + "\n"
    return {"README.md": CARD + _text(files["README.md"]), **{f"{VARIANT}/{path}": one for path, one in inside.items()}}


def _text(content: str | bytes) -> str:
    return content.decode() if isinstance(content, bytes) else content


def _bytes(content: str | bytes) -> bytes:
    return content if isinstance(content, bytes) else content.encode()


def _unpadded(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
