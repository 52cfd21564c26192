#!/usr/bin/env bash
# Experiments of the paper on a GPU that is there for a short time only: as far as SECONDS allow, packed at the end, and
# on from there the next time. Rows are made anywhere afterwards, from what was packed (see README.md).
# Usage: paper.sh SECONDS [WORKERS…]. SECONDS: the whole of it, packing included. WORKERS: runs at a time (12), of each
# pool in turn.
# From the environment: IN (folder with what comes in, `carry`), OUT (for what goes out, `packed`), NAME (all, or
# experiments, the most important first; those joined by + share a pool, pools work side by side: "transfer
# theory+frontier"), SCALE (gpu), DEVICE, GRACE (seconds kept for stopping, timing and packing), MPS=0 (do not start CUDA
# MPS), TORCHCRAM_COMMIT. In IN, if there: paper-runs.part-* and triton.tgz (what went out before), texts/novels-*.txt.xz,
# physionet2012 and uci_batteryless_hop (transfer to and from time series, last of all; left out without them).
begin=$(date +%s)
in=${IN:-carry} OUT=${OUT:-packed}
say() { echo "[$(( $(date +%s) - begin ))] $*"; }
limit=$1; shift
workers=(${@:-12}) pools=(${NAME:-all}) scale=${SCALE:-gpu} grace=${GRACE:-60} out=runs/paper python=${PYTHON:-python}
export PYTHONPATH=src PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-/tmp/triton-cache}
export TORCHCRAM_COMMIT=${TORCHCRAM_COMMIT:-$(git describe --always --abbrev=12 --dirty=+ --exclude='*' 2>/dev/null || echo unknown)}
device=(); [ -n "$DEVICE" ] && device=(--device "$DEVICE")
mkdir -p $out runs/texts "$TRITON_CACHE_DIR"
if ls $in/paper-runs.part-* >/dev/null 2>&1; then cat $in/paper-runs.part-* | tar xz --skip-old-files && say "unpacked an earlier call"; fi
[ -f $in/triton.tgz ] && tar xzf $in/triton.tgz -C "$TRITON_CACHE_DIR" && say "unpacked compiled kernels"
data=()
for each in text:novels-train text-held-out:novels-heldout; do
  file=runs/texts/${each#*:}.txt
  [ -f $file ] || [ ! -f $in/texts/${each#*:}.txt.xz ] ||
    $python -c "import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), open(sys.argv[2], 'wb'))" $in/texts/${each#*:}.txt.xz $file
  [ -f $file ] && data+=(--data ${each%:*}=$file)
done
for each in p12:physionet2012 wearable:uci_batteryless_hop; do
  [ -d $in/${each#*:} ] && mkdir -p runs/data && cp -rn $in/${each#*:} runs/data/
  [ -d runs/data/${each#*:} ] && data+=(--data ${each%:*}=runs/data/${each#*:}) &&
    ($python -c "import sys; from pathlib import Path; from torchcram.timeseries import datasets; datasets.split(sys.argv[1], sys.argv[2], kept=Path('$out/data'))" ${each%:*} runs/data/${each#*:} >/dev/null 2>&1 &)
done
if [ "${MPS:-1}" = 1 ] && command -v nvidia-cuda-mps-control >/dev/null && ! pgrep -f nvidia-cuda-mps-control >/dev/null; then
  export CUDA_MPS_PIPE_DIRECTORY=/tmp/mps CUDA_MPS_LOG_DIRECTORY=/tmp/mps-log
  mkdir -p /tmp/mps /tmp/mps-log; nvidia-cuda-mps-control -d && say "CUDA MPS is on" && mps=1
fi
left=$(( limit - ($(date +%s) - begin) - grace ))
[ $left -gt 0 ] || left=1
train() { # POOL WORKERS
  timeout -s TERM -k $(( grace * 2 / 3 )) $left $python -m torchcram reproduce ${1//+/ } --scale $scale --train-only --workers $2 --out $out "${device[@]}" "${data[@]}" 2>&1 | tee -a "$out/train-$1.log" |
    grep --line-buffered -E '^[0-9]*[05]/|^(p12|wearable)-|fail|not done|stop|rror|left out' | while read -r line; do say "$1: $line"; done
  say "$1: trained, or stopped (status ${PIPESTATUS[0]})"
}
say "training for at most $left s at $scale, ${data[*]}"
for i in "${!pools[@]}"; do
  many=${workers[i]:-${workers[-1]}}
  say "${pools[i]}: $many runs at a time"
  train "${pools[i]}" $many &
  training+=($!)
done
wait "${training[@]}"
grep -h -m1 -A3 "Traceback" $out/runs/*/*.log 2>/dev/null | head -20
words=(); for each in "${data[@]}"; do [ "$each" = --data ] || words+=("$each"); done
$python experiments/packing.py $out $scale "$(IFS=+; echo "${pools[*]}")" "${words[@]}" > /tmp/kept.txt
say "packing $(wc -l < /tmp/kept.txt) files"
mkdir -p "$OUT"
gz=gzip; command -v pigz >/dev/null && gz=pigz
tar c -T /tmp/kept.txt $out/train-*.log | $gz -6 | split -b 15M - "$OUT/paper-runs.part-"
mkdir -p /tmp/failed; for log in $out/runs/*/*.log; do d=${log%.log}; [ -f "$d/row.json" ] || tail -c 3000 "$log" > "/tmp/failed/$(echo ${log#$out/runs/} | tr / _ )"; done 2>/dev/null
tar czf "$OUT/paper-logs.tgz" -C /tmp failed
(cd "$TRITON_CACHE_DIR" && tar cz .) > /tmp/triton.tgz; [ $(stat -c %s /tmp/triton.tgz) -lt 15000000 ] && cp /tmp/triton.tgz "$OUT/triton.tgz"
[ -n "$mps" ] && echo quit | nvidia-cuda-mps-control
ls -l "$OUT"; say done
