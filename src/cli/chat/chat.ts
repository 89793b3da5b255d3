// A chat in the terminal, for `mlx-serve run` without a prompt: messages, and slash commands.
import { writeFileSync } from "node:fs";
import { codeOf } from "../../hub/hub-error.ts";
import { nearest } from "../../nearest.ts";
import { tell } from "../terminal/tell.ts";
import type { Answerer, Answerers, Message } from "./answerer.ts";
import { ChatInput } from "./chat-input.ts";

export type ChatOptions = {
  answerer: Answerer;
  answerers: Answerers;
  /** Prints an answer and returns it. */
  say(answerer: Answerer, messages: readonly Message[], signal: AbortSignal): Promise<string>;
  system: string | undefined;
};

/** The state of a chat that commands may change. */
type Chat = ChatOptions & { messages: Message[]; isOver: boolean };

type Command = {
  usage: string;
  summary: string;
  run(chat: Chat, argument: string): void | Promise<void>;
};

const commands: Readonly<Record<string, Command>> = {
  help: { usage: "/help", summary: "this text", run: () => tellHelp() },
  clear: {
    usage: "/clear",
    summary: "starts over",
    run(chat) {
      chat.messages = [];
    },
  },
  system: {
    usage: "/system [text]",
    summary: "sets the system prompt, or shows it",
    run(chat, text) {
      if (text === "") tell(chat.system ?? "there is no system prompt");
      else chat.system = text;
    },
  },
  save: {
    usage: "/save <file>",
    summary: "writes the conversation to a new file (JSON)",
    run: (chat, path) => save(chat, path),
  },
  model: {
    usage: "/model [model]",
    summary: "switches to another model, or shows the current one",
    async run(chat, name) {
      if (name !== "") chat.answerer = await chat.answerers.open(name);
      tell(chat.answerer.name);
    },
  },
  bye: {
    usage: "/bye",
    summary: "quits, as Ctrl-D does, and Ctrl-C twice",
    run(chat) {
      chat.isOver = true;
    },
  },
};

/** Names of commands in other programs, and the equivalents here. */
const otherNames: Readonly<Record<string, string>> = {
  exit: "bye",
  quit: "bye",
  q: "bye",
  "?": "help",
  new: "clear",
  reset: "clear",
};

export async function converse(options: ChatOptions): Promise<void> {
  const chat: Chat = { ...options, messages: [], isOver: false };
  const input = new ChatInput();
  tell(`${chat.answerer.name}: /help lists commands, /bye quits`);
  try {
    for (let text = await input.next(); text !== undefined; text = await input.next()) {
      if (text.startsWith("/") && !text.includes("\n")) await command(chat, text).catch(tellError);
      else if (text.trim() !== "") await answer(chat, text, input).catch(tellError);
      if (chat.isOver) break;
    }
  } finally {
    input.close();
  }
}

async function command(chat: Chat, line: string): Promise<void> {
  const [, word = "", argument = ""] = /^\/(\S*)\s*(.*)$/s.exec(line)!;
  const found = commands[otherNames[word] ?? word];
  if (found) return await found.run(chat, argument.trim());
  const meant = nearest(word, Object.keys(commands));
  const hint = meant ? `did you mean /${meant}?` : "/help lists commands.";
  tell(`there is no command /${word}; ${hint} A message that begins with / is put in """`);
}

/** Asks a question and prints the answer; without an answer, the question is not added to the conversation. */
async function answer(chat: Chat, text: string, input: ChatInput): Promise<void> {
  const question: Message = { role: "user", content: text };
  const answering = new AbortController();
  input.onInterrupt = () => answering.abort();
  try {
    const content = await chat.say(
      chat.answerer,
      [...systemOf(chat), ...chat.messages, question],
      answering.signal,
    );
    chat.messages.push(question, { role: "assistant", content });
  } finally {
    input.onInterrupt = undefined;
  }
}

function systemOf({ system }: Chat): Message[] {
  return system === undefined ? [] : [{ role: "system", content: system }];
}

function save(chat: Chat, path: string): void {
  if (path === "") throw new Error(`usage: ${commands.save!.usage}`);
  const messages = [...systemOf(chat), ...chat.messages];
  const text = JSON.stringify({ model: chat.answerer.name, messages }, null, 2);
  try {
    writeFileSync(path, `${text}\n`, { flag: "wx" });
  } catch (error) {
    const code = codeOf(error);
    const why = code === "EEXIST" ? "already exists" : `cannot be written (${code})`;
    throw new Error(`${path} ${why}: choose another file`);
  }
  tell(`${messages.length} messages written to ${path}`);
}

function tellHelp(): void {
  const width = Math.max(...Object.values(commands).map(({ usage }) => usage.length));
  for (const { usage, summary } of Object.values(commands)) {
    tell(`${usage.padEnd(width)}  ${summary}`);
  }
  tell(
    '""" begins and ends a message of several lines. Ctrl-C stops an answer, or clears the line.',
  );
}

function tellError(error: unknown): void {
  tell(error instanceof Error ? error.message : String(error));
}
