#!/bin/sh
# Sets up a machine without a network from files carried to it: scripts/carried-setup.sh <folder>
# The folder holds the files of ffi/pins.ts for the backend; a file too large to carry whole comes as
# <name>.part-aa, <name>.part-ab, ... (split -b 40m <name> <name>.part-). Besides, where they are wanted:
#   bun.gz            bun, where it is not installed
#   node_modules.tgz  the folder node_modules with the packages of package.json's "dependencies"
#   python/*.whl      mlx-lm and all it needs but libmlx: a Python environment is made of them, with the
#                     backend's libmlx, and the path of its python is printed. It takes no pip.
# Run again, it makes what is missing.
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
if [ -e "$folder/node_modules.tgz" ]; then tar -xzf "$folder/node_modules.tgz"; fi
PATH="$folder:$PATH" MLX_SERVE_DOWNLOADS="$folder" bun scripts/setup.ts native
[ -d "$folder/python" ] || exit 0
made=$folder/mlx-lm
if [ ! -e "$made" ]; then
  rm -rf "$made.partial"
  python3 -m venv --without-pip "$made.partial"
  for wheel in "$folder"/python/*.whl "$folder/mlx_${MLX_SERVE_BACKEND:-cpu}"*.whl; do
    python3 -m zipfile -e "$wheel" "$made.partial"/lib/python3*/site-packages
  done
  mv "$made.partial" "$made"
fi
echo "$made/bin/python"
