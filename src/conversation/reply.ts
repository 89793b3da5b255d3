// The reply to a conversation: its answers, streamed as events or whole.
import type { Settings } from "../config/settings.ts";
import type { EngineClient } from "../engine/client.ts";
import type { PromptLogprob } from "../engine/protocol.ts";
import { GrammarError } from "../grammar/grammar-error.ts";
import type { Grammars } from "../grammar/grammars.ts";
import type { GrammarClient } from "../grammar/trial-queue.ts";
import { Answers, type AnswersWatcher, type Usage } from "../serve/answers.ts";
import type { ServedModel } from "../serve/models.ts";
import { checkEnd, grammarFor } from "./constraint.ts";
import type { Conversation } from "./conversation.ts";
import { ConversationError } from "./conversation-error.ts";
import { engineRequestMaker, type Given } from "./engine-request.ts";
import type { Answer, AnswerEvents } from "./events.ts";
import { AnswerBuilder, MessageEvents } from "./message-events.ts";
import type { PreparedPrompt } from "./prompt.ts";

/** Environment in which a reply is generated: engine, model and client. */
export type ReplyHost = {
  engine: EngineClient;
  grammars: Grammars;
  settings: Settings;
  model: ServedModel;
  /** Fields that are passed to the engine's requests. */
  given: Pick<Given, "name" | "priority" | "client" | "salt">;
  /** Client that waits for the compilation of the grammar. */
  grammarClient: GrammarClient;
  /** Calls `make` to submit the engine's requests, with a watcher of their tokens. The host may abort the result. */
  maxBacklog?: number | undefined;
  /** Calls `make`, which submits the engine's requests, with a watcher through which the host can abort them. */
  begin(make: (watcher: AnswersWatcher) => Answers): Answers;
};

export async function openReply(
  conversation: Conversation,
  { tokens, heads, markers, constraint, newReader }: PreparedPrompt,
  host: ReplyHost,
): Promise<Reply> {
  const { engine, settings, model, maxBacklog } = host;
  const grammar = await preparedGrammar(conversation, constraint, host);
  const given = { ...host.given, heads, ...grammar };
  const requests = tokens.map(engineRequestMaker(conversation, settings, model, given));
  const { tokenizer } = model.text;
  const { stops = [] } = conversation.limits;
  const asked = { model: model.name, tokenizer, requests, stops, markers, maxBacklog };
  const answers = host.begin((watcher) => new Answers(engine, asked, watcher));
  const readers = Array.from({ length: tokens.length * conversation.n }, () => {
    return new MessageEvents(newReader());
  });
  return new Reply(answers, readers);
}

/** Compiles the constraint's grammar, and stops waiting if the client disconnects. Other clients are not delayed. */
async function preparedGrammar(
  { limits }: Conversation,
  constraint: PreparedPrompt["constraint"],
  { grammars, engine, model, grammarClient }: ReplyHost,
): Promise<Pick<Given, "grammar" | "grammarLane"> | undefined> {
  if (!constraint) return undefined;
  checkEnd(limits, constraint);
  const grammar = grammarFor(model, constraint);
  try {
    return { grammar, grammarLane: await grammars.prepare(grammar, engine, grammarClient) };
  } catch (error) {
    if (!(error instanceof GrammarError)) throw error;
    throw new ConversationError(constraint.param, error.message);
  }
}

export class Reply {
  readonly #answers: Answers;
  readonly #readers: readonly MessageEvents[];

  constructor(answers: Answers, readers: readonly MessageEvents[]) {
    this.#answers = answers;
    this.#readers = readers;
  }

  /** Usage of the answers read so far. */
  get usage(): Usage {
    return this.#answers.usage;
  }

  /** Number of tokens in thoughts, in all answers. */
  get thoughtTokens(): number {
    return this.#readers.reduce((sum, reader) => sum + reader.thoughtTokens, 0);
  }

  /** Log-probabilities of this answer's prompt; undefined before the answer's first event. */
  promptLogprobs(index: number): PromptLogprob[] | undefined {
    return this.#answers.promptLogprobs(index);
  }

  /** Returns the new events since the last read, at most one entry per answer; empty once all answers have ended. */
  async read(): Promise<AnswerEvents[]> {
    const pieces = await this.#answers.read();
    return pieces.map((piece) => this.#readers[piece.index]!.push(piece));
  }

  /** Returns all answers in order, once they have ended. */
  async whole(): Promise<Answer[]> {
    const builders = this.#readers.map((_, index) => new AnswerBuilder(index));
    for (;;) {
      const read = await this.read();
      if (read.length === 0) return builders.map(({ answer }) => answer);
      for (const said of read) builders[said.index]!.add(said);
    }
  }
}
