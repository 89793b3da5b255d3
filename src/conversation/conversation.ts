// A conversation: what a model is asked, in the words of no API. Every API's request becomes one (src/http has
// a codec for each), and nothing behind it knows which API that was.
import type { Priority, Sampling } from "../engine/protocol.ts";
import type { Tool } from "../tools/syntax/format.ts";
import type { Constraint } from "./constraint.ts";
import type { Limits } from "./limits.ts";

export type Conversation = {
  /** The model's name. */
  model: string;
  prompt: Chat | Texts;
  /** The constraint on the answer's text. */
  constraint?: Constraint | undefined;
  sampling: SamplingChoice;
  limits: Limits;
  /** The number of answers per prompt. */
  n: number;
  /** Log-probabilities of each token of the answers, and of so many alternatives. */
  logprobs?: number | undefined;
  /** The same of the prompt's tokens. */
  promptLogprobs?: number | undefined;
  /** The highest priority that it asks for. */
  priority?: Priority | undefined;
  /** Conversations with different salts never share prefix cache entries. */
  cacheSalt?: string | undefined;
  /** How long the model stays loaded without requests from now on; Infinity is forever. */
  keepAliveMs?: number | undefined;
};

/** Messages, which the model's chat template renders. */
export type Chat = {
  kind: "chat";
  messages: readonly Message[];
  tools: readonly OfferedTool[];
  toolChoice: ToolChoice;
  /** Whether the model may call several tools at once. */
  isParallel: boolean;
  /** Whether the model should think before it answers, if its chat template has a switch for it. */
  thinks?: boolean | undefined;
  /** How much it should think, if its chat template supports that. */
  effort?: string | undefined;
  /** Whether the prompt ends with the header of the assistant's turn; by default unless a message is continued. */
  addGenerationPrompt?: boolean | undefined;
  /** The answer continues the last message instead of following it. */
  continueFinalMessage?: boolean;
  /** More variables for the chat template. */
  templateKwargs?: Readonly<Record<string, unknown>> | undefined;
};

/** Prompts as they are: texts or token ids, each with its own answers. */
export type Texts = {
  kind: "texts";
  prompts: readonly (string | readonly number[])[];
  /** Whether control tokens written out in a text are tokens: it is then a rendered chat. */
  isRendered?: boolean;
};

export type Message = {
  role: "system" | "developer" | "user" | "assistant" | "tool";
  parts: readonly Part[];
  /** The name of the speaker. */
  name?: string | undefined;
  /** Why the model refused to answer. */
  refusal?: string | undefined;
  /** Of a tool's result: the id of the call. */
  callId?: string | undefined;
  /** The field of the client's request that it comes from, for reports. */
  field?: string | undefined;
};

/** Answers consist of the same parts as messages. */
export type Part =
  | { kind: "text"; text: string }
  | { kind: "thought"; text: string }
  | ({ kind: "call" } & Call);

export type Call = {
  id?: string | undefined;
  name: string;
  /** JSON text. */
  arguments: string;
  /** Whether the token limit or a stop string cut it off: its arguments may then be incomplete. */
  isCutOff?: true;
};

export type OfferedTool = Tool & {
  /** Its schema is enforced completely or rejected. */
  isStrict?: boolean;
  /** The schema that the model sees, if it is not the one that is enforced. */
  shownParameters?: Record<string, unknown>;
};

export type ToolChoice = "auto" | "none" | "required" | { name: string };

/** What is absent is the server's or the model's to choose. */
export type SamplingChoice = Omit<Sampling, "temperature" | "logprobs"> & {
  temperature?: number | undefined;
};
