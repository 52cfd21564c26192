#!/usr/bin/env bash
# What points of the curves in docs/baselines.md cost that have no time yet: their runs made anew, then timed in turns.
# Usage: curve-costs.sh [FOLDER]; adds to FOLDER/baselines-srcd.json.
set -euo pipefail
torchcram=${TORCHCRAM:-torchcram}
device=${DEVICE:-cuda}
out=${1:-results}
runs=runs/curve-costs
common=(--preset medium --device "$device" --rows 512 --set evaluate_every=200 --set bf16=true)
mkdir -p "$out/parts"

sweep() { # NAME WORDS...
    local name=$1
    shift
    test -e "$out/parts/curve-$name.json" ||
        $torchcram sweep srcd "${common[@]}" --out "$runs/$name" "$@" --json "$out/parts/curve-$name.json"
}
prices=(--set optimizer.rate=1e-3 --vary consolidation.price=0.01,0.2,0.8)
sweep cram --workers 3 --model cram "${prices[@]}"
sweep gate --workers 3 --model gate "${prices[@]}"
sweep entropy --workers 1 --model entropy --set seed=1 --set optimizer.rate=1e-3 --vary model.deviations=2
sweep boat --workers 1 --model seqboat+cost --set optimizer.rate=5e-4 --vary model.attention.window=1024 --vary model.cost=0.05

$torchcram bench steps "$runs"/cram/*/ "$runs"/gate/*/ "$runs"/entropy/*/ "$runs"/boat/*/ --device "$device" \
    --json "$out/parts/curve-costs.json"
$torchcram collect "timed=$out/parts/curve-cram.json" "timed=$out/parts/curve-gate.json" \
    "timed=$out/parts/curve-entropy.json" "timed=$out/parts/curve-boat.json" "cost=$out/parts/curve-costs.json" \
    --onto "$out/baselines-srcd.json" --out "$out/baselines-srcd.json"
