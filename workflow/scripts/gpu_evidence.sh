#!/usr/bin/env bash
# Everything that needs a GPU, on one node, and its small results into reports/reference/<gpu>/.
#
#   STAGE=build|tests|sanitize|studies|collect    one stage alone (default: all). Each can be repeated: Snakemake and the
#                                                 compiler resume, so stages fit calls of limited length.
#   REHEARSE=1        the same at scale cpu, results below build/rehearsal: tries the script where there is no GPU
#   PYTHON=...        the interpreter (default: .venv/bin/python if it is there, else python3). Nothing is installed.
#   STUDIES=[...]     default: every study of config/study
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD

python=${PYTHON:-$([ -x .venv/bin/python ] && echo "$root/.venv/bin/python" || echo python3)}
export PYTHONPATH="$root/src:$root/ext/giou/python${PYTHONPATH:+:$PYTHONPATH}"
stage=${STAGE:-all}
studies=${STUDIES:-[$(find config/study -name '*.yaml' -printf '%f\n' | sed 's/\.yaml$//' | sort | paste -sd,)]}
if [ -n "${REHEARSE:-}" ]; then
  scale=cpu cuda=off work="$root/build/rehearsal" marker="not gpu" only="tests/ext/test_giou_library.py"
else
  scale=gpu cuda=on work="$root" marker=gpu only="tests"
fi
mkdir -p "$work"
export STEPTRACE_GIOU_LIBRARY=${STEPTRACE_GIOU_LIBRARY:-$work/results/extension}

runs() { [ "$stage" = all ] || [ "$stage" = "$1" ]; }

if runs build; then
  "$python" -m steptrace_giou.build --out "$work/results/extension" --cuda "$cuda"
fi

if runs tests; then
  "$python" -m pytest -p no:cacheprovider -m "$marker" $only
fi

if runs sanitize; then
  if [ -n "${REHEARSE:-}" ] || ! command -v compute-sanitizer >/dev/null; then
    echo "compute-sanitizer: not run (rehearsal, or the tool is not on this machine)"
  else
    for tool in memcheck racecheck; do
      compute-sanitizer --tool "$tool" --error-exitcode 9 \
        "$python" -m pytest -p no:cacheprovider -q -m gpu tests/ext/test_giou_gpu.py
    done
  fi
fi

if runs studies; then
  # A failed variant is a result, and its page is wanted; the verdict's exit code is reported at the end.
  "$python" -m snakemake --cores all --directory "$work" --snakefile "$root/Snakefile" \
    --config "studies=$studies" "scale=$scale" || echo "the studies ended with exit code $?: see results/verdict.json"
fi

if runs collect; then
  "$python" workflow/scripts/collect_evidence.py "$work" --scale "$scale" --out "$work/reports/reference" \
    --command "$(basename "$0")${REHEARSE:+ (rehearsal at scale cpu)}"
fi
