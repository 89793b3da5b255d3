// Compiles grammars, with an LRU cache of bounded size in bytes, so that clients cannot exhaust memory with many
// grammars.
import {
  type CompiledGrammar,
  GrammarCompiler,
  type StructuralTagFormat,
  type TagFormat,
  TokenizerInfo,
} from "@mlc-ai/web-xgrammar";
import { clientGrammar } from "./client-grammar.ts";
import type { Grammar, Vocabulary } from "./grammar.ts";
import { schemaFault, schemaGrammar } from "./json-schema.ts";
import { textsGrammar } from "./pattern/alternatives.ts";
import { regexGrammar } from "./pattern/pattern.ts";
import { encodedTokens } from "./vocabulary.ts";

type Kept = { compiled: CompiledGrammar; bytes: number };

/** Maximum loaded vocabularies; each takes tens of megabytes. */
const MAX_VOCABULARIES = 4;

export class Compiler {
  readonly #maxBytes: number;
  /** `#compilers`: one per vocabulary; `#kept`: compiled grammars. Both in LRU order, least recently used first. */
  readonly #compilers = new Map<string, Promise<GrammarCompiler>>();
  readonly #kept = new Map<string, Kept>();
  #bytes = 0;

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes;
  }

  /** Estimated bytes of the cached grammars. */
  get bytes(): number {
    return this.#bytes;
  }

  has(grammar: Grammar): boolean {
    return this.#kept.has(keyOf(grammar));
  }

  async load(vocabulary: Vocabulary): Promise<void> {
    await this.#compilerFor(vocabulary);
  }

  async compile(grammar: Grammar): Promise<CompiledGrammar> {
    const key = keyOf(grammar);
    const kept = this.#kept.get(key) ?? (await this.#make(grammar));
    this.#kept.delete(key);
    this.#kept.set(key, kept);
    this.#evict();
    return kept.compiled;
  }

  async #make(grammar: Grammar): Promise<Kept> {
    const compiler = await this.#compilerFor(grammar.vocabulary);
    for (const schema of grammar.strict) {
      const fault = schemaFault(JSON.parse(schema));
      if (fault) throw new Error(fault.message);
    }
    const format = await rewritten(JSON.parse(grammar.format));
    const compiled = await compiler.compileStructuralTag({ type: "structural_tag", format });
    const bytes = estimatedBytes(format, grammar.vocabulary);
    this.#bytes += bytes;
    return { compiled, bytes };
  }

  /** Evicts cached grammars, but never the newest, even if it exceeds the limit: a matcher is about to use it. */
  #evict(): void {
    for (const [key, { compiled, bytes }] of this.#kept) {
      if (this.#bytes <= this.#maxBytes || this.#kept.size === 1) return;
      this.#kept.delete(key);
      this.#bytes -= bytes;
      // Open matchers keep the native grammar alive: it is freed with the last of them.
      compiled.dispose();
    }
  }

  #compilerFor(vocabulary: Vocabulary): Promise<GrammarCompiler> {
    const key = JSON.stringify(vocabulary);
    const compiler = this.#compilers.get(key) ?? makeCompiler(vocabulary);
    this.#compilers.delete(key);
    this.#compilers.set(key, compiler);
    const [oldest] = this.#compilers.keys();
    if (this.#compilers.size > MAX_VOCABULARIES) {
      void this.#compilers.get(oldest!)!.then((each) => each.dispose());
      this.#compilers.delete(oldest!);
    }
    return compiler;
  }
}

async function makeCompiler(vocabulary: Vocabulary): Promise<GrammarCompiler> {
  const { size, stopTokens } = vocabulary;
  const tokens = encodedTokens(vocabulary);
  const info = await TokenizerInfo.createTokenizerInfo(tokens, "byte_level", false, size, [
    ...stopTokens,
  ]);
  // Disables xgrammar's own cache, which is unbounded.
  const compiler = await GrammarCompiler.createGrammarCompiler(info, false);
  info.dispose();
  return compiler;
}

/** Replaces schemas, regular expressions and choices, which xgrammar compiles incorrectly, by our own grammars. */
async function rewritten(format: StructuralTagFormat): Promise<StructuralTagFormat> {
  switch (format.type) {
    case "json_schema":
      return { type: "grammar", grammar: schemaGrammar(format.json_schema).grammar };
    case "regex":
      return { type: "grammar", grammar: regexGrammar(format.pattern) };
    case "grammar":
      return { type: "grammar", grammar: await clientGrammar(format.grammar) };
    case "or": {
      const { elements } = format;
      const texts = elements.flatMap((each) => (each.type === "const_string" ? [each.value] : []));
      if (texts.length < elements.length) return { ...format, elements: await all(elements) };
      return { type: "grammar", grammar: textsGrammar(texts) };
    }
    case "sequence":
      return { ...format, elements: await all(format.elements) };
    case "tag":
      return await rewrittenTag(format);
    case "triggered_tags":
    case "tags_with_separator":
      return { ...format, tags: await Promise.all(format.tags.map(rewrittenTag)) };
    default:
      return format;
  }
}

const all = (formats: readonly StructuralTagFormat[]) => Promise.all(formats.map(rewritten));

async function rewrittenTag(tag: TagFormat): Promise<TagFormat> {
  return { ...tag, content: await rewritten(tag.content) };
}

function keyOf(grammar: Grammar): string {
  return JSON.stringify(grammar);
}

/** Estimates a grammar's compiled size, which empirically grows with its text and with the vocabulary. */
function estimatedBytes(format: StructuralTagFormat, { size }: Vocabulary): number {
  return 20_000 + 100 * JSON.stringify(format).length * (size / 49_152);
}
