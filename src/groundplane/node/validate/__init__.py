"""`nvidia-validator`: proves that a node's driver, toolkit, CUDA, device plugin and the rest work, layer by layer.

Source: contracts/mig-exporter-validator.md 6. `main` is the program, `components` the table of what can be validated
and how one is run; `driver`, `layers`, `sandbox` and `workload` are the checks, `status` the files that other operands
wait for, `exporter` the node-status exporter. The CUDA check, a program of its own, is in `cuda`.
"""
