"""The kernels that torch.compile would generate for a program on a GPU, found without one.

Dynamo traces the program with fake tensors of the virtual device and reports graph breaks. AOTAutograd and Inductor's
passes turn the result into forward and backward graphs (`steptrace.predict.captured`). `lower` moves the graphs to CUDA
and asks Inductor's scheduler which kernels it would launch on the named GPU. It generates no code, so it does not need
Triton.
"""
