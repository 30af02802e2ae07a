"""verdict.py write COMPARISON... --gates JSON --out FILE | verdict.py enforce FILE"""

import argparse
import json
import sys
from pathlib import Path

from steptrace.verdict import explain, judge

parser = argparse.ArgumentParser()
parser.add_argument("what", choices=("write", "enforce"))
parser.add_argument("files", nargs="*", type=Path)
parser.add_argument("--gates", type=json.loads, default={})
parser.add_argument("--out", type=Path)
options = parser.parse_args()

documents = [json.loads(path.read_text(encoding="utf-8")) for path in options.files]
if options.what == "write":
    verdict = judge(documents, options.gates)
    options.out.write_text(json.dumps(verdict, indent=2) + "\n", encoding="utf-8")
else:
    print(explain(documents[0]))
    sys.exit(documents[0]["status"] != "pass")
