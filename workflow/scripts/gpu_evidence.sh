#!/usr/bin/env bash
# Everything that needs a GPU, on one node, and its small results into reports/reference/<gpu>/.
#
#   STAGE=build|tests|sanitize|studies|collect    one stage alone (default: all). Each can be repeated: Snakemake and the
#                                                 compiler resume, so stages fit calls of limited length.
#   MINUTES=N         stop the studies after N minutes; what is compared by then can be collected, and a call goes on
#   REHEARSE=1        the same at scale cpu, results below build/rehearsal: tries the script where there is no GPU
#   PYTHON=...        the interpreter (default: .venv/bin/python if it is there, else python3). Nothing is installed.
#   REPEATS=N         runs per variant (default: as config/workflow.yaml says)
#   STUDIES="a b"     default: every study of config/study, the ones that others refer to first
#   COMMIT=...        what the results are of, where the sources are no git checkout
#   ARCHIVE=FILE      also pack the collected folder into FILE (.tar.gz)
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD

python=${PYTHON:-$([ -x .venv/bin/python ] && echo "$root/.venv/bin/python" || echo python3)}
# Absolute, since studies and notebooks run elsewhere.
more=$(tr : '\n' <<<"${PYTHONPATH:-}" | sed '/^$/d' | xargs -rd '\n' realpath -m | paste -sd:)
export PYTHONPATH="$root/src:$root/ext/giou/python${more:+:$more}"
stage=${STAGE:-all}
[[ " all build tests sanitize studies collect " == *" $stage "* ]] || { echo "there is no stage $stage" >&2; exit 2; }
first="masked_loss giou"
rest=$(find config/study -name '*.yaml' -printf '%f\n' | sed 's/\.yaml$//' | sort | grep -vxF "${first// /$'\n'}" || true)
chosen=${STUDIES:-$first ${rest//$'\n'/ }}
read -r -a studies <<<"${chosen//[\[\],]/ }"
commit=${COMMIT:-$(git rev-parse HEAD 2>/dev/null || echo unknown)}
if [ -n "${REHEARSE:-}" ]; then
  scale=cpu cuda=auto work="$root/build/rehearsal"
else
  scale=gpu cuda=on work="$root"
  "$python" -c 'import torch; raise SystemExit(None if torch.cuda.is_available() else "no CUDA device: REHEARSE=1 tries the script without")'
fi
logs=$work/results/evidence
mkdir -p "$logs"
export STEPTRACE_GIOU_LIBRARY=${STEPTRACE_GIOU_LIBRARY:-$work/results/extension}
status=0

runs() { [ "$stage" = all ] || [ "$stage" = "$1" ]; }
# A stage that fails does not keep the next ones from running: their results are wanted, and the exit code is 1.
failed() { echo "gpu-evidence: $1 failed" >&2; status=1; }
# Only the files with such tests: the others may import what a node does not have.
tests() { grep -rlE 'mark\.gpu' tests --include='test_*.py' | sort; }

if runs build; then
  "$python" -m steptrace_giou.build --out "$work/results/extension" --cuda "$cuda" || failed build
fi

if runs tests; then
  mapfile -t files < <(tests)
  "$python" -m pytest -p no:cacheprovider -q -m gpu "${files[@]}" 2>&1 | tee "$logs/tests.txt" || failed tests
fi

if runs sanitize; then
  sanitizer=$(command -v compute-sanitizer || command -v "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer" || true)
  if [ -n "${REHEARSE:-}" ] || [ -z "$sanitizer" ]; then
    echo "compute-sanitizer: not run (rehearsal, or the tool is not on this machine)" | tee "$logs/sanitize.txt"
  else
    for tool in memcheck racecheck; do
      # The extension's kernels alone; without the tests whose sizes or compiler would take minutes under it.
      timeout 240 "$sanitizer" --tool "$tool" --kernel-name kns=giou --report-api-errors no --error-exitcode 9 \
        "$python" -m pytest -p no:cacheprovider -q -m gpu tests/ext/test_giou_gpu.py \
        -k 'not compiled and not int32 and not opcheck' 2>&1 | tee "$logs/$tool.txt" || failed "$tool"
    done
  fi
fi

# Study by study, so that an interrupted call leaves whole ones; the last call joins them in one index and verdict.
if runs studies; then
  deadline=$((SECONDS + ${MINUTES:-1440} * 60))
  for names in "${studies[@]}" "$(IFS=,; echo "${studies[*]}")"; do
    ended=124
    [ "$SECONDS" -ge "$deadline" ] || {
      ended=0
      timeout --signal=INT --kill-after=60 "$((deadline - SECONDS))" \
        "$python" -m snakemake --cores all --directory "$work" --snakefile "$root/Snakefile" \
        --config "studies=[$names]" "scale=$scale" ${REPEATS:+"repeats=$REPEATS"} || ended=$?
    }
    [ "$ended" != 124 ] || { failed "the limit of $MINUTES minutes was reached (the same call goes on): study $names"; break; }
    [ "$ended" = 0 ] || failed "study $names"
  done
fi

if runs collect; then
  "$python" workflow/scripts/collect_evidence.py "$work" --scale "$scale" --out "$work/reports/reference" \
    --commit "$commit" --command "make gpu-evidence${REHEARSE:+ REHEARSE=1}" ${ARCHIVE:+--archive "$ARCHIVE"} || failed collect
fi
exit "$status"
