#!/usr/bin/env bash
# SRCD at the paper's size: CRAM and the paper's other systems, how they do at other lengths, what their steps cost, and
# how long training took until the task was solved.
# Usage: paper-scale.sh [FOLDER]; runs go to runs/paper-scale, and on from there when called again. STEPS and SEEDS
# make it smaller.
set -euo pipefail
torchcram=${TORCHCRAM:-torchcram}
device=${DEVICE:-cuda}
out=${1:-results}
runs=runs/paper-scale
steps=${STEPS:-10000}
seeds=${SEEDS:-0,1,2}
common=(--preset large --device "$device" --rows 128 --set bf16=true --set compile=true --set "steps=$steps")
mkdir -p "$out/parts"

$torchcram sweep srcd "${common[@]}" --workers 1 --out "$runs/cram" --vary "seed=$seeds" --json "$out/srcd-paper.json"
$torchcram sweep srcd "${common[@]}" --workers 1 --out "$runs/others" --vary model=transformer,jamba,mamba,seqboat \
    --json "$out/parts/others.json"
$torchcram collect "final=$out/srcd-paper.json" "final=$out/parts/others.json" --out "$out/baselines-srcd-paper.json" \
    --setting "the paper's size: width 512, 8 layers, 2048 positions, $steps steps of 32 sequences"

first="$runs/cram/seed=${seeds%%,*}"
transformer="$runs/others/model=transformer"
$torchcram bench steps "$first" "$transformer" --compile --device "$device" --json "$out/bench-runs.json"
$torchcram bench quality "$runs"/cram/seed=*/ "$transformer" --json "$out/bench-quality.json"

files=()
evaluate() { # NAME RUN LENGTH ROWS WORDS...
    local file="$out/parts/length-$1-$3.json" run=$2 length=$3 rows=$4
    shift 4
    test -e "$file" ||
        $torchcram evaluate "$run" --device "$device" --rows "$rows" --set "task.length=$length" "$@" --json "$file"
    files+=("$file")
}
for pair in 2048:64 8192:16 32768:8 131072:4; do
    length=${pair%:*} rows=${pair#*:}
    evaluate transformer "$transformer" "$length" "$rows"
    for slots in 512 2048 4096; do
        evaluate "cram-$slots" "$first" "$length" "$rows" --set "model.episodic.slots=$slots"
    done
done
$torchcram join "${files[@]}" --out "$out/srcd-length-paper.json"
