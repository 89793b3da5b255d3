// The frame around the pages: navigation, session, and a form for the API key if the server needs one.
import { useEffect, useState } from "hono/jsx/dom";
import { pages } from "./pages.ts";
import { TextField } from "./parts/form.tsx";
import { keep, kept } from "./parts/kept.ts";
import { percent } from "./parts/numbers.ts";
import { hasKey, setKey } from "./parts/server.ts";
import { refreshHealth, refreshSession, type Session, session } from "./parts/session.ts";
import { useStore } from "./parts/store.ts";

const HEALTH_MS = 2000;

const pageOf = () => pages.find(({ name }) => `#${name}` === location.hash) ?? pages[0]!;

export function App() {
  const now = useStore(session);
  const [page, setPage] = useState(pageOf);
  useEffect(() => {
    const onHash = () => setPage(pageOf());
    addEventListener("hashchange", onHash);
    void refreshSession();
    // Errors are ignored: a page that requests data reports an unreachable server itself.
    const timer = setInterval(() => void refreshHealth().catch(() => {}), HEALTH_MS);
    return () => {
      clearInterval(timer);
      removeEventListener("hashchange", onHash);
    };
  }, []);
  useEffect(() => {
    document.title = `${page.title} · mlx-serve`;
  }, [page]);
  return (
    <>
      <header class="frame">
        <h1>mlx-serve</h1>
        <nav aria-label="Pages">
          {pages.map(({ name, title }) => (
            <a href={`#${name}`} aria-current={name === page.name ? "page" : undefined}>
              {title}
            </a>
          ))}
        </nav>
        <p class="note" role="status">
          {activityOf(now.health)}
        </p>
        <SchemeButton />
        {hasKey() && (
          <button type="button" class="quiet" onClick={forgetKey}>
            Forget key
          </button>
        )}
      </header>
      <main tabindex={0} aria-label={page.title}>
        <Content session={now} page={page} />
      </main>
    </>
  );
}

const activities = {
  load: "loading",
  warm_up: "warming up",
  compile: "compiling kernels",
  drain: "shutting down",
} as const;

function activityOf({ status, reason, activity }: Session["health"]): string {
  if (!activity) return status === "ok" ? "" : (reason ?? status);
  const { kind, model, done } = activity;
  return [activities[kind], model, done !== undefined && partOf(done, activity.total)]
    .filter(Boolean)
    .join(" ");
}

/** Formats progress in percent. Without a total, as for compiled kernels, formats the plain count. */
const partOf = (done: number, total: number | undefined) =>
  total === undefined ? `(${done})` : percent(done, total);

function Content({ session: now, page }: { session: Session; page: (typeof pages)[number] }) {
  if (now.state === "asking") return <p class="empty">Asking the server…</p>;
  if (now.state === "unreachable") return <Unreachable problem={now.problem} />;
  if (now.state !== "open") return <KeyForm isWrong={now.state === "wrong key"} />;
  if (page.isForOwner && !now.owner) {
    return <p class="empty">This page needs the owner's key; the key in use is {now.name}.</p>;
  }
  const { View } = page;
  return <View />;
}

function Unreachable({ problem }: { problem: string }) {
  return (
    <div class="empty">
      <p role="alert">The server does not respond: {problem}</p>
      <button type="button" onClick={() => void refreshSession()}>
        Try again
      </button>
    </div>
  );
}

function KeyForm({ isWrong }: { isWrong: boolean }) {
  const [draft, setDraft] = useState("");
  const enter = () => {
    if (draft.trim() === "") return;
    setKey(draft.trim());
    setDraft("");
    void refreshSession();
  };
  return (
    <section
      class="card key"
      aria-label="Key"
      onKeyDown={(event: KeyboardEvent) => event.key === "Enter" && enter()}
    >
      <h2>This server needs a key</h2>
      <TextField label="API key" type="password" value={draft} onChange={setDraft} />
      {isWrong && (
        <p class="problem" role="alert">
          The server rejects this key.
        </p>
      )}
      <p class="note">The key is stored in this browser, and sent to this server only.</p>
      <button type="button" class="main" onClick={enter}>
        Enter
      </button>
    </section>
  );
}

function forgetKey(): void {
  setKey(undefined);
  void refreshSession();
}

const schemes = ["system", "light", "dark"] as const;

export function applyScheme(): void {
  document.documentElement.dataset.scheme = kept("scheme") ?? "system";
}

function SchemeButton() {
  const [scheme, setScheme] = useState(kept("scheme") ?? "system");
  const next = schemes[(schemes.indexOf(scheme as "system") + 1) % schemes.length]!;
  const change = () => {
    keep("scheme", next);
    applyScheme();
    setScheme(next);
  };
  return (
    <button type="button" class="quiet" aria-label={`Colours: ${scheme}`} onClick={change}>
      {scheme === "system" ? "◐" : scheme === "light" ? "☀" : "☾"}
    </button>
  );
}
