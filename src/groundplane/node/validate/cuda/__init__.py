"""The CUDA check, `vectorAdd`: adds two vectors on every GPU of the container and compares the sums with the CPU's.

`check` is the check itself, on a :class:`~.model.Cuda`: the driver's (`driverapi`) or that of simulated GPUs
(`simulated`). `main` is the program; the driver's library is used in a child process (`child`), as it may hang or
crash. `results` says what the library's error codes mean. Source: contracts/mig-exporter-validator.md 6.5.
"""
