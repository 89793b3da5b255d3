// The chats stored in the browser, the open one, and the actions on them.
import { keep, kept, keptNames } from "../parts/kept.ts";
import { messageOf } from "../parts/server.ts";
import { Store } from "../parts/store.ts";
import { streamAnswer } from "./answer.ts";
import {
  type Chat,
  type ChatSettings,
  type Message,
  newChat,
  newestLeaf,
  newId,
  pathTo,
  requestOf,
  withLeaf,
  withMessage,
} from "./chat.ts";

export const chats = new Store<readonly Chat[]>(keptChats());
export const openId = new Store<string | undefined>(chats.value[0]?.id);
/** The current error message. */
export const problem = new Store("");

/** Controllers that abort running answers, by message id. */
const streams = new Map<string, AbortController>();

/** Delay before changes are written to the browser's storage. */
const SAVE_MS = 1000;

function keptChats(): Chat[] {
  const all = keptNames("chat.").flatMap((id) => {
    try {
      return [JSON.parse(kept(`chat.${id}`)!) as Chat];
    } catch {
      return [];
    }
  });
  // An answer that was streaming when the page was closed cannot be resumed.
  const settled = all.map((chat) => ({
    ...chat,
    messages: Object.fromEntries(
      Object.entries(chat.messages).map(([id, message]) => [
        id,
        message.state === "streaming" ? { ...message, state: "stopped" as const } : message,
      ]),
    ),
  }));
  return settled.sort((a, b) => b.changedMs - a.changedMs);
}

const unsaved = new Set<string>();
let saveTimer: number | undefined;

function save(): void {
  clearTimeout(saveTimer);
  saveTimer = undefined;
  for (const id of unsaved) {
    const chat = chatOf(id);
    if (!chat || keep(`chat.${id}`, JSON.stringify(chat))) continue;
    problem.set("The browser's storage is full: delete chats, or recent changes are lost.");
  }
  unsaved.clear();
}

addEventListener("pagehide", save);

const chatOf = (id: string) => chats.value.find((chat) => chat.id === id);

function put(chat: Chat): void {
  const isNew = !chatOf(chat.id);
  const all = chats.value.map((each) => (each.id === chat.id ? chat : each));
  chats.set(isNew ? [chat, ...all] : all);
  unsaved.add(chat.id);
  saveTimer ??= setTimeout(save, SAVE_MS);
}

/** Changes the chat, if it still exists. */
function change(id: string, make: (chat: Chat) => Chat): void {
  const chat = chatOf(id);
  if (chat) put(make(chat));
}

export function openChat(model: string): void {
  const before = chats.value.find(({ id }) => id === openId.value);
  const chat = newChat(model, before?.settings);
  put(chat);
  openId.set(chat.id);
}

export function removeChat(id: string): void {
  stop(id);
  chats.set(chats.value.filter((chat) => chat.id !== id));
  unsaved.delete(id);
  keep(`chat.${id}`, undefined);
  if (openId.value === id) openId.set(chats.value[0]?.id);
}

export function setSettings(id: string, settings: Partial<ChatSettings>): void {
  change(id, (chat) => ({ ...chat, settings: { ...chat.settings, ...settings } }));
}

export function setModel(id: string, column: number, model: string): void {
  change(id, (chat) => ({
    ...chat,
    columns: chat.columns.map((each, i) => (i === column ? { ...each, model } : each)),
  }));
}

/** Adds a second column with the conversation so far, or removes it if `model` is undefined. */
export function setSecondColumn(id: string, model: string | undefined): void {
  change(id, (chat) => {
    const [first] = chat.columns;
    if (model === undefined) return { ...chat, columns: [first!] };
    return { ...chat, columns: [first!, { model, leaf: first!.leaf }] };
  });
}

/** Sends a question in every column. */
export function sendQuestion(id: string, text: string): void {
  const chat = chatOf(id)!;
  const isSame = chat.columns.every(({ leaf }) => leaf === chat.columns[0]!.leaf);
  const shared = newId();
  for (const [column, { leaf }] of chat.columns.entries()) {
    const message = isSame ? shared : newId();
    addAndAnswer(id, column, { id: message, parent: leaf, role: "user", text });
  }
}

/** Adds a new version of a question in one column. */
export function editQuestion(id: string, column: number, before: Message, text: string): void {
  addAndAnswer(id, column, { ...before, id: newId(), text });
}

export function sendResult(id: string, column: number, callId: string, text: string): void {
  const { leaf } = chatOf(id)!.columns[column]!;
  addAndAnswer(id, column, { id: newId(), parent: leaf, role: "tool", callId, text });
}

/** Requests another answer to the same question. */
export function retry(id: string, column: number, answer: Message): void {
  change(id, (chat) => withLeaf(chat, column, answer.parent));
  void answerIn(id, column);
}

export function showVersion(id: string, column: number, message: Message): void {
  change(id, (chat) => {
    const { model } = chat.columns[column]!;
    return withLeaf(chat, column, newestLeaf(chat, message, model));
  });
}

/** Aborts the answers of a chat that are still streaming. */
export function stop(id: string): void {
  for (const message of Object.keys(chatOf(id)?.messages ?? {})) streams.get(message)?.abort();
}

function addAndAnswer(id: string, column: number, message: Message): void {
  change(id, (chat) => withLeaf(withMessage(chat, message), column, message.id));
  if (missingResults(chatOf(id)!, column).length === 0) void answerIn(id, column);
}

/** Returns the ids of calls without a result: the model continues once it has all results. */
export function missingResults(chat: Chat, column: number): readonly string[] {
  const path = pathTo(chat, chat.columns[column]!.leaf);
  const last = path.findLastIndex(({ role }) => role === "assistant");
  const calls = path[last]?.calls ?? [];
  const answered = path.slice(last + 1).map(({ callId }) => callId);
  if (path.slice(last + 1).some(({ role }) => role === "user")) return [];
  return calls.map((call) => call.id).filter((call) => !answered.includes(call));
}

async function answerIn(id: string, column: number): Promise<void> {
  const chat = chatOf(id)!;
  const { model, leaf } = chat.columns[column]!;
  const { settings } = chat;
  problem.set("");
  let body: object;
  try {
    body = requestOf(settings, model, pathTo(chat, leaf));
  } catch (error) {
    problem.set(messageOf(error));
    return;
  }
  const answer: Message = {
    id: newId(),
    parent: leaf,
    role: "assistant",
    text: "",
    model,
    state: "streaming",
    ...(settings.schema.trim() !== "" && { isJson: true }),
  };
  const controller = new AbortController();
  streams.set(answer.id, controller);
  change(id, (now) => withLeaf(withMessage(now, answer), column, answer.id));
  const show = eachFrame((message: Message) => change(id, (now) => withMessage(now, message)));
  await streamAnswer(answer, body, controller.signal, show);
  streams.delete(answer.id);
}

/** Throttles calls to one per frame, with the newest value; does not wait while the page is hidden. */
function eachFrame<T>(call: (value: T) => void): (value: T) => void {
  let newest: { value: T } | undefined;
  const flush = () => {
    if (!newest) return;
    const { value } = newest;
    newest = undefined;
    call(value);
  };
  return (value) => {
    const isScheduled = newest !== undefined;
    newest = { value };
    if (isScheduled) return;
    if (document.hidden) flush();
    else requestAnimationFrame(flush);
  };
}
