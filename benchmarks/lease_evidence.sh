#!/bin/bash
# A lease of a machine with a GPU, call by call, from the repository's root; what travels with a call is in $IN (.gpu/in; lease_pack.sh and lease_load.sh make it).
#   lease_evidence.sh first                        small.tar.xz and wheels.tar.xz travel: unpacked; $ROOT/env.sh is to be sourced from then on
#   lease_evidence.sh part                         a piece of the data travels
#   lease_evidence.sh data                         data sets that are there whole are made and read
#   lease_evidence.sh begin NUMBER SECONDS LANES WORDS...   again.py WORDS in the background, in a session that outlives this call
#   lease_evidence.sh back SECONDS                 wait so long, or until all of it has ended, then copy what there is to $OUT
# A machine goes back half a minute after a call: have the next one ready, and begin each with `set -e`, so that on another machine it ends at once.
# ROOT=/root is where it all lives between calls. In small, on a CPU:  ROOT=/tmp/lease OUT=/tmp/lease/o MORE="--rehearse --device cpu" ...
set -eu
ROOT=${ROOT:-/root} IN=${IN:-.gpu/in} OUT=${OUT:-$ROOT/out} MORE=${MORE:-}
PYTHON=${PYTHON:-python3}

begin() { # NUMBER SECONDS LANES WORDS...
  local number=$1 seconds=$2 lanes=$3
  "$PYTHON" benchmarks/again.py "${@:4}" --plan --work "$ROOT/again$number" --out "$ROOT/again$number-out" | grep MISSING || true
  setsid nohup "$PYTHON" benchmarks/again.py "${@:4}" --seconds "$seconds" --lanes "$lanes" --work "$ROOT/again$number" \
    --out "$ROOT/again$number-out" $MORE > "$ROOT/again$number.log" 2>&1 < /dev/null &
  sleep 3
  cat "$ROOT/again$number.log"
}

back() {
  mkdir -p "$OUT"
  for n in 1 2 3; do
    for file in again.json again.tar.gz; do
      [ ! -e "$ROOT/again$n-out/$file" ] || cp "$ROOT/again$n-out/$file" "$OUT/${file/again/again$n}"
    done
    [ ! -e "$ROOT/again$n.log" ] || { echo "--- again$n"; tail -n 45 "$ROOT/again$n.log"; }
  done
}

if [ "$1" != first ] && [ ! -e "$ROOT/env.sh" ]; then
  echo "This is another machine than before: what ran there is gone. Load what travels with: lease_load.sh PACK first" && exit 3
fi
case $1 in
first)
  mkdir -p "$ROOT/data" "$ROOT/packs" "$ROOT/tree" "$OUT"
  cp "$IN/sets" "$ROOT/packs/sets" && : > "$ROOT/packs/stream"
  tar xJf "$IN/small.tar.xz" -C "$ROOT/data"
  tar xJf "$IN/wheels.tar.xz" -C "$ROOT"
  cp -r src benchmarks results tests tools pyproject.toml "$ROOT/tree/" # each call replaces the tree
  cat > "$ROOT/env.sh" <<X
export PYTHONPATH=$ROOT/tree/src:$ROOT/wheels OMP_NUM_THREADS=1 KOOPSIM_COMMIT=$(cat "$IN/commit") KOOPSIM_DATA=$ROOT/data ROOT=$ROOT
export NATURAL16=$ROOT/data/natural16 TEXT16=$ROOT/data/text16 UNSEEN=$ROOT/data/unseen
export PAPER_CODE=$ROOT/data/paper KOOPSIM_PAPER_CODE=$ROOT/data/paper
cd $ROOT/tree
X
  . "$ROOT/env.sh"
  "$PYTHON" -c "import koopsim.cli, torchdeq, tyro, rich, sklearn, matplotlib, PIL, scipy; print('imports: ok')"
  ;;
part)
  for piece in "$IN"/piece.*; do # named by its place in the stream: a call that is sent twice adds it once
    [ -e "$piece" ] || continue
    have=$(stat -c %s "$ROOT/packs/stream")
    if [ "${piece##*.}" -gt "$have" ]; then echo "$piece is here, $have bytes before it are not" && exit 4; fi
    [ "${piece##*.}" -lt "$have" ] || cat "$piece" >> "$ROOT/packs/stream"
  done
  ;;
data)
  . "$ROOT/env.sh"
  from=0
  while read -r name bytes sum; do
    to=$((from + bytes)) && [ "$to" -le "$(stat -c %s "$ROOT/packs/stream")" ] || break
    if [ ! -e "$ROOT/packs/$name.done" ]; then
      mkdir -p "$ROOT/packs/$name"
      tail -c +$((from + 1)) "$ROOT/packs/stream" | head -c "$bytes" > "$ROOT/packs/$name.tar"
      echo "$sum  $ROOT/packs/$name.tar" | sha256sum --check --quiet
      tar xf "$ROOT/packs/$name.tar" -C "$ROOT/packs/$name"
      "$PYTHON" "$ROOT/data/datasets_tool.py" unpack "$ROOT/packs/$name"/0? --to "$ROOT/data"
      rm -r "$ROOT/packs/$name.tar" "$ROOT/packs/$name" && touch "$ROOT/packs/$name.done"
    fi
    from=$to
  done < "$ROOT/packs/sets"
  "$PYTHON" -m koopsim data list
  ;;
begin)
  . "$ROOT/env.sh"
  begin "${@:2}"
  ;;
back)
  for _ in $(seq "$2"); do pgrep -f benchmarks/again.py > /dev/null && sleep 1 || break; done
  back
  ;;
*) echo "first, part, data, begin or back; not $1" && exit 2 ;;
esac
