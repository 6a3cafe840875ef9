"""What an engine and its worker say to each other: one JSON object a line."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from archive.records import DeviceInfo, Evaluation, Measurement, Outcome, Resources


@dataclass(frozen=True)
class Ready:
    """The worker holds its device and waits for jobs."""

    device: DeviceInfo


@dataclass(frozen=True)
class Phase:
    """The worker begins a phase of the job in hand, which has a deadline of its own."""

    name: str


@dataclass(frozen=True)
class Done:
    """The verdict on the job in hand. `leaving` says that the worker must be replaced before the next."""

    evaluation: Evaluation
    leaving: bool


@dataclass(frozen=True)
class Failed:
    """A fault of ours or of the user's, not of the kernel."""

    message: str
    hint: str = ""


Message = Ready | Phase | Done | Failed


def encode(message: Message) -> bytes:
    return json.dumps({"type": type(message).__name__, **asdict(message)}).encode() + b"\n"


def decode(line: bytes) -> Message:
    fields = json.loads(line)
    match fields.pop("type"):
        case "Ready":
            return Ready(_device(fields["device"]))
        case "Phase":
            return Phase(**fields)
        case "Done":
            return Done(_evaluation(fields["evaluation"]), fields["leaving"])
        case "Failed":
            return Failed(**fields)
        case other:
            raise ValueError(f"no message of type {other}")


def encode_job(text: str, op: str) -> bytes:
    return json.dumps({"kernel": text, "op": op}).encode() + b"\n"


def decode_job(line: bytes) -> tuple[str, str]:
    fields = json.loads(line)
    return fields["kernel"], fields["op"]


def _device(fields: dict[str, Any]) -> DeviceInfo:
    return DeviceInfo(**{**fields, "tflops": tuple((dtype, rate) for dtype, rate in fields["tflops"])})


def _evaluation(fields: dict[str, Any]) -> Evaluation:
    return Evaluation(
        **{
            **fields,
            "device": _device(fields["device"]),
            "outcome": Outcome(fields["outcome"]),
            "measurements": tuple(Measurement(**measurement) for measurement in fields["measurements"]),
            "skipped": tuple(fields["skipped"]),
            "resources": tuple(Resources(**resources) for resources in fields["resources"]),
        }
    )
