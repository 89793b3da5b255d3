// A conversation: an API-independent request. A codec in src/http creates it, and nothing below knows which API the
// client used.
import type { Priority, Sampling } from "../engine/protocol.ts";
import type { Tool } from "../tools/syntax/format.ts";
import type { Constraint } from "./constraint.ts";
import type { Limits } from "./limits.ts";

export type Conversation = {
  model: string;
  prompt: Chat | Texts;
  /** The constraint on the answer's text. */
  constraint?: Constraint | undefined;
  sampling: SamplingChoice;
  limits: Limits;
  /** The number of answers per prompt. */
  n: number;
  /** Requests log-probabilities of the answers, with this number of alternatives per token. */
  logprobs?: number | undefined;
  /** Requests log-probabilities of the prompt, with this number of alternatives per token. */
  promptLogprobs?: number | undefined;
  /** Priority that the client requests; the key's tier or the route may lower it. */
  priority?: Priority | undefined;
  /** Conversations with different salts never share prefix cache entries. */
  cacheSalt?: string | undefined;
  /** How long the model stays loaded without requests; Infinity is forever. */
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
  /** How much the model should think, if its chat template supports that. */
  effort?: string | undefined;
  /** Whether the prompt ends with the assistant's header. Default: true, unless `continueFinalMessage` is set. */
  addGenerationPrompt?: boolean | undefined;
  /** Whether the answer continues the last message instead of following it. */
  continueFinalMessage?: boolean;
  /** Additional variables of the chat template. */
  templateKwargs?: Readonly<Record<string, unknown>> | undefined;
};

/** Prompts without a chat template, as text or token ids; each gets its own answers. */
export type Texts = {
  kind: "texts";
  prompts: readonly (string | readonly number[])[];
  /** Whether the prompts are rendered chats already: control tokens written in them then become tokens. */
  isRendered?: boolean;
};

export type Message = {
  role: "system" | "developer" | "user" | "assistant" | "tool";
  parts: readonly Part[];
  /** The name of the speaker. */
  name?: string | undefined;
  /** Why the model refused to answer. */
  refusal?: string | undefined;
  /** Id of the call, if the message is a tool's result. */
  callId?: string | undefined;
  /** Name of the request's field that holds the message, for reports. */
  field?: string | undefined;
};

/** A part of a message or of an answer. */
export type Part =
  | { kind: "text"; text: string }
  | { kind: "thought"; text: string }
  | ({ kind: "call" } & Call);

export type Call = {
  id?: string | undefined;
  name: string;
  /** JSON text of an object. */
  arguments: string;
  /** Set if the token limit or a stop string cut off the call: its arguments may be incomplete. */
  isCutOff?: true;
};

export type OfferedTool = Tool & {
  /** Whether the schema must be enforced completely; it is rejected if that is impossible. */
  isStrict?: boolean;
  /** Schema that the model sees, if it differs from the enforced one. */
  shownParameters?: Record<string, unknown>;
};

export type ToolChoice = "auto" | "none" | "required" | { name: string };

/** Sampling options of a request; absent ones get defaults of the server or the model. */
export type SamplingChoice = Omit<Sampling, "temperature" | "logprobs"> & {
  temperature?: number | undefined;
};
