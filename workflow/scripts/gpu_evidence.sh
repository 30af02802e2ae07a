#!/usr/bin/env bash
# Everything that needs a GPU, on one node, and its small results into reports/reference/<gpu>/.
#
# Call it again until it ends with exit code 0: what is done is not done again while the sources stay as they are, and
# runs that ended are kept. Where a call's length is limited, MINUTES below the limit leaves time to collect.
#
#   STAGE=build|tests|bench|studies|counters|sanitize|collect    one stage alone, also if it is done (default: all of them)
#   MINUTES=N         no stage goes on after N minutes of a call; what there is by then is collected
#   SIZES=small       a few steps of small batches and benchmarks, results below build/small: tries all of it in minutes
#   REHEARSE=1        the same at scale cpu, results below build/rehearsal: tries the script where there is no GPU
#   TESTS=EXPRESSION  the GPU tests by mark (default: gpu); "gpu and not gpu_values" where a device computes nothing
#   PYTHON=...        the interpreter (default: .venv/bin/python if it is there, else python3). Nothing is installed.
#   REPEATS=N         runs per variant (default: as config/workflow.yaml says)
#   STUDIES="a,b:1 c" one after the other; of a,b each round of both comes before the next of either. :N is N runs per
#                     variant. Default: the studies that others refer to, with one run and then with all; then each of
#                     the others. Those that need more GPUs than there are, are left out.
#   COMMIT=...        what the results are of, where the sources are no git checkout
#   ARCHIVE=FILE      also pack the collected folder into FILE (.tar.gz), anew after each stage and each study
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
root=$PWD

python=${PYTHON:-$([ -x .venv/bin/python ] && echo "$root/.venv/bin/python" || echo python3)}
# Absolute, since studies run elsewhere.
more=$(tr : '\n' <<<"${PYTHONPATH:-}" | sed '/^$/d' | xargs -rd '\n' realpath -m | paste -sd:)
export PYTHONPATH="$root/src:$root/ext/giou/python${more:+:$more}"
stage=${STAGE:-all}
[[ " all build tests bench studies counters sanitize collect " == *" $stage "* ]] || { echo "there is no stage $stage" >&2; exit 2; }
[ "${SIZES:-small}" = small ] || { echo "there are no sizes $SIZES: give SIZES=small or none" >&2; exit 2; }
read -r -a wanted <<<"${STUDIES:-}"
commit=${COMMIT:-$(git rev-parse HEAD 2>/dev/null || echo unknown)}
if [ -n "${REHEARSE:-}" ]; then
  scale=cpu device=cpu cuda=auto work="$root/build/rehearsal"
else
  scale=gpu device=cuda cuda=on work="$root${SIZES:+/build/$SIZES}"
  "$python" -c 'import torch; raise SystemExit(None if torch.cuda.is_available() else "no CUDA device: REHEARSE=1 tries the script without")' || exit 2
fi
logs=$work/results/evidence
mkdir -p "$logs"
[ -z "${SIZES:-}" ] || "$python" workflow/scripts/small_studies.py config/study "$work/config/study" || exit 2
export STEPTRACE_GIOU_LIBRARY=${STEPTRACE_GIOU_LIBRARY:-$work/results/extension}
"$python" workflow/scripts/describe_machine.py "$logs/machine.json" --device "$device" || exit 2
deadline=$((SECONDS + $(awk "BEGIN { printf \"%d\", ${MINUTES:-1440} * 60 }")))
# What is built lies among the sources.
sources=$(find src ext bench tests workflow config \( -name __pycache__ -o -name build -o -name '*.egg-info' -o -name '*.so' \) -prune \
  -o -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum)
status=0 running="" limited=""

# A stage that fails does not keep the next ones from running: their results are wanted, and the exit code is 1.
failed() { echo "gpu-evidence: $1 failed" >&2; status=1; }
unfinished() {
  [ -n "$limited" ] || echo "gpu-evidence: the limit of ${MINUTES:-} minutes was reached at: $1. The same call goes on." >&2
  limited=1 status=1
}

