#!/bin/sh
# Sets up a machine without a network from files carried to it: scripts/carried-setup.sh <folder>
# The folder holds the files of ffi/pins.ts for the backend, and bun.gz where bun is not installed; a file
# too large to carry whole comes as <name>.part-aa, <name>.part-ab, ... (split -b 40m <name> <name>.part-).
set -eu
folder=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
for first in "$folder"/*.part-aa; do
  [ -e "$first" ] || continue
  whole=${first%.part-aa}
  cat "$whole".part-* > "$whole.joined" && mv "$whole.joined" "$whole" && rm "$whole".part-*
done
if [ -e "$folder/bun.gz" ]; then
  gunzip -c "$folder/bun.gz" > "$folder/bun" && chmod +x "$folder/bun" && rm "$folder/bun.gz"
fi
PATH="$folder:$PATH" MLX_SERVE_DOWNLOADS="$folder" bun scripts/setup.ts native
