"""Rules of torchvision's operators (paths are below its repository). Other versions than those read may differ."""

from steptrace.predict.rule import Call, Rule, never

_CUDA = "torchvision/csrc/ops/cuda"


def _boxes(call: Call) -> int:
    return int(call["dets"].numel() > 0)


TORCHVISION: tuple[Rule, ...] = (
    Rule(
        "torchvision::nms", "d2h_copy", _boxes, f"{_CUDA}/nms_kernel.cu", "the host must know how many boxes are kept"
    ),
    *(
        Rule(f"torchvision::{op}", "d2h_copy", never, _CUDA, "kernels only")
        for name in ("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d")
        for op in (name, f"_{name}_backward")
    ),
)
