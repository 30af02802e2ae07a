"""GIoU loss over padded boxes as one fused, differentiable operator, with a twin in plain PyTorch.

`steptrace_giou.ops` holds the functions to call, `steptrace_giou.reference` the twin, `steptrace_giou.build` the
compiler's side. Importing this package itself loads nothing.
"""
