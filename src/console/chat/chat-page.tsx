// The chat page: the list of chats, the open chat, and its settings.
import { useEffect, useLayoutEffect, useRef, useState } from "hono/jsx/dom";
import { Problem, SelectField } from "../parts/form.tsx";
import { session } from "../parts/session.ts";
import { useStore } from "../parts/store.ts";
import { type Chat, type Message, pathTo, versionsOf } from "./chat.ts";
import {
  chats,
  editQuestion,
  missingResults,
  openChat,
  openId,
  problem,
  removeChat,
  retry,
  sendQuestion,
  sendResult,
  setModel,
  setSecondColumn,
  setSettings,
  showVersion,
  stop,
} from "./chats.ts";
import { Composer, ResultForm } from "./composer.tsx";
import { MessageView } from "./message.tsx";
import { SettingsPanel } from "./settings-panel.tsx";

/** A message list scrolled to within this distance of its end stays at the end while an answer grows. */
const NEAR_PX = 80;

export function ChatPage() {
  const all = useStore(chats);
  const id = useStore(openId);
  const { models } = useStore(session);
  const [showsSettings, setShowsSettings] = useState(false);
  const chat = all.find((each) => each.id === id);
  useEffect(() => {
    if (!chat && models[0] !== undefined) openChat(models[0]);
  }, [chat === undefined, models]);
  if (!chat) return <p class="empty">No chat is open.</p>;
  return (
    <div class={showsSettings ? "chat with-settings" : "chat"}>
      <ChatList all={all} open={chat.id} onNew={() => openChat(chat.columns[0]!.model)} />
      <section class="talk" aria-label="Chat">
        <Toolbar
          chat={chat}
          models={models}
          showsSettings={showsSettings}
          onSettings={() => setShowsSettings(!showsSettings)}
        />
        <div class="columns">
          {chat.columns.map((_, column) => (
            <Thread chat={chat} column={column} key={`${chat.id} ${column}`} />
          ))}
        </div>
        <Problem text={useStore(problem)} />
        <Composer
          isBusy={isBusy(chat)}
          onSend={(text) => sendQuestion(chat.id, text)}
          onStop={() => stop(chat.id)}
        />
      </section>
      {showsSettings && (
        <SettingsPanel
          settings={chat.settings}
          onChange={(settings) => setSettings(chat.id, settings)}
        />
      )}
    </div>
  );
}

function isBusy(chat: Chat): boolean {
  return chat.columns.some(({ leaf }) => chat.messages[leaf ?? ""]?.state === "streaming");
}

type ListProps = { all: readonly Chat[]; open: string; onNew(): void };

function ChatList({ all, open, onNew }: ListProps) {
  return (
    <nav class="chats" aria-label="Chats">
      <button type="button" class="main" onClick={onNew}>
        New chat
      </button>
      <ul>
        {all.map((chat) => (
          <li key={chat.id}>
            <button
              type="button"
              class="open"
              aria-current={chat.id === open ? "true" : undefined}
              onClick={() => openId.set(chat.id)}
            >
              {chat.title}
            </button>
            <button
              type="button"
              class="quiet"
              aria-label={`Delete ${chat.title}`}
              onClick={() => removeChat(chat.id)}
            >
              ×
            </button>
          </li>
        ))}
      </ul>
    </nav>
  );
}

type ToolbarProps = {
  chat: Chat;
  models: readonly string[];
  showsSettings: boolean;
  onSettings(): void;
};

function Toolbar({ chat, models, showsSettings, onSettings }: ToolbarProps) {
  const isDouble = chat.columns.length > 1;
  const options = [...new Set([...models, ...chat.columns.map(({ model }) => model)])];
  const other = options.find((model) => model !== chat.columns[0]!.model) ?? options[0];
  return (
    <header class="toolbar">
      {chat.columns.map(({ model }, column) => (
        <SelectField
          label={isDouble ? `Model ${column + 1}` : "Model"}
          value={model}
          options={options}
          onChange={(next) => setModel(chat.id, column, next)}
        />
      ))}
      <button
        type="button"
        aria-pressed={String(isDouble)}
        onClick={() => setSecondColumn(chat.id, isDouble ? undefined : other)}
      >
        Side by side
      </button>
      <button
        type="button"
        aria-expanded={String(showsSettings)}
        aria-controls="chat-settings"
        onClick={onSettings}
      >
        Settings
      </button>
    </header>
  );
}

function Thread({ chat, column }: { chat: Chat; column: number }) {
  const { model, leaf } = chat.columns[column]!;
  const path = pathTo(chat, leaf);
  const thread = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  const last = path.at(-1);
  useLayoutEffect(() => {
    const element = thread.current;
    if (element && follows.current) element.scrollTop = element.scrollHeight;
  }, [last]);
  const onScroll = () => {
    const { scrollHeight, scrollTop, clientHeight } = thread.current!;
    follows.current = scrollHeight - scrollTop - clientHeight < NEAR_PX;
  };
  const missing = last?.state === "streaming" ? [] : missingResults(chat, column);
  const calls = path.flatMap((message) => message.calls ?? []);
  return (
    <div class="thread" ref={thread} onScroll={onScroll} role="log" aria-label={model} tabindex={0}>
      {path.length === 0 && <p class="empty">Ask {model} something.</p>}
      {path.map((message) => (
        <Versioned chat={chat} column={column} message={message} key={message.id} />
      ))}
      {missing.map((callId) => (
        <ResultForm
          key={callId}
          call={calls.findLast(({ id }) => id === callId)!}
          onSend={(text) => sendResult(chat.id, column, callId, text)}
        />
      ))}
    </div>
  );
}

type VersionedProps = { chat: Chat; column: number; message: Message };

function Versioned({ chat, column, message }: VersionedProps) {
  const versions = versionsOf(chat, message);
  const version = versions.findIndex(({ id }) => id === message.id);
  return (
    <MessageView
      message={message}
      version={version}
      versions={versions.length}
      onVersion={(step) => showVersion(chat.id, column, versions[version + step]!)}
      onEdit={(text) => editQuestion(chat.id, column, message, text)}
      onRetry={() => retry(chat.id, column, message)}
    />
  );
}
