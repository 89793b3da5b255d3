// EBNF grammars sent by clients. xgrammar parses them, and the parsed rules are rewritten so that it compiles them
// correctly (see alternatives.ts). Two more of its faults are avoided: classes beyond ASCII, which it matches by
// byte, are rejected, and the empty rule `end` is put before each loop, because no alternative may begin with a loop.
import { Grammar } from "@mlc-ai/web-xgrammar";
import { type Alternative, alternativesRule, textParts } from "./pattern/alternatives.ts";

/** Rewrites a client's grammar; throws an error that names the grammar's fault. */
export async function clientGrammar(source: string): Promise<string> {
  const read = await Grammar.fromEBNF(source);
  const text = read.toString();
  read.dispose();
  if (/^\S+ ::= TagDispatch/m.test(text)) throw new Error("TagDispatch cannot be used");
  const rules = text.trimEnd().split("\n").map(readRule);
  const names = new Map(rules.map(({ name }, i) => [name, name === "root" ? name : `c${i}`]));
  const partsOf = (token: string): string[] => {
    if (token.startsWith('"')) return textParts(unescaped(token.slice(1, -1)));
    if (!token.startsWith("[")) return [token.replace(/^[\w.-]+/, (name) => names.get(name)!)];
    if (/\\x[89a-f]|\\u/i.test(token)) {
      throw new Error("a class of characters beyond ASCII cannot be enforced");
    }
    return token.endsWith("*") ? ["end", token] : [token];
  };
  const written = rules.map(({ name, alternatives, follow }) => {
    const all = alternatives.map((tokens) => closed(tokens.flatMap(partsOf)));
    const behind = follow && ` (= ${follow.flatMap(partsOf).join(" ")})`;
    return printRule(names.get(name)!, all, behind);
  });
  return `end ::= ""\n${written.join("")}`;
}

const PART = String.raw`"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]\*?|[\w.-]+(?:\{[^}]*\})?`;
const SEQUENCE = String.raw`\(((?:${PART}| )+)\)`;

/** Parses a rule as printed by xgrammar: name ::= ((part part) | (part) | "") (=(part part)) */
function readRule(line: string) {
  const partsIn = (text: string) => text.match(new RegExp(PART, "g")) ?? [];
  const alternatives: string[][] = [];
  let follow: string[] | undefined;
  const found = line.matchAll(new RegExp(String.raw`\(=${SEQUENCE}\)|${SEQUENCE}|""`, "g"));
  for (const [, behind, sequence = ""] of found) {
    if (behind === undefined) alternatives.push(partsIn(sequence));
    else follow = partsIn(behind);
  }
  return { name: line.slice(0, line.indexOf(" ")), alternatives, follow };
}

const escapes: Readonly<Record<string, string>> = {
  ...{ a: "\x07", b: "\b", t: "\t", n: "\n", v: "\v", f: "\f", r: "\r", 0: "\0" },
};

function unescaped(text: string): string {
  return text.replace(/\\(?:x(..)|u(.{4})|U(.{8})|(.))/gs, (_, x, u, long, char: string) => {
    const code: string | undefined = x ?? u ?? long;
    return code ? String.fromCodePoint(Number.parseInt(code, 16)) : (escapes[char] ?? char);
  });
}

/** Appends the empty rule `end` to an alternative that names no rule: xgrammar would inline a rule of only text. */
function closed(alternative: Alternative): Alternative {
  return alternative.some((part) => /^\w/.test(part)) ? alternative : [...alternative, "end"];
}

/** Prints a rule. Alternatives that begin with a class move to helper rules: a class may overlap other beginnings. */
function printRule(name: string, all: readonly Alternative[], follow?: string): string {
  const groups = Map.groupBy(all, ([first]) => (first?.startsWith("[") ? first : ""));
  if (groups.size === 1) return alternativesRule(name, all, follow);
  const plain = groups.get("") ?? [];
  groups.delete("");
  const apart = Array.from(groups.values(), (group, i) => ({ own: `${name}k${i}`, group }));
  return [
    alternativesRule(name, [...plain, ...apart.map(({ own }) => [own])], follow),
    ...apart.map(({ own, group }) => alternativesRule(own, group, follow)),
  ].join("");
}
