// Draws random comments of src and ffi, each with the following lines of code, for review by someone who did not write
// them: `npm run -s comments -- --count 60 --seed 7`.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { makeRandom } from "../test/support/random.ts";

export type Comment = { line: number; text: string; code: string };

const LINES_OF_CODE = 3;

/** Comments on their own lines and at the end of a line. */
export function commentsIn(source: string): Comment[] {
  const lines = source.split("\n");
  const comments: Comment[] = [];
  for (let at = 0; at < lines.length; at++) {
    const begin = at;
    if (/^\s*\/\*/.test(lines[at]!))
      while (at + 1 < lines.length && !lines[at]!.includes("*/")) at++;
    else if (/^\s*\/\//.test(lines[at]!)) while (/^\s*\/\//.test(lines[at + 1] ?? "")) at++;
    else if (!/^[^"'`/]*[^"'`/\s]\s*\/\/ /.test(lines[at]!)) continue;
    const text = lines.slice(begin, at + 1).join("\n");
    if (/biome-ignore|@ts-|<reference|\/\/ namespace/.test(text)) continue;
    const code = lines.slice(at + 1, at + 1 + LINES_OF_CODE).join("\n");
    comments.push({ line: begin + 1, text, code });
  }
  return comments;
}

/** `count` distinct ones, determined by the seed. */
export function draw<T>(all: readonly T[], count: number, seed: number): T[] {
  const random = makeRandom(seed);
  const left = [...all];
  const most = Math.min(count, left.length);
  return Array.from({ length: most }, () => left.splice(random.below(left.length), 1)[0]!);
}

if (import.meta.main) {
  const { values } = parseArgs({
    options: { count: { type: "string", default: "60" }, seed: { type: "string", default: "1" } },
  });
  const root = join(import.meta.dir, "..");
  const files = [...new Bun.Glob("{src,ffi}/**/*.{ts,tsx,c,cpp,h}").scanSync(root)].toSorted();
  const all = files.flatMap((file) =>
    commentsIn(readFileSync(join(root, file), "utf8")).map((each) => ({ file, ...each })),
  );
  for (const [i, each] of draw(all, Number(values.count), Number(values.seed)).entries()) {
    console.log(`${i + 1}. ${each.file}:${each.line}\n${each.text}\n${each.code}\n`);
  }
}
