// What is encoded for one request: texts, or a chat. It is done in steps, on the main thread if it is short and
// on the encoder thread otherwise.
import type { ChatWork } from "../prompt.ts";
import type { TextModel } from "../text-model.ts";
import type { TokenIds } from "../tokenizer/token-ids.ts";

export type EncodeWork =
  | {
      kind: "texts";
      texts: readonly string[];
      addSpecialTokens: boolean;
      /** Whether control tokens written out in the texts are tokens or text, which is the default. */
      controlTokens?: "text" | "parse";
      maxTokens: number;
    }
  | ({ kind: "chat" } & ChatWork)
  /** For a reranker: each document with its query, or all with the only one. */
  | {
      kind: "pairs";
      queries: readonly string[];
      documents: readonly string[];
      instruction: string | undefined;
      maxTokens: number;
    };

/** What is known besides the ids of all texts. */
export type EncodedWork = {
  /** The end of each text in the ids. */
  ends: number[];
  /** The last characters of a chat's text, without the blanks at its end. */
  ending: string;
  /** Lengths of a chat's heads in tokens, if they are wanted. */
  heads: number[];
};

const ENDING_CHARS = 256;
/** Every value takes time too, not only its characters. */
const CHARS_PER_VALUE = 16;
/** About what a template writes around a pair. */
const CHARS_PER_PAIR = 512;

/** Yields every few milliseconds, except while a template is rendered. */
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
    // A rendered chat may have the start token already.
    const { bos_token: start } = tokenizer.namedTokens;
    const isStarted = controlTokens === "parse" && start !== undefined && text.startsWith(start);
    const addSpecialTokens = work.addSpecialTokens && !isStarted;
    const options = { addSpecialTokens, controlTokens, maxTokens } as const;
    yield* tokenizer.encodeSteps(text, options, ids);
    ends.push(ids.length);
  }
  return { ends, ending: "", heads: [] };
}

/** About how many characters there are, in all. */
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
