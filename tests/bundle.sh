#!/usr/bin/env bash
# Runs the kernel tests and a short training, on a machine without Rust:
#   run.sh                      everything
#   run.sh sanitize [FILTER…]   every test, or those named, under each tool of compute-sanitizer; called again, it goes on
#                               where it was stopped
#   run.sh bench                times: every kernel, the workloads, what users would call instead, and a table of all
#   run.sh peer                 the model against PyTorch, number by number, in f32 and f64; $OUT/peer-*.json has all figures
#
# UNIO_TEST_DEVICE   cuda (default) or emulator
# UNIO_NVRTC_DIR     the folder of libnvrtc, where it is not found by itself
# OUT                folder for results (default: out)
# PYTHON             python with PyTorch and numpy, for `peer` (default: python3)
# LIMIT              seconds that one program may take (default: 900)
# LANES              how many tests compute-sanitizer watches side by side (default: 8)
# COMMIT             what the table says it was made from (default: what the bundle was made from)
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${OUT:-out}"
out=$(cd "${OUT:-out}" && pwd)
limit=${LIMIT:-900}
export UNIO_TEST_DEVICE=${UNIO_TEST_DEVICE:-cuda}
export UNIO_TEST_FIXTURES=$here/tests/fixtures
: >"$out/summary.txt"
failed=0

# NVRTC that came as a Python package is in no folder that a loader searches.
packaged_nvrtc() {
    python3 - <<'PYTHON' 2>/dev/null
import glob, sys
found = [p for d in sys.path for p in glob.glob(d + "/nvidia/*/lib/libnvrtc.so*")]
print(found[0].rsplit("/", 1)[0] if found else "")
PYTHON
}

# Runs a command, with its output in a log, and notes how it ended.
step() {
    local name=$1 began=$SECONDS status=0
    shift
    timeout "$limit" "$@" >"$out/$name.log" 2>&1 || status=$?
    local words=ok
    if [ "$status" -eq 124 ]; then
        words="stopped after $limit s"
    elif [ "$status" -ne 0 ]; then
        words="failed with $status"
    fi
    [ "$status" -eq 0 ] || failed=1
    printf '%-22s %s (%d s)\n' "$name" "$words" "$((SECONDS - began))" | tee -a "$out/summary.txt"
    # What a passing test printed is in the log; of a failing one the end is shown.
    [ "$status" -eq 0 ] || tail -n 40 "$out/$name.log"
}

everything() {
    for program in "$here"/bin/test-*; do
        step "$(basename "$program")" "$program" --nocapture
    done
    step train "$here/bin/trainer" train "$here/specs/runs/sp500.toml" --device "$UNIO_TEST_DEVICE" \
        --epochs 1 --folds 1 --out "$out/train"
}

