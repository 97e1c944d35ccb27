#!/bin/bash
# What travels with the next call, in .gpu/in (to be named in `carry`), and nothing else; here, from the repository's root.
#   lease_load.sh PACK first      before the first call: the code that runs there, PACK/first, and of PACK/stream what there is room for
#   lease_load.sh PACK more       before each further call: this folder, and the stream's next part
#   lease_load.sh PACK whole      when it is over: the whole tree again
# ROOM=60 MiB of the 64 that may travel, for those may be counted in whole blocks. The working tree travels too, so the rest of it goes (git sparse-checkout) and comes back with `whole`. Of a tree with
# changes nothing could be recorded: it is refused.
set -eu
PACK=$(realpath "$1") ROOM=$((${ROOM:-60} << 20)) IN=.gpu/in
exclude=$(git rev-parse --git-path info/exclude)
mkdir -p "$(dirname "$exclude")"
grep -qx '/.gpu/' "$exclude" 2> /dev/null || echo '/.gpu/' >> "$exclude"
MADE=.gpu/made-by-lease_load # a folder of that name without it is somebody else's
if [ -e .gpu ] && [ ! -e $MADE ]; then echo "There is a .gpu that this script did not make: move it away." && exit 2; fi
if [ "$2" = whole ]; then rm -rf .gpu && exec git sparse-checkout disable; fi
if [ -n "$(git status --porcelain)" ]; then echo "The tree has changes: commit them first." && exit 2; fi
rm -rf .gpu && mkdir -p "$IN" && touch $MADE
case $2 in
first)
  git sparse-checkout set --no-cone /src /tests /benchmarks /tools /pyproject.toml /results/unfinished \
    /results/h200/cuda-tests.json /results/h200/time-to-accuracy.json
  cp "$PACK"/first/* "$PACK/sets" "$IN"
  git rev-parse --short=12 HEAD > "$IN/commit"
  echo 0 > "$PACK/sent"
  ;;
more) git sparse-checkout set --no-cone /benchmarks ;;
*) echo "first, more or whole; not $2" && exit 2 ;;
esac
size() { { git ls-files -z --cached --others --exclude-standard && find .gpu -type f -print0; } | xargs -0 stat -c %s 2> /dev/null | awk '{s += $1} END {print s + 0}'; }
sent=$(cat "$PACK/sent") room=$((ROOM - $(size)))
tail -c +$((sent + 1)) "$PACK/stream" | head -c "$room" > "$IN/piece.$sent"
[ -s "$IN/piece.$sent" ] || rm "$IN/piece.$sent"
echo $((sent + $(cat "$IN"/piece.* 2> /dev/null | wc -c))) > "$PACK/sent"
echo "$(($(size) >> 20)) MiB travel; of the data $(($(cat "$PACK/sent") >> 20)) of $(($(stat -c %s "$PACK/stream") >> 20)) MiB are there then"
