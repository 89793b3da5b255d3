// POST /tokenize and /detokenize
import type { Context } from "hono";
import {
  DetokenizeRequest,
  type DetokenizeResponse,
  TokenizeRequest,
  type TokenizeResponse,
} from "../api/tokenize.ts";
import { chatPrompt } from "./chat.ts";
import { checkPromptTokens } from "./engine-request.ts";
import type { HttpEnv } from "./env.ts";
import { badRequest } from "./errors.ts";
import { readRequest } from "./json-body.ts";
import type { Serving } from "./serving.ts";
import { tokenText } from "./token-text.ts";
import { toolOf } from "./tool-use.ts";

/** Tokenizing this many blocks the event loop for about 50 ms. */
const MAX_TOKENS = 2 ** 17;

export function tokenize(serving: Serving) {
  return async (c: Context<HttpEnv>): Promise<Response> => {
    const asked = await readRequest(c, serving.settings, TokenizeRequest);
    const { messages, prompt, add_special_tokens, tools, ...request } = asked;
    const model = await serving.models.get(request.model);
    const { tokenizer } = model.text;
    const tokens = messages
      ? chatPrompt(model, { ...request, messages }, MAX_TOKENS, tools?.map(toolOf)).ids
      : tokenizer.encode(prompt ?? "", {
          addSpecialTokens: add_special_tokens ?? true,
          controlTokens: "text",
          maxTokens: MAX_TOKENS,
        });
    return c.json({
      count: tokens.length,
      max_model_len: model.info.maxLength,
      tokens,
      ...(request.return_token_strs && {
        token_strs: tokens.map((token) => tokenText(tokenizer, token)),
      }),
    } satisfies TokenizeResponse);
  };
}

export function detokenize(serving: Serving) {
  return async (c: Context<HttpEnv>): Promise<Response> => {
    const request = await readRequest(c, serving.settings, DetokenizeRequest);
    if (request.tokens.length > MAX_TOKENS) {
      throw badRequest("tokens", `Invalid 'tokens': expected at most ${MAX_TOKENS}.`);
    }
    const model = await serving.models.get(request.model);
    checkPromptTokens("tokens", [request.tokens], model.info.vocabulary);
    const prompt = model.text.tokenizer.decode(request.tokens, { skipControl: false });
    return c.json({ prompt } satisfies DetokenizeResponse);
  };
}