collect() {
  "$python" workflow/scripts/evidence.py collect "$work" --scale "$scale" --out "$work/reports/reference" \
    --origin "by \`make gpu-evidence${REHEARSE:+ REHEARSE=1}${SIZES:+ SIZES=$SIZES}\`, commit \`$commit\`" \
    ${ARCHIVE:+--archive "$ARCHIVE"} || failed collect
}

# What a study that was cut off has to show; a moment where none was.
partial() { (cd "$work" && "$python" "$root/workflow/scripts/partial.py") || failed "partial comparison"; }

# There is an archive of everything up to here, whatever comes. A call that has reached its limit collects once, at its end.
after() {
  [ -z "${ARCHIVE:-}" ] || [ -n "$limited" ] || collect
}

# Told to stop, it stops what runs and keeps what there is. In the background, since a trap waits for what is not.
stopped() {
  trap '' TERM INT HUP
  [ -z "$running" ] || { kill -INT "$running"; wait "$running"; }
  echo "gpu-evidence: stopped; what there is, is collected" >&2
  partial
  collect
  exit 1
}
trap stopped TERM INT HUP

tied_to_call=$(command -v setpriv >/dev/null && echo setpriv --pdeathsig INT)

# within SECONDS COMMAND...: 124 if the command took longer, or had to end with the call.
within() {
  local limit=$1 rest=$((deadline - SECONDS)) ended=0
  shift
  [ "$rest" -gt 0 ] || return 124
  # A shell has what it runs in the background ignore SIGINT, and that would be handed down. What a killed call leaves
  # running would keep the next one from the studies.
  env --default-signal=INT $tied_to_call timeout --signal=INT --kill-after=60 "$((limit < rest ? limit : rest))" "$@" &
  running=$!
  wait "$running" || ended=$?
  running=""
  [ "$ended" != 137 ] || ended=124
  return "$ended"
}

# once STAGE FUNCTION: unless it was done on these sources. A stage that failed is done; one cut off by the call is not.
# Each stage but the last needs what `build` makes, and a node that was handed back between two calls has lost it.
once() {
  local wanted=$stage done="$logs/$1.done" ended=0
  [ "$1" != build ] || [[ $stage == @(build|collect) ]] || wanted=all
  [ "$wanted" = all ] || [ "$wanted" = "$1" ] || return 0
  if [ "$wanted" = all ] && [ "$(head -1 "$done" 2>/dev/null)" = "$sources" ]; then
    ended=$(tail -1 "$done")
    [ "$ended" = 0 ] || failed "$1 (in an earlier call; STAGE=$1 tries again)"
    return 0
  fi
  "$2" || ended=$?
  echo "gpu-evidence: $1 ended after $SECONDS s of this call" >&2
  if [ "$SECONDS" -ge "$deadline" ] && [ "$ended" != 0 ]; then
    unfinished "$1"
  else
    [ "$ended" = 0 ] || failed "$1"
    printf '%s\n%s\n' "$sources" "$ended" >"$done"
  fi
  after
}

# The reader of traces works without its compiled parts, only slower, and excerpts are made when a call's time is over.
build() {
  # Compiles only what is newer than what is there.
  within 60 "$python" setup.py --quiet build_ext --inplace >&2 || echo "gpu-evidence: traces are read without compiled code" >&2
  within 300 "$python" -m steptrace_giou.build --out "$work/results/extension" --cuda "$cuda"
}

tests() {
  # Only the files with such tests: the others may import what a node does not have.
  local files
  mapfile -t files < <(grep -rlE 'mark\.gpu' tests --include='test_*.py' | sort)
  within 400 "$python" -m pytest -p no:cacheprovider -q -m "${TESTS:-gpu}" "${files[@]}" > >(tee "$logs/tests.txt") 2>&1
}

