"""small_studies.py FROM TO: the studies of a folder in small sizes at scale gpu, for trying everything in minutes.

What a GPU gets in another size than a CPU gets the CPU's, and few steps; all else of scale gpu stays.
"""

import sys
from pathlib import Path
from typing import Final

import yaml

SIZES: Final = (
    *("data.batch_size", "data.dataset.image_size", "data.dataset.crop", "data.dataset.length"),
    *("model.hidden", "model.width", "model.blocks", "model.heads"),
    *("scale.warmup_steps", "scale.timed_steps", "scale.memory_limit_mb"),
)

source, target = map(Path, sys.argv[1:])
target.mkdir(parents=True, exist_ok=True)
for file in source.glob("*.yaml"):
    study = yaml.safe_load(file.read_text(encoding="utf-8"))
    at = {scale: dict(override.split("=", 1) for override in study["scales"][scale]) for scale in ("cpu", "gpu")}
    sizes = {key: value for key, value in at["cpu"].items() if key in SIZES}
    kept = {key: value for key, value in at["gpu"].items() if key not in SIZES}
    small = kept | sizes | {"scale.warmup_steps": "2", "scale.timed_steps": "8"}
    study["scales"]["gpu"] = [f"{key}={value}" for key, value in small.items()]
    text = yaml.safe_dump(study, allow_unicode=True, sort_keys=False)
    if not (target / file.name).is_file() or (target / file.name).read_text(encoding="utf-8") != text:
        (target / file.name).write_text(text, encoding="utf-8")
