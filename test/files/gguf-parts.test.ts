import { describe, expect, test } from "bun:test";
import { renameSync, unlinkSync } from "node:fs";
import { join } from "node:path";
import { readGgufModel } from "../../src/files/gguf-parts.ts";
import { LoadError } from "../../src/files/load-error.ts";
import { type GgufFile, writeGguf, writeGgufParts } from "../support/gguf-file.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";

const root = temporaryFolder();

let stems = 0;
const newStem = () => join(root, `model${stems++}`);

const names = ["a", "b", "c", "d", "e"];
const file: GgufFile = {
  metadata: { "general.name": "five" },
  tensors: Object.fromEntries(
    names.map((name, i) => [name, { type: "F32", shape: [i + 1], data: new Float32Array(i + 1) }]),
  ),
};

/** Rewrites one part with other metadata or tensors. */
function writePart(path: string, metadata: GgufFile["metadata"], tensors: string[]): void {
  const own = Object.fromEntries(tensors.map((name) => [name, file.tensors[name]!]));
  writeGguf(path, { metadata, tensors: own });
}

describe("readGgufModel", () => {
  test("finds every tensor in its part, and the metadata in the first", () => {
    const paths = writeGgufParts(newStem(), file, 3);
    const { files, metadata, tensors } = readGgufModel(paths[0]);
    expect(files).toEqual(paths);
    expect(metadata.get("general.name")).toBe("five");
    const placed = [...tensors].map(([name, tensor]) => [name, tensor.file, tensor.shape]);
    expect(placed.sort()).toEqual(names.map((name, i) => [name, paths[i % 3], [i + 1]]) as never);
  });

  test("reads a file that only has the name of a part", () => {
    const path = writeGguf(`${newStem()}-00001-of-00007.gguf`, file);
    expect(readGgufModel(path)).toMatchObject({ files: [path], tensors: { size: 5 } });
    const single = writeGgufParts(newStem(), file, 1);
    expect(readGgufModel(single[0]).files).toEqual(single);
  });

  const split = { "split.no": 1, "split.count": 3 };
  const damages: [string, (paths: string[]) => void, RegExp][] = [
    ["no part 3", (paths) => unlinkSync(paths[2]!), /3-of-00003.gguf: cannot be read \(ENOENT\)$/],
    [
      "a part of another model",
      (paths) => writePart(paths[1]!, { ...split, "split.count": 4 }, ["b"]),
      /2-of-00003.gguf: expected part 2 of 3, found part 2 of 4$/,
    ],
    [
      "a part that is another",
      (paths) => writePart(paths[1]!, { ...split, "split.no": 2 }, ["b"]),
      /expected part 2 of 3, found part 3 of 3$/,
    ],
    [
      "a part that was never split",
      (paths) => writePart(paths[1]!, {}, ["b"]),
      /expected part 2 of 3, found part 1 of 1$/,
    ],
    [
      "a tensor in two parts",
      (paths) => writePart(paths[1]!, split, ["b", "a"]),
      /2-of-00003.gguf: tensor "a" is in another part too$/,
    ],
    [
      "a tensor less than there should be",
      (paths) => writePart(paths[1]!, split, ["b"]),
      /1-of-00003.gguf: expected 5 tensors in all parts, found 4$/,
    ],
    [
      "a count that is none",
      (paths) => writePart(paths[0]!, { "split.no": 0, "split.count": "3" }, ["a"]),
      /expected split.count to be a count, found string$/,
    ],
    [
      "more parts than a name can have",
      (paths) => writePart(paths[0]!, { "split.no": 0, "split.count": 4e9 }, ["a"]),
      /expected split.count to be a count, found number$/,
    ],
    [
      "another count than the name's",
      (paths) => writePart(paths[0]!, { "split.no": 0, "split.count": 2 }, ["a"]),
      /expected a name that ends with -00001-of-00002.gguf, as one of its parts$/,
    ],
  ];
  test.each(damages)("refuses %s", (_, damage, message) => {
    const paths = writeGgufParts(newStem(), file, 3);
    damage(paths);
    expect(() => readGgufModel(paths[0])).toThrow(LoadError);
    expect(() => readGgufModel(paths[0])).toThrow(message);
  });

  test("refuses a part in the first one's place", () => {
    const [first, second] = writeGgufParts(newStem(), file, 2);
    expect(() => readGgufModel(second!)).toThrow(/one of 2 parts: name the first, "model\d+-00001/);
    const other = `${newStem()}.gguf`;
    renameSync(first, other);
    expect(() => readGgufModel(other)).toThrow(/expected a name that ends with -00001-of-00002/);
  });
});