sanitize() {
  local sanitizer tool ended=0
  sanitizer=$(command -v compute-sanitizer || command -v "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer" || true)
  if [ -n "${REHEARSE:-}" ] || [ -z "$sanitizer" ]; then
    echo "compute-sanitizer: not run (rehearsal, or the tool is not on this machine)" | tee "$logs/sanitize.txt"
    return 0
  fi
  for tool in memcheck racecheck; do
    # The extension's kernels alone; without the tests whose sizes or compiler would take minutes under it.
    within 240 "$sanitizer" --tool "$tool" --kernel-name kns=giou --report-api-errors no --error-exitcode 9 \
      "$python" -m pytest -p no:cacheprovider -q -m gpu tests/ext/test_giou_gpu.py \
      -k 'not compiled and not int32 and not opcheck' > >(tee "$logs/$tool.txt") 2>&1 || { ended=$?; echo "$tool: $ended" >&2; }
  done
  return "$ended"
}

# The loss by itself: at the article's size, where everything fits the cache, and up to 64 times that, where a batch is in
# no cache when its turn comes. The slow stages are left out of the large ones.
bench() {
  local dtype ended=0 small=(--sizes 1024x256) large=(--sizes 4096x256 16384x256 65536x256 --cold)
  large+=(--only padding compiled kernel kernel_conditional fused triton)
  if [ -n "${REHEARSE:-}${SIZES:-}" ]; then
    small=(--sizes 8x64 --only loop padding fused --repeats 3 --sample-ms 1) large=("${small[@]}" --cold)
  fi
  for dtype in float32 bfloat16; do
    within 200 "$python" bench/giou.py --device "$device" --predictions "$dtype" "${small[@]}" \
      --json "$logs/giou_article_$dtype.json" || ended=$?
    within 200 "$python" bench/giou.py --device "$device" --predictions "$dtype" "${large[@]}" \
      --json "$logs/giou_large_$dtype.json" || ended=$?
  done
  within 100 "$python" bench/capture.py --device "$device" --json "$logs/capture.json" || ended=$?
  return "$ended"
}

# What bounds the kernels that the benchmark timed. A node may keep its counters to itself, which is no failure of ours.
counters() {
  local dtype
  if [ -n "${REHEARSE:-}" ]; then
    echo "hardware counters: not read (rehearsal)" | tee "$logs/counters.txt"
    return 0
  fi
  for dtype in float32 bfloat16; do
    within 120 "$python" bench/giou_counters.py --predictions "$dtype" --json "$logs/counters_$dtype.json" \
      > >(tee "$logs/counters_$dtype.txt") 2>&1
  done
  return 0
}

# Entry by entry, so that a call that is cut off leaves whole studies; of the one it was in, what there is.
studies() {
  local entry names repeats ended
  mapfile -t chosen < <("$python" workflow/scripts/evidence.py studies "$work" --scale "$scale" --studies "${wanted[@]}" \
    2> >(tee "$logs/left_out.txt" >&2))
  [ -n "${chosen[*]}" ] || { failed studies; return; }
  for entry in "${chosen[@]}"; do
    names=${entry%%:*} repeats=${REPEATS:-} ended=0
    [[ $entry != *:* ]] || repeats=${entry##*:}
    within 86400 "$python" -m snakemake --cores all --directory "$work" --snakefile "$root/Snakefile" \
      --config "studies=[$names]" "scale=$scale" ${repeats:+"repeats=$repeats"} || ended=$?
    echo "gpu-evidence: $entry ended after $SECONDS s of this call" >&2
    [ "$SECONDS" -lt "$deadline" ] || [ "$ended" = 0 ] || { unfinished "study $names"; partial; after; return; }
    [ "$ended" = 0 ] || failed "study $names"
    after
  done
}

once build build
once tests tests
once bench bench
if [ "$stage" = all ] || [ "$stage" = studies ]; then studies; fi  # Snakemake knows what is done
once counters counters
once sanitize sanitize
if [ -n "$limited" ] || [ "$stage" = collect ] || { [ "$stage" = all ] && [ -z "${ARCHIVE:-}" ]; }; then collect; fi
exit "$status"
