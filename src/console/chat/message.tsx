// One message of a chat, with its actions.
import { memo, useState } from "hono/jsx/dom";
import { CopyButton } from "../parts/copy-button.tsx";
import { valueOf } from "../parts/form.tsx";
import { oneDigit, seconds } from "../parts/numbers.ts";
import type { Call, Figures, Message } from "./chat.ts";
import { JsonBlock } from "./code-block.tsx";
import { Markdown } from "./markdown.tsx";

export type MessageProps = {
  message: Message;
  /** Index of this version, and the number of versions. */
  version: number;
  versions: number;
  onVersion(step: -1 | 1): void;
  onEdit(text: string): void;
  onRetry(): void;
};

/** Whether props are equal. Callbacks are ignored: they are recreated on each rendering but equivalent. */
const isSame = (before: MessageProps, after: MessageProps) =>
  before.message === after.message &&
  before.version === after.version &&
  before.versions === after.versions;

export const MessageView = memo((props: MessageProps) => {
  const { message } = props;
  if (message.role === "assistant") return <Answer {...props} />;
  return message.role === "user" ? <Question {...props} /> : <Result message={message} />;
}, isSame);

function Question(props: MessageProps) {
  const { message, onEdit } = props;
  const [draft, setDraft] = useState<string | undefined>(undefined);
  const send = () => {
    setDraft(undefined);
    if (draft?.trim()) onEdit(draft);
  };
  if (draft !== undefined) {
    return (
      <article class="question editing">
        <textarea
          aria-label="Edit the question"
          value={draft}
          onInput={(event: Event) => setDraft(valueOf(event))}
        />
        <div class="actions">
          <button type="button" class="main" onClick={send}>
            Send
          </button>
          <button type="button" onClick={() => setDraft(undefined)}>
            Cancel
          </button>
        </div>
      </article>
    );
  }
  return (
    <article class="question" aria-label="You">
      <div class="bubble">{message.text}</div>
      <div class="actions">
        <Versions {...props} />
        <button type="button" class="quiet" onClick={() => setDraft(message.text)}>
          Edit
        </button>
        <CopyButton text={message.text} />
      </div>
    </article>
  );
}

function Result({ message }: { message: Message }) {
  return (
    <article class="result" aria-label="Result of a tool">
      <span class="tag">result</span>
      <pre>{message.text}</pre>
    </article>
  );
}

function Answer(props: MessageProps) {
  const { message, onRetry } = props;
  const { text, thought, calls = [], state, isJson, error } = message;
  const isStreaming = state === "streaming";
  return (
    <article
      class="answer"
      aria-label={`Answer of ${message.model}`}
      aria-busy={String(isStreaming)}
    >
      {thought && <Thought text={thought} isThinking={isStreaming && text === ""} />}
      {isJson ? <JsonBlock text={text} /> : <Markdown text={text} />}
      {calls.map((call) => (
        <CallView call={call} />
      ))}
      {isStreaming && text === "" && !thought && calls.length === 0 && (
        <p class="first-token">
          <span class="pulse" />
          waiting for the first token
        </p>
      )}
      {error !== undefined && (
        <p class="problem" role="alert">
          {error}
        </p>
      )}
      <div class="actions">
        <Versions {...props} />
        {!isStreaming && (
          <>
            <button type="button" class="quiet" onClick={onRetry}>
              Retry
            </button>
            <CopyButton text={text} />
          </>
        )}
        <p class="figures">{figuresOf(message).join(" · ")}</p>
      </div>
    </article>
  );
}

function Thought({ text, isThinking }: { text: string; isThinking: boolean }) {
  return (
    <details class="thought">
      <summary>{isThinking ? "Thinking…" : "Thought"}</summary>
      <Markdown text={text} />
    </details>
  );
}

function CallView({ call }: { call: Call }) {
  return (
    <section class="call" aria-label={`Call of ${call.name}`}>
      <h3>
        <span class="tag">call</span> {call.name}
      </h3>
      <JsonBlock text={call.arguments} />
    </section>
  );
}

function Versions({ version, versions, onVersion }: MessageProps) {
  if (versions < 2) return null;
  return (
    <span class="versions">
      <button
        type="button"
        class="quiet"
        aria-label="Earlier version"
        disabled={version === 0}
        onClick={() => onVersion(-1)}
      >
        ‹
      </button>
      <span>
        {version + 1}/{versions}
      </span>
      <button
        type="button"
        class="quiet"
        aria-label="Later version"
        disabled={version === versions - 1}
        onClick={() => onVersion(1)}
      >
        ›
      </button>
    </span>
  );
}

function figuresOf({ state, finish, figures = {}, model }: Message): string[] {
  const { ttftMs, tokensPerSecond, promptTokens, cachedTokens, completionTokens }: Figures =
    figures;
  return [
    ...(model === undefined ? [] : [model]),
    ...(tokensPerSecond === undefined ? [] : [`${oneDigit(tokensPerSecond)} tokens/s`]),
    ...(ttftMs === undefined ? [] : [`first token ${seconds(ttftMs)}`]),
    ...(completionTokens === undefined ? [] : [`${completionTokens} tokens`]),
    ...(promptTokens === undefined ? [] : [`${cachedTokens}/${promptTokens} prompt tokens cached`]),
    ...(finish === "length" ? ["cut off by the token limit"] : []),
    ...(state === "stopped" ? ["stopped"] : []),
  ];
}
