// The items of a response (messages, reasoning and calls), whole or as stream events.
import type { ContentPart, OutputItem } from "../../api/openai/response-items.ts";
import type { ResponseEvent } from "../../api/openai/responses.ts";
import type { Part } from "../../conversation/conversation.ts";
import type { AnswerEvent } from "../../conversation/events.ts";
import { AnswerBuilder } from "../../conversation/message-events.ts";
import { signatureOf } from "../generate/thought-signature.ts";
import { CustomInput, customInput, type ResponseTools } from "./response-tools.ts";

export type ItemOptions = {
  tools: ResponseTools;
  /** Whether reasoning items include encrypted_content, from which a later request restores the thought. */
  isCarried: boolean;
};

type Status = OutputItem["status"];
type WithoutNumber<T> = T extends unknown ? Omit<T, "sequence_number"> : never;
/** An event without its sequence number. */
export type NewEvent = WithoutNumber<ResponseEvent>;

const prefixes = { text: "msg", thought: "rs", function: "fc", custom: "ctc" } as const;

export function newItemId(part: Part, tools: ResponseTools): string {
  const kind = part.kind === "call" ? (tools.find(part.name)?.type ?? "function") : part.kind;
  return `${prefixes[kind]}_${crypto.randomUUID().replaceAll("-", "")}`;
}

/** Returns the status of a part. `isCutOff`: whether the token limit ended the answer in this part. */
export function statusOf(part: Part, isCutOff: boolean): Status {
  const isIncomplete = part.kind === "call" ? part.isCutOff === true : isCutOff;
  return isIncomplete ? "incomplete" : "completed";
}

export function itemOf(
  part: Part,
  id: string,
  status: Status,
  { tools, isCarried }: ItemOptions,
): OutputItem {
  switch (part.kind) {
    case "text":
      return { type: "message", id, role: "assistant", status, content: [textPart(part.text)] };
    case "thought":
      return {
        type: "reasoning",
        id,
        status,
        summary: [],
        content: [{ type: "reasoning_text", text: part.text }],
        ...(isCarried && { encrypted_content: signatureOf(part.text, true) }),
      };
    case "call": {
      const { type = "function", name = part.name, namespace } = tools.find(part.name) ?? {};
      const common = { id, status, call_id: part.id!, name, ...(namespace && { namespace }) };
      return type === "function"
        ? { type: "function_call", ...common, arguments: part.arguments }
        : { type: "custom_tool_call", ...common, input: customInput(part.arguments) };
    }
  }
}

function textPart(text: string): Extract<ContentPart, { type: "output_text" }> {
  return { type: "output_text", text, annotations: [], logprobs: [] };
}

/** Turns answer events into events of items; at most one item is open at a time. */
export class ItemEvents {
  /** Completed items, in order. */
  readonly done: OutputItem[] = [];
  readonly #options: ItemOptions;
  readonly #builder = new AnswerBuilder(0);
  #open: { id: string; part: Part; input: CustomInput } | undefined;

  constructor(options: ItemOptions) {
    this.#options = options;
  }

  push(event: AnswerEvent): NewEvent[] {
    const add = () => this.#builder.add({ index: 0, events: [event], tokens: [], scores: [] });
    if (event.kind === "end" || event.kind === "call_end") {
      add();
      return this.#close(event.kind === "end" && event.reason === "length");
    }
    const isOther = event.kind !== "arguments" && event.kind !== this.#open?.part.kind;
    const closed = isOther || event.kind === "call" ? this.#close(false) : [];
    add();
    const opened = this.#open ? [] : this.#begin(this.#builder.answer.parts.at(-1)!);
    return [...closed, ...opened, ...this.#deltas(event)];
  }

  #begin(part: Part): NewEvent[] {
    const id = newItemId(part, this.#options.tools);
    this.#open = { id, part, input: new CustomInput() };
    const item = itemOf(emptied(part), id, "in_progress", this.#options);
    const added: NewEvent = {
      type: "response.output_item.added",
      ...this.#place,
      item: begun(item),
    };
    if (!("content" in item)) return [added];
    const [content] = item.content;
    return [added, { type: "response.content_part.added", ...this.#inPart, part: content! }];
  }

  #deltas(event: AnswerEvent): NewEvent[] {
    switch (event.kind) {
      case "text":
        return [
          { type: "response.output_text.delta", ...this.#inPart, delta: event.text, logprobs: [] },
        ];
      case "thought":
        return [{ type: "response.reasoning_text.delta", ...this.#inPart, delta: event.text }];
      case "arguments": {
        const type = this.#isCustom
          ? ("response.custom_tool_call_input.delta" as const)
          : ("response.function_call_arguments.delta" as const);
        const delta = this.#isCustom ? this.#open!.input.push(event.text) : event.text;
        return delta === "" ? [] : [{ type, ...this.#inItem, delta }];
      }
      default:
        return [];
    }
  }

  #close(isCutOff: boolean): NewEvent[] {
    if (!this.#open) return [];
    const { id, part } = this.#open;
    const item = itemOf(part, id, statusOf(part, isCutOff), this.#options);
    const events = [
      ...this.#ends(item),
      { type: "response.output_item.done" as const, ...this.#place, item },
    ];
    this.#open = undefined;
    this.done.push(item);
    return events;
  }

  #ends(item: OutputItem): NewEvent[] {
    switch (item.type) {
      case "message": {
        const [part] = item.content;
        const { text } = part!;
        return [
          { type: "response.output_text.done", ...this.#inPart, text, logprobs: [] },
          { type: "response.content_part.done", ...this.#inPart, part: part! },
        ];
      }
      case "reasoning": {
        const [part] = item.content;
        return [
          { type: "response.reasoning_text.done", ...this.#inPart, text: part!.text },
          { type: "response.content_part.done", ...this.#inPart, part: part! },
        ];
      }
      case "function_call": {
        const { name, arguments: given } = item;
        const type = "response.function_call_arguments.done";
        return [{ type, ...this.#inItem, name, arguments: given }];
      }
      case "custom_tool_call":
        return [
          { type: "response.custom_tool_call_input.done", ...this.#inItem, input: item.input },
        ];
    }
  }

  get #isCustom(): boolean {
    const part = this.#open?.part;
    return part?.kind === "call" && this.#options.tools.find(part.name)?.type === "custom";
  }

  get #place() {
    return { output_index: this.done.length };
  }

  get #inItem() {
    return { ...this.#place, item_id: this.#open!.id };
  }

  get #inPart() {
    return { ...this.#inItem, content_index: 0 };
  }
}

/** Returns the part with empty text or arguments. */
function emptied(part: Part): Part {
  return part.kind === "call" ? { ...part, arguments: "" } : { ...part, text: "" };
}

/** Returns the item with empty content, as it is sent when it begins. */
function begun(item: OutputItem): OutputItem {
  return "content" in item ? { ...item, content: [] } : item;
}
