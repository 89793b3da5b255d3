// A grammar thread. It compiles grammars and, if it serves the engine, follows each constrained answer with a matcher
// and writes its next token mask. The engine's messages take precedence over the main thread's: a late mask may delay
// a step, a compile delays only the client that sent the grammar.
import { type MessagePort, parentPort, workerData } from "node:worker_threads";
import { GrammarMatcher } from "@mlc-ai/web-xgrammar";
import { Compiler } from "./compiler.ts";
import { FollowedAnswers } from "./followed-answers.ts";
import {
  type FromGrammarThread,
  type Grammar,
  type ToGrammarThread,
  type ToMatchers,
  type Vocabulary,
  WORK,
} from "./grammar.ts";

const setup = workerData as { maxBytes: number; status: SharedArrayBuffer };
const status = new Int32Array(setup.status);
const compiler = new Compiler(setup.maxBytes);
const main = parentPort!;
const reply = (message: FromGrammarThread) => main.postMessage(message);

type Question = ToGrammarThread & { kind: "load" | "prepare" };

let asked: Question[] = [];
const orders: ToMatchers[] = [];
let engine: MessagePort | undefined;
let answers = new FollowedAnswers(open);
let arrival = Promise.withResolvers<void>();

/** xgrammar prints the reason of a failure to the console, with a line of its source, and then throws. */
let lastPrinted: string | undefined;
console.error = (...printed: unknown[]) => {
  lastPrinted ??= /\.cc:\d+: (.*)/s.exec(printed.join(" "))?.[1];
};
console.warn = console.error;

main.on("message", (message: ToGrammarThread) => {
  if (message.kind === "serve") serve(message.port);
  else if (message.kind === "withdraw") {
    asked = asked.filter((each) => each.kind !== "prepare" || each.id !== message.id);
  } else asked.push(message);
  arrival.resolve();
});

for (;;) {
  const order = orders.shift();
  const question = order ? undefined : asked.shift();
  if (order) {
    // Another engine may take the thread over meanwhile, whose answers have the same ids.
    const own = answers;
    if (order.kind === "open") await load(order.grammar.vocabulary);
    await work(() => own.follow(order));
  } else if (question?.kind === "load") await load(question.vocabulary);
  else if (question?.kind === "prepare") await prepare(question);
  else {
    await arrival.promise;
    arrival = Promise.withResolvers();
  }
}

/** Errors are ignored here: each grammar that needs the vocabulary fails by itself. */
async function load(vocabulary: Vocabulary): Promise<void> {
  await compiler.load(vocabulary).catch(() => {});
}

/** Marks the thread as busy: the main thread terminates it if a task takes too long. */
async function work(task: () => Promise<void>): Promise<void> {
  Atomics.add(status, WORK, 1);
  try {
    await task();
  } finally {
    Atomics.add(status, WORK, 1);
  }
}

function serve(port: MessagePort): void {
  engine?.close();
  orders.length = 0;
  answers.close();
  answers = new FollowedAnswers(open);
  engine = port;
  port.on("message", (message: ToMatchers) => {
    // Messages sent before the port was closed may still arrive.
    if (port !== engine) return;
    orders.push(message);
    arrival.resolve();
  });
}

async function prepare({ id, grammar }: Question & { kind: "prepare" }): Promise<void> {
  try {
    await compiler.load(grammar.vocabulary);
    reply({ kind: "begun", id });
    await work(() => checkBeginning(grammar));
    reply({ kind: "prepared", id });
  } catch (error) {
    const message = reason(error);
    const isBroken = message === undefined;
    reply({ kind: "failed", id, message: message ?? "it cannot be compiled", isBroken });
  }
  // Lets messages of the engine arrive.
  await new Promise(setImmediate);
}

/** Endlessly recursive rules compile, but allow no token. */
async function checkBeginning(grammar: Grammar): Promise<void> {
  const matcher = await open(grammar);
  const allowed = await matcher.getNextTokenBitmask();
  matcher.dispose();
  if (allowed.every((word) => word === 0)) throw new Error("it allows no text");
}

async function open(grammar: Grammar): Promise<GrammarMatcher> {
  const compiled = await compiler.compile(grammar);
  return await GrammarMatcher.createGrammarMatcher(compiled, [...grammar.vocabulary.stopTokens]);
}

/** The message for the client: of xgrammar's errors only their printed text. */
function reason(error: unknown): string | undefined {
  const said = lastPrinted?.trim().replace(/\.$/, "");
  lastPrinted = undefined;
  const isOurs = error instanceof Error && error.constructor === Error;
  return said ?? (isOurs ? error.message : undefined);
}
