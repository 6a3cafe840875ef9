"""Softmax at three workloads of the catalog, to measure the speed of the evaluator."""

from dataclasses import replace

from reference_ops.softmax.softmax import op as softmax

CHOSEN = ("rows=8192 cols=4096 bfloat16", "rows=8192 cols=4096 float32", "rows=4096 cols=16384 bfloat16")

workloads = tuple(workload for workload in softmax.gpu if workload.key in CHOSEN)
op = replace(softmax, name="softmax_at_three", gpu=workloads)
