// Prepares a conversation for one model: the tokens of its prompts, the grammar of its answers, and their parser.
import { checkLengths, countedTokens } from "../serve/context-length.ts";
import type { ServedModel } from "../serve/models.ts";
import type { EncodeWork } from "../text/encoder/encode-work.ts";
import type { Encoded } from "../text/encoder/encoder.ts";
import { formatOf } from "../tools/formats.ts";
import { messageParser } from "../tools/message.ts";
import { thinkingOf, thinkTags, withThought } from "../tools/reasoning.ts";
import { answerTagOf } from "../tools/syntax/answer-tags.ts";
import { newCallId, type ToolFormat } from "../tools/syntax/format.ts";
import type { Constraint } from "./constraint.ts";
import type { Chat, Conversation, Texts } from "./conversation.ts";
import { checkContext, checkPromptTokens, checkTokens } from "./engine-request.ts";
import type { MessageReader } from "./message-events.ts";
import { chatInput } from "./template-messages.ts";
import { enforcedCalls, toolUseOf, withCalls } from "./tool-use.ts";

export type Encode = (work: EncodeWork) => Promise<Encoded>;

export type PreparedPrompt = {
  /** Token ids of each prompt. */
  tokens: readonly Uint32Array[];
  /** Prefix lengths, in tokens, that other conversations may share. */
  heads?: readonly number[] | undefined;
  /** The constraint on the answers. */
  constraint: Constraint | undefined;
  /** Control tokens that are part of the answers' text. */
  markers: readonly string[];
  newReader(): MessageReader;
};

/** Prepares a conversation's prompts; throws a ContextLengthError if one exceeds the model's context. */
export async function preparePrompt(
  conversation: Conversation,
  model: ServedModel,
  encode: Encode,
): Promise<PreparedPrompt> {
  const { prompt, constraint } = conversation;
  checkContext(conversation, model);
  const prepared =
    prompt.kind === "chat"
      ? await prepareChat(prompt, constraint, model, encode)
      : {
          tokens: await textTokens(prompt, model, encode),
          constraint,
          markers: [],
          newReader: plainReader,
        };
  checkTokens(conversation, model);
  checkPromptTokens(prepared.tokens, model);
  return prepared;
}

async function prepareChat(
  chat: Chat,
  asked: Constraint | undefined,
  model: ServedModel,
  encode: Encode,
): Promise<PreparedPrompt> {
  const use = toolUseOf(chat, model);
  const { prompts, ending, heads } = await encode({
    kind: "chat",
    input: chatInput(model, chat),
    maxTokens: countedTokens(model.info),
    // Only recurrent states need the shareable prefixes: they resume at snapshots, KV caches at any block.
    wantsHeads: model.info.slots !== undefined,
  });
  const { format } = use ?? formatOf(model.text.template);
  const thought = format.thought ?? thinkTags;
  const thinking = thinkingOf(model.text.template, ending, thought);
  const constraint = withCalls(inFormat(asked, format), use);
  return {
    tokens: prompts,
    heads,
    constraint: constraint && {
      ...constraint,
      format: format.thinks ? constraint.format : withThought(constraint.format, thinking, thought),
      markers: [...(constraint.markers ?? []), ...thought.tokens],
    },
    markers: [...thought.tokens, ...(use || format.thinks ? format.markers : [])],
    newReader: () => ({
      parser: messageParser({
        thinking,
        format,
        tools: use?.tools,
        enforced: enforcedCalls(asked, use),
        answerTag: answerTagOf(model.text.template),
      }),
      newCallId: format.newCallId,
      // Limits the calls, because without a grammar nothing else prevents a second one.
      maxCalls: use?.isParallel === false ? 1 : Infinity,
    }),
  };
}

/** Wraps a constraint in the markup of the model's format. */
function inFormat(form: Constraint | undefined, format: ToolFormat): Constraint | undefined {
  if (!form || !format.wrapText) return form;
  return { ...form, format: format.wrapText(form.format), markers: format.markers };
}

const plainReader = (): MessageReader => ({
  parser: messageParser({ thinking: "none" }),
  newCallId,
  maxCalls: 0,
});

/** Encodes texts, or checks token ids. Control tokens in a text stay text unless it is a rendered chat. */
export async function textTokens(
  { prompts, isRendered }: Omit<Texts, "kind">,
  { info }: ServedModel,
  encode: Encode,
): Promise<Uint32Array[]> {
  const texts = prompts.filter((prompt) => typeof prompt === "string");
  if (texts.length > 0) {
    const controlTokens = isRendered ? "parse" : "text";
    const work = {
      kind: "texts",
      texts,
      addSpecialTokens: true,
      controlTokens,
      maxTokens: countedTokens(info),
    } as const;
    return (await encode(work)).prompts;
  }
  checkLengths(prompts, info);
  return prompts.map((ids) => Uint32Array.from(ids as readonly number[]));
}
