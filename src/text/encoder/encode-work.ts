// One request's text to encode: plain texts, a chat, or pairs for a reranker. It is encoded in steps, on the main
// thread if it is short and on the encoder thread otherwise.
import type { ChatWork } from "../prompt.ts";
import type { TextModel } from "../text-model.ts";
import type { TokenIds } from "../tokenizer/token-ids.ts";

export type EncodeWork =
  | {
      kind: "texts";
      texts: readonly string[];
      addSpecialTokens: boolean;
      /** Whether control tokens spelled out in the texts are parsed. Default: "text", which leaves them as text. */
      controlTokens?: "text" | "parse";
      maxTokens: number;
    }
  | ({ kind: "chat" } & ChatWork)
  /** For a reranker: `queries` has one query per document, or a single one for all. */
  | {
      kind: "pairs";
      queries: readonly string[];
      documents: readonly string[];
      instruction: string | undefined;
      maxTokens: number;
    };

/** Results besides the token ids, which go to the caller's TokenIds. */
export type EncodedWork = {
  /** End of each text, as an offset into the token ids. */
  ends: number[];
  /** The last characters of a rendered chat, without trailing whitespace. */
  ending: string;
  /** Lengths in tokens of a chat's prefixes that other chats may share, if requested. */
  heads: number[];
};

const ENDING_CHARS = 256;
/** Characters added to the estimated size for each JSON value (a string, number, object or list). */
const CHARS_PER_VALUE = 16;
/** Estimated characters that the template adds around a pair. */
const CHARS_PER_PAIR = 512;

/** Encodes the work into `ids`. Yields every few milliseconds, except while a template is rendered. */
export function* encodeWork(
  { tokenizer, chat, reranker }: TextModel,
  work: EncodeWork,
  ids: TokenIds,
): Generator<void, EncodedWork> {
  const { maxTokens } = work;
  if (work.kind === "chat") {
    const { text, heads } = yield* chat!.steps(work, ids);
    return { ends: [ids.length], ending: text.trimEnd().slice(-ENDING_CHARS), heads };
  }
  const ends: number[] = [];
  if (work.kind === "pairs") {
    const { queries, documents, instruction } = work;
    for (const [i, document] of documents.entries()) {
      const input = reranker!.input(queries[i] ?? queries[0]!, document, instruction);
      yield* reranker!.prompt.steps({ input, maxTokens }, ids);
      ends.push(ids.length);
      yield;
    }
    return { ends, ending: "", heads: [] };
  }
  const { controlTokens = "text" } = work;
  for (const text of work.texts) {
    // The text may be a chat that the client rendered, which may already start with BOS: no second BOS is added.
    const { bos_token: start } = tokenizer.namedTokens;
    const isStarted = controlTokens === "parse" && start !== undefined && text.startsWith(start);
    const addSpecialTokens = work.addSpecialTokens && !isStarted;
    const options = { addSpecialTokens, controlTokens, maxTokens } as const;
    yield* tokenizer.encodeSteps(text, options, ids);
    ends.push(ids.length);
  }
  return { ends, ending: "", heads: [] };
}

/** Estimates the cost of the work, in characters. */
export function sizeOf(work: EncodeWork): number {
  if (work.kind === "chat") return sizeOfValue(work.input);
  if (work.kind === "texts") return sizeOfValue(work.texts);
  const { queries, documents, instruction } = work;
  const repeated = documents.length / queries.length;
  const around = documents.length * (CHARS_PER_PAIR + sizeOfValue(instruction));
  return repeated * sizeOfValue(queries) + sizeOfValue(documents) + around;
}

function sizeOfValue(value: unknown): number {
  if (typeof value === "string") return CHARS_PER_VALUE + value.length;
  if (typeof value !== "object" || value === null) return CHARS_PER_VALUE;
  let size = CHARS_PER_VALUE;
  for (const name of Object.keys(value)) {
    size += name.length + sizeOfValue((value as Record<string, unknown>)[name]);
  }
  return size;
}
