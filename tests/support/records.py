"""Records that tests fill archives with."""

from archive.kernel import Kernel, parse
from archive.records import DeviceInfo, Evaluation, Measurement, Outcome, Proposal

GPU = DeviceInfo("cuda", "Some GPU", "sm_90a", 132, 232448, copy_gb_s=4000.0, tflops=(("float32", 50.0),))
CPU = DeviceInfo("emulated", "Some CPU", "sm_90a", 4, 232448)


def kernel(number: int = 0, op: str = "softmax") -> Kernel:
    return parse(
        f'/*---\nop = "{op}"\nnote = "number {number}"\n[knobs]\nN = [1, 2, 3]\n[[launch]]\nentry = "f"\n'
        f'grid = [1]\nblock = [32]\nargs = ["x", "out"]\n---*/\nextern "C" __global__ void f() {{}}\n'
    )


def proposal(of: Kernel, *parents: str, operator: str = "knobs", run: str = "run") -> Proposal:
    return Proposal(of.op, operator, "offline", of, parents=parents, run=run, created=1.5)


def failed_reply(text: str = "I cannot.") -> Proposal:
    return Proposal("softmax", "draft", "model", None, reply=text, failure="no kernel in the reply", created=2.5)


def measurement(workload: str, median_us: float, eager_us: float = 100.0) -> Measurement:
    return Measurement(workload, median_us, median_us * 0.9, median_us * 1.1, 9, eager_us, floor_us=10.0)


def passed(kernel_id: str, device: DeviceInfo = GPU, created: float = 1.0, **times: float) -> Evaluation:
    measurements = tuple(measurement(workload, median_us) for workload, median_us in times.items())
    return Evaluation(kernel_id, "softmax", device, Outcome.PASSED, "", measurements, created=created)


def failed(kernel_id: str, outcome: Outcome = Outcome.WRONG, created: float = 1.0) -> Evaluation:
    return Evaluation(kernel_id, "softmax", GPU, outcome, "it is wrong", created=created)