# One test under one tool. A test that launches nothing leaves the tool nothing to watch, which it calls a failure.
watch() {
    local tool=$1 program=$2 test=$3 status=0
    local log=$watched/$tool-$program-${test//::/-}.log
    timeout "$limit" "$sanitizer" --tool "$tool" --error-exitcode 1 \
        "$here/bin/$program" --test-threads 1 --exact "$test" >"$log" 2>&1 || status=$?
    if grep -q '^test result: ok' "$log" && grep -q 'before first instrumented API call' "$log"; then
        status=0
    fi
    if [ "$status" -eq 0 ]; then
        echo "$*" >>"$watched/passed.txt"
    else
        echo "$* failed with $status: $log"
    fi
}

# Tool, program and test of each job, the slowest tool first. Tests that run only when asked for are measurements.
watches() {
    local tool program ignored
    for tool in racecheck memcheck initcheck synccheck; do
        for program in "$here"/bin/test-*; do
            ignored=$("$program" --list --ignored 2>/dev/null)
            "$program" --list "$@" 2>/dev/null | grep ': test$' | grep -vxF "$ignored" |
                sed "s/^/$tool $(basename "$program") /; s/: test$//"
        done
    done
}

sanitize() {
    sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
    if [ ! -x "$sanitizer" ]; then
        echo "error: no compute-sanitizer on the PATH nor in /usr/local/cuda/bin: install the CUDA toolkit" >&2
        exit 2
    fi
    # Compiled once, and not by each job.
    step kernels "$here/bin/test-kernels" "$@"
    # Other programs start anew.
    watched=$out/sanitize-$(cat "$here"/bin/test-* | cksum | cut -d ' ' -f 1)
    mkdir -p "$watched"
    touch "$watched/passed.txt"
    export UNIO_TEST_WATCHED=1 sanitizer watched here limit
    export -f watch
    watches "$@" >"$watched/jobs.txt"
    grep -vxFf "$watched/passed.txt" "$watched/jobs.txt" |
        xargs -r -P "${LANES:-8}" -L 1 bash -c 'watch "$@"' watch | tee -a "$out/summary.txt"
    local tool all passed
    for tool in racecheck memcheck initcheck synccheck; do
        all=$(grep -c "^$tool " "$watched/jobs.txt")
        passed=$(grep "^$tool " "$watched/jobs.txt" | grep -cxFf "$watched/passed.txt")
        [ "$passed" -eq "$all" ] && [ "$all" -gt 0 ] || failed=1
        printf '%-22s %s of %s tests without an error\n' "$tool" "$passed" "$all" | tee -a "$out/summary.txt"
    done
}

# Leaves kernels.json, timing.jsonl, peers.jsonl and table.md.
bench() {
    local commit=${COMMIT:-$(cat "$here/commit.txt" 2>/dev/null || echo unknown)}
    rm -f "$out/timing.jsonl"
    # Standard output is the report, so that it has a file of its own.
    step kernels bash -c '"$1" bench --format json --device "$2" >"$3"' bench \
        "$here/bin/trainer" "$UNIO_TEST_DEVICE" "$out/kernels.json"
    UNIO_BENCH_OUT=$out/timing.jsonl step timing "$here/bin/test-kernels" --ignored timing:: --test-threads 1 --nocapture
    step peers python3 "$here/tests/peers/bench_torch.py" --ours "$out/timing.jsonl" --kernels "$out/kernels.json" \
        --json "$out/peers.jsonl" --out "$out/table.md" --commit "$commit" --date "$(date +%F)"
}

# The device as PyTorch calls it.
torch_device() {
    case $UNIO_TEST_DEVICE in
    emulator) echo cpu ;;
    *) echo cuda ;;
    esac
}

peer() {
    local name
    UNIO_PEER_OUT=$out/blocks step blocks "$here/bin/test-kernels" --ignored for_pytorch
    step peer-blocks "${PYTHON:-python3}" "$here/tests/peers/blocks_torch.py" "$out/blocks"
    for real in f64 f32; do
        step "trace-$real" "$here/bin/trainer" trace "$here/specs/runs/sp500.toml" --device "$UNIO_TEST_DEVICE" \
            --real "$real" --out "$out/trace-$real"
        for corrections in own trace; do
            name=peer-$real-$corrections
            step "$name" "${PYTHON:-python3}" "$here/tests/peers/perception_torch.py" "$out/trace-$real" \
                --device "$(torch_device)" --corrections "$corrections" --json "$out/$name.json"
            # The largest differences, also where all is well.
            sed -n '/^largest of/,$p' "$out/$name.log"
        done
    done
}

if [ -z "${UNIO_NVRTC_DIR:-}" ]; then
    UNIO_NVRTC_DIR=$(packaged_nvrtc)
    export UNIO_NVRTC_DIR
fi
case ${1:-} in
'') everything ;;
sanitize)
    shift
    sanitize "$@"
    ;;
bench) bench ;;
peer) peer ;;
*)
    echo "usage: run.sh [sanitize [FILTER…] | bench | peer]" >&2
    exit 2
    ;;
esac
exit "$failed"
