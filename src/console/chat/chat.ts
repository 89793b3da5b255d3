// A chat as a tree of messages. An edited question or a retried answer is a sibling of the previous version, so nothing
// is lost. A column is one path through the tree, given by its leaf, with the model that answers there; two columns
// side by side get the same questions.

export type Call = { id: string; name: string; arguments: string };

export type Figures = {
  /** Time to first token, measured in the page. */
  ttftMs?: number;
  tokensPerSecond?: number;
  promptTokens?: number;
  cachedTokens?: number;
  completionTokens?: number;
};

export type Message = {
  id: string;
  parent: string | undefined;
  role: "user" | "assistant" | "tool";
  text: string;
  /** Id of the call, if the message is a tool's result. */
  callId?: string;
  thought?: string;
  calls?: readonly Call[];
  model?: string;
  state?: "streaming" | "done" | "stopped" | "failed";
  /** Whether the answer was constrained to a schema. */
  isJson?: boolean;
  error?: string;
  finish?: string;
  figures?: Figures;
};

export type Column = { model: string; leaf: string | undefined };

/** Settings as typed; an empty one means the server's default. */
export type ChatSettings = {
  system: string;
  temperature: string;
  top_p: string;
  top_k: string;
  min_p: string;
  repetition_penalty: string;
  max_tokens: string;
  seed: string;
  thinking: "" | "on" | "off";
  schema: string;
  tools: string;
};

export type Chat = {
  id: string;
  title: string;
  changedMs: number;
  settings: ChatSettings;
  messages: Readonly<Record<string, Message>>;
  columns: readonly Column[];
};

export const numberFields = [
  "temperature",
  "top_p",
  "top_k",
  "min_p",
  "repetition_penalty",
  "max_tokens",
  "seed",
] as const;

const noSettings: ChatSettings = {
  system: "",
  temperature: "",
  top_p: "",
  top_k: "",
  min_p: "",
  repetition_penalty: "",
  max_tokens: "",
  seed: "",
  thinking: "",
  schema: "",
  tools: "",
};

const UNTITLED = "New chat";

/** Makes an id without `crypto.randomUUID`, which is missing on pages over plain http from another machine. */
export const newId = () =>
  Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(36)).join("-");

export function newChat(model: string, settings: ChatSettings = noSettings): Chat {
  const columns = [{ model, leaf: undefined }];
  const [id, changedMs] = [newId(), Date.now()];
  return { id, title: UNTITLED, changedMs, settings, messages: {}, columns };
}

/** Returns the messages from the first to the leaf. */
export function pathTo({ messages }: Chat, leaf: string | undefined): Message[] {
  const path: Message[] = [];
  for (let at = leaf; at !== undefined; at = messages[at]?.parent) {
    const message = messages[at];
    if (!message) break;
    path.unshift(message);
  }
  return path;
}

/** Returns the message and its alternatives, oldest first, without answers of other models. */
export function versionsOf({ messages }: Chat, message: Message): Message[] {
  return Object.values(messages).filter(
    ({ parent, role, model }) =>
      parent === message.parent && role === message.role && model === message.model,
  );
}

/** Follows the newest reply at each level below `from`, preferably one by `model`; returns the last message's id. */
export function newestLeaf(chat: Chat, from: Message, model: string): string {
  const below = Object.values(chat.messages).filter(({ parent }) => parent === from.id);
  const next = below.findLast((each) => each.model === model) ?? below.at(-1);
  return next ? newestLeaf(chat, next, model) : from.id;
}

export function withMessage(chat: Chat, message: Message): Chat {
  const isFirst = chat.title === UNTITLED && message.role === "user";
  const title = isFirst ? titleOf(message.text) : chat.title;
  const messages = { ...chat.messages, [message.id]: message };
  return { ...chat, title, messages, changedMs: Date.now() };
}

export function withLeaf(chat: Chat, column: number, leaf: string | undefined): Chat {
  const columns = chat.columns.map((each, i) => (i === column ? { ...each, leaf } : each));
  return { ...chat, columns };
}

function titleOf(text: string): string {
  const line = text.trim().split("\n")[0]!.trim();
  return line.length > 48 ? `${line.slice(0, 47)}…` : line || UNTITLED;
}

/** Builds the request body for the next message. Throws if the schema or tools are not valid JSON. */
export function requestOf(settings: ChatSettings, model: string, path: readonly Message[]): object {
  const numbers = numberFields.flatMap((field) => {
    const value = settings[field].trim();
    return value === "" ? [] : [[field, numberOf(field, value)]];
  });
  const schema = jsonOf("schema", settings.schema);
  const tools = jsonOf("tools", settings.tools);
  const system = settings.system.trim();
  return {
    model,
    stream: true,
    stream_options: { include_usage: true },
    messages: [
      ...(system === "" ? [] : [{ role: "system", content: system }]),
      ...path.map(wireMessage),
    ],
    ...Object.fromEntries(numbers),
    ...(settings.thinking !== "" && {
      chat_template_kwargs: { enable_thinking: settings.thinking === "on" },
    }),
    ...(schema !== undefined && {
      response_format: { type: "json_schema", json_schema: { name: "answer", schema } },
    }),
    ...(tools !== undefined && { tools: toolsOf(tools) }),
  };
}

function wireMessage({ role, text, thought, calls, callId }: Message): object {
  if (role === "tool") return { role, content: text, tool_call_id: callId };
  if (role === "user") return { role, content: text };
  return {
    role,
    content: text,
    ...(thought && { reasoning_content: thought }),
    ...(calls?.length && {
      tool_calls: calls.map(({ id, name, arguments: json }) => ({
        id,
        type: "function",
        function: { name, arguments: json },
      })),
    }),
  };
}

function numberOf(field: string, text: string): number {
  const value = Number(text);
  if (Number.isFinite(value)) return value;
  throw new Error(`${field}: expected a number, not ${text}`);
}

function jsonOf(field: string, text: string): unknown {
  if (text.trim() === "") return undefined;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${field}: not valid JSON: ${(error as Error).message}`);
  }
}

/** Parses tools: functions may be given bare, or wrapped as in OpenAI's API. */
function toolsOf(value: unknown): unknown[] {
  const list = Array.isArray(value) ? value : [value];
  return list.map((each) => {
    const isBare = typeof each === "object" && each !== null && !("function" in each);
    return isBare ? { type: "function", function: each } : each;
  });
}
