// The input of questions: Enter sends, Shift+Enter starts a new line. Also the input of tool results.
import { useState } from "hono/jsx/dom";
import { valueOf } from "../parts/form.tsx";
import type { Call } from "./chat.ts";

type ComposerProps = { isBusy: boolean; onSend(text: string): void; onStop(): void };

export function Composer({ isBusy, onSend, onStop }: ComposerProps) {
  const [draft, setDraft] = useState("");
  const send = () => {
    if (draft.trim() === "" || isBusy) return;
    onSend(draft);
    setDraft("");
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  return (
    <div class="composer">
      <textarea
        aria-label="Message"
        placeholder="Ask something"
        rows={1}
        value={draft}
        onInput={(event: Event) => setDraft(valueOf(event))}
        onKeyDown={onKeyDown}
      />
      {isBusy ? (
        <button type="button" class="stop" onClick={onStop}>
          Stop
        </button>
      ) : (
        <button type="button" class="main" disabled={draft.trim() === ""} onClick={send}>
          Send
        </button>
      )}
    </div>
  );
}

export function ResultForm({ call, onSend }: { call: Call; onSend(text: string): void }) {
  const [draft, setDraft] = useState("");
  return (
    <div class="composer">
      <textarea
        aria-label={`Result of ${call.name}`}
        placeholder={`What ${call.name} returns`}
        rows={1}
        value={draft}
        onInput={(event: Event) => setDraft(valueOf(event))}
      />
      <button type="button" class="main" onClick={() => onSend(draft)}>
        Send result
      </button>
    </div>
  );
}
