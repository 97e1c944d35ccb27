#!/bin/bash
# The evidence's lease on a machine with a GPU, call by call, from the repository's root; what travels with a call is in $IN (.gpu/in; lease_pack.sh makes it).
#   lease_evidence.sh first HASH      small.tar.xz and wheels.tar.xz travel: unpacked; Tables 1 and 3 begin in the background
#   lease_evidence.sh part            a piece of the data travels
#   lease_evidence.sh second          the same, the last one: data sets are made and read; Table 2 begins in the background
#   lease_evidence.sh back SECONDS    wait so long, then copy what there is to $OUT
#   lease_evidence.sh last            the GPU is quiet: the paper's code beside ours, `koopsim bench`; then as back
# ROOT=/root is where it all lives between calls. In small, on a CPU:  ROOT=/tmp/lease OUT=/tmp/lease/o MORE="--rehearse --device cpu" ...
set -eu
ROOT=${ROOT:-/root} IN=${IN:-.gpu/in} OUT=${OUT:-$ROOT/out} MORE=${MORE:-}
PYTHON=${PYTHON:-python3}

begin() { # NUMBER SECONDS LANES PARTS...: again.py in a session of its own, which outlives this call
  local number=$1 seconds=$2 lanes=$3
  "$PYTHON" benchmarks/again.py "${@:4}" --plan --work "$ROOT/again$number" --out "$ROOT/again$number-out" | grep MISSING || true
  setsid nohup "$PYTHON" benchmarks/again.py "${@:4}" --seconds "$seconds" --lanes "$lanes" --work "$ROOT/again$number" \
    --out "$ROOT/again$number-out" $MORE > "$ROOT/again$number.log" 2>&1 < /dev/null &
  sleep 8
  cat "$ROOT/again$number.log"
}

back() {
  mkdir -p "$OUT"
  for n in "" 2 3; do
    for file in again.json again.tar.gz; do
      [ ! -e "$ROOT/again$n-out/$file" ] || cp "$ROOT/again$n-out/$file" "$OUT/${file/again/again$n}"
    done
    [ ! -e "$ROOT/again$n.log" ] || { echo "--- again$n"; tail -n 45 "$ROOT/again$n.log"; }
  done
}

case $1 in
first)
  mkdir -p "$ROOT/data" "$ROOT/packs" "$ROOT/tree" "$OUT"
  tar xJf "$IN/small.tar.xz" -C "$ROOT/data"
  tar xJf "$IN/wheels.tar.xz" -C "$ROOT"
  cp -r src benchmarks results tools "$ROOT/tree/" # each call replaces the tree
  cat > "$ROOT/env.sh" <<X
export PYTHONPATH=$ROOT/tree/src:$ROOT/wheels OMP_NUM_THREADS=1 KOOPSIM_COMMIT=$2 KOOPSIM_DATA=$ROOT/data
export NATURAL16=$ROOT/data/natural16 TEXT16=$ROOT/data/text16 PAPER_CODE=$ROOT/data/paper
cd $ROOT/tree
X
  . "$ROOT/env.sh"
  "$PYTHON" -c "import koopsim.cli, tyro, rich, sklearn, matplotlib, PIL, scipy; print('imports: ok')"
  begin "" 1080 10 table1 table3
  ;;
part) cp "$IN"/piece* "$ROOT/packs/" && tail -n 3 "$ROOT/again.log" ;;
second)
  cp "$IN"/piece* "$ROOT/packs/"
  cat "$ROOT"/packs/piece* | tar xf - -C "$ROOT/packs"
  . "$ROOT/env.sh"
  "$PYTHON" "$ROOT/data/datasets_tool.py" unpack "$ROOT"/packs/0? --to "$ROOT/data"
  "$PYTHON" -m koopsim data list
  begin 2 840 7 table2
  ;;
back) sleep "$2" && back ;;
last)
  . "$ROOT/env.sh"
  timeout 270 "$PYTHON" benchmarks/again.py beside --only paper-code bench-trained --seconds 250 --work "$ROOT/again3" --out "$ROOT/again3-out" $MORE || true
  back
  ;;
*) echo "first, part, second, back or last; not $1" && exit 2 ;;
esac
