// The documentation as tests see it: its blocks, its commands, its code, its links.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { documents } from "../../scripts/docs.ts";

export const root = join(import.meta.dir, "../..");

/** Between two lines of three backticks; `info` is the first word after them. */
export type Block = { info: string; text: string };

export type Document = {
  path: string;
  text: string;
  blocks: Block[];
  /** Inline code, outside of blocks. */
  code: string[];
  /** Targets of links and pictures. */
  links: string[];
  /** By the names that links have for them. */
  sections: Section[];
};

/** What stands under a heading, up to the next one. */
export type Section = { name: string; blocks: Block[] };

export function readDocuments(): Document[] {
  return documents.map((path) => parseDocument(path, readFileSync(join(root, path), "utf8")));
}

export function parseDocument(path: string, text: string): Document {
  const prose = text.replace(fence, "");
  return {
    path,
    text,
    blocks: blocksOf(text),
    code: Array.from(prose.matchAll(/`([^`]+)`/g), ([, code]) => code!.replaceAll("\n", " ")),
    links: Array.from(prose.matchAll(/\]\(([^)\s]+)\)/g), ([, target]) => target!),
    sections: sectionsOf(text),
  };
}

const fence = /^```(\w*)[^\n]*\n([\s\S]*?)^```$/gm;

function blocksOf(text: string): Block[] {
  return Array.from(text.matchAll(fence), ([, info, body]) => ({ info: info!, text: body! }));
}

function sectionsOf(text: string): Section[] {
  // Comments in a block look like headings.
  const blank = (block: string) => block.replaceAll(/[^\n]/g, " ");
  const headings = [...text.replace(fence, blank).matchAll(/^#+ (.*)$/gm)];
  return headings.map((heading, i) => ({
    name: heading[1]!
      .toLowerCase()
      .replaceAll(/[^\p{L}\d _-]/gu, "")
      .replaceAll(" ", "-"),
    blocks: blocksOf(text.slice(heading.index, headings[i + 1]?.index)),
  }));
}

/** The commands of a block of sh, each as it would be typed, without comments. */
export function commandsOf({ text }: Block): string[] {
  const commands: string[] = [];
  let command = "";
  for (const line of text.trimEnd().split("\n")) {
    command += command === "" ? line : `\n${line}`;
    if (!isComplete(command)) continue;
    const bare = command.replace(/(^|\s+)# .*$/, "").trim();
    if (bare !== "") commands.push(bare);
    command = "";
  }
  if (command !== "") throw new Error(`not a whole command: ${command}`);
  return commands;
}

/** Whether a shell would run it instead of waiting for the next line. */
function isComplete(command: string): boolean {
  if (command.endsWith("\\")) return false;
  return Bun.spawnSync(["bash", "-n", "-c", command]).exitCode === 0;
}

/** Matches these lines; an ellipsis matches anything on a line. */
export function patternOf(output: string): RegExp {
  const parts = output.trim().split("…");
  return new RegExp(parts.map((part) => RegExp.escape(part)).join(".*"));
}
