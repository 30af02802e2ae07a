"""How long each fake takes: as many seconds as the file `pace` of the working directory says."""

import time
from pathlib import Path


def wait():
    file = Path("pace")
    time.sleep(float(file.read_text()) if file.exists() else 0)
