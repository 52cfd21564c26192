#!/usr/bin/env bash
# The tables of time series: all models on PhysioNet 2012, wearable sensors and activity, as far as LIMIT seconds allow; what
# was finished is kept, and the next call goes on with it. For one GPU and many cores.
# Usage: timeseries.sh [FOLDER]; FOLDER (`packed`) gets timeseries-*.json and state.tar, which a call on another machine goes
# on with as IN/state.tar. From the environment: IN (`carry`: folder with physionet2012, uci_batteryless_hop,
# uci_person_activity), STAGES, LIMIT, WORKERS (processes), MEMBERS, EPOCHS, SPLITS, DEVICE, PYTHON.
set -u
OUT=${1:-packed}
IN=${IN:-carry}
LIMIT=${LIMIT:-540}
WORKERS=${WORKERS:-14}
MEMBERS=${MEMBERS:-5}
EPOCHS=${EPOCHS:-16}
STAGES=${STAGES:-"p12 wearable p12-mtand activity"}
SPLITS=${SPLITS:-"1 2 3 4 5"}
PYTHON=${PYTHON:-python}
RUNS=${RUNS:-runs/timeseries}
DATA=$IN
export PYTHONPATH=src OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 PYTHONUNBUFFERED=1
export TORCHCRAM_CACHE=${TORCHCRAM_CACHE:-$PWD/runs/cache}
START=$(date +%s); SECONDS=0; begun=0; export START
mkdir -p "$OUT" "$RUNS/logs" "$TORCHCRAM_CACHE"
if [ -f $IN/state.tar ] && [ ! -f "$RUNS/restored" ]; then tar -xf $IN/state.tar -C "$RUNS" && touch "$RUNS/restored"; fi
if [ -z "${DEVICE:-}" ]; then
  $PYTHON -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' && DEVICE=cuda || DEVICE=cpu
fi
# Processes that share the GPU by turns wait for each other; with the multi-process service they need not.
mps=
if [ "$DEVICE" = cuda ] && command -v nvidia-cuda-mps-control >/dev/null 2>&1; then
  export CUDA_MPS_PIPE_DIRECTORY=/tmp/mps CUDA_MPS_LOG_DIRECTORY=/tmp/mps-log
  mkdir -p /tmp/mps /tmp/mps-log
  nvidia-cuda-mps-control -d && mps=yes
  if ! timeout 40 $PYTHON -c 'import torch; (torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")).sum().item()' >/dev/null 2>&1; then
    echo quit | timeout 10 nvidia-cuda-mps-control
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
    mps=
  fi
fi
echo "device $DEVICE, multi-process service ${mps:-no}, $WORKERS processes, $MEMBERS members, $EPOCHS epochs"

NETWORKS="cram seqboat mamba transformer mtand gru-d"
ALL=majority,logistic,trees,gru-d,mtand,transformer,mamba,seqboat,cram

# settings STAGE: what all networks of a stage are given; what is none of a model's business it leaves out itself.
settings() {
  case $1 in
    p12|p12-mtand) echo "--members $MEMBERS --set epochs=$EPOCHS --set patience=6 --set acquire=0.1 --set ramp=0.1 --set replicate=0.5 --set interval=2 --try rate=5e-4,1e-3" ;;
    wearable) echo "--set times=order --set context=32 --set earliest=0.55" ;;
    activity) echo "--members 1" ;;
  esac
}
folder() {
  case $1 in p12|p12-mtand) echo "$DATA/physionet2012" ;; wearable) echo "$DATA/uci_batteryless_hop" ;; activity) echo "$DATA/uci_person_activity" ;; esac
}
splits() {
  case $1 in p12|wearable) echo "$SPLITS" ;; *) echo 1 ;; esac
}
# gru-d goes step by step through a sample: a core does that faster than a GPU.
device() { if [ "$1" = gru-d ]; then echo cpu; else echo "$DEVICE"; fi; }

job() {  # job STAGE MODELS SPLIT
  left=$((LIMIT - SECONDS + begun))
  [ $left -gt 5 ] || return 0
  log=$RUNS/logs/$1-$2-$3.log
  # shellcheck disable=SC2046
  timeout $left $PYTHON -m torchcram timeseries "$1" "$(folder "$1")" --out "$RUNS/$1" --models "$2" --splits "$3" \
    $(settings "$1") --device "$(device "$2")" >"$log" 2>&1
  echo "$1 $2 $3: exit $?, $((SECONDS - begun)) s; $(grep -E '^split .*\(routed\)|Error|error' "$log" | tail -1)"
}
export -f job settings folder splits device
export begun LIMIT RUNS PYTHON DEVICE MEMBERS EPOCHS DATA SPLITS

finish() {  # every file that can be made, then the state
  for stage in p12 p12-mtand wearable activity; do
    [ -d "$RUNS/$stage" ] || continue
    complete=yes
    for model in ${ALL//,/ }; do for split in $(splits $stage); do
      [ -f "$RUNS/$stage/$model-routed-$split.json" ] || complete=
    done; done
    if [ -z "$complete" ]; then echo "$stage is not complete yet; run again with $OUT/state.tar as IN/state.tar"; continue; fi
    # All is done: this fits nothing, and its command line is the one that makes the whole file.
    # shellcheck disable=SC2046
    $PYTHON -m torchcram timeseries $stage "$(folder $stage)" --out "$RUNS/$stage" --models $ALL \
      --splits "$(splits $stage | tr ' ' ,)" $(settings $stage) --device "$DEVICE" --json "$OUT/timeseries-$stage.json" >"$RUNS/logs/$stage.txt" 2>&1 &
  done
  wait
  tar -cf "$OUT/state.tar" -C "$RUNS" $(cd "$RUNS" && ls -d p12 p12-mtand wearable activity logs 2>/dev/null)
}

# Each data set is read once, before many want it at the same time.
for stage in $STAGES; do job "$stage" majority 1 & done; wait
# The longest first, so that none is left for the end alone.
{
  for stage in $STAGES; do
    for model in majority,logistic,trees $NETWORKS; do
      for split in $(splits "$stage"); do echo "$stage $model $split"; done
    done
  done
} | xargs -P "$WORKERS" -L 1 bash -c 'SECONDS=$(( $(date +%s) - START )); job "$0" "$1" "$2"'
finish
[ -z "$mps" ] || echo quit | timeout 10 nvidia-cuda-mps-control
ls -l "$OUT"
