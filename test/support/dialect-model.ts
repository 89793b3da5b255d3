// Models that recite a given text, in the format of a family: its calls and thoughts are known beforehand.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { BYTE_CHARS } from "../../src/text/tokenizer/pre-tokenizer.ts";
import { writeChatModel } from "./chat-model.ts";
import type { TestServerOptions } from "./server.ts";

/** As a byte-level vocabulary writes it. */
export const encoded = (text: string) =>
  Array.from(Buffer.from(text), (byte) => BYTE_CHARS[byte]).join("");

export function editJson(file: string, change: (json: Record<string, unknown>) => object): void {
  writeFileSync(file, JSON.stringify(change(JSON.parse(readFileSync(file, "utf8")))));
}

export type Dialect = {
  /** What the template writes when there are tools. */
  taught: string;
  /** The tokens that the model recites before it ends; all different. */
  says: readonly string[];
  /** Those of them that are control tokens. */
  control?: readonly string[];
};

/** Bytes that no prompt contains: their tokens can be used for what the model recites. */
const spare = Array.from({ length: 31 }, (_, i) => i + 1).filter(
  (byte) => ![9, 10, 13].includes(byte),
);

const templateOf = (taught: string) => `{% if tools %}{{ tools | tojson }} ${taught}
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking %}<think>
{% endif %}{% endif %}`;

/** For a server with a model whose template supports tools, in its own format. */
export function withDialect(dialect: Dialect, options: TestServerOptions = {}): TestServerOptions {
  return { ...options, model: (folder) => writeDialect(folder, dialect) };
}

function writeDialect(folder: string, { taught, says, control = [] }: Dialect): void {
  const ids = spare.slice(0, says.length + 1);
  writeChatModel(folder, { recites: String.fromCharCode(...ids) });
  const edit = (name: string, change: Parameters<typeof editJson>[1]) =>
    editJson(join(folder, name), change);
  const end = ids.at(-1)!;
  edit("config.json", (json) => ({ ...json, eos_token_id: end }));
  edit("tokenizer.json", ({ model, ...rest }) => {
    const { vocab } = model as { vocab: Record<string, number> };
    for (const id of ids) delete vocab[BYTE_CHARS[id]!];
    const marks = ["<|endoftext|>", "<|im_start|>"];
    const special = marks.map((content, i) => ({ id: 256 + i, content }));
    says.forEach((text, i) => {
      if (control.includes(text)) special.push({ id: ids[i]!, content: text });
      else vocab[encoded(text)] = ids[i]!;
    });
    special.push({ id: end, content: "<|im_end|>" });
    const added_tokens = special.map((token) => ({ ...token, special: true }));
    return { ...rest, model, added_tokens };
  });
  edit("tokenizer_config.json", (json) => ({ ...json, chat_template: templateOf(taught) }));
}
