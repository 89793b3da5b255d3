// POST /tokenize and /detokenize
import type { Context } from "hono";
import { DetokenizeRequest, TokenizeRequest } from "../../api/openai/tokenize.ts";
import { chatWithoutAgentMarks } from "../../conversation/agent-marks.ts";
import { checkPromptTokens } from "../../conversation/engine-request.ts";
import { chatInput } from "../../conversation/template-messages.ts";
import type { ServedModel } from "../../serve/models.ts";
import type { EncodeWork } from "../../text/encoder/encode-work.ts";
import { Detokenizer } from "../../text/tokenizer/detokenizer.ts";
import { TooLongError } from "../../text/tokenizer/tokenizer.ts";
import type { HttpEnv } from "../frame/env.ts";
import { badRequest, ClientGoneError } from "../frame/errors.ts";
import { readRequest } from "../frame/json-body.ts";
import { jsonParts } from "../frame/json-parts.ts";
import type { BodyReader, Models } from "../frame/serving.ts";
import { offeredTool } from "../generate/openai-fields.ts";
import { tokenText } from "../generate/token-text.ts";
import { chatOf } from "./chat.ts";

/** Minimum of the token limit, otherwise twice the context: clients count prompts before they truncate them. */
const MIN_LIMIT = 2 ** 17;
/** Tokens per written part; the event loop runs between parts, each of which takes a few milliseconds. */
const PART = 1024;

export function tokenize(serving: BodyReader & Models) {
  return async (c: Context<HttpEnv>): Promise<Response> => {
    const asked = await readRequest(c, serving, TokenizeRequest);
    const { messages, prompt = "", tools, ...request } = asked;
    const model = await serving.models.get(request.model);
    const work: CountableWork = messages
      ? {
          kind: "chat",
          input: chatInput(
            model,
            chatWithoutAgentMarks(
              { ...chatOf({ ...request, messages }), tools: (tools ?? []).map(offeredTool) },
              serving.settings,
            ),
          ),
        }
      : { kind: "texts", texts: [prompt], addSpecialTokens: request.add_special_tokens ?? true };
    const tokens = await countableTokens(c, serving, model, work);
    return jsonParts(c, tokenizeResponse(model, tokens, request.return_token_strs));
  };
}

export function detokenize(serving: BodyReader & Models) {
  return async (c: Context<HttpEnv>): Promise<Response> => {
    const { model: name, tokens } = await readRequest(c, serving, DetokenizeRequest);
    const model = await serving.models.get(name);
    const limit = limitOf(model);
    if (tokens.length > limit) {
      throw badRequest("tokens", `Invalid 'tokens': expected at most ${limit}.`);
    }
    checkPromptTokens([tokens], model);
    c.get("lease")?.use(tokens.length);
    return jsonParts(c, detokenizeResponse(model, tokens));
  };
}

function limitOf({ info }: ServedModel): number {
  return Math.max(MIN_LIMIT, 2 * info.maxLength);
}

type CountableWork =
  | Omit<EncodeWork & { kind: "texts" }, "maxTokens">
  | Omit<EncodeWork & { kind: "chat" }, "maxTokens">;

/** Tokenizes a prompt, which may be longer than the model's context. */
export async function countableTokens(
  c: Context<HttpEnv>,
  { encoder }: BodyReader,
  model: ServedModel,
  work: CountableWork,
): Promise<Uint32Array> {
  const { raw } = c.req;
  const { kind } = work;
  const maxTokens = limitOf(model);
  try {
    const { prompts } = await encoder.encode(model.text, { ...work, maxTokens } as EncodeWork, {
      key: c.get("caller").name,
      signal: raw.signal,
      charge: (tokens) => c.get("lease")?.use(tokens),
    });
    return prompts[0]!;
  } catch (error) {
    if (raw.signal.aborted) throw new ClientGoneError();
    if (!(error instanceof TooLongError)) throw error;
    const param = kind === "chat" ? "messages" : "prompt";
    const message = `Invalid '${param}': expected at most ${maxTokens} tokens.`;
    throw badRequest(param, message, "context_length_exceeded");
  }
}

function* tokenizeResponse(
  { info, text: { tokenizer } }: ServedModel,
  tokens: Uint32Array,
  withTexts: boolean,
): Generator<string> {
  yield `{"count":${tokens.length},"max_model_len":${info.maxLength},"tokens":[`;
  yield* items(tokens, (part) => part.join());
  if (withTexts) {
    yield `],"token_strs":[`;
    const text = (token: number) => JSON.stringify(tokenText(tokenizer, token));
    yield* items(tokens, (part) => Array.from(part, text).join());
  }
  yield "]}";
}

function* items(tokens: Uint32Array, write: (part: Uint32Array) => string): Generator<string> {
  for (let at = 0; at < tokens.length; at += PART) {
    yield (at > 0 ? "," : "") + write(tokens.subarray(at, at + PART));
  }
}

function* detokenizeResponse({ text }: ServedModel, tokens: number[]): Generator<string> {
  const detokenizer = new Detokenizer(text.tokenizer.decoder, { skipControl: false });
  const written = (part: string) => JSON.stringify(part).slice(1, -1);
  yield `{"prompt":"`;
  for (let at = 0; at < tokens.length; at += PART) {
    yield written(detokenizer.push(tokens.slice(at, at + PART)));
  }
  yield `${written(detokenizer.flush())}"}`;
}
